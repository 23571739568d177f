"""Answers that arrive while their call is still sent: a node refuses a body that is too long at once.

asyncio drops what it has received and not read as soon as it fails to send, and httpcore reads nothing before it has
sent all. So these connections read while a large call is sent, and send no more once there is a final answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import httpcore

from callboard._awaiting import apart
from callboard.client._http_deadline import Deadline
from callboard.client._http_request import SMALL_BYTES

# As many as httpcore asks for.
_READ_BYTES = 64 << 10

# How an informational answer begins, such as `100 Continue`. The final answer follows it.
_INFORMATIONAL = b"HTTP/1.1 1"


class AsyncBackend(httpcore.AsyncNetworkBackend):
    """Connections that read while they send, and keep the deadline of a call."""

    def __init__(self, inner: httpcore.AsyncNetworkBackend, deadline: Deadline) -> None:
        self._inner = inner
        self._deadline = deadline
        self._connect = apart(inner.connect_tcp)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        timeout = self._deadline.left(timeout, httpcore.ConnectTimeout)
        found = await self._connect(host, port, timeout, local_address, socket_options)
        return _Stream(found, self._deadline)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, inner: httpcore.AsyncNetworkStream, deadline: Deadline) -> None:
        self._inner = inner
        self._deadline = deadline
        # Bytes since the last answer.
        self._sent = 0
        # The bytes that arrived while the call was sent.
        self._received = b""
        self._reading: asyncio.Task[bytes] | None = None

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._sent = 0
        if self._received:
            received, self._received = self._received, b""
            return received
        timeout = self._deadline.left(timeout, httpcore.ReadTimeout)
        reading = self._reading
        if reading is None:
            return await self._inner.read(max_bytes, timeout)
        done, _ = await asyncio.wait([reading], timeout=timeout)
        if not done:
            raise httpcore.ReadTimeout("timed out")
        self._reading = None
        if reading.cancelled():
            raise httpcore.ReadError("the client was closed")
        return reading.result()

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._sent += len(buffer)
        if self._reading is None and self._sent > SMALL_BYTES:
            self._reading = asyncio.ensure_future(self._inner.read(_READ_BYTES))
        if self._reading is not None:
            # The event loop looks at the socket, which takes what is sent at once while it has room.
            await asyncio.sleep(0)
            if self._reading.done() and self._reading.exception() is None:
                received = self._reading.result()
                self._received += received
                if not received or len(self._received) > _READ_BYTES or _has_answer(self._received):
                    self._reading = None
                    # httpcore goes on to read the answer.
                    raise httpcore.WriteError("there was an answer before the call was sent")
                self._reading = asyncio.ensure_future(self._inner.read(_READ_BYTES))
        await self._inner.write(buffer, self._deadline.left(timeout, httpcore.WriteTimeout))

    async def aclose(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            # It may have failed, as the connection did.
            await asyncio.gather(reading, return_exceptions=True)
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        timeout = self._deadline.left(timeout, httpcore.ConnectTimeout)
        return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _has_answer(received: bytes) -> bool:
    """Whether the first byte of the final answer is there. Informational answers may come before it."""
    while received.startswith(_INFORMATIONAL):
        _, end, received = received.partition(b"\r\n\r\n")
        if not end:
            return False
    return not _INFORMATIONAL.startswith(received)
