"""The runner without a worker around it."""

from __future__ import annotations

import types

import pytest

import callboard as cb
from callboard import _context, _runner
from callboard._context import Context
from callboard._conversion import converter
from callboard._runner import Cancelled, Failure, Runner
from callboard._target import routes_of


@cb.function
def double(number: int) -> int:
    return 2 * number


def run(monkeypatch: pytest.MonkeyPatch, seconds: float) -> tuple[list[object], int]:
    """Three items, whose code takes so long by the clock. The first look finds that the caller of the last has left."""
    now, looks = [0.0], [0]
    contexts = [Context() for _ in range(3)]

    def monotonic() -> float:
        now[0] += seconds
        return now[0]

    def look() -> None:
        looks[0] += 1
        contexts[2]._cancelled = True

    monkeypatch.setattr(_runner, "time", types.SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(_context, "look", look)
    (route,) = routes_of(double, "test_runner:double")
    return Runner(route, route.instance()).run([1, 2, 3], contexts, lambda index, output: None), looks[0]


def test_quick_items_are_run_without_a_look_at_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, 0.0) == ([2, 4, 6], 0)


def test_between_slow_items_it_is_seen_that_a_caller_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, second, third), looks = run(monkeypatch, 0.01)
    assert (first, second) == (2, 4) and looks > 0
    assert isinstance(third, Failure) and isinstance(third.error, Cancelled)


def test_a_value_that_does_not_fit_is_named_by_its_place() -> None:
    assert converter(dict[str, float])({"x": 1}) == {"x": 1.0}
    with pytest.raises(cb.InvalidInput, match=r"Expected `float`, got `str` - at `\$\[\"x\"\]`"):
        converter(dict[str, float])({"x": "one"})


class Odd:
    """A model whose check fails in its own way."""

    @classmethod
    def model_json_schema(cls) -> dict[str, object]:
        return {"type": "object"}

    @classmethod
    def model_validate(cls, value: object) -> Odd:
        if value == 2:
            raise RuntimeError("even")
        return cls()


@cb.batched(max_batch_size=8)
@cb.function
def count(items: list[Odd]) -> list[int]:
    return [len(items)] * len(items)


def outputs_of(function: object, inputs: list[object]) -> list[object]:
    (route,) = routes_of(function, "test_runner")
    contexts = [Context() for _ in inputs]
    return Runner(route, route.instance()).run(inputs, contexts, lambda index, output: None)


def test_an_input_of_a_batch_that_cannot_be_converted_fails_alone() -> None:
    first, second, third = outputs_of(count, [1, 2, 3])
    assert (first, third) == (2, 2)
    assert isinstance(second, Failure) and isinstance(second.error, RuntimeError)
    first, second, third = outputs_of(double, [1, "two", 3])
    assert (first, third) == (2, 6)
    assert isinstance(second, Failure) and isinstance(second.error, cb.InvalidInput)
    first, second = outputs_of(double, [Failure(ValueError()), 3])
    assert isinstance(first, Failure) and second == 6
