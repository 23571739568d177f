"""A client without a node: calls of an app in this process, and transports of another kind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import callboard as cb
from callboard.client import DeadlineExceededError, FailedError, InvalidInputError, NotFoundError
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


@cb.function
def said(x: int, context: cb.Context) -> dict[str, Any]:
    remaining = context.remaining()
    names = {name: getattr(context, name) for name in ("request_id", "route", "traceparent", "session")}
    return names | {"in_time": remaining is not None and 0 < remaining <= 60}


@cb.function
def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


left: list[BaseException] = []


@cb.function
async def waits(seconds: float) -> float:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError as error:
        left.append(error)
        raise
    return seconds


def test_a_call_here_has_its_name_and_deadline_as_on_a_node() -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    with cb.test_client(said) as app:
        context = app.client().call("/said", 1, timeout=60, request_id="r-1", traceparent=trace, session="s")
        other = app.client().call("/said", 1, session="t")
    assert (context["request_id"], context["route"], context["traceparent"]) == ("r-1", "/said", trace)
    assert context["in_time"] and not other["in_time"]
    assert context["session"] is not None and context["session"] != other["session"]
    with cb.test_client(slow) as app, pytest.raises(DeadlineExceededError):
        app.client().call("/slow", 0.05, timeout=0.01)
    with cb.test_client(waits) as app:
        with pytest.raises(DeadlineExceededError):
            app.client().call("/waits", 600.0, timeout=0.05)
        assert len(left) == 1
        assert app.client().call("/waits", 0.0, timeout=60) == 0.0


@cb.function
def endless(start: int) -> Iterator[int]:
    try:
        for number in itertools.count(start):
            if number == 7:
                raise ValueError("seven")
            yield number
    finally:
        left.append(StopIteration())


@cb.function
async def endless_later(start: int) -> AsyncIterator[int]:
    try:
        for number in itertools.count(start):
            if number == 7:
                raise ValueError("seven")
            await asyncio.sleep(0)
            yield number
    finally:
        left.append(StopIteration())


@pytest.mark.parametrize("app", [endless, endless_later])
def test_replies_here_come_one_by_one_and_end_their_code_when_they_are_left(app: Any) -> None:
    name = app.__name__
    left.clear()
    with cb.test_client(app) as found:
        replies = found.client().replies(name, 10)
        assert [next(replies), next(replies)] == [10, 11]
        replies.close()
        assert len(left) == 1
        came = []
        with pytest.raises(FailedError, match="ValueError: seven"):
            came.extend(found.client().replies(name, 5))
        assert len(left) == 2
        with pytest.raises(DeadlineExceededError):
            for _ in found.client().replies(name, 10, timeout=0.05):
                pass
        assert len(left) == 3
        with pytest.raises(InvalidInputError, match="`replies`"):
            found.client().call(name, 10)

    async def asynchronous() -> None:
        async with cb.test_client(app) as found:
            async with contextlib.aclosing(found.client().replies(name, 10)) as replies:
                assert await anext(replies) == 10
            assert len(left) == 4

    asyncio.run(asynchronous())


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


@cb.function(route="/public/login")
def login(name: str, times: int = 1) -> str:
    return name * times


def test_send_names_a_route_without_its_slash() -> None:
    with cb.test_client(login) as app:
        client = app.client()
        assert client.send("public/login", "a", times=2) == client.send("/public/login", "aa") == "aa"
        with pytest.raises(NotFoundError):
            client.send("login", "a")


def test_another_method_than_those_of_a_path_is_status_405() -> None:
    with cb.test_client(login) as app, pytest.raises(InvalidInputError) as raised:
        app.client().call("PUT /public/login", "a")
    assert raised.value.message == "method PUT is not allowed here; use POST"
    assert (raised.value.status_code, raised.value.type) == (405, "method_not_allowed")


def test_a_transport_of_another_kind_can_carry_the_calls() -> None:
    with pytest.raises(ValueError, match="url="):
        open_transport("carrier-pigeon://a", Settings())
