"""Pipelines in the test client: they need `callboard._native`, and the comparison with a node needs the binary."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import select
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("callboard._native")

import composed
import httpx
import pipeline_app
from conftest import serving

import callboard as cb
from callboard._target import TargetError
from callboard.client import Client

APP = Path(__file__).with_name("pipeline_app.py")
LIMIT = 60


def test_the_test_client_runs_a_pipeline() -> None:
    with cb.test_client(composed.app) as client:
        assert client.call(" a ") == {"loud": "A!!", "size": 2}
        good, bad = client.batch(["b", ""])
        assert good["size"] == 2 and bad.status_code == 422
    with cb.test_client(composed.pick_one) as client:
        assert client.call({"want": "loud", "text": " x"}) == "X!"
        assert client.call({"want": "size", "text": "four"}) == 4
        assert client.call({"want": 7}) == {"want": 7}
    with cb.test_client(cb.ensemble(a=composed.Shout, b=composed.Size, partial=True)) as client:
        assert client.call("")["a"] == {"error": {"kind": "failed", "message": "no text"}}
    # As on a node: all members have failed.
    both = cb.ensemble(a=composed.Shout, b=composed.Shout, partial=True)
    with cb.test_client(both) as client, pytest.raises(cb.HTTPException, match="no text"):
        client.call("")
    with cb.test_client(cb.switch("on", true=cb.rename(on="off"))) as client:
        assert client.call({"on": True, "x": 1}) == {"off": True, "x": 1}
        with pytest.raises(cb.InvalidInput, match="`on` is false, for which there is no case; the cases are true"):
            client.call({"on": False})


# ---- As on a node ----------------------------------------------------------------------------------------------------

CASES = [
    ("chain", [4.0, -1.0, 14.0, "a", None]),
    ("both", [4.0, -1.0, 7.0]),
    ("failing", ["a", "b"]),
    ("partial", [4.0, -1.0, "a"]),
    ("refusing", [1]),
    (
        "wanted",
        [
            {"want": "1", "x": [1]},
            {"want": 1, "x": "a"},
            {"want": "half", "x": 4.0},
            {"want": "half", "x": -1.0},
            {"want": "half"},
            {"want": True, "x": 1, "z": 2},
            {"want": True},
            {"want": True, "x": 1, "y": 2},
            {"want": False, "x": 1},
            {"want": 1.5},
            {"want": None},
            {"x": 1},
            [1],
            3,
        ],
    ),
    ("fallback", [{"want": "half", "x": 4.0}, {"want": 5}, {}, "a"]),
    ("nested", [8.0, -8.0]),
    ("named", [-4.0]),
    ("stream", [6, 8, -1, "a"]),
]


@pytest.fixture(scope="module")
def node(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


def outcome(client: Client, route: str, value: Any) -> Any:
    """The outputs of a call, or all that its error says but the traceback."""
    outputs: list[Any] = []
    try:
        for output in client.replies(route, value, timeout=LIMIT):
            outputs.append(output)
    except cb.CallError as error:
        parts = (
            error.kind,
            error.message,
            error.status_code,
            error.type,
            error.details,
            error.retry_after,
            error.stage,
        )
        return outputs, parts, error.retryable, error.was_started
    return outputs


@pytest.mark.parametrize(("name", "values"), CASES)
def test_a_pipeline_has_the_outcomes_of_a_node(node: Client, name: str, values: list[Any]) -> None:
    with cb.test_client(getattr(pipeline_app, name)) as tested:
        for value in values:
            assert outcome(tested.client(), f"/{name}", value) == outcome(node, f"/{name}", value), value


def test_steps_choose_the_answer_as_on_a_node(tmp_path: Path) -> None:
    names = ("x-first", "x-both", "location")
    with serving(APP, tmp_path) as node, cb.test_client(pipeline_app.answering) as tested:
        for value in (0, 1, 2):
            context = cb.Context()
            tested.call(value, context=context)
            answer, chosen = httpx.post(f"{node.http}/answering", json=value), context.response
            assert chosen.status_code == answer.status_code
            assert [chosen.headers.get(name) for name in names] == [answer.headers.get(name) for name in names]
            assert chosen.headers["x-both"] == "lead"
        with cb.Client(node.http) as client:
            for each in (tested.client(), client):
                with pytest.raises(cb.CallError, match=r"redirects to /items/2\?page=2: call that route") as led:
                    each.call("/answering", 2)
                assert led.value.status_code == 303


# ---- What runs when --------------------------------------------------------------------------------------------------


# What asynchronous steps have come to.
LOG: dict[str, asyncio.Event] = {}


@cb.function
async def waits(x: int) -> int:
    LOG["entered"].set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        LOG["cancelled"].set()
        raise
    return x


@cb.function
async def enters(x: int) -> int:
    await LOG["entered"].wait()
    if x < 0:
        raise cb.HTTPException(409, "below zero")
    return x


@cb.function
async def opens(x: int) -> int:
    LOG["entered"].set()
    return x


def in_loop(test: Any) -> None:
    async def limited() -> None:
        LOG.update(entered=asyncio.Event(), cancelled=asyncio.Event())
        await asyncio.wait_for(test(), LIMIT)

    asyncio.run(limited())


def test_members_run_at_the_same_time() -> None:
    async def test() -> None:
        async with cb.test_client(cb.ensemble(first=enters, second=opens)) as client:
            assert await client.call(1) == {"first": 1, "second": 1}

    in_loop(test)


def test_the_first_error_cancels_the_other_members() -> None:
    async def test() -> None:
        async with cb.test_client(cb.ensemble(first=waits, second=enters)) as client:
            with pytest.raises(cb.HTTPException, match="below zero"):
                await client.call(-1)
            await LOG["cancelled"].wait()

    in_loop(test)


def test_a_cancelled_call_cancels_its_step() -> None:
    async def test() -> None:
        async with cb.test_client(cb.pipeline(waits, opens)) as client:
            call = asyncio.ensure_future(client.call(1))
            await LOG["entered"].wait()
            call.cancel()
            await LOG["cancelled"].wait()

    in_loop(test)


def test_an_open_step_ends_with_the_client() -> None:
    async def test() -> None:
        async with cb.test_client(cb.pipeline(waits)) as client:
            call = asyncio.ensure_future(client.call(1))
            await LOG["entered"].wait()
        assert LOG["cancelled"].is_set()
        with pytest.raises(cb.CallError, match="the test client is closed"):
            await call

    in_loop(test)


def test_an_open_call_can_be_cancelled_after_the_client() -> None:
    async def test() -> None:
        async with cb.test_client(cb.pipeline(waits)) as client:
            call = asyncio.ensure_future(client.call(1))
            # It begins, and the loop does not run again until it is cancelled.
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    in_loop(test)


def test_a_step_that_is_cancelled_before_it_starts_leaves_no_task() -> None:
    async def test() -> None:
        async with cb.test_client(cb.pipeline(waits)) as client:
            steps: Any = client._app
            events = select.poll()
            events.register(steps._engine, select.POLLIN)
            call = asyncio.ensure_future(client.call(1))
            await asyncio.sleep(0)
            # The loop does not run until the task is cancelled.
            events.poll()
            steps._take()
            tasks = list(steps._tasks.values())
            steps._engine.cancel(0)
            events.poll()
            steps._take()
            await asyncio.wait(tasks)
            assert tasks[0].cancelled() and not LOG["entered"].is_set()
            assert not steps._tasks
            call.cancel()

    in_loop(test)


def test_calls_beyond_the_queue_of_a_step_are_refused() -> None:
    @cb.function
    async def step(x: int) -> int:
        await LOG["entered"].wait()
        return x

    async def test() -> None:
        async with cb.test_client(cb.pipeline(step)) as client:
            calls = [asyncio.ensure_future(client.call(x)) for x in range(1100)]
            done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            LOG["entered"].set()
            found = await asyncio.gather(*calls, return_exceptions=True)
        refused = [error for error in found if isinstance(error, cb.CallError)]
        assert len(refused) >= len(done) > 0 and {error.kind for error in refused} == {"overloaded"}
        assert all(output == x for x, output in enumerate(found) if output not in refused)

    in_loop(test)


@cb.function
def interrupts(x: int) -> int:
    if x < 0:
        raise KeyboardInterrupt
    return x


def test_an_interrupt_ends_its_call_alone() -> None:
    with cb.test_client(cb.pipeline(interrupts, pipeline_app.same)) as client:
        with pytest.raises(KeyboardInterrupt):
            client.call(-1)
        assert client.call(1) == 1


def test_an_interrupt_loses_no_call_of_another_thread() -> None:
    found: dict[str, Any] = {}
    entered = threading.Event()

    def is_open(count: int) -> None:
        """Waits until the calls of this number of threads are open."""
        limit = time.monotonic() + LIMIT
        while len(steps._calls) < count and time.monotonic() < limit:
            time.sleep(0.001)

    @cb.function
    def holds(value: Any) -> Any:
        # The other threads wait for this one.
        entered.set()
        is_open(3)
        steps._events.poll(1000 * LIMIT)
        return value

    @cb.function
    def raises(value: Any) -> Any:
        raise KeyboardInterrupt

    def call(want: str) -> None:
        try:
            found[want] = client.call({"want": want})
        except BaseException as error:
            found[want] = type(error)

    app = cb.switch("want", holds=holds, raises=raises, same=pipeline_app.same)
    with cb.test_client(app) as client:
        steps: Any = client._app
        threads = [threading.Thread(target=call, args=(want,), daemon=True) for want in ("holds", "raises", "same")]
        for count, thread in enumerate(threads):
            is_open(count)
            thread.start()
            entered.wait(LIMIT)
        for thread in threads:
            thread.join(LIMIT)
            assert not thread.is_alive()
    # The thread that runs a step gets its interrupt too.
    assert found["same"] == {"want": "same"} and found["raises"] is KeyboardInterrupt


def test_a_client_closes_when_the_code_of_other_threads_has_ended() -> None:
    log: list[str] = []
    entered, leaves = threading.Event(), threading.Event()

    class Slow:
        def predict(self, x: int) -> int:
            entered.set()
            leaves.wait(LIMIT)
            log.append("predict")
            return x

        def cleanup(self) -> None:
            log.append("cleanup")

    with cb.test_client(cb.pipeline(Slow)) as client:
        thread = threading.Thread(target=client.call, args=(1,), daemon=True)
        thread.start()
        entered.wait(LIMIT)
        threading.Timer(0.05, leaves.set).start()
    thread.join(LIMIT)
    assert log == ["predict", "cleanup"] and not thread.is_alive()


def test_a_failed_setup_closes_the_steps_before_it() -> None:
    log: list[str] = []

    class First:
        def setup(self) -> None:
            log.append("setup")

        def predict(self, x: int) -> int:
            return x

        def cleanup(self) -> None:
            log.append("cleanup")

    class Second(First):
        def setup(self) -> None:
            raise ValueError("no weights")

    client = cb.test_client(cb.pipeline(First, Second))
    with pytest.raises(ValueError, match="no weights"), client:
        pass
    assert log == ["setup", "cleanup"]
    with pytest.raises(TargetError, match="the test client is closed"):
        client.call(1)


def test_a_late_call_runs_nothing() -> None:
    late = cb.Context(deadline=time.monotonic() - 1)
    with cb.test_client(cb.pipeline(composed.clean)) as client, pytest.raises(cb.CallError, match="deadline_exceeded"):
        client.call("a", context=late)


def test_a_step_gets_the_context_of_its_call() -> None:
    @cb.function
    def caller(x: int, context: cb.Context) -> Any:
        return context.caller

    with cb.test_client(cb.ensemble(a=caller, b=cb.pipeline(caller))) as client:
        assert client.call(1, context=cb.Context(caller="me")) == {"a": "me", "b": "me"}


def test_calls_of_several_threads_have_their_outcomes() -> None:
    found: dict[int, Any] = {}
    with cb.test_client(pipeline_app.chain) as client:

        def call(number: int) -> None:
            found[number] = client.call(float(number))

        threads = [threading.Thread(target=call, args=(2 * number,)) for number in range(20, 30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        assert client.batch([float(number) for number in range(100, 200)]) == [float(n) for n in range(100, 200)]
    assert found == {number: float(number) for number in range(40, 60, 2)}


class Large:
    """What failed code held."""


HELD: weakref.WeakSet[Large] = weakref.WeakSet()


@cb.function
def drops(x: int) -> int:
    large = Large()
    HELD.add(large)
    raise ValueError(x)


@cb.function
async def drops_later(x: int) -> int:
    large = Large()
    HELD.add(large)
    await asyncio.sleep(0)
    raise ValueError(x)


@pytest.mark.parametrize(
    "app",
    [
        cb.pipeline(pipeline_app.same, drops),
        cb.ensemble(a=pipeline_app.same, b=drops),
        cb.ensemble(a=pipeline_app.same, b=drops, partial=True),
        cb.pipeline(drops_later),
        cb.ensemble(a=drops_later, b=drops, partial=True),
        cb.ensemble(a=drops_later, b=pipeline_app.same, partial=True),
    ],
)
def test_a_failed_step_keeps_nothing(app: Any) -> None:
    gc.collect()
    gc.disable()
    try:
        with cb.test_client(app) as client:
            with contextlib.suppress(ValueError):
                client.call(1)
            assert len(HELD) == 0
            found = client.batch([1, 2])
            del found
            assert len(HELD) == 0
            with contextlib.suppress(cb.CallError):
                client.client().call("/app", 1)
            assert len(HELD) == 0
    finally:
        gc.enable()


def test_a_pipeline_runs_where_an_event_loop_runs() -> None:
    steps = cb.pipeline(composed.clean, composed.whisper)

    async def notebook() -> None:
        with cb.test_client(steps) as client:
            assert client.call(" AB ") == "ab"
        async with cb.test_client(steps) as asynchronous:
            assert await asynchronous.call(" AB ") == "ab"

    asyncio.run(notebook())


def test_a_plan_that_no_node_takes_is_refused() -> None:
    @cb.function
    async def words(text: str) -> AsyncIterator[str]:
        yield text

    with pytest.raises(TargetError, match="`words` answers with a stream"), cb.test_client(cb.ensemble(a=words)):
        pass

    @cb.function(route="/size")
    def other(text: str) -> int: ...

    with pytest.raises(TargetError, match="both called `size`"):
        cb.test_client(cb.pipeline(composed.Size, other))
