"""Calls of a client in trouble: servers that are full, lost or not there, and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from http_node import LIMIT, Blocking, Cut, Node, Request, both, echo, problem, response, unused_port, value

from callboard import AsyncClient, CallError, Client
from callboard._envelope import encode
from callboard.client import InvalidInputError, UnavailableError
from callboard.client._http_connection import AsyncConnection, Connection
from callboard.client._http_early import _has_answer


@both
def test_a_refusal_is_repeated_and_its_retry_after_honoured(kind: Any) -> None:
    def answer(request: Request) -> bytes:
        full = problem(429, "overloaded", retryable=True, retry_after="1")
        return full if request.number == 0 else value("done")

    with Node(answer) as node, kind(node.url) as client:
        began = time.monotonic()
        assert client.call("/echo", 1) == "done"
        assert time.monotonic() - began >= 1


def test_a_failure_of_the_code_is_not_repeated() -> None:
    with Node(lambda _: problem(500, "worker_failed")) as node, Client(node.url) as client:
        with pytest.raises(CallError) as raised:
            client.call("/echo", 1, idempotent=True)
        assert (raised.value.kind, len(node.requests)) == ("worker_failed", 1)


@both
def test_a_lost_call_is_repeated_only_if_it_may_run_twice(kind: Any) -> None:
    with Node(lambda request: None if request.number % 2 == 0 else value(1)) as node, kind(node.url) as client:
        with pytest.raises(UnavailableError, match="lost, and the call may have run") as raised:
            client.call("/echo", 1)
        assert raised.value.was_started and len(node.requests) == 1
        node.requests.clear()
        assert client.call("/echo", 1, idempotent=True) == 1
        assert len(node.requests) == 2


@pytest.mark.parametrize("length", [10, 60, 50_000])
@both
def test_an_answer_that_is_cut_is_lost(kind: Any, length: int) -> None:
    """In its head and in its body: the node has died, and not another protocol."""

    def answer(request: Request) -> bytes:
        whole = value(b"x" * 100_000)
        return Cut(whole[:length]) if request.number % 2 == 0 else whole

    with Node(answer) as node, kind(node.url) as client:
        with pytest.raises(UnavailableError, match="was lost, and the call may have run") as raised:
            client.call("/echo", 1)
        assert raised.value.was_started and len(node.requests) == 1
        node.requests.clear()
        assert len(client.call("/echo", 1, idempotent=True)) == 100_000


@both
def test_an_answer_503_of_a_proxy_is_repeated_only_if_the_call_may_run_twice(kind: Any) -> None:
    busy = response(b"<html>", 503, "text/html")
    with Node(lambda request: busy if request.number % 2 == 0 else value(1)) as node, kind(node.url) as client:
        with pytest.raises(UnavailableError, match="answered 503") as raised:
            client.call("/echo", 1)
        assert raised.value.was_started and len(node.requests) == 1
        node.requests.clear()
        assert client.call("/echo", 1, idempotent=True) == 1


@both
@pytest.mark.parametrize("status", [303, 404, 429])
def test_an_answer_of_a_node_that_is_no_problem_document_was_chosen_by_code_that_has_run(
    kind: Any, status: int
) -> None:
    page = response(b"<html>", status, "text/html", x_request_id="r-1")
    with Node(lambda _: page) as node, kind(node.url) as client:
        with pytest.raises(CallError) as raised:
            client.call("/echo", 1)
        assert (raised.value.was_started, raised.value.retryable, len(node.requests)) == (True, False, 1)


@both
def test_a_server_that_is_gone_between_two_calls_and_back_at_the_same_port(kind: Any) -> None:
    with Node(echo) as node:
        client = kind(node.url)
        assert client.call("/echo", 1) == 1
        node.close()
        with pytest.raises(UnavailableError, match="no node answers") as raised:
            client.call("/echo", 2)
        assert not raised.value.was_started
        with Node(echo, node.port):
            assert client.call("/echo", 3) == 3


@both
def test_idle_connections_that_a_proxy_has_cut_cost_no_call(kind: Any) -> None:
    with Node(echo) as node, kind(node.url) as client:
        for number in range(20):
            assert client.call("/echo", number) == number
            node.cut()
            assert node.closed.wait(LIMIT)
            node.closed.clear()
        assert node.connections == 20


@both
def test_a_server_that_restarts_at_the_same_port_between_two_calls_costs_no_call(kind: Any) -> None:
    with Node(echo) as node, kind(node.url) as client:
        for number in range(5):
            assert client.call("/echo", number) == number
            node.close()
            node = Node(echo, node.port)
        assert client.call("/echo", 5) == 5 and len(node.requests) == 1
        node.close()


@both
def test_connections_are_kept(kind: Any) -> None:
    with Node(echo) as node, kind(node.url) as client:
        for number in range(20):
            assert client.call("/echo", number) == number
        assert node.connections == 1


def test_a_host_that_is_gone_is_probed() -> None:
    with Node(echo) as node, Client(node.url) as client:
        http = client._transport._client()  # type: ignore[attr-defined]
        request = httpx.Request("POST", node.url, content=encode(1))
        with contextlib.closing(http.handle_request(request)) as answer:
            found = answer.extensions["network_stream"].get_extra_info("socket")
            assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            for name, expected in (("TCP_KEEPIDLE", 15), ("TCP_USER_TIMEOUT", 35_000)):
                if hasattr(socket, name):
                    assert found.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == expected


@pytest.mark.parametrize("timeout", [None, LIMIT])
def test_a_host_that_the_system_gives_up_is_lost_and_no_deadline(
    timeout: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the system has the class of Python's own timeouts."""

    def lost(_: Any, request: httpx.Request) -> httpx.Response:
        assert b"".join(request.stream)  # type: ignore[arg-type]
        raise httpx.ReadTimeout("[Errno 110] Connection timed out")

    async def lost_later(transport: Any, request: httpx.Request) -> httpx.Response:
        return lost(transport, request)

    monkeypatch.setattr(Connection, "handle_request", lost)
    monkeypatch.setattr(AsyncConnection, "handle_async_request", lost_later)
    words = r"was lost, and the call may have run: \[Errno 110\]"
    with pytest.raises(UnavailableError, match=words):
        Client(timeout=timeout).call("/echo", 1)
    with pytest.raises(UnavailableError, match=words):
        asyncio.run(AsyncClient(timeout=timeout).call("/echo", 1))


