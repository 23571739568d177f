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
    # What was handed over, and what the operator holds.
    assert len(pulled) <= 5

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
            while len(pulled) < 5:
                await asyncio.sleep(0)
            # Time for more than that.
            for _ in range(9):
                await asyncio.sleep(0)
        assert left.is_set() and len(pulled) <= 5

    asyncio.run(asyncio.wait_for(asynchronous(), LIMIT))


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


def test_what_a_function_of_a_parmap_cancels_is_a_result_and_a_cancelled_reader_is_cancelled() -> None:
    async def waits(item: int) -> int:
        task = asyncio.ensure_future(asyncio.sleep(LIMIT if item else 0))
        if item == 1:
            task.cancel()
        await task
        return item

    async def check() -> None:
        stream = AsyncStream(range(3)).parmap(waits, workers=3)
        assert await anext(stream) == 0
        assert isinstance(await anext(stream), asyncio.CancelledError)
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(check())

    def cancelled(_: int) -> None:
        raise asyncio.CancelledError

    assert [type(each) for each in Stream([1]).parmap(cancelled)] == [asyncio.CancelledError]


@pytest.mark.parametrize("name", ["batch", "buffer", "parmap"])
def test_an_operator_that_has_not_begun_closes_what_is_before_it(name: str) -> None:
    closed: list[str] = []

    def source(kind: str) -> Iterator[int]:
        try:
            yield from range(3)
        finally:
            closed.append(kind)

    async def asynchronous_source() -> AsyncIterator[int]:
        try:
            for number in range(3):
                yield number
        finally:
            closed.append("task")

    def operated(stream: Any) -> Any:
        return stream.parmap(str) if name == "parmap" else getattr(stream, name)(2)

    begun = Stream(source("thread"))
    assert next(begun) == 0
    operated(operated(begun)).close()

    async def check() -> None:
        begun = AsyncStream(asynchronous_source())
        assert await anext(begun) == 0
        await operated(operated(begun)).aclose()
        assert closed == ["thread", "task"]

    asyncio.run(check())


def test_to_close_an_operator_ends_the_calls_in_flight_of_a_client() -> None:
    waits, release = threading.Event(), threading.Event()

    def slow(request: Any) -> bytes:
        waits.set()
        release.wait(2 * LIMIT)
        return echo(request)

    before = set(threading.enumerate())
    with Node(slow) as node, Client(node.url) as client:
        stream = client.map("/echo", range(100), in_flight=2).buffer(4).parmap(str)
        reading = threading.Thread(target=lambda: list(stream))
        reading.start()
        assert waits.wait(LIMIT)
        pullers = [each for each in threading.enumerate() if each not in before and each.name == "callboard-stream"]
        stream.close()
        for each in (reading, *pullers):
            each.join(LIMIT)
            assert not each.is_alive()
        assert len(pullers) == 2
        release.set()


def test_a_branch_of_a_tee_that_another_thread_waits_in_ends_when_it_is_closed() -> None:
    release, closed, is_pulling = threading.Event(), threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        try:
            is_pulling.set()
            release.wait(LIMIT)
            yield 0
        finally:
            closed.set()

    one, other = Stream(source()).tee()
    found: dict[str, list[int]] = {}
    pulling = threading.Thread(target=lambda: found.update(one=list(one)))
    pulling.start()
    assert is_pulling.wait(LIMIT)
    waiting = threading.Thread(target=lambda: found.update(other=list(other)))
    waiting.start()
    other.close()
    waiting.join(LIMIT)
    assert found == {"other": []}
    # The source is in use, so it is closed by the thread that waits for it.
    one.close()
    release.set()
    pulling.join(LIMIT)
    assert found == {"other": [], "one": []} and closed.is_set()


def test_tasks_that_are_items_of_a_buffer_stay_tasks() -> None:
    async def check() -> None:
        tasks = [asyncio.ensure_future(asyncio.sleep(0, number)) for number in range(3)]
        async with AsyncStream(tasks).buffer(2) as stream:
            assert await anext(stream) is tasks[0]
        assert await asyncio.gather(*tasks) == [0, 1, 2]

    asyncio.run(check())


def test_branches_of_an_asynchronous_tee_that_other_tasks_wait_in_end_when_they_are_closed() -> None:
    async def check() -> None:
        closed: list[bool] = []

        async def source() -> AsyncIterator[int]:
            try:
                await asyncio.sleep(2 * LIMIT)
                yield 0
            finally:
                closed.append(True)

        branches = AsyncStream(source()).tee()
        reading = [asyncio.ensure_future(anext(each, "end")) for each in branches]
        await asyncio.sleep(0.01)
        for branch, read in zip(reversed(branches), reversed(reading), strict=True):
            await branch.aclose()
            assert await asyncio.wait_for(read, LIMIT) == "end" == await anext(branch, "end")
        assert closed == [True]

    asyncio.run(check())


def test_a_parmap_that_is_open_when_its_event_loop_ends_is_closed_without_trouble(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = []

    async def check() -> None:
        async def later(item: int) -> int:
            try:
                await asyncio.sleep(2 * LIMIT * item)
            finally:
                await asyncio.sleep(0)
            return item

        kept.append(AsyncStream(range(10)).parmap(later))
        assert await anext(kept[0]) == 0

    asyncio.run(check())
    assert not caplog.records
