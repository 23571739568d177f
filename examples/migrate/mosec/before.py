"""Two stages of mosec: python before.py --port 8001"""

from typing import Any

from mosec import Server, ValidationError, Worker


class Clean(Worker):
    def forward(self, data: dict[str, Any]) -> list[str]:
        if not isinstance(data.get("text"), str):
            raise ValidationError("text is required")
        return data["text"].lower().split()


class Rate(Worker):
    def __init__(self) -> None:
        self.words = {"good": 1, "great": 2, "bad": -1}

    def forward(self, data: list[list[str]]) -> list[dict[str, Any]]:
        return [self.rating(words) for words in data]

    def rating(self, words: list[str]) -> dict[str, Any]:
        score = sum(self.words.get(word, 0) for word in words)
        return {"score": score, "good": score > 0}


if __name__ == "__main__":
    server = Server()
    server.append_worker(Clean, num=1)
    server.append_worker(Rate, num=2, max_batch_size=32, max_wait_time=10, timeout=5)
    server.run()