@both
def test_calls_go_through_a_proxy(kind: Any) -> None:
    with Node(echo) as proxy, kind("http://node.invalid:8000", proxy=proxy.url) as client:
        assert client.call("/echo", 1) == 1
        assert proxy.requests[0].path == "http://node.invalid:8000/echo"


@both
def test_a_client_shows_its_certificate_and_believes_an_authority(kind: Any, tmp_path: Path) -> None:
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
        with kind(node.url, verify=verify, certificate=str(tmp_path / "client.pem")) as client:
            assert client.call("/echo", 1) == 1
        # The end of the connection may come before its reason.
        with pytest.raises(UnavailableError, match=r"does not take the certificate of this client|was lost"):
            kind(node.url, verify=verify, start_up_wait=0).call("/echo", 1)
        with pytest.raises(UnavailableError, match="its certificate is not believed"):
            kind(node.url, start_up_wait=LIMIT).call("/echo", 1)


def test_a_certificate_that_the_node_does_not_take_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has sent its call before it reads this, and the node has read nothing."""
    alert = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required")

    def refused(_: Any, request: httpx.Request) -> httpx.Response:
        assert b"".join(request.stream)  # type: ignore[arg-type]
        raise httpx.ReadError(str(alert)) from alert

    async def refused_later(_: Any, request: httpx.Request) -> httpx.Response:
        assert b"".join(request.stream)  # type: ignore[arg-type]
        raise alert

    monkeypatch.setattr(Connection, "handle_request", refused)
    monkeypatch.setattr(AsyncConnection, "handle_async_request", refused_later)
    for kind in (Client, Blocking):
        with pytest.raises(UnavailableError, match=r"take the certificate of this client: .*alert") as raised:
            kind("https://localhost", start_up_wait=LIMIT).call("/echo", 1)
        assert not raised.value.was_started


@both
def test_the_first_call_waits_for_a_node_that_starts_slowly(kind: Any) -> None:
    port = unused_port()
    client, outcome = kind(f"http://127.0.0.1:{port}", start_up_wait=LIMIT), []
    thread = threading.Thread(target=lambda: outcome.append(client.call("/echo", 1)))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    starting = problem(503, "unavailable", retryable=True)
    with Node(lambda request: starting if request.number < 5 else echo(request), port) as node:
        thread.join(LIMIT)
        assert outcome == [1] and len(node.requests) == 6


@both
def test_a_node_whose_stage_is_not_there_is_there(kind: Any) -> None:
    text = b'{"kind": "unavailable", "message": "not loaded", "stage": "model", "retryable": true}'
    with Node(lambda _: response(text, 503, "application/problem+json")) as node:
        client = kind(node.url, start_up_wait=1)
        with pytest.raises(UnavailableError, match="not loaded"):
            client.call("/echo", 1)
        assert len(node.requests) == 3
    # It has answered, so this is no start.
    with pytest.raises(UnavailableError, match="no node answers") as raised:
        client.call("/echo", 1)
    assert "after" not in str(raised.value)


@both
def test_the_wait_for_a_node_ends(kind: Any) -> None:
    client = kind(f"http://127.0.0.1:{unused_port()}", start_up_wait=0.2)
    with pytest.raises(UnavailableError, match=r"no node answers at http://127\.0\.0\.1:.*\] Connect.* after 0\.2 s"):
        client.call("/echo", 1)
    began = time.monotonic()
    with pytest.raises(UnavailableError):
        kind(client.url, start_up_wait=LIMIT).call("/echo", 1, timeout=0.2)
    assert time.monotonic() - began < LIMIT


def test_the_reason_of_the_system_is_named_and_not_what_the_caller_was_handling() -> None:
    url = f"http://127.0.0.1:{unused_port()}"

    async def asynchronous() -> None:
        await AsyncClient(url, start_up_wait=0).call("/echo", 1)

    for call in (lambda: Client(url, start_up_wait=0).call("/echo", 1), lambda: asyncio.run(asynchronous())):
        try:
            raise socket.gaierror(socket.EAI_NONAME, "of another call")
        except OSError:
            with pytest.raises(UnavailableError, match=r"no node answers at .*: \[Errno \d+\] Connect") as raised:
                call()
        assert "host is not known" not in str(raised.value)


def test_the_reason_is_named_for_a_host_with_two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    port = unused_port()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (1, 2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    client = AsyncClient(f"http://localhost:{port}", start_up_wait=0)
    for is_handling in (False, True):
        with pytest.raises(UnavailableError, match=r"no node answers at .*: \[Errno \d+\] Connect") as raised:
            try:
                if is_handling:
                    raise socket.gaierror(socket.EAI_NONAME, "of another call")
                asyncio.run(client.call("/echo", 1))
            except OSError:
                asyncio.run(client.call("/echo", 1))
        assert "host is not known" not in str(raised.value)


@pytest.mark.parametrize("kind", [Client, Blocking])
@pytest.mark.parametrize("host", ["a..b", f"{'a' * 64}.test"])
def test_a_name_that_no_host_can_have_is_an_error_at_once(kind: Any, host: str) -> None:
    with kind(f"http://{host}:80", timeout=None) as client, pytest.raises(UnavailableError, match="host is not known"):
        client.call("/echo", 1)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_proxy_that_refuses_is_named_and_not_what_the_caller_was_handling(kind: Any) -> None:
    """The error of httpx has no other cause here."""

    def call(proxy: str) -> None:
        client = kind("https://node.invalid", proxy=proxy, start_up_wait=0)
        asyncio.run(client.call("/echo", 1)) if kind is AsyncClient else client.call("/echo", 1)

    with (
        Node(lambda _: response(b"", 403)) as proxy,
        pytest.raises(UnavailableError, match=r"answers at \S*: 403 Test"),
    ):
        try:
            raise socket.gaierror(socket.EAI_NONAME, "of another call")
        except OSError:
            call(proxy.url)


@both
def test_a_host_without_an_address_ends_the_wait_at_once(kind: Any) -> None:
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="the host is not known"):
        kind("http://no-such-host.invalid:8000", start_up_wait=LIMIT).call("/echo", 1)
    assert time.monotonic() - began < LIMIT


@both
def test_tls_to_a_plain_port_is_named_at_once(kind: Any) -> None:
    with Node(echo) as node:
        with pytest.raises(UnavailableError, match="no TLS with this port"):
            kind(node.url.replace("http:", "https:"), start_up_wait=LIMIT).call("/echo", 1)
        node.cut()


@both
def test_no_cookie_of_an_answer_is_kept(kind: Any) -> None:
    answer = response(encode(1), set_cookie="a=b")
    with Node(lambda _: answer) as node, kind(node.url) as client:
        for _ in range(2):
            assert client.call("/echo", 1) == 1
        assert "cookie" not in node.requests[1].headers


@both
@pytest.mark.parametrize("is_tls", [False, True])
def test_a_node_that_refuses_a_body_before_it_has_come_is_understood(kind: Any, is_tls: bool, tmp_path: Path) -> None:
    """It answers once it has the head, reads a part of the rest, and closes the connection.

    That part is more than what a client has sent that looks for an answer between its writes. A connection that ends
    between this look and the write that follows takes its answer along, in asyncio: the call is repeated then.
    """
    trustme = pytest.importorskip("trustme")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    listener = socket.create_server(("127.0.0.1", 0))
    connections = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            with contextlib.suppress(OSError), connection:
                stream = context.wrap_socket(connection, server_side=True) if is_tls else connection
                stream.recv(1)
                stream.sendall(problem(413, "invalid_input"))
                left = 64 << 20
                while left > 0 and (received := stream.recv(64 << 10)):
                    left -= len(received)
                stream.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    url = f"{'https' if is_tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
    with kind(url, verify=False) as client, pytest.raises(InvalidInputError, match="told so") as raised:
        client.call("/echo", np.zeros(256 << 20, np.uint8))
    assert raised.value.status_code == 413 and len(connections) == 1
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(LIMIT)


@both
def test_an_informational_answer_does_not_end_a_call_that_is_still_sent(kind: Any) -> None:
    """As a proxy sends `100 Continue` unasked, here in two pieces."""
    listener = socket.create_server(("127.0.0.1", 0))
    large = np.zeros(64 << 20, np.uint8)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += stream.readline()
            length = int(Request(head.decode().removesuffix("\r\n\r\n"), b"", 0).headers["content-length"])
            connection.sendall(b"HTTP/1.1 100 Con")
            stream.read(length // 2)
            connection.sendall(b"tinue\r\n\r\n")
            stream.read(length - length // 2)
            connection.sendall(value("whole"))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with kind(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
        assert client.call("/echo", large, timeout=LIMIT) == "whole"
    thread.join(LIMIT)
    listener.close()


def test_only_a_final_answer_ends_a_call_that_is_still_sent() -> None:
    informational = b"HTTP/1.1 100 Continue\r\n\r\n" + b"HTTP/1.1 102 Processing\r\nserver: proxy\r\n\r\n"
    head = b"HTTP/1.1 413 Content Too Large\r\n"
    begins = len(b"HTTP/1.1 4")
    for length in range(len(informational + head) + 1):
        is_there = length >= len(informational) + begins
        assert _has_answer((informational + head)[:length]) is is_there, length


@both
def test_large_calls_and_answers_cross_over_tls(kind: Any) -> None:
    trustme = pytest.importorskip("trustme")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    large = np.arange(3 << 20)
    with Node(echo, tls=context) as node, kind(node.url, verify=False) as client:
        for _ in range(3):
            assert np.array_equal(client.call("/echo", large), large)
        assert node.connections == 1
