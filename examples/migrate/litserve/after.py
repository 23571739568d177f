"""The same in Callboard: callboard serve after.py"""

from dataclasses import dataclass

import callboard as cb


@dataclass
class Request:
    input: float


@dataclass
class Answer:
    output: float


@cb.service(route="/predict", replicas=2, timeout="5s")
class Square:
    def setup(self, device: str) -> None:
        self.model = lambda values: [value**2 for value in values]

    @cb.batched(max_batch_size=8)
    def predict(self, requests: list[Request]) -> list[Answer]:
        return [Answer(output) for output in self.model([request.input for request in requests])]
