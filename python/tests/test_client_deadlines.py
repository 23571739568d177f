"""A deadline ends each call of a client, whatever its server does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from http_node import LIMIT, Node, Slow, both, response, value

from callboard import AsyncClient, Client
from callboard._conversion import convert
from callboard.client import DeadlineExceededError


@both
def test_a_deadline_ends_a_call_that_is_not_answered(kind: Any) -> None:
    release = threading.Event()
    with Node(lambda _: value(release.wait(LIMIT))) as node, kind(node.url) as client:
        began = time.monotonic()
        with pytest.raises(DeadlineExceededError) as raised:
            client.call("/echo", 1, timeout=0.1)
        assert time.monotonic() - began < LIMIT / 2 and raised.value.was_started
        assert isinstance(raised.value, TimeoutError)
        release.set()


DRIPS = {
    "informational": b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
    "head": b"HTTP/1.1 200 OK\r\nx: " + b"a" * 1000,
    "body": response(bytes(1000)),
    "chunks": b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.callboard.envelope\r\n"
    b"transfer-encoding: chunked\r\n\r\n" + b"1\r\n0\r\n" * 300,
}


@both
@pytest.mark.parametrize("drip", DRIPS)
def test_a_deadline_ends_a_call_whatever_the_server_sends(kind: Any, drip: str) -> None:
    # A byte each 100 ms, for longer than the limit.
    with Node(lambda _: Slow(DRIPS[drip])) as node, kind(node.url) as client:
        began = time.monotonic()
        with pytest.raises(DeadlineExceededError):
            client.call("/echo", 1, timeout=0.3)
        if kind is Client:
            with pytest.raises(DeadlineExceededError):
                list(client.replies("/echo", 1, timeout=0.3))
            with pytest.raises(DeadlineExceededError):
                next(client.stream("/echo", [1], timeout=0.3, stop_at_error=True))
        assert time.monotonic() - began < LIMIT / 2


@contextlib.contextmanager
def dripping(each: Callable[[socket.socket], object]) -> Iterator[int]:
    """The port of a server that does something with its one connection again and again."""
    stopped = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def serve() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                while not stopped.wait(0.02):
                    each(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stopped.set()
        listener.close()
        thread.join(LIMIT)


@both
def test_a_deadline_ends_a_call_whose_server_takes_it_bit_by_bit(kind: Any) -> None:
    with dripping(lambda connection: connection.recv(1000)) as port, kind(f"http://127.0.0.1:{port}") as client:
        began = time.monotonic()
        with pytest.raises(DeadlineExceededError, match="before the call was sent: it was not started") as raised:
            client.call("/echo", np.zeros(64 << 20, np.uint8), timeout=0.5)
        assert not raised.value.was_started and time.monotonic() - began < LIMIT / 2


@both
def test_a_deadline_ends_a_handshake_that_never_does(kind: Any) -> None:
    def drip(connection: socket.socket, begun: list[int] = []) -> None:  # noqa: B006 - one connection
        # A record of 16 KiB, of which each step gets a byte.
        connection.sendall(b"\0" if begun else b"\x16\x03\x03\x40\x00\x02")
        begun.append(1)

    with dripping(drip) as port, kind(f"https://127.0.0.1:{port}", verify=False, connect_timeout=LIMIT) as client:
        began = time.monotonic()
        with pytest.raises(DeadlineExceededError):
            client.call("/echo", 1, timeout=0.5)
        assert time.monotonic() - began < LIMIT / 2


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


@both
def test_an_answer_that_is_there_is_given_although_its_decoding_passes_the_deadline(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def converted(value: Any, hint: Any) -> Any:
        while time.monotonic() < began + 4:
            time.sleep(0.01)
        return convert(value, hint)

    monkeypatch.setattr("callboard.client._base.convert", converted)
    with Node(lambda _: value(1)) as node, kind(node.url) as client:
        began = time.monotonic()
        assert client.call("/echo", 1, returns=int, timeout=3) == 1


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("connect", "before the call was sent: it was not started"),
        ("pool", "before one of `max_connections` was free"),
        ("send", "before the call was sent: it was not started"),
        ("wait", "before the outcome was there"),
    ],
)
def test_a_call_that_is_late_says_whether_it_was_started(kind: Any, phase: str, words: str) -> None:
    release = threading.Event()
    silent = socket.create_server(("127.0.0.1", 0), backlog=0)
    # Nothing is read there; with a full backlog, nothing connects.
    queued = [socket.socket() for _ in range(4 if phase == "connect" else 0)]
    for each in queued:
        each.setblocking(False)
        each.connect_ex(silent.getsockname())
    value_of_call = np.zeros(64 << 20, np.uint8) if phase == "send" else 1

    def blocking(client: Client, node: Node) -> None:
        holder = threading.Thread(target=client.call, args=("/held", 1))
        if phase == "pool":
            holder.start()
            while not node.requests:
                time.sleep(0.001)
        with pytest.raises(DeadlineExceededError, match=words) as raised:
            client.call("/late", value_of_call, timeout=0.1)
        assert raised.value.was_started == (phase == "wait")
        release.set()
        if phase == "pool":
            holder.join(LIMIT)

    async def asynchronous(client: AsyncClient, node: Node) -> None:
        holder = asyncio.ensure_future(client.call("/held", 1)) if phase == "pool" else None
        while holder and not node.requests:
            await asyncio.sleep(0.001)
        with pytest.raises(DeadlineExceededError, match=words) as raised:
            await client.call("/late", value_of_call, timeout=0.1)
        assert raised.value.was_started == (phase == "wait")
        release.set()
        if holder:
            await holder
        await client.aclose()

    try:
        with Node(lambda _: value(release.wait(LIMIT))) as node:
            port = silent.getsockname()[1] if phase in ("connect", "send") else node.port
            client = kind(f"http://127.0.0.1:{port}", max_connections=1, connect_timeout=LIMIT)
            blocking(client, node) if kind is Client else asyncio.run(asynchronous(client, node))
    finally:
        for each in (silent, *queued):
            each.close()
