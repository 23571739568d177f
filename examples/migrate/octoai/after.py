"""The same in Callboard: callboard serve after.py"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import callboard as cb

T = TypeVar("T")


@dataclass
class Text:
    text: str


@dataclass
class Output(Generic[T]):
    output: T


@cb.service(route="/infer")
class Reviews:
    def setup(self) -> None:
        self.words = {"good": 1, "great": 2, "bad": -1}

    def predict(self, text: str, least: int = 1) -> Output[bool]:
        return Output(sum(self.words.get(word, 0) for word in text.split()) >= least)

    @cb.route("/count-words")
    def count_words(self, text: Text) -> Output[int]:
        return Output(len(text.text.split()))
