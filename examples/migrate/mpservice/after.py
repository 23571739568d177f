"""The same in Callboard: callboard serve after.py --max-in-flight 256"""

import callboard as cb


@cb.service(timeout="5s")
class Clean:
    def predict(self, text: str) -> list[str]:
        return text.lower().split()


@cb.service(replicas=2, timeout="5s")
class Count:
    def setup(self) -> None:
        self.words = {"good": 1, "great": 2, "bad": -1}

    @cb.batched(max_batch_size=32)
    def predict(self, reviews: list[list[str]]) -> list[int]:
        return [sum(self.words.get(word, 0) for word in words) for words in reviews]


rate = cb.pipeline(Clean, Count)
