"""A service of OctoAI: python -m octoai.server --service-module before run --port 8001"""

from octoai.service import Service


class Reviews(Service):
    def setup(self) -> None:
        self.words = {"good": 1, "great": 2, "bad": -1}

    def infer(self, text: str, least: int = 1) -> bool:
        return sum(self.words.get(word, 0) for word in text.split()) >= least

    def count_words(self, text: str) -> int:
        return len(text.split())
