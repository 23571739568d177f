"""Texts of user code's own objects, which may raise or exit as they are made, or be of any length."""

from __future__ import annotations

from collections.abc import Callable

from callboard._envelope.layout import type_name

# The longest text of an error or log record. A head has at most 4 MiB.
MAX_TEXT = 16 << 10


def said(what: object, write: Callable[[object], str] = str) -> str:
    """The `str` or `repr` of an object. If that raises or exits, only that it did."""
    try:
        return clip(write(what))
    except BaseException as error:
        return f"<{type_name(what)}: its {write.__name__}() raised {type_name(error)}>"


def clip(text: str) -> str:
    """A text that fits into a head, with its begin and end. It is UTF-8 even if user code made halves of characters."""
    if len(text) > MAX_TEXT:
        half = MAX_TEXT // 2
        text = f"{text[:half]}\n… {len(text) - MAX_TEXT} characters …\n{text[-half:]}"
    return text.encode(errors="replace").decode()
