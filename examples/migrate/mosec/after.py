"""The same in Callboard: callboard serve after.py"""

from dataclasses import dataclass

import callboard as cb


@dataclass
class Review:
    text: str


@dataclass
class Rating:
    score: int
    good: bool


@cb.service
class Clean:
    def predict(self, review: Review) -> list[str]:
        return review.text.lower().split()


@cb.service(replicas=2, timeout="5s")
class Rate:
    def setup(self) -> None:
        self.words = {"good": 1, "great": 2, "bad": -1}

    @cb.batched(max_batch_size=32)
    def predict(self, reviews: list[list[str]]) -> list[Rating]:
        return [self.rating(words) for words in reviews]

    def rating(self, words: list[str]) -> Rating:
        score = sum(self.words.get(word, 0) for word in words)
        return Rating(score, score > 0)


inference = cb.pipeline(Clean, Rate)
