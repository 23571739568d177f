"""A client in tasks, threads and event loops, after a fork, and at the end of the interpreter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from http_node import LIMIT, Node, Request, echo, frames, problem, value
from node import ENVIRONMENT

from callboard import AsyncClient, Client, _look_up
from callboard._envelope import decode
from callboard.client import DeadlineExceededError, FailedError, InvalidInputError, InvalidOutputError, UnavailableError
from callboard.client._http_connection import AsyncBody, Body
from callboard.client._http_pool import AsyncPooledTransport, PooledTransport


def test_an_async_client_makes_the_same_calls() -> None:
    def answer(request: Request) -> bytes:
        if request.path == "/count":
            return frames(1, 2)
        given = decode(request.body)
        return problem(500, "failed") if given == 3 else value(given)

    async def main(url: str) -> None:
        async with AsyncClient(url) as client:
            assert await client.call("/echo", 1, returns=int) == 1
            assert await client.send("echo", 1) == {"args": [1], "kwargs": {}}
            assert await client.call_prepared(client.prepare("/echo", 2)) == 2
            assert [each async for each in client.replies("/count", 1)] == [1, 2]
            results = [each async for each in client.stream("/echo", [1, 2, 3, object(), 5], look_ahead=2)]
            assert results[:2] == [1, 2] and results[4] == 5
            assert isinstance(results[2], FailedError) and isinstance(results[3], InvalidInputError)

            async def slow_inputs() -> Any:
                for number in range(3):
                    await asyncio.sleep(0.01)
                    yield number

            pairs = [pair async for pair in client.stream("/echo", slow_inputs(), with_inputs=True)]
            assert pairs == [(0, 0), (1, 1), (2, 2)]
            with pytest.raises(FailedError):
                async for _ in client.stream("/echo", [1, 3, 4], stop_at_error=True):
                    pass

    with Node(answer) as node:
        asyncio.run(main(node.url))


# The coroutine that a call waits in, in each of its phases.
PHASES = {
    "pool": "acquire",
    "pause": "sleep",
    "connect": "connect_tcp",
    "send": "write",
    "wait": "head_of_answer",
    "receive": "_whole",
    "replies": "begin",
}


def coroutines_of(task: asyncio.Task[Any]) -> set[str]:
    """The names of the coroutines that a task waits in."""
    found, each = set(), task.get_coro()
    while hasattr(each, "cr_code"):
        found.add(each.cr_code.co_name)
        each = each.cr_await
    return found


@pytest.mark.parametrize("phase", PHASES)
def test_a_cancelled_task_leaves_the_client_well(phase: str) -> None:
    """One connection only: a connection that is lost to the pool would block the next call."""
    release, reached = threading.Event(), threading.Event()
    silent = socket.create_server(("127.0.0.1", 0), backlog=0)
    # Nothing is read there; with a full backlog, nothing connects.
    queued = [socket.socket() for _ in range(4 if phase == "connect" else 0)]
    for each in queued:
        each.setblocking(False)
        each.connect_ex(silent.getsockname())

    def answer(request: Request) -> bytes | None:
        if request.path == "/echo":
            return echo(request)
        if phase == "pause" and request.number == 0:
            reached.set()
            return problem(429, "overloaded", retryable=True, retry_after="9")
        reached.set()
        if phase == "receive":
            return value(b"x" * 100_000)[:50_000]
        if phase == "replies":
            return frames(1, 2)[:-9]
        release.wait(LIMIT)
        return None

    outputs: list[Any] = []

    async def begin(client: AsyncClient) -> None:
        if phase == "replies":
            async for output in client.replies("/slow", 1):
                outputs.append(output)
        await client.call("/slow", np.zeros(64 << 20, np.uint8) if phase == "send" else 1)

    async def main(node: Node) -> None:
        at_silent = phase in ("connect", "send")
        url = f"http://127.0.0.1:{silent.getsockname()[1]}" if at_silent else node.url
        client = AsyncClient(url, max_connections=1, connect_timeout=LIMIT)
        holder = asyncio.ensure_future(client.call("/slow", 1)) if phase == "pool" else None
        if holder:
            assert await asyncio.to_thread(reached.wait, LIMIT)
        call = asyncio.ensure_future(begin(client))
        end = time.monotonic() + LIMIT
        # The end of this phase does not come.
        while PHASES[phase] not in coroutines_of(call) or (phase == "replies" and outputs != [1]):
            assert not call.done() and time.monotonic() < end, coroutines_of(call)
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        if phase == "replies":
            # The node reads the end of the connection.
            assert await asyncio.to_thread(node.closed.wait, LIMIT)
        release.set()
        if holder:
            with pytest.raises(UnavailableError):
                await holder
        if at_silent:
            with pytest.raises(DeadlineExceededError) as raised:
                await client.call("/slow", np.zeros(64 << 20, np.uint8), timeout=0.2)
            assert "max_connections" not in str(raised.value)
        else:
            assert await client.call("/echo", 2, timeout=LIMIT) == 2
        await client.aclose()

    try:
        with Node(answer) as node:
            asyncio.run(main(node))
    finally:
        for each in (silent, *queued):
            each.close()


def test_a_call_that_is_cancelled_in_any_turn_of_its_loop_leaves_room_for_the_next() -> None:
    async def main(node: Node) -> None:
        async with AsyncClient(node.url, max_connections=1) as client:
            for turns in range(200):
                call = asyncio.ensure_future(client.call("/echo", 1))
                for _ in range(turns):
                    await asyncio.sleep(0)
                is_done = call.done()
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                assert await client.call("/echo", 2, timeout=LIMIT) == 2, turns
                if is_done and turns > 20:
                    break

    with Node(echo) as node:
        asyncio.run(main(node))


def test_an_event_loop_that_ends_in_any_turn_cancels_its_calls() -> None:
    is_over = threading.Event()

    def answer(request: Request) -> bytes | None:
        is_over.wait(LIMIT)
        return None

    async def main(turns: int) -> asyncio.Future[Any]:
        call = asyncio.ensure_future(AsyncClient(node.url, timeout="10s").call("/echo", 1))
        for _ in range(turns):
            await asyncio.sleep(0)
        return call

    with Node(answer) as node:
        for turns in range(1, 40):
            assert asyncio.run(main(turns)).cancelled(), turns
        is_over.set()


def test_a_deadline_ends_a_look_up_and_a_host_with_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    places = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"192.0.2.{number}", 80)) for number in range(1, 9)]

    def look_up(host: str, *_: Any, **__: Any) -> Any:
        if host == "slow.test":
            release.wait(LIMIT)
        return places

    def connect(address: Any, timeout: float, **_: Any) -> Any:
        time.sleep(timeout)
        raise TimeoutError

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "create_connection", connect)
    try:
        for host in ("slow.test", "many.test"):
            start = time.monotonic()
            with Client(f"http://{host}", connect_timeout=LIMIT) as client, pytest.raises(DeadlineExceededError):
                client.call("/a", 1, timeout=0.2)
            assert time.monotonic() - start < LIMIT / 2
    finally:
        release.set()


def test_callers_share_a_bounded_number_of_look_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    release, names = threading.Event(), []

    def search(host: str, *_: Any, **__: Any) -> Any:
        names.append(host)
        release.wait(LIMIT)
        raise socket.gaierror("not found")

    monkeypatch.setattr(socket, "getaddrinfo", search)
    monkeypatch.setattr(_look_up, "LOOKUPS", 2)
    _look_up.turns.cache_clear()
    try:
        for number in range(4):
            with Client(f"http://n{number}.test") as client, pytest.raises(DeadlineExceededError):
                client.call("/a", 1, timeout=0.1)
        assert names == ["n0.test", "n1.test"]
    finally:
        release.set()
    with Client("http://last.test", start_up_wait=0) as client, pytest.raises(UnavailableError, match="is not known"):
        client.call("/a", 1, timeout=LIMIT)
    _look_up.turns.cache_clear()


def test_replies_that_are_left_cancel_their_call_and_an_output_that_cannot_be_read_ends_them() -> None:
    async def main(node: Node) -> None:
        async with AsyncClient(node.url) as client:
            async for each in client.replies("/count", 1):
                assert each == 1
                break
            assert await asyncio.to_thread(node.closed.wait, LIMIT)
            node.closed.clear()
            replies = client.replies("/count", 1, returns=str)
            with pytest.raises(InvalidOutputError):
                await anext(replies)
            assert await asyncio.to_thread(node.closed.wait, LIMIT)
            with pytest.raises(StopAsyncIteration):
                await anext(replies)

    with Node(lambda _: frames(1, 2)[:-9]) as node:
        asyncio.run(main(node))


def test_a_client_serves_two_event_loops() -> None:
    with Node(echo) as node:
        client = AsyncClient(node.url)

        async def main() -> None:
            assert await client.call("/echo", 1) == 1
            assert await client.call("/echo", 2) == 2

        asyncio.run(main())
        asyncio.run(main())
        threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        assert len(node.requests) == 8


def test_many_calls_at_the_same_time_keep_their_connections_and_cost_no_more_each() -> None:
    """As many connections as calls, and none beyond `max_connections`; the cost of a call does not grow with them."""

    async def main(url: str, count: int) -> int:
        async with AsyncClient(url, max_connections=count) as client:
            for _ in range(2):
                assert await asyncio.gather(*(client.call("/echo", n) for n in range(3 * count))) == [*range(3 * count)]
            looks = 0

            def look(_: Any, event: str, __: Any) -> None:
                nonlocal looks
                looks += event == "call"

            sys.setprofile(look)
            try:
                await asyncio.gather(*(client.call("/echo", n) for n in range(count)))
            finally:
                sys.setprofile(None)
        return looks // count

    with Node(echo) as node:
        few = asyncio.run(main(node.url, 8))
        assert node.connections == 8
        many = asyncio.run(main(node.url, 64))
        assert node.connections == 8 + 64
        assert 0 < many < 3 * few, (few, many)


def until(is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not is_done():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_idle_connections_of_a_burst_are_closed_by_the_next_calls(kind: Any) -> None:
    """And may be made again, as many as before."""
    count, keep_alive = 20, 0.3
    together = threading.Barrier(count)

    def answer(request: Request) -> bytes:
        if request.path == "/burst":
            together.wait(LIMIT)
        return echo(request)

    def blocking(node: Node) -> None:
        with Client(node.url, max_connections=count, keep_alive=keep_alive) as client:
            for burst in (1, 2):
                threads = [threading.Thread(target=client.call, args=("/burst", 1)) for _ in range(count)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(LIMIT)
                assert node.open == count, burst
                time.sleep(2 * keep_alive)
                assert client.call("/echo", 1) == 1
                until(lambda: node.open == 1)

    async def asynchronous(node: Node) -> None:
        async with AsyncClient(node.url, max_connections=count, keep_alive=keep_alive) as client:
            for burst in (1, 2):
                await asyncio.gather(*(client.call("/burst", 1) for _ in range(count)))
                assert node.open == count, burst
                await asyncio.sleep(2 * keep_alive)
                assert await client.call("/echo", 1) == 1
                until(lambda: node.open == 1)

    with Node(answer) as node:
        blocking(node) if kind is Client else asyncio.run(asynchronous(node))
        until(lambda: node.open == 0)


@pytest.mark.parametrize("kind", [PooledTransport, AsyncPooledTransport])
def test_all_connections_are_closed_also_if_one_fails_and_one_that_fails_to_be_made_is_not_counted(kind: Any) -> None:
    closed: list[int] = []
    fails = [True]

    class Transport(httpx.MockTransport):
        def __init__(self) -> None:
            if fails and fails.pop():
                raise OSError("not made")
            super().__init__(lambda _: httpx.Response(200, stream=body(iter([b""]))))

        def close(self) -> None:
            closed.append(1)
            raise OSError("not closed")

        async def aclose(self) -> None:
            self.close()

    body = Body if kind is PooledTransport else AsyncBody
    pools = kind(Transport, 10, 20.0)
    request = httpx.Request("GET", "http://node")

    async def asynchronous() -> None:
        with pytest.raises(OSError, match="not made"):
            await pools.handle_async_request(request)
        for _ in range(10):
            await pools.handle_async_request(request)
        with pytest.raises(OSError, match="not closed"):
            await pools.aclose()

    def blocking() -> None:
        with pytest.raises(OSError, match="not made"):
            pools.handle_request(request)
        for _ in range(10):
            pools.handle_request(request)
        with pytest.raises(OSError, match="not closed"):
            pools.close()

    blocking() if kind is PooledTransport else asyncio.run(asynchronous())
    assert len(closed) == 10


def test_a_client_that_is_closed_in_one_event_loop_keeps_its_connections_in_others() -> None:
    with Node(echo) as node, contextlib.closing(asyncio.new_event_loop()) as one:
        client = AsyncClient(node.url)
        with contextlib.closing(asyncio.new_event_loop()) as other:
            for loop in (one, other):
                assert loop.run_until_complete(client.call("/echo", 1)) == 1
            other.run_until_complete(client.aclose())
        assert one.run_until_complete(client.call("/echo", 2)) == 2
        assert node.connections == 2
        one.run_until_complete(client.aclose())


def test_threads_share_a_client() -> None:
    with Node(echo) as node, Client(node.url) as client:
        wrong: list[Any] = []

        def work(own: int) -> None:
            wrong.extend(each for each in range(own, own + 30) if client.call("/echo", each) != each)

        threads = [threading.Thread(target=work, args=(100 * number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        assert wrong == [] and len(node.requests) == 240


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_has_connections_of_its_own() -> None:
    with Node(echo) as node, Client(node.url) as client:
        assert client.call("/echo", 1) == 1
        assert list(client.stream("/echo", [1, 2])) == [1, 2]
        connections = node.connections
        child = os.fork()
        if child == 0:
            try:
                good = client.call("/echo", 2) == 2 and list(client.stream("/echo", [3, 4])) == [3, 4]
                os._exit(0 if good else 1)
            except BaseException:
                os._exit(2)
        assert client.call("/echo", 3) == 3
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.call("/echo", 4) == 4
        assert node.connections > connections


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_an_async_client_has_connections_of_its_own_after_a_fork() -> None:
    with Node(echo) as node, contextlib.closing(asyncio.new_event_loop()) as loop:
        client = AsyncClient(node.url)
        assert loop.run_until_complete(client.call("/echo", 1)) == 1
        child = os.fork()
        if child == 0:
            try:
                calls = [client.call("/echo", number) for number in range(3)]
                good = asyncio.run(_gathered(calls)) == [0, 1, 2]
                os._exit(0 if good else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        connections = node.connections
        assert connections > 1
        assert loop.run_until_complete(client.call("/echo", 2)) == 2
        assert node.connections == connections
        loop.run_until_complete(client.aclose())


async def _gathered(calls: list[Any]) -> list[Any]:
    return await asyncio.gather(*calls)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_closes_a_client_whatever_the_parent_was_doing() -> None:
    """A lock that another thread of the parent held stays locked in the child."""
    with Node(echo) as node, Client(node.url) as client:
        assert client.call("/echo", 1) == 1
        with client._transport._http._lock:  # type: ignore[attr-defined]
            child = os.fork()
            if child == 0:
                signal.alarm(LIMIT)
                client.close()
                try:
                    client.call("/echo", 2)
                except RuntimeError:
                    os._exit(0)
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.call("/echo", 3) == 3 and node.connections == 1


@pytest.mark.parametrize("how", ["thread", "stream", "task", "replies", "async replies", "async stream"])
def test_an_interpreter_ends_with_calls_in_flight(how: str) -> None:
    release, reached = threading.Event(), threading.Event()

    def answer(request: Request) -> bytes | None:
        reached.set()
        if request.path == "/count":
            return frames(1, 2)[:-9]
        release.wait(LIMIT)
        return None

    code = """
        import asyncio, sys, threading
        from callboard import AsyncClient, Client, _look_up
        url, how = sys.argv[1:]
        if how == "thread":
            threading.Thread(target=Client(url).call, args=("/echo", 1), daemon=True).start()
        elif how == "stream":
            client = Client(url)
            threading.Thread(target=lambda: next(client.stream("/echo", range(9))), daemon=True).start()
        elif how == "replies":
            replies = Client(url).replies("/count", 1)
            assert next(replies) == 1
        elif how.startswith("async"):
            client = AsyncClient(url)
            outputs = client.replies("/count", 1) if how == "async replies" else client.stream("/echo", range(9))
            async def main():
                if how == "async replies":
                    assert await anext(outputs) == 1
                else:
                    task = asyncio.ensure_future(anext(outputs))
                    await asyncio.to_thread(sys.stdin.readline)
                    sys.exit()
            asyncio.run(main())
        else:
            async def main():
                task = asyncio.ensure_future(AsyncClient(url).call("/echo", 1))
                await asyncio.to_thread(sys.stdin.readline)
            asyncio.run(main())
            sys.exit()
        sys.stdin.readline()
    """
    with Node(answer) as node:
        command = [sys.executable, "-c", textwrap.dedent(code), node.url, how]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        assert reached.wait(LIMIT)
        _, printed = child.communicate("end\n", timeout=LIMIT)
        assert (child.returncode, printed) == (0, "")
        release.set()
