"""Connections that end a call at its deadline, whatever the server sends.

httpcore has a timeout for each step, and a server that sends a byte before each timeout never ends. So the steps of a
connection share the `Deadline` of the call that has it. `Backend` keeps it for threads.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import httpcore

from callboard._look_up import TooManyLookups, look_up

_CLOCK = time.monotonic


class Deadline:
    """When the call ends that has the connection."""

    def __init__(self) -> None:
        self.end: float | None = None

    def left(self, limit: float | None, late: type[Exception]) -> float | None:
        """The seconds that a step may take, at most its limit. Raises `late` if there are none."""
        if self.end is None:
            return limit
        left = self.end - _CLOCK()
        if left <= 0:
            raise late("timed out")
        return left if limit is None else min(left, limit)


class Backend(httpcore.NetworkBackend):
    """Connections that keep the deadline of a call over all of its steps, from the look-up of the name on."""

    def __init__(self, inner: httpcore.NetworkBackend, deadline: Deadline) -> None:
        self._inner = inner
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        timeout = self._deadline.left(timeout, httpcore.ConnectTimeout)
        end = None if timeout is None else _CLOCK() + timeout
        failed: Exception = httpcore.ConnectTimeout("timed out")
        for address in _addresses(host, port, timeout):
            left = None if end is None else end - _CLOCK()
            if left is not None and left <= 0:
                break
            try:
                found = self._inner.connect_tcp(address, port, left, local_address, socket_options)
                return _Stream(found, self._deadline)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        try:
            raise failed
        finally:
            # A frame that has its own error is a cycle.
            del failed

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._inner = inner
        self._deadline = deadline
        self._socket: Any = inner.get_extra_info("socket")
        # TLS inside of the TLS of a proxy has no socket of its own.
        self._is_direct = isinstance(self._socket, ssl.SSLSocket) or inner.get_extra_info("ssl_object") is None

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, self._deadline.left(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._deadline.end is None or not self._is_direct:
            return self._inner.write(buffer, self._deadline.left(timeout, httpcore.WriteTimeout))
        rest = memoryview(buffer)
        try:
            while len(rest):
                self._socket.settimeout(self._deadline.left(timeout, httpcore.WriteTimeout))
                rest = rest[self._socket.send(rest) :]
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error
        return None

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        timeout = self._deadline.left(timeout, httpcore.ConnectTimeout)
        with _ended(self._socket, timeout):
            return _Stream(self._inner.start_tls(ssl_context, server_hostname, timeout), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _addresses(host: str, port: int, timeout: float | None) -> list[str]:
    with contextlib.suppress(ValueError):
        return [str(ipaddress.ip_address(host))]
    try:
        places = look_up(host, port, timeout, waits=True)
    except (concurrent.futures.TimeoutError, TooManyLookups):
        raise httpcore.ConnectTimeout("timed out") from None
    except Exception as error:
        raise httpcore.ConnectError(str(error)) from error
    return list(dict.fromkeys(str(place[4][0]) for place in places))


@contextlib.contextmanager
def _ended(sock: socket.socket, timeout: float | None) -> Iterator[None]:
    """A handshake has many steps inside: another thread ends its connection."""
    if timeout is None:
        yield
        return
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)

    timer = threading.Timer(timeout, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if is_late.is_set():
            raise httpcore.ConnectTimeout("timed out") from error
        raise
    finally:
        timer.cancel()
