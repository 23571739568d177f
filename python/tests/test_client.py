"""The clients against a server that does what a test says. A real node is in `tests/external` of the repository."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import random
import socket
import ssl
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import numpy as np
import pytest

pytest.importorskip("httpx")

from http_node import LIMIT, Node, Request, problem, response, value
from node import ENVIRONMENT

import callboard as cb
from callboard import AsyncClient, CallError, Client
from callboard._envelope import decode, encode
from callboard.client import (
    DeadlineExceededError,
    FailedError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    OverloadedError,
    Prepared,
    UnavailableError,
)
from callboard.client._http_message import _retry_after, failure_of_problem
from callboard.client.errors import CLASSES, to_error
from callboard.client.policy import CONNECTION_LOST, Attempts, RetryBudget, StartUp
from callboard.client.transport import Failure, Options, Settings, open_transport

UNUSED = Options()


def echo(request: Request) -> bytes:
    return value(decode(request.body))


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


# ---- Retries, on paper -----------------------------------------------------------------------------------------------


def test_retries_are_at_most_a_fifth_of_the_calls_and_ten_a_second() -> None:
    """For any order of calls and losses, counted over ten seconds."""
    chance = random.Random(7)
    for _ in range(50):
        budget, now, history = RetryBudget(), 0.0, deque[tuple[float, int, int]]()
        for _ in range(100):
            now += chance.random() * 0.7
            calls, losses = chance.randrange(60), chance.randrange(60)
            for _ in range(calls):
                budget.called(now)
            history.append((now, calls, sum(budget.take(now) for _ in range(losses))))
            called = sum(calls for at, calls, _ in history if now - at < 20)
            taken = sum(taken for at, _, taken in history if now - at < 9)
            assert taken <= called / 5 + 2 * 10 * 10


def attempts(options: Options = UNUSED, *, started: bool = True, budget: RetryBudget | None = None) -> Attempts:
    start_up = StartUp(10)
    start_up.is_over = started
    return Attempts(Settings(), options, budget or RetryBudget(), start_up, 0.0)


REFUSED = Failure("overloaded", "full", retryable=True, was_started=False, retry_after=1.0)
LOST = Failure("unavailable", "lost", error_type=CONNECTION_LOST)


def test_a_refused_call_is_made_again_after_the_time_that_the_node_says() -> None:
    call = attempts()
    assert 1.01 <= call.pause(REFUSED, 0.0) <= 1.03
    assert 1.02 <= call.pause(REFUSED, 1.0) <= 1.06
    with pytest.raises(Failure):
        call.pause(REFUSED, 2.0)


@pytest.mark.parametrize(
    "failure",
    [
        LOST,
        Failure("failed", "no"),
        Failure("worker_failed", "it died", retryable=True),
        Failure("overloaded", "much later", retryable=True, was_started=False, retry_after=11.0),
    ],
)
def test_what_may_have_run_is_not_made_again(failure: Failure) -> None:
    with pytest.raises(Failure):
        attempts().pause(failure, 0.0)


def test_a_lost_call_that_may_run_twice_is_made_again_and_a_refusal_afterwards_does_not_hide_it() -> None:
    call = attempts(Options(idempotent=True))
    call.pause(LOST, 0.0)
    call.pause(REFUSED, 0.1)
    with pytest.raises(Failure) as last:
        call.pause(REFUSED, 0.2)
    assert last.value is LOST


def test_no_attempt_begins_after_the_deadline() -> None:
    with pytest.raises(Failure):
        attempts(Options(timeout=0.9)).pause(REFUSED, 0.0)
    attempts(Options(timeout=1.2)).pause(REFUSED, 0.0)


def test_calls_of_a_stream_wait_for_room_until_their_deadline() -> None:
    call, now = attempts(Options(timeout=60.0, waits_for_room=True)), 0.0
    with pytest.raises(Failure):
        while True:
            now += call.pause(REFUSED, now)
    assert 50 < now < 60


def test_retries_end_with_the_budget() -> None:
    budget = RetryBudget()
    while budget.take(0.0):
        pass
    with pytest.raises(Failure):
        attempts(budget=budget).pause(REFUSED, 0.0)


def test_a_retry_after_is_seconds_or_a_date() -> None:
    assert _retry_after("3") == 3.0
    assert _retry_after("Mon, 01 Jan 2001 00:00:00 GMT") == 0.0
    assert (_retry_after("Fri, 01 Jan 2100 00:00:00 GMT") or 0) > 1e6
    assert _retry_after("soon") is None and _retry_after(None) is None


# ---- Calls -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    x: int
    y: float


class Label(msgspec.Struct):
    name: str


class Row(TypedDict):
    n: int


def test_outputs_have_the_type_of_the_hint() -> None:
    with Node(echo) as node, Client(node.url) as client:
        assert client.call("/echo", {"x": 1, "y": 2.0}, returns=Point) == Point(1, 2.0)
        assert client.call("echo", Label("a"), returns=Label) == Label("a")
        assert client.call("/echo", {"n": 1}, returns=Row) == {"n": 1}
        assert client.call("/echo", np.ones(2, np.float32), returns=np.ndarray).dtype == np.float32
        assert client.call("/echo", (1, 2.0)) == (1, 2.0)
        assert client.with_options(returns=list[Label]).call("/echo", [{"name": "b"}]) == [Label("b")]
        with pytest.raises(InvalidInputError, match=r"route `/echo` gives .* `Point`: .*`int`, got `str` - at `\$.x`"):
            client.call("/echo", {"x": "1", "y": 2.0}, returns=Point)


def test_a_request_says_what_the_options_say() -> None:
    with Node(echo) as node:
        client = Client(node.url + "/below/", api_key="key", timeout=5, headers={"X-More": "1"})
        client.call("/ä/b", 1, priority="low", request_id="id-1", traceparent="00-1", timeout="200ms")
        client.with_options(priority="high").send("math/scale", 3.0, factor=2)
        first, second = node.requests
        assert first.path == "/below/%C3%A4/b"
        told = {name: first.headers[name] for name in ("authorization", "x-more", "x-request-id", "traceparent")}
        assert told == {"authorization": "Bearer key", "x-more": "1", "x-request-id": "id-1", "traceparent": "00-1"}
        assert 100 < int(first.headers["x-request-timeout-ms"]) <= 200
        assert (first.headers["x-request-priority"], second.headers["x-request-priority"]) == ("low", "high")
        assert 4900 < int(second.headers["x-request-timeout-ms"]) <= 5000
        assert second.path == "/below/v1/call/math/scale"
        assert decode(second.body) == {"args": [3.0], "kwargs": {"factor": 2}}


def test_mistakes_are_found_before_anything_is_sent() -> None:
    with Node(echo) as node, Client(node.url) as client:
        with pytest.raises(TypeError, match=r"`object` cannot be sent at \$\.a\[1\]"):
            client.call("/echo", {"a": [1, object()]})
        with pytest.raises(TypeError, match="did you mean 'timeout'"):
            client.call("/echo", 1, timout=3)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="a millisecond or more"):
            client.call("/echo", 1, timeout=0)
        with pytest.raises(ValueError, match="priority"):
            client.call("/echo", 1, priority="urgent")  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="session"):
            client.call("/echo", 1, session="a")
        with pytest.raises(ValueError, match="request_id: visible"):
            client.call("/echo", 1, request_id="a\r\nb: c")
        assert node.requests == []
    for url in ("localhost:8000", "ftp://a", "http://", "http://a:b", "http://a/?q"):
        with pytest.raises(ValueError, match="url="):
            Client(url)


def test_a_prepared_call_is_made_more_than_once() -> None:
    with Node(echo) as node, Client(node.url) as client:
        prepared = client.prepare("/echo", np.arange(100_000))
        for _ in range(2):
            assert client.call_prepared(prepared).sum() == np.arange(100_000).sum()
        assert client.call_prepared(Prepared.send("f", 1)) == {"args": [1], "kwargs": {}}


def test_quic_says_how_to_get_it() -> None:
    try:
        import callboard.client.quic  # noqa: F401
    except ModuleNotFoundError:
        with pytest.raises(ImportError, match=r"quic:// needs callboard._native: wheels have it"):
            Client("quic://localhost:4433")


# ---- Errors ----------------------------------------------------------------------------------------------------------


def test_each_kind_has_a_class() -> None:
    for kind, error in CLASSES.items():
        raised = to_error(Failure(kind, "m", details={"a": 1}, request_id="r", retry_after=1.5, remote_traceback="t"))
        assert type(raised) is error and isinstance(raised, CallError)
        assert (raised.kind, raised.details, raised.request_id) == (kind, {"a": 1}, "r")
        assert (raised.retry_after, raised.remote_traceback, str(raised)) == (1.5, "t", f"{kind}: m")
    assert type(to_error(Failure("of_tomorrow", "m"))) is CallError


def test_an_error_tells_all_that_the_problem_document_tells() -> None:
    def answer(_: Request) -> bytes:
        text = b"""{"kind": "failed", "message": "ValueError: no", "error_type": "ValueError", "stage": "a > b",
            "details": {"n": [1]}, "remote_trace": "Traceback: line 1", "retryable": false, "request_id": "r-7"}"""
        return response(text, 418, "application/problem+json")

    with Node(answer) as node, Client(node.url) as client, pytest.raises(FailedError) as raised:
        client.call("/echo", 1)
    error = raised.value
    assert (error.kind, error.status, error.type, error.stage) == ("failed", 418, "ValueError", "a > b")
    assert (error.details, error.request_id, error.was_started) == ({"n": [1]}, "r-7", True)
    if sys.version_info >= (3, 11):
        assert "Traceback: line 1" in error.__notes__[0]


@pytest.mark.parametrize("broken", [{}, {"kind": 3, "message": None}, {"details": [1], "status": "x"}])
def test_a_strange_problem_document_is_still_an_error(broken: dict[str, Any]) -> None:
    assert failure_of_problem(broken, 503, None, None).kind == "unavailable"


@pytest.mark.parametrize(
    ("raw", "expected", "words"),
    [
        (response(b"<html>", 200, "text/html"), InternalError, r"unknown format \(text/html\)"),
        (response(b"", 302, "text/html", location="https://b/"), InternalError, "redirects to https://b/"),
        (response(b"no such page", 404, "text/plain"), NotFoundError, "404 .* no such page"),
        (response(b"{", 500, "application/problem+json"), InternalError, "no answer of a node"),
        (response(b"not an envelope, though it says so"), InternalError, "do not begin as an envelope"),
        (response(b"busy", 502, "text/html"), UnavailableError, "502"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", InternalError, "does not answer in HTTP"),
    ],
)
def test_an_answer_in_an_unknown_format_says_what_it_is(raw: bytes, expected: type[CallError], words: str) -> None:
    with Node(lambda _: raw) as node, Client(node.url, start_up_wait=0) as client:
        with pytest.raises(expected, match=words):
            client.call("/echo", 1)
        assert len(node.requests) == 1
        with pytest.raises(expected, match=words):
            list(client.replies("/echo", 1))


def test_an_answer_beyond_the_limit_is_refused_by_its_announcement() -> None:
    announced = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.callboard.envelope\r\ncontent-length: 3000000000\r\n\r\n"
    )
    frame = struct.pack("<B3xI", 0, 2**31)
    stream = response(frame, media_type="application/vnd.callboard.envelope-stream")
    with Node(lambda request: stream if "stream" in request.headers["accept"] else announced) as node:
        client = Client(node.url)
        with pytest.raises(InvalidInputError, match="3000000000 bytes or more exceeds max_reply_bytes = 1073741824"):
            client.call("/echo", 1)
        with pytest.raises(InvalidInputError, match="2147483648 bytes exceeds max_reply_bytes"):
            list(client.replies("/echo", 1))


# ---- Trouble ---------------------------------------------------------------------------------------------------------


def test_a_refusal_is_repeated_and_its_retry_after_honoured() -> None:
    def answer(request: Request) -> bytes:
        full = problem(429, "overloaded", retryable=True, retry_after="1")
        return full if request.number == 0 else value("done")

    with Node(answer) as node, Client(node.url) as client:
        began = time.monotonic()
        assert client.call("/echo", 1) == "done"
        assert time.monotonic() - began >= 1


def test_a_failure_of_the_code_is_not_repeated() -> None:
    with Node(lambda _: problem(500, "worker_failed")) as node, Client(node.url) as client:
        with pytest.raises(CallError) as raised:
            client.call("/echo", 1, idempotent=True)
        assert (raised.value.kind, len(node.requests)) == ("worker_failed", 1)


def test_a_lost_call_is_repeated_only_if_it_may_run_twice() -> None:
    with Node(lambda request: None if request.number % 2 == 0 else value(1)) as node, Client(node.url) as client:
        with pytest.raises(UnavailableError, match="lost, and the call may have run") as raised:
            client.call("/echo", 1)
        assert raised.value.was_started and len(node.requests) == 1
        node.requests.clear()
        assert client.call("/echo", 1, idempotent=True) == 1
        assert len(node.requests) == 2


def test_no_secret_is_shown() -> None:
    client = Client("http://ada:pa55@127.0.0.1:1", api_key="pa55", headers={"x": "pa55"}, proxy="http://a:pa55@b")
    assert repr(client) == "Client('http://127.0.0.1:1')" and "pa55" not in repr(client._settings)


def test_an_answer_503_of_a_proxy_is_repeated_only_if_the_call_may_run_twice() -> None:
    busy = response(b"<html>", 503, "text/html")
    with Node(lambda request: busy if request.number % 2 == 0 else value(1)) as node, Client(node.url) as client:
        with pytest.raises(UnavailableError, match="answered 503") as raised:
            client.call("/echo", 1)
        assert raised.value.was_started and len(node.requests) == 1
        node.requests.clear()
        assert client.call("/echo", 1, idempotent=True) == 1


def test_a_server_that_is_gone_between_two_calls_and_back_at_the_same_port() -> None:
    with Node(echo) as node:
        client = Client(node.url)
        assert client.call("/echo", 1) == 1
        node.close()
        with pytest.raises(UnavailableError, match="no node answers") as raised:
            client.call("/echo", 2)
        assert not raised.value.was_started
        with Node(echo, node.port):
            assert client.call("/echo", 3) == 3


def test_idle_connections_that_a_proxy_has_cut_cost_no_call() -> None:
    with Node(echo) as node, Client(node.url) as client:
        for number in range(20):
            assert client.call("/echo", number) == number
            node.cut()
            assert node.closed.wait(LIMIT)
            node.closed.clear()
        assert node.connections == 20


def test_connections_are_kept() -> None:
    with Node(echo) as node, Client(node.url) as client:
        for number in range(20):
            assert client.call("/echo", number) == number
        assert node.connections == 1


def test_a_host_that_is_gone_is_probed() -> None:
    with Node(echo) as node, Client(node.url) as client:
        http = client._transport._client()  # type: ignore[attr-defined]
        with http.stream("POST", node.url, content=encode(1)) as answer:
            found = answer.extensions["network_stream"].get_extra_info("socket")
            assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert not hasattr(socket, "TCP_KEEPIDLE") or found.getsockopt(socket.SOL_TCP, socket.TCP_KEEPIDLE) == 15


def test_calls_go_through_a_proxy() -> None:
    with Node(echo) as proxy, Client("http://node.invalid:8000", proxy=proxy.url) as client:
        assert client.call("/echo", 1) == 1
        assert proxy.requests[0].path == "http://node.invalid:8000/echo"


def test_a_client_shows_its_certificate_and_believes_an_authority(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    verify = str(tmp_path / "authority.pem")
    with Node(echo, tls=context) as node:
        with Client(node.url, verify=verify, certificate=str(tmp_path / "client.pem")) as client:
            assert client.call("/echo", 1) == 1
        with pytest.raises(CallError):
            Client(node.url, verify=verify, start_up_wait=0).call("/echo", 1)
        with pytest.raises(UnavailableError, match="its certificate is not believed"):
            Client(node.url, start_up_wait=LIMIT).call("/echo", 1)


def test_the_first_call_waits_for_a_node_that_starts_slowly() -> None:
    port = unused_port()
    client, outcome = Client(f"http://127.0.0.1:{port}", start_up_wait=LIMIT), []
    thread = threading.Thread(target=lambda: outcome.append(client.call("/echo", 1)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    starting = problem(503, "unavailable", retryable=True)
    with Node(lambda request: starting if request.number < 5 else echo(request), port) as node:
        thread.join(LIMIT)
        assert outcome == [1] and len(node.requests) == 6


def test_the_wait_for_a_node_ends() -> None:
    client = Client(f"http://127.0.0.1:{unused_port()}", start_up_wait=0.2)
    with pytest.raises(UnavailableError, match=r"no node answers at http://127\.0\.0\.1:.*refused.*after 0\.2 s"):
        client.call("/echo", 1)
    began = time.monotonic()
    with pytest.raises(UnavailableError):
        Client(client.url, start_up_wait=LIMIT).call("/echo", 1, timeout=0.2)
    assert time.monotonic() - began < LIMIT


def test_a_host_without_an_address_ends_the_wait_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="the host is not known"):
        Client("http://no-such-host.invalid:8000", start_up_wait=LIMIT).call("/echo", 1)
    assert time.monotonic() - began < LIMIT


def test_tls_to_a_plain_port_is_named_at_once() -> None:
    with Node(echo) as node:
        with pytest.raises(UnavailableError, match="no TLS with this port"):
            Client(node.url.replace("http:", "https:"), start_up_wait=LIMIT).call("/echo", 1)
        node.cut()


def test_a_deadline_ends_a_call_that_is_not_answered() -> None:
    release = threading.Event()
    with Node(lambda _: value(release.wait(LIMIT))) as node, Client(node.url) as client:
        began = time.monotonic()
        with pytest.raises(DeadlineExceededError) as raised:
            client.call("/echo", 1, timeout=0.1)
        assert time.monotonic() - began < LIMIT / 2 and raised.value.was_started
        assert isinstance(raised.value, TimeoutError)
        release.set()


def test_a_call_waits_for_a_connection_until_its_deadline() -> None:
    release = threading.Event()
    with Node(lambda _: value(release.wait(LIMIT))) as node, Client(node.url, max_connections=1) as client:
        thread = threading.Thread(target=client.call, args=("/echo", 1))
        thread.start()
        while not node.requests:
            time.sleep(0.001)
        with pytest.raises(DeadlineExceededError, match="max_connections") as raised:
            client.call("/echo", 1, timeout=0.1)
        assert not raised.value.was_started
        release.set()
        thread.join(LIMIT)
        assert client.call("/echo", 1) is True


# ---- Streams ---------------------------------------------------------------------------------------------------------


def frames(*outputs: Any, end: bool = True) -> bytes:
    bodies = [encode(output) for output in outputs]
    stream = b"".join(struct.pack("<B3xI", 0, len(body)) + body for body in bodies)
    stream += struct.pack("<B3xI", 2, 0) if end else b""
    return response(stream, media_type="application/vnd.callboard.envelope-stream")


def test_replies_come_one_by_one_and_a_cut_stream_is_an_error() -> None:
    with Node(lambda request: frames(1, [2], end=decode(request.body))) as node, Client(node.url) as client:
        assert list(client.replies("/count", True)) == [1, [2]]
        replies = client.replies("/count", False)
        assert (next(replies), next(replies)) == (1, [2])
        with pytest.raises(UnavailableError, match="cut after 2 outputs"):
            next(replies)


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


# ---- Tasks, loops, forks, ends ---------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("phase", ["connect", "send", "wait", "receive"])
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
        reached.set()
        if phase == "receive":
            return value(b"x" * 100_000)[:50_000]
        release.wait(LIMIT)
        return None

    async def main(node: Node) -> None:
        at_silent = phase in ("connect", "send")
        url = f"http://127.0.0.1:{silent.getsockname()[1]}" if at_silent else node.url
        client = AsyncClient(url, max_connections=1, connect_timeout=LIMIT)
        call = asyncio.ensure_future(client.call("/slow", np.zeros(64 << 20, np.uint8) if phase == "send" else 1))
        if at_silent:
            await asyncio.wait([call], timeout=0.2)
        else:
            assert await asyncio.to_thread(reached.wait, LIMIT)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        release.set()
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


@pytest.mark.parametrize("how", ["thread", "stream", "task"])
def test_an_interpreter_ends_with_calls_in_flight(how: str) -> None:
    release, reached = threading.Event(), threading.Event()

    def answer(_: Request) -> bytes | None:
        reached.set()
        release.wait(LIMIT)
        return None

    code = """
        import asyncio, sys, threading
        from callboard import AsyncClient, Client
        url, how = sys.argv[1:]
        if how == "thread":
            threading.Thread(target=Client(url).call, args=("/echo", 1), daemon=True).start()
        elif how == "stream":
            client = Client(url)
            threading.Thread(target=lambda: next(client.stream("/echo", range(9))), daemon=True).start()
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


@cb.function
def half(x: float, digits: int = 2) -> float:
    if x < 0:
        raise cb.HTTPException(409, "below zero", {"Retry-After": "3"})
    return round(x / 2, digits)


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
        assert (raised.value.status, raised.value.retry_after) == (409, 3.0)
        with pytest.raises(InvalidInputError, match="argument `y`"):
            client.send("half", 1.0, y=2)
        with pytest.raises(NotFoundError):
            client.call("/third", 1)
    with cb.test_client(numbers) as app:
        assert list(app.client().replies("/numbers", 3)) == [0, 1, 2]
        with pytest.raises(InvalidInputError, match="`replies`"):
            app.client().call("/numbers", 3)
    with cb.test_client(cb.pipeline(half, half)) as app, pytest.raises(CallError):
        app.client().call("/app", {"x": 3.0})


def test_a_transport_of_another_kind_can_carry_the_calls() -> None:
    with pytest.raises(ValueError, match="url="):
        open_transport("carrier-pigeon://a", Settings())
