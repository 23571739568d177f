"""The same in Callboard: callboard serve after.py"""

from dataclasses import dataclass
from typing import Annotated, Literal

import callboard as cb


@dataclass
class Input:
    text: Annotated[str, cb.Field(description="The review")]
    unit: Annotated[Literal["words", "letters"], cb.Field(description="What is counted")] = "words"
    factor: Annotated[float, cb.Field(description="What the sum is multiplied by", ge=0, le=10)] = 1.0


@dataclass
class Request:
    input: Input


@dataclass
class Prediction:
    output: float
    status: Literal["succeeded"] = "succeeded"


@cb.service(route="/predictions")
class Predictor:
    """Rates a review."""

    def setup(self) -> None:
        self.words = {"good": 1, "great": 2, "bad": -1}

    def predict(self, request: Request) -> Prediction:
        text, letters = request.input.text, request.input.unit == "letters"
        values = [self.words.get(word, 0) * (len(word) if letters else 1) for word in text.split()]
        return Prediction(request.input.factor * sum(values))
