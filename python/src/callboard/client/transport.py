"""The seam between the clients and what carries their calls: envelopes out, envelopes or a failure back.

`http://` and `https://` are carried by `callboard.client.http`. `quic://` is carried by an extension: a module
`callboard.client.quic` with the classes `QuicTransport` and `AsyncQuicTransport`, each made with a URL and `Settings`.

A transport waits for the node at its start, retries what is safe to repeat, and keeps the time of a call. It knows
nothing of Python values.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from callboard._envelope import Buffer

Priority = Literal["high", "normal", "low"]

# For each scheme the module, its transport, and its asynchronous transport.
_SCHEMES = {
    "http": ("callboard.client.http", "HttpTransport", "AsyncHttpTransport"),
    "https": ("callboard.client.http", "HttpTransport", "AsyncHttpTransport"),
    "quic": ("callboard.client.quic", "QuicTransport", "AsyncQuicTransport"),
}

# The types of the errors of a connection, as `docs/errors.md` has them. People read them: whether a call may be made
# again is decided by the attributes of `Failure`.
CONNECTION_LOST = "connection_lost"
NO_CONNECTION = "no_connection"

# A node has at most an hour for a call.
_MAX_TIMEOUT_MS = 3_600_000

_URLS = 'write "http://host:port", "https://host" or "quic://host:port"'


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a client, for all of its calls. Times are in seconds."""

    # The key of the caller.
    api_key: str | None = dataclasses.field(default=None, repr=False)
    # Further headers of each request (HTTP).
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    # How long the first call waits for a node that is not up yet, and the calls of streams together for one that went
    # away. 0: one try.
    start_up_wait: float = 10.0
    # The longest time for one connection.
    connect_timeout: float = 2.0
    # The most attempts for one call.
    attempts: int = 3
    # The most connections at the same time, beside one for each ordered stream, and how long one is kept open without a
    # call (HTTP).
    max_connections: int = 100
    keep_alive: float = 20.0
    # The proxy that requests go through (HTTP). Variables of the environment are not read.
    proxy: str | None = dataclasses.field(default=None, repr=False)
    # The longest answer that is received, in bytes.
    max_reply_bytes: int = 1 << 30
    # TLS: False believes any certificate, a path is the file of the authority.
    verify: bool | str = True
    # The file of the client's certificate with its key, or both files (HTTP).
    certificate: str | tuple[str, str] | None = None
    # The directory of a member, whose identity is shown (QUIC). None: the development identity, for this machine only.
    cluster: str | os.PathLike[str] | None = None


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of one call."""

    # The route is the name of a function, and the envelope a map of `args` and `kwargs`.
    function: bool = False
    # Seconds until the caller gives up; None: the time of the route, which the node keeps.
    timeout: float | None = None
    priority: Priority | None = None
    session: str | None = None
    request_id: str | None = None
    traceparent: str | None = None
    # Parts of the request beside the input, which the code sees if its route lists them.
    headers: Sequence[tuple[str, str]] = ()
    query: Sequence[tuple[str, str]] = ()
    # The caller knows that the call may run twice, so it is repeated when it was lost with its connection.
    idempotent: bool = False
    # The call is one of an ordered stream: it waits for room on a full node until its time is up, and for a node that
    # went away up to the start-up wait.
    is_of_stream: bool = False


class Failure(Exception):
    """A failed call, as a transport raises it. The clients make a `CallError` of it.

    `kind` is one of the words in `docs/errors.md`, `retry_after` is in seconds, `details` is a decoded value.
    `was_started`: user code may have run. `is_lost`: the connection of this side ended before the answer.
    `is_unsent`: there was no connection, so no node had any part of the call.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        details: Any = None,
        remote_traceback: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        status: int | None = None,
        error_type: str | None = None,
        stage: str | None = None,
        retryable: bool = False,
        was_started: bool = True,
        is_lost: bool = False,
        is_unsent: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.details = details
        self.remote_traceback = remote_traceback
        self.request_id = request_id
        self.retry_after = retry_after
        self.status = status
        self.error_type = CONNECTION_LOST if is_lost else NO_CONNECTION if is_unsent else error_type
        self.stage = stage
        self.retryable = retryable
        self.was_started = was_started
        self.is_lost = is_lost
        self.is_unsent = is_unsent

    def repeated(self) -> Failure:
        """The same failure, of another call."""
        found = Failure(self.kind, self.message)
        found.__dict__.update(self.__dict__)
        return found

    def alone(self) -> Failure:
        """The failure without its frames, which refer to the call."""
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self


