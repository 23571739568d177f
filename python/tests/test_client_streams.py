"""Streams of a client: replies one by one, and many calls in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import socket
import struct
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
from http_node import LIMIT, Cut, Fault, Node, Request, echo, frames, problem, response, unused_port, value

from callboard import AsyncClient, CallError, Client
from callboard._envelope import decode, encode
from callboard.client import (
    CancelledCallError,
    DeadlineExceededError,
    FailedError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)
from callboard.client._http_calls import CallStream
from callboard.client._http_request import Endpoint
from callboard.client.policy import Absence
from callboard.client.transport import Options, Settings

HEAD_END = b"\r\n\r\n"


def test_replies_come_one_by_one_and_a_cut_stream_is_an_error() -> None:
    with Node(lambda request: frames(1, [2], end=decode(request.body))) as node, Client(node.url) as client:
        assert list(client.replies("/count", True)) == [1, [2]]
        replies = client.replies("/count", False)
        assert (next(replies), next(replies)) == (1, [2])
        with pytest.raises(UnavailableError, match="cut after 2 outputs"):
            next(replies)


def test_a_stream_whose_node_dies_says_so() -> None:
    whole = frames(1, 2, 3)
    chunked = whole.replace(
        f"content-length: {len(whole.partition(HEAD_END)[2])}".encode(), b"transfer-encoding: chunked"
    )
    head, _, body = chunked.partition(HEAD_END)
    cut = Cut(head + HEAD_END + b"%x\r\n%s\r\n" % (len(body) - 8, body[:-8]))
    with Node(lambda _: cut) as node, Client(node.url) as client:
        replies = client.replies("/count", 3)
        assert [next(replies) for _ in range(3)] == [1, 2, 3]
        with pytest.raises(UnavailableError, match=r"cut after 3 outputs: the connection to .* was lost") as raised:
            next(replies)
        assert "TLS" not in str(raised.value) and raised.value.was_started


def test_a_route_without_a_stream_replies_once() -> None:
    with Node(echo) as node, Client(node.url) as client:
        assert list(client.replies("/echo", 5)) == [5]


def test_an_error_in_a_stream_has_its_class() -> None:
    body = encode({"kind": "overloaded", "message": "m", "status": 429, "retryable": False})
    answer = response(struct.pack("<B3xI", 1, len(body)) + body, media_type="application/vnd.callboard.envelope-stream")
    with Node(lambda _: answer) as node, Client(node.url) as client, pytest.raises(OverloadedError):
        list(client.replies("/count", 1))


def test_a_stream_keeps_the_order_and_has_errors_in_their_place() -> None:
    def answer(request: Request) -> bytes:
        number = decode(request.body)
        time.sleep(random.random() * 0.01)
        return problem(500, "failed") if number == 3 else value(number)

    with Node(answer) as node, Client(node.url) as client:
        inputs = [0, 1, 2, 3, object(), *range(5, 40)]
        results = list(client.stream("/echo", inputs, look_ahead=8))
        assert [each for each in results if not isinstance(each, CallError)] == [0, 1, 2, *range(5, 40)]
        assert isinstance(results[3], FailedError) and isinstance(results[4], InvalidInputError)
        pairs = list(client.stream("/echo", range(5), with_inputs=True, returns=int))
        assert [pair[0] for pair in pairs] == list(range(5)) and pairs[4] == (4, 4)
        with pytest.raises(FailedError):
            list(client.stream("/echo", range(5), stop_at_error=True))


def test_a_stream_pulls_no_more_than_its_look_ahead_and_ends_what_is_in_flight() -> None:
    release, pulled = threading.Event(), []

    def inputs() -> Any:
        for number in range(1000):
            pulled.append(number)
            yield number

    def answer(request: Request) -> bytes | None:
        if (number := decode(request.body)) != 0:
            release.wait(LIMIT)
        return value(number)

    with Node(answer) as node, Client(node.url) as client:
        for result in client.stream("/echo", inputs(), look_ahead=4):
            assert result == 0
            break
        assert 1 <= len(pulled) <= 5
        # The connections of the calls in flight are closed: the next read there finds the end.
        release.set()
        assert node.closed.wait(LIMIT)


def test_a_stream_waits_for_a_node_that_restarts() -> None:
    port, starting = unused_port(), problem(503, "unavailable", retryable=True)
    inputs = iter(range(40))
    with Node(echo, port) as node, Client(node.url) as client:
        results = client.stream("/echo", inputs, look_ahead=4)
        assert [next(results) for _ in range(8)] == list(range(8))
        node.close()
        restarted = threading.Timer(0.3, lambda: Node(lambda each: starting if each.number < 8 else echo(each), port))
        restarted.start()
        rest = list(results)
        restarted.join()
    # The calls in flight when the node went away may have run, so they are not made again.
    lost = [each for each in rest if isinstance(each, CallError)]
    assert len(lost) <= 4 and all(each.was_started for each in lost)
    assert [each for each in rest if not isinstance(each, CallError)][-1] == 39 and len(rest) == 32


def test_a_stream_does_not_wait_again_for_each_input_while_the_node_is_away() -> None:
    with Node(echo) as node, Client(node.url, start_up_wait=0.5) as client:
        assert client.call("/echo", 1) == 1
        node.close()
        began = time.monotonic()
        results = list(client.stream("/echo", range(200), look_ahead=2))
        assert all(isinstance(each, UnavailableError) for each in results) and time.monotonic() - began < LIMIT
        assert "after 0.5 s" in str(results[-1])


def test_a_stream_is_one_request_and_ends_it() -> None:
    async def asynchronous(url: str) -> list[Any]:
        async with AsyncClient(url) as client:
            return [each async for each in client.stream("/echo", range(200))]

    with Node(echo) as node:
        with Client(node.url) as client:
            assert list(client.stream("/echo", range(200), returns=int)) == list(range(200))
        assert asyncio.run(asynchronous(node.url)) == list(range(200))
        assert node.connections == 2 and len(node.requests) == 400 and node.ended_streams == 2


def test_a_stream_of_calls_through_a_proxy_that_wants_a_whole_request_is_many_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("callboard.client._http_calls._HEAD_SECONDS", 0.1)
    with Node(echo) as node, Client(node.url) as client:
        node.takes_streams = False
        for _ in range(2):
            assert list(client.stream("/echo", range(200))) == list(range(200))
        # Only the first one is tried.
        assert sum("chunked" in each.headers.get("transfer-encoding", "") for each in node.requests) == 0
        assert node.refused_streams == 1


def test_calls_of_a_lost_stream_are_made_again_if_they_may_be() -> None:
    def answers() -> Any:
        seen: set[int] = set()

        def answer(request: Request) -> bytes | None:
            number = decode(request.body)
            is_lost = number in (3, 30) and number not in seen
            seen.add(number)
            return None if is_lost else value(number)

        return answer

    with Node(answers()) as node, Client(node.url) as client:
        assert list(client.stream("/echo", range(40), look_ahead=8, idempotent=True)) == list(range(40))
    with Node(answers()) as node, Client(node.url) as client:
        results = list(client.stream("/echo", range(40), look_ahead=8))
        lost = [each for each in results if isinstance(each, CallError)]
        assert 2 <= len(lost) <= 16 and all(isinstance(each, UnavailableError) and each.was_started for each in lost)
        assert "was lost, and the call may have run" in str(lost[0])
        assert [each for each in results if each not in lost] == [each for each in range(40) if results[each] == each]


def test_calls_that_a_node_has_not_read_before_its_end_are_made_again() -> None:
    seen: list[int] = []

    def answer(request: Request) -> bytes:
        number = decode(request.body)
        is_first, _ = number not in seen, seen.append(number)
        return Fault(problem(503, "unavailable", retryable=True)) if number == 5 and is_first else value(number)

    with Node(answer) as node, Client(node.url) as client:
        assert list(client.stream("/echo", range(40), look_ahead=8)) == list(range(40))
        assert seen.count(5) == 2


def test_a_call_of_a_stream_that_was_refused_for_now_is_made_again() -> None:
    def answer(request: Request) -> bytes:
        refuses = "transfer-encoding" in request.headers and decode(request.body) % 5 == 0
        return problem(429, "overloaded", retryable=True) if refuses else echo(request)

    with Node(answer) as node, Client(node.url) as client:
        assert list(client.stream("/echo", range(20))) == list(range(20))
        assert sum("transfer-encoding" in each.headers for each in node.requests) >= 4


def test_an_error_of_user_code_runs_no_call_of_a_stream_twice() -> None:
    # The status of a body that came too slowly, which the node has not read.
    answers = {1: problem(408, "failed"), 2: problem(413, "failed")}
    with Node(lambda each: answers.get(decode(each.body)) or echo(each)) as node, Client(node.url) as client:
        results = list(client.stream("/echo", range(4)))
        assert [type(each) for each in results] == [int, FailedError, FailedError, int] and len(node.requests) == 4


def test_a_client_that_is_closed_ends_its_streams_with_errors() -> None:
    release = threading.Event()

    async def main(url: str) -> list[Any]:
        results = []
        client = AsyncClient(url)

        async def consume() -> None:
            async for each in client.stream("/echo", range(3)):
                results.append(each)

        consuming = asyncio.create_task(consume())
        await asyncio.to_thread(arrived.wait, LIMIT)
        await client.aclose()
        await asyncio.wait_for(consuming, LIMIT)
        return results

    arrived = threading.Event()

    def answer(_: Request) -> bytes:
        arrived.set()
        return value(release.wait(LIMIT))

    with Node(answer) as node:
        results = asyncio.run(main(node.url))
        release.set()
    assert [type(each) for each in results] == [CancelledCallError] * 3


def test_a_stream_that_is_answered_ends_the_wait_for_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = []
    monkeypatch.setattr("callboard.client.policy.Absence.answered", lambda _: answered.append(True))
    with Node(echo) as node, Client(node.url) as client:
        assert list(client.stream("/echo", range(3))) == [0, 1, 2]
        assert answered == [True]


def test_a_stream_has_the_user_of_the_url() -> None:
    node = Node(lambda each: value(each.headers.get("authorization")))
    with node, Client(node.url.replace("127", "ada:p%40ss@127")) as client:
        assert [client.call("/who"), *client.stream("/who", [1])] == ["Basic YWRhOnBAc3M="] * 2


def test_a_call_of_a_stream_whose_time_is_up_keeps_no_input() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Client(f"http://127.0.0.1:{silent.getsockname()[1]}", start_up_wait=0)
        inputs: list[Any] = []

        def arrays() -> Any:
            for _ in range(20):
                inputs.append(weakref.ref(array := np.zeros(100_000, np.uint8)))
                yield array
                del array

        results = list(client.stream("/echo", arrays(), timeout=0.01, look_ahead=1))
        assert all(isinstance(each, CallError) for each in results) and len(results) == 20
        gc.collect()
        assert sum(each() is not None for each in inputs) <= 2
        client.close()


def test_one_output_of_a_stream_that_is_too_large_harms_no_other() -> None:
    with Node(lambda each: value(bytes(10_000 if decode(each.body) == 2 else 1))) as node:
        with Client(node.url, max_reply_bytes=1000) as client:
            results = list(client.stream("/zeros", range(6)))
        assert isinstance(results[2], InternalError) and "exceeds max_reply_bytes = 1000" in str(results[2])
        assert [*results[:2], *results[3:]] == [b"\0"] * 5


def test_a_large_input_is_a_request_of_its_own() -> None:
    with Node(lambda each: value(len(each.body) // 100_000)) as node, Client(node.url) as client:
        assert list(client.stream("/size", [bytes(1), bytes(300_000), bytes(1)])) == [0, 3, 0]
        assert sum("content-length" in each.headers for each in node.requests) == 1


def test_a_stream_of_a_route_that_is_not_there_says_so_for_each_call() -> None:
    with Node(lambda _: problem(404, "not_found")) as node, Client(node.url) as client:
        node.head_of_streams = problem(404, "not_found")
        results = list(client.stream("/nowhere", range(3)))
        assert [type(each) for each in results] == [NotFoundError] * 3


def test_a_late_result_is_an_error_in_its_place() -> None:
    release = threading.Event()

    def answer(request: Request) -> bytes | None:
        number = decode(request.body)
        return value(number) if number != 1 or release.wait(LIMIT) else None

    with Node(answer) as node, Client(node.url) as client:
        results = list(client.stream("/echo", range(4), timeout=0.3, look_ahead=4))
        assert isinstance(results[1], DeadlineExceededError)
        assert [results[0], *results[2:]] == [0, 2, 3]
        release.set()


def test_progress_is_shown_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    with Node(echo) as node, Client(node.url) as client:
        assert list(client.stream("/echo", [1, 2, 3], progress=True)) == [1, 2, 3]
        assert "3/3" in capsys.readouterr().err

        async def asynchronous() -> list[Any]:
            async with AsyncClient(node.url) as client:
                return [each async for each in client.stream("/echo", [1, 2, 3, 4], progress=True)]

        assert asyncio.run(asynchronous()) == [1, 2, 3, 4]
        assert "4/4" in capsys.readouterr().err


def test_an_async_stream_ends_what_is_in_flight() -> None:
    release = threading.Event()

    def answer(request: Request) -> bytes | None:
        if (number := decode(request.body)) != 0:
            release.wait(LIMIT)
        return value(number)

    async def main(url: str) -> None:
        async with AsyncClient(url) as client:
            async with contextlib.aclosing(client.stream("/echo", range(1000), look_ahead=4)) as results:
                assert await anext(results) == 0
            release.set()
            assert await asyncio.to_thread(node.closed.wait, LIMIT)

    with Node(answer) as node:
        asyncio.run(main(node.url))


def test_an_event_loop_goes_on_if_the_time_of_all_unsent_calls_is_up() -> None:
    async def main() -> None:
        options = Options(timeout=1)
        endpoint = Endpoint("http://127.0.0.1:1", Settings())
        stream = CallStream(endpoint, Settings(), "/a", options, unused, Absence(0))
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        stream.begin([b"a"], options, outcome)
        outcome.cancel()
        # It is dropped, and this one is made apart.
        stream.begin([bytes(300_000)], options, asyncio.get_running_loop().create_future())
        await asyncio.sleep(0.01)
        await stream.aclose()

    async def unused(*_: Any) -> bytes:
        return b""

    ending = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    ending.start()
    ending.join(LIMIT)
    assert not ending.is_alive()
