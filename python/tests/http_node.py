"""A server that answers as a test says, byte by byte: what a real node does only in trouble."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from callboard._envelope import decode, encode

ENVELOPE = "application/vnd.callboard.envelope"
LIMIT = 30


class Cut(bytes):
    """The begin of an answer, after which the connection ends."""


class Slow(bytes):
    """An answer that is sent byte by byte, with this pause in seconds."""

    PAUSE = 0.1


class Request:
    def __init__(self, head: str, body: bytes, number: int) -> None:
        line, *lines = head.split("\r\n")
        self.path = line.split()[1]
        self.headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
        self.body = body
        # The count of requests before it.
        self.number = number


def response(body: bytes, status: int = 200, media_type: str = ENVELOPE, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Test", f"content-type: {media_type}", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def value(found: Any) -> bytes:
    return response(encode(found))


def problem(status: int, kind: str, *, retryable: bool = False, **headers: str) -> bytes:
    text = f'{{"kind": "{kind}", "message": "told so", "retryable": {str(retryable).lower()}, "request_id": "r-1"}}'
    return response(text.encode(), status, "application/problem+json", **headers)


def echo(request: Request) -> bytes:
    return value(decode(request.body))


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def frames(*outputs: Any, end: bool = True) -> bytes:
    bodies = [encode(output) for output in outputs]
    stream = b"".join(struct.pack("<B3xI", 0, len(body)) + body for body in bodies)
    stream += struct.pack("<B3xI", 2, 0) if end else b""
    return response(stream, media_type="application/vnd.callboard.envelope-stream")


class Node:
    """Answers each request with what `answer` gives: bytes, or None to close the connection."""

    def __init__(
        self, answer: Callable[[Request], bytes | None], port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self.answer = answer
        self._tls = tls
        self.requests: list[Request] = []
        self.connections = 0
        # The connections that have not ended.
        self.open = 0
        self._lock = threading.Lock()
        # Set when a connection has ended.
        self.closed = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", port), reuse_port=False)
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the server and its connections, as a process that ends does."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(LIMIT)
        self.cut()

    def cut(self) -> None:
        """Closes the connections, as a proxy does with idle ones."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with self._lock:
                self.open += 1
            self._sockets.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._answer_all(self._tls.wrap_socket(connection, server_side=True) if self._tls else connection)
        with self._lock:
            self.open -= 1
        self.closed.set()

    def _answer_all(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        while True:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                if stream.peek(1)[:1] == b"\x16":
                    # The hello of TLS.
                    return connection.sendall(response(b"", 400))
                line = stream.readline()
                if not line:
                    return None
                head += line
            text = head.decode().removesuffix("\r\n\r\n")
            length = int(Request(text, b"", 0).headers.get("content-length", 0))
            body = stream.read(length)
            if len(body) < length:
                return None
            request = Request(text, body, len(self.requests))
            self.requests.append(request)
            answer = self.answer(request)
            if answer is None:
                return None
            for piece in [answer[at : at + 1] for at in range(len(answer))] if isinstance(answer, Slow) else [answer]:
                connection.sendall(piece)
                time.sleep(Slow.PAUSE if isinstance(answer, Slow) else 0)
            if isinstance(answer, Cut):
                return None