class Transport(Protocol):
    """Carries the calls of a `Client`. It is used by many threads at the same time."""

    def call(self, route: str, pieces: Sequence[Buffer], options: Options) -> Buffer:
        """Makes one call: the pieces, one after the other, are an envelope. Returns an envelope or raises `Failure`."""

    def replies(self, route: str, pieces: Sequence[Buffer], options: Options) -> Iterator[Buffer]:
        """Makes a call of a streaming route: its outputs. To close the generator cancels the call."""

    def close(self) -> None:
        """Closes all connections."""


class AsyncTransport(Protocol):
    """Carries the calls of an `AsyncClient`. A cancelled task cancels its call on the node."""

    async def call(self, route: str, pieces: Sequence[Buffer], options: Options) -> Buffer:
        """As `Transport.call`."""

    def replies(self, route: str, pieces: Sequence[Buffer], options: Options) -> AsyncIterator[Buffer]:
        """As `Transport.replies`: an asynchronous generator."""

    def calls(self, route: str, options: Options) -> Calls:
        """Many calls of one route. The timeout of `options` is that of each outcome once all earlier ones are there."""

    async def aclose(self) -> None:
        """Closes all connections."""


class Calls(Protocol):
    """The calls of an ordered stream, in one event loop."""

    def begin(self, pieces: Sequence[Buffer], options: Options, outcome: Any) -> object:
        """Begins a call. `outcome` is a future, which gets an envelope or a `Failure`. To cancel it ends its wait."""

    def finish(self) -> None:
        """No further calls begin."""

    async def aclose(self) -> None:
        """Ends all calls."""


def open_transport(url: str, settings: Settings) -> Transport:
    """The transport for this URL."""
    transport: Transport = _class_of(url, is_async=False)(url, settings)
    return transport


def open_async_transport(url: str, settings: Settings) -> AsyncTransport:
    """The asynchronous transport for this URL."""
    transport: AsyncTransport = _class_of(url, is_async=True)(url, settings)
    return transport


def timeout_millis(seconds: float) -> int:
    """The time of a call as the header `x-request-timeout-ms` has it."""
    return min(max(1, math.ceil(seconds * 1000)), _MAX_TIMEOUT_MS)


def without_user(url: str) -> str:
    """A URL to be shown. A password may have characters that end the host: all before the last @ is left out."""
    return re.sub(r"(?s)//.*@", "//", url, count=1)


def _class_of(url: str, *, is_async: bool) -> Any:
    if not isinstance(url, str):
        raise TypeError(f"url={url!r}: {_URLS}")
    shown = without_user(url)
    scheme, _, rest = shown.partition("://")
    if not rest or scheme not in _SCHEMES or re.search(r"\s", rest):
        raise ValueError(f"url={shown!r}: {_URLS}")
    # After the host, which may be an address of IPv6 in brackets.
    port = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("]")[2].partition(":")[2]
    if port and not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
        raise ValueError(f"url={shown!r}: the port {port!r} is not a number from 1 to 65535")
    if scheme == "quic" and shown != url:
        raise ValueError(f"url={shown!r}: quic:// takes no user and no password")
    module, transport, async_transport = _SCHEMES[scheme]
    try:
        return getattr(importlib.import_module(module), async_transport if is_async else transport)
    except ModuleNotFoundError as error:
        if scheme == "quic":
            message = "quic:// needs callboard._native: a wheel has it, and `pip install .` in a clone builds it"
            raise ImportError(message) from error
        raise ImportError(f"{scheme}:// needs {error.name}: pip install {error.name}") from error
