"""The first step of a pipeline: brings a drawing into the form of the model."""

import numpy as np
from numpy.typing import NDArray

import callboard as cb


@cb.function
def centre(drawing: NDArray[np.float32]) -> NDArray[np.float32]:
    """Moves a drawing of 8 by 8 pixels, from 0 to 16, to the middle of its picture."""
    if drawing.shape != (8, 8):
        raise cb.HTTPException(422, f"a drawing has 8 rows of 8 numbers, not {drawing.shape}")
    for axis in (0, 1):
        inked = np.flatnonzero(drawing.any(axis=1 - axis))
        if inked.size:
            drawing = np.roll(drawing, (7 - inked[0] - inked[-1]) // 2, axis=axis)
    return np.ascontiguousarray(drawing[np.newaxis])
