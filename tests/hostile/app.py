"""What hostile callers of services in Python meet: a number, a picture, and a text that may end the process."""

import os

import callboard as cb


@cb.function
def number(x: int) -> int:
    return x


@cb.function
def width(image: cb.Image) -> int:
    return int(image.pil().convert("RGB").size[0])


@cb.function
def word(text: str) -> str:
    if text == "exit":
        os._exit(7)
    return text
