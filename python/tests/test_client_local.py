"""A client without a node: calls of an app in this process, and transports of another kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import callboard as cb
from callboard.client import FailedError, InvalidInputError, NotFoundError
from callboard.client.transport import Settings, open_transport


@cb.function
def half(x: float, digits: int = 2) -> float:
    if x < 0:
        raise cb.HTTPException(409, "below zero", {"Retry-After": "3"})
    return round(x / 2, digits)


@cb.function
def found(key: str) -> int:
    return {"a": 1}[key]


@cb.function
def numbers(n: int) -> Iterator[int]:
    yield from range(n)


def test_code_that_takes_a_client_is_tested_without_a_node() -> None:
    with cb.test_client(half) as app:
        client = app.client()
        assert client.call("/half", {"x": 3.0}, returns=float) == 1.5
        assert client.send("half", 1, digits=0) == 0.0 and client.send("half", x=3.0) == 1.5
        assert list(client.stream("/half", [{"x": 2.0}, {"x": "a"}, {"x": 4.0}]))[::2] == [1.0, 2.0]
        with pytest.raises(FailedError, match="below zero") as raised:
            client.send("half", -1.0)
        assert (raised.value.status_code, raised.value.retry_after) == (409, 3.0)
        with pytest.raises(InvalidInputError, match="argument `y`"):
            client.send("half", 1.0, y=2)
        with pytest.raises(NotFoundError):
            client.call("/third", 1)
    with cb.test_client(found) as app, pytest.raises(FailedError, match="KeyError: 'b'"):
        app.client().call("/found", "b")
    with cb.test_client(numbers) as app:
        assert list(app.client().replies("/numbers", 3)) == [0, 1, 2]
        with pytest.raises(InvalidInputError, match="`replies`"):
            app.client().call("/numbers", 3)


def test_a_transport_of_another_kind_can_carry_the_calls() -> None:
    with pytest.raises(ValueError, match="url="):
        open_transport("carrier-pigeon://a", Settings())
