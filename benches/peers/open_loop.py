"""The open loop: requests at a rate, however slow the answers, and clients that leave.

One thread and one request on a connection at a time. A latency counts from when its request was due.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable

from cases import Request

HOST = "127.0.0.1"


@dataclasses.dataclass(frozen=True)
class Outcome:
    # When the request was due and its outcome came, by the clock of the system.
    due: float
    ended: float
    # The status; 0 if none came, and then the reason.
    status: int
    reason: str = ""

    @property
    def seconds(self) -> float:
        return self.ended - self.due

    @property
    def is_good(self) -> bool:
        return self.status == 200


class _Connection(asyncio.Protocol):
    """A connection with one request at a time."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[int] | None = None
        self.transport: asyncio.Transport | None = None
        self._came = b""
        self.is_open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send(self, data: bytes) -> asyncio.Future[int]:
        assert self.transport is not None
        self._came = b""
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return self.answer

    def data_received(self, data: bytes) -> None:
        self._came += data
        if self.answer is not None and not self.answer.done() and _is_whole(self._came):
            self.is_open = self.is_open and b"connection: close" not in self._came.lower()
            self.answer.set_result(int(self._came[9:12]))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(ConnectionResetError("closed"))


def _is_whole(came: bytes) -> bool:
    head, end, body = came.partition(b"\r\n\r\n")
    if not end:
        return False
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return len(body) >= int(value)
        if name == b"transfer-encoding":
            return body.endswith(b"0\r\n\r\n")
    return True


async def offer(
    port: int,
    request: Request,
    rate: float,
    seconds: float,
    timeout: float,
    event: Callable[[], Awaitable[None]] | None = None,
    event_at: float = 0,
) -> list[Outcome]:
    """Offers requests at this rate; `event` happens once meanwhile."""
    data, idle, outcomes = request.bytes(f"{HOST}:{port}"), list[_Connection](), list[Outcome]()
    loop = asyncio.get_running_loop()

    async def one(due: float) -> None:
        status, reason = 0, ""
        try:
            async with asyncio.timeout(timeout):
                connection = None
                while connection is None and idle:
                    connection = idle.pop()
                    connection = connection if connection.is_open else None
                if connection is None:
                    _, connection = await loop.create_connection(_Connection, HOST, port)
                try:
                    status = await connection.send(data)
                finally:
                    if connection.is_open and status:
                        idle.append(connection)
                    elif connection.transport is not None:
                        connection.transport.abort()
        except TimeoutError:
            reason = "timeout"
        except ConnectionRefusedError:
            reason = "refused"
        except OSError:
            reason = "closed"
        outcomes.append(Outcome(due, time.time(), status, reason))

    async def happen() -> None:
        await asyncio.sleep(event_at)
        if event is not None:
            await event()

    start, tasks = time.time(), [asyncio.create_task(happen())]
    for number in range(int(rate * seconds)):
        due = start + number / rate
        if (wait := due - time.time()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(due)))
    await asyncio.gather(*tasks)
    for connection in idle:
        if connection.transport is not None:
            connection.transport.abort()
    return sorted(outcomes, key=lambda outcome: outcome.due)


async def leave(port: int, request: Request, clients: int, after: float) -> float:
    """So many clients send a request each, and leave without the answer. Returns when they left."""
    data, loop = request.bytes(f"{HOST}:{port}"), asyncio.get_running_loop()
    connections = [(await loop.create_connection(_Connection, HOST, port))[1] for _ in range(clients)]
    answers = [connection.send(data) for connection in connections]
    await asyncio.sleep(after)
    left = time.time()
    for connection in connections:
        assert connection.transport is not None
        connection.transport.abort()
    for answer in answers:
        with contextlib.suppress(OSError):
            await answer
    return left
