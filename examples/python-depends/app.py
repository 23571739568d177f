"""Reads a number of several digits: a pipeline with a model, and a service that calls it, in one file.

    pip install .
    callboard serve examples/python-depends/app.py
    python -c 'import json; print(json.dumps([json.load(open("examples/python-digits/seven.json"))] * 2))' |
      curl localhost:8000/read-number -H 'content-type: application/json' -d @-

`callboard export examples/python-depends/app.py` prints the configuration file that it means.
"""

import asyncio
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import callboard as cb

Drawing = NDArray[np.float32]


@cb.function
def centre(drawing: Drawing) -> Drawing:
    """Moves a drawing of 8 by 8 pixels, from 0 to 16, to the middle of its picture."""
    if drawing.shape != (8, 8):
        raise cb.HTTPException(422, f"a drawing has 8 rows of 8 numbers, not {drawing.shape}")
    for axis in (0, 1):
        inked = np.flatnonzero(drawing.any(axis=1 - axis))
        if inked.size:
            drawing = np.roll(drawing, (7 - inked[0] - inked[-1]) // 2, axis=axis)
    return np.ascontiguousarray(drawing[np.newaxis])


# POST /digit: Python prepares, an ONNX model computes, Rust names. The steps have no routes of their own.
digit = cb.pipeline(
    centre,
    cb.onnx("../digits/digits.onnx", max_batch_size=32),
    cb.stage("labels", names=list("0123456789"), softmax=True),
)


@cb.service(contract="pure")
class Ink:
    """Tells how much of a drawing is inked."""

    @cb.batched(max_batch_size=32)
    def predict(self, drawings: list[Drawing]) -> list[float]:
        return [float(np.mean(drawing > 0)) for drawing in drawings]


@dataclass
class Number:
    number: str
    ink: float


@cb.service
class ReadNumber:
    """Reads the digits of a number, all at the same time."""

    digit = cb.depends("/digit")
    ink = cb.depends(Ink)

    @cb.concurrent(max=16)
    async def predict(self, drawings: list[Drawing]) -> Number:
        digits, inks = await asyncio.gather(self.digit.map(drawings), self.ink.map(drawings))
        return Number("".join(digit["label"] for digit in digits), sum(inks) / max(len(inks), 1))
