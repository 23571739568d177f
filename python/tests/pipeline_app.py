"""Pipelines that a node and the test client run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import callboard as cb


@cb.function
def same(value: Any) -> Any:
    return value


@cb.function
def half(x: float) -> float:
    if x < 0:
        raise cb.HTTPException(409, "below zero", {"Retry-After": "3"})
    return x / 2


@cb.function
def key(x: Any) -> str:
    return {"a": "found"}[str(x)]


@cb.function
def refuse(x: Any) -> Any:
    raise cb.InvalidInput("not this", [("$.x", "is wrong")])


@cb.function
def upto(n: int) -> Iterator[int]:
    yield from range(n)
    if n > 3:
        raise ValueError("too many")


@cb.function
def square(n: int) -> int:
    return n * n


@cb.service
class Double:
    @cb.batched(max_batch_size=8)
    def predict(self, xs: list[float]) -> list[float | Exception]:
        return [cb.HTTPException(429, {"left": 0}) if x == 7 else 2 * x for x in xs]


@cb.service
class Named:
    @cb.route("/named/first")
    def first(self, x: float) -> float:
        return x

    def predict(self, x: float) -> float:
        return -x


@cb.function(status_code=202)
def accept(x: int, context: cb.Context) -> int:
    context.response.headers["x-first"] = context.response.headers["x-both"] = "accept"
    if x == 1:
        context.response.status_code = 201
    return x


@cb.function
def lead(x: int, context: cb.Context) -> Any:
    context.response.headers["x-both"] = "lead"
    return cb.Redirect(f"/items/{x}?page=2", 303) if x > 1 else x


chain = cb.pipeline(half, Double, same)
both = cb.ensemble(half=half, twice=Double)
failing = cb.ensemble(half=same, key=key)
partial = cb.ensemble(half=half, key=key, wrong=refuse, partial=True)
refusing = cb.pipeline(cb.ensemble(one=refuse, two=refuse, partial=True), same)
wanted = cb.switch("want", {"1": cb.pick("x")}, half=[cb.pick("x"), half], true=cb.rename(x="y"))
fallback = cb.switch("want", default=cb.pick("want"), half=[cb.pick("x"), half])
nested = cb.pipeline(cb.ensemble(a=cb.ensemble(b=half, c=[]), d=[same, same]), cb.pick("a"), cb.rename(b="z"))
named = cb.pipeline(Named, half)
stream = cb.pipeline(half, same, upto, square)
answering = cb.pipeline(accept, lead)
