"""A service in Python.

    pip install .
    callboard serve examples/python/app.py
    curl localhost:8000/sentiment -H 'content-type: application/json' -d '"a good day"'
"""

import logging
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

import callboard as cb

GOOD = {"good", "great", "happy", "love"}
BAD = {"bad", "sad", "awful", "hate"}

log = logging.getLogger("app")


@cb.service(replicas=2, timeout="5s", contract="idempotent")
class Sentiment:
    """Tells whether a text is good or bad."""

    def setup(self) -> None:
        self.scores = dict.fromkeys(GOOD, 1) | dict.fromkeys(BAD, -1)

    @cb.batched(max_batch_size=32)
    def predict(self, texts: list[str]) -> list[Literal["good", "bad", "neutral"]]:
        return [self.label(text) for text in texts]

    def label(self, text: str) -> Literal["good", "bad", "neutral"] | cb.HTTPException:
        if not text.strip():
            # The failure of this item; the others are answered.
            return cb.HTTPException(422, "the text is empty")
        score = sum(self.scores.get(word, 0) for word in text.lower().split())
        return "good" if score > 0 else "bad" if score < 0 else "neutral"


@cb.service
class Words:
    """Gives the words of a text, one by one."""

    def predict(self, text: str) -> Iterator[str]:
        yield from text.split()


@cb.function
def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


@cb.function
def normalise(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Gives the vector the length 1."""
    length = float(np.linalg.norm(vector))
    if length == 0:
        log.warning("a vector without a direction")
        raise ValueError("the vector has no direction")
    return vector / np.float32(length)
