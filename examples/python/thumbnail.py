"""A picture in, a picture out.

    pip install ".[image]"
    callboard serve examples/python/thumbnail.py
    curl localhost:8000/thumbnail -F image=@cat.png -F size=64 -H 'accept: image/*' -o small.jpg
"""

from typing import Annotated

import numpy as np

import callboard as cb


@cb.function(contract="pure", timeout="10s")
def thumbnail(image: cb.Image, size: Annotated[int, cb.Field(ge=1, le=1024)] = 128) -> cb.Image:
    """Makes a picture smaller."""
    picture = image.pil("RGB")
    picture.thumbnail((size, size))
    return cb.Image.from_pil(picture, "JPEG")


@cb.function(contract="pure")
def colour(image: cb.Image) -> dict[str, int]:
    """Gives the mean colour of a picture."""
    mean = image.array().reshape(-1, 3).mean(axis=0)
    return dict(zip(("red", "green", "blue"), np.rint(mean).astype(int).tolist(), strict=True))
