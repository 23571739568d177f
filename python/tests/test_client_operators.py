"""Operators on streams: `batch`, `buffer`, `parmap` and `tee`, for threads and for tasks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from http_node import LIMIT, Node, echo

from callboard import AsyncClient, Client
from callboard.client import AsyncStream, Stream


def _failing(count: int) -> Iterator[int]:
    yield from range(count)
    raise LookupError("no more")


def _asynchronous(stream: Any) -> list[Any]:
    async def gather() -> list[Any]:
        return [each async for each in stream()]

    return asyncio.run(gather())


def test_operators_are_chained_on_the_results_of_a_client() -> None:
    with Node(echo) as node, Client(node.url) as client:
        batches = client.map("/echo", range(10)).buffer(4).batch(4).parmap(sum, workers=2)
        assert list(batches) == [6, 22, 17]

        async def asynchronous() -> list[int]:
            async with AsyncClient(node.url) as client:
                batches = client.stream("/echo", range(10)).buffer(4).batch(4).parmap(sum, workers=2)
                return [each async for each in batches]

        assert asyncio.run(asynchronous()) == [6, 22, 17]


@pytest.mark.parametrize("kind", [Stream, AsyncStream])
@pytest.mark.parametrize("name", ["batch", "buffer", "parmap"])
def test_the_error_of_a_source_comes_after_the_items_before_it(kind: Any, name: str) -> None:
    came: list[Any] = []

    def operated() -> Any:
        stream = kind(_failing(5))
        return stream.parmap(lambda item: [item]) if name == "parmap" else getattr(stream, name)(2)

    async def gather() -> None:
        async for each in operated():
            came.append(each)

    with pytest.raises(LookupError, match="no more"):
        if kind is Stream:
            came.extend(operated())
        else:
            asyncio.run(gather())
    assert came == {"batch": [[0, 1], [2, 3], [4]], "buffer": list(range(5)), "parmap": [[n] for n in range(5)]}[name]


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_a_parmap_has_exceptions_in_their_place_and_keeps_those_of_its_source(is_asynchronous: bool) -> None:
    source = [1, 0, ValueError("kept"), 2]
    if is_asynchronous:

        async def divided(item: int) -> float:
            await asyncio.sleep(0)
            return 1 / item

        results = _asynchronous(lambda: AsyncStream(source).parmap(divided))
        assert str(_asynchronous(lambda: AsyncStream(source).parmap(lambda item: 1 / item))) == str(results)
    else:
        results = list(Stream(source).parmap(lambda item: 1 / item))
    first, failed, kept, last = results
    assert (first, type(failed), str(kept), last) == (1.0, ZeroDivisionError, "kept", 0.5)


def test_a_parmap_runs_at_most_its_workers_and_keeps_the_order() -> None:
    running, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(3)

    def work(item: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if item < 3:
            together.wait(LIMIT)
        time.sleep(0.001 * (item % 3))
        with lock:
            running -= 1
        return item

    assert list(Stream(range(30)).parmap(work, workers=3)) == list(range(30))
    assert most == 3

    async def task(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (item % 3))
        running -= 1
        return item

    most = 0
    assert _asynchronous(lambda: AsyncStream(range(30)).parmap(task, workers=3)) == list(range(30))
    assert most == 3


@pytest.mark.parametrize("name", ["buffer", "parmap"])
def test_an_operator_pulls_no_more_than_it_has_room_for_and_ends_its_source(name: str) -> None:
    pulled, closed = [], threading.Event()

    def source() -> Iterator[int]:
        try:
            for number in range(1000):
                pulled.append(number)
                yield number
        finally:
            closed.set()

    stream = Stream(source())
    operated = stream.buffer(4) if name == "buffer" else stream.parmap(str, workers=4)
    assert next(operated) in (0, "0")
    operated.close()
    assert closed.wait(LIMIT)
    # What was handed over, what lies in the queue, what waits for room, and what was pulled at the end.
    assert len(pulled) <= 8

    async def asynchronous() -> None:
        pulled.clear()
        left = asyncio.Event()

        async def source() -> AsyncIterator[int]:
            try:
                for number in range(1000):
                    pulled.append(number)
                    yield number
            finally:
                left.set()

        stream = AsyncStream(source())
        async with stream.buffer(4) if name == "buffer" else stream.parmap(str, workers=4) as operated:
            assert await anext(operated) in (0, "0")
            await asyncio.sleep(0.01)
        assert left.is_set() and len(pulled) <= 7

    asyncio.run(asynchronous())


def test_branches_of_a_tee_have_all_items_and_the_slowest_bounds_the_others() -> None:
    pulled = []

    def source() -> Iterator[int]:
        for number in range(100):
            pulled.append(number)
            yield number

    fast, slow = Stream(source()).tee(ahead=4)
    found: list[int] = []
    reading = threading.Thread(target=lambda: found.extend(fast))
    reading.start()
    assert next(slow) == 0
    for expected in range(1, 100):
        assert len(pulled) <= expected + 5
        assert next(slow) == expected
    reading.join(LIMIT)
    assert found == list(range(100)) and list(slow) == []


def test_a_branch_of_a_tee_that_is_left_is_not_waited_for_and_the_last_one_ends_the_source() -> None:
    closed = threading.Event()

    def source() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.set()

    first, second, third = Stream(source()).tee(3, ahead=2)
    second.close()
    del third
    assert [next(first) for _ in range(50)] == list(range(50))
    first.close()
    assert closed.is_set() and list(first) == []
    one, other = Stream(_failing(1)).tee()
    assert next(one) == next(other) == 0
    for each in (one, other):
        with pytest.raises(LookupError):
            next(each)


def test_a_cancelled_reader_of_an_asynchronous_tee_costs_the_others_no_item() -> None:
    async def check() -> None:
        release = asyncio.Event()

        async def source() -> AsyncIterator[int]:
            yield 0
            await release.wait()
            for number in range(1, 5):
                yield number

        one, other = AsyncStream(source()).tee(ahead=2)
        assert await anext(one) == await anext(other) == 0
        reading = asyncio.ensure_future(anext(one))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        release.set()

        async def all_of(branch: Any) -> list[int]:
            return [each async for each in branch]

        assert await asyncio.gather(all_of(one), all_of(other)) == [[1, 2, 3, 4]] * 2

    asyncio.run(check())


def test_a_source_that_waits_for_what_was_cancelled_ends_its_buffer() -> None:
    async def source() -> AsyncIterator[int]:
        yield 0
        task = asyncio.ensure_future(asyncio.sleep(LIMIT))
        task.cancel()
        await task

    async def check() -> None:
        stream = AsyncStream(source()).buffer(2)
        assert await anext(stream) == 0
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(anext(stream), LIMIT)

    asyncio.run(check())
