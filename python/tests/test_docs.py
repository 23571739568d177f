"""The API reference: it has every public name, and each says what it takes and what it raises."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import callboard as cb
from callboard import client, relay

PAGE = Path(__file__).parents[2] / "docs/python/reference.md"
DIRECTIVES = re.findall(r"^::: (\S+)$", PAGE.read_text(), re.MULTILINE)


def found(path: str) -> Any:
    """The object of a directive."""
    module, names = path, []
    while True:
        try:
            value: Any = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, name = module.rpartition(".")
            names.insert(0, name)
    for name in names:
        value = getattr(value, name)
    return value


def objects() -> Iterator[tuple[str, Any]]:
    """Every class and function on the page."""
    for path in DIRECTIVES:
        value = found(path)
        if isinstance(value, ModuleType):
            own = [each for each in vars(value).values() if getattr(each, "__module__", None) == value.__name__]
            yield from ((each.__name__, each) for each in own if isinstance(each, type))
        else:
            yield path, value


def test_the_reference_has_every_public_name() -> None:
    page = PAGE.read_text()
    shown = {value for _, value in objects()}
    for module in (cb, client, relay):
        for name in module.__all__:
            in_words = (f"### `{name}`", f"`cb.{name}`", f"`relay.{name}`")
            assert getattr(module, name) in shown or any(words in page for words in in_words), name


@pytest.mark.parametrize("path", DIRECTIVES)
def test_each_name_of_the_reference_has_a_docstring(path: str) -> None:
    value = found(path)
    assert inspect.getdoc(value), path
    for name, member in vars(value).items() if isinstance(value, type) else ():
        member = getattr(member, "__func__", member)
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            assert inspect.getdoc(member), f"{path}.{name}"


# Callables that take wrong arguments.
RAISING = [path for path, value in objects() if inspect.isfunction(value)]


@pytest.mark.parametrize("path", RAISING)
def test_each_function_of_the_reference_says_what_it_raises(path: str) -> None:
    text = inspect.getdoc(found(path)) or ""
    assert re.search(r"Raises `\w+`|raises `\w+`|is refused with status", text), path
