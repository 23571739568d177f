"""What is said over HTTP, without a socket: requests, answers, problem documents, frames of a stream."""

from __future__ import annotations

import json
import math
import socket
import ssl
import struct
import urllib.parse
from collections.abc import AsyncIterator, Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import numpy as np

from callboard._envelope import Buffer, EnvelopeError, decode
from callboard.client.policy import CONNECTION_LOST, NO_CONNECTION
from callboard.client.transport import Failure, Options, Settings

ENVELOPE = b"application/vnd.callboard.envelope"
# A route without a stream answers with one output.
ENVELOPES = b"application/vnd.callboard.envelope-stream, application/vnd.callboard.envelope;q=0.9"
_STREAM_TYPE = "application/vnd.callboard.envelope-stream"
_PROBLEM = "application/problem+json"

# Pieces are sent in slices of this size, so that what is copied on the way stays in the processor's cache.
_SLICE_BYTES = 1 << 20
# Smaller envelopes are sent in one piece.
_SMALL_BYTES = 64 << 10
_FRAME = struct.Struct("<B3xI")
_OUTPUT, _ERROR, _END = 0, 1, 2
# A node has at most an hour for a call.
_MAX_TIMEOUT_MS = 3_600_000

_KINDS = {
    400: "invalid_input", 401: "unauthenticated", 403: "permission_denied", 404: "not_found", 405: "invalid_input",
    406: "invalid_input", 408: "invalid_input", 411: "invalid_input", 413: "invalid_input", 414: "invalid_input",
    415: "invalid_input", 422: "invalid_input", 429: "overloaded", 431: "invalid_input", 499: "cancelled",
    502: "unavailable", 503: "unavailable", 504: "deadline_exceeded",
}  # fmt: skip


# ---- Requests --------------------------------------------------------------------------------------------------------


class Body:
    """The pieces of an envelope, to be sent more than once."""

    def __init__(self, pieces: Sequence[Buffer]) -> None:
        self.length = sum(map(len, pieces))
        self.pieces: Sequence[Buffer] = [b"".join(pieces)] if self.length <= _SMALL_BYTES else pieces

    def slices(self) -> Iterator[Buffer]:
        for piece in self.pieces:
            if len(piece) <= _SLICE_BYTES:
                yield piece
                continue
            view = memoryview(piece)
            for start in range(0, len(view), _SLICE_BYTES):
                yield view[start : start + _SLICE_BYTES]


class Sending(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body on its way. A node starts no call before it has the whole body."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self.is_whole = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self._body.slices()  # type: ignore[misc]
        self.is_whole = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._body.slices():
            yield piece  # type: ignore[misc]
        self.is_whole = True


class Endpoint:
    """Where the calls go: the address, the headers of every request, and TLS."""

    def __init__(self, url: str, settings: Settings) -> None:
        try:
            self.base = httpx.URL(url)
            port = self.base.port
        except (httpx.InvalidURL, ValueError) as error:
            raise ValueError(f"url={url!r}: {error}") from None
        if not self.base.host or self.base.query or self.base.fragment:
            raise ValueError(f'url={url!r}: write "http://host:port"')
        self.name = f"{self.base.scheme}://{self.base.netloc.decode()}"
        self.is_tls = self.base.scheme == "https"
        self.default_port = port is None
        self._prefix = self.base.raw_path.rstrip(b"/").decode("ascii")
        self._urls: dict[tuple[str, bool], httpx.URL] = {}
        self._headers = [
            (b"Host", self.base.netloc),
            (b"Content-Type", ENVELOPE),
            (b"Accept-Encoding", b"identity"),
            (b"User-Agent", b"callboard-python"),
        ]
        if settings.api_key is not None:
            self._headers.append((b"Authorization", b"Bearer " + _header("api_key", settings.api_key)))
        for name, value in settings.headers.items():
            self._headers.append((_header("headers", name), _header(f"headers[{name!r}]", value)))
        self.tls = _tls(settings) if self.is_tls else False

    def url(self, route: str, function: bool) -> httpx.URL:
        found = self._urls.get((route, function))
        if found is None:
            path = f"/v1/call/{route.lstrip('/')}" if function else route
            raw = f"{self._prefix}{urllib.parse.quote(path, safe='/')}".encode("ascii")
            found = self.base.copy_with(raw_path=raw)
            if len(self._urls) < 1024:
                self._urls[route, function] = found
        return found

    def request(
        self, route: str, body: Body, options: Options, remaining: float | None, accept: bytes
    ) -> httpx.Request:
        if options.session is not None:
            raise ValueError("session: sessions are for quic:// only")
        headers = [*self._headers, (b"Accept", accept), (b"Content-Length", b"%d" % body.length)]
        if remaining is not None:
            millis = min(max(1, math.ceil(remaining * 1000)), _MAX_TIMEOUT_MS)
            headers.append((b"X-Request-Timeout-Ms", b"%d" % millis))
        if options.priority is not None:
            headers.append((b"X-Request-Priority", options.priority.encode()))
        if options.request_id is not None:
            headers.append((b"X-Request-Id", _header("request_id", options.request_id)))
        if options.traceparent is not None:
            headers.append((b"Traceparent", _header("traceparent", options.traceparent)))
        return httpx.Request("POST", self.url(route, options.function), headers=headers, stream=Sending(body))


def _header(name: str, value: str) -> bytes:
    if not value.isascii() or not value.isprintable():
        raise ValueError(f"{name}: visible ASCII characters only")
    return value.encode("ascii")


def _tls(settings: Settings) -> ssl.SSLContext | bool:
    if settings.verify is False:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif isinstance(settings.verify, str):
        context = ssl.create_default_context(cafile=settings.verify)
    else:
        context = httpx.create_ssl_context()
        context.load_default_certs()
    if settings.certificate is not None:
        files = (settings.certificate,) if isinstance(settings.certificate, str) else settings.certificate
        context.load_cert_chain(*files)
    return context


# ---- Answers ---------------------------------------------------------------------------------------------------------


class Reply:
    """An answer as it comes. Its bytes are received into their place if their count is known."""

    def __init__(self, response: httpx.Response, max_bytes: int) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self.is_envelope = response.is_success and self.media_type == ENVELOPE.decode()
        self._max_bytes = max_bytes
        announced = response.headers.get("content-length", "")
        length = int(announced) if announced.isdecimal() else 0
        self._check(length)
        self._place = np.empty(length, np.uint8).data if length > _SMALL_BYTES else None
        self._pieces: list[bytes] = []
        self._came = 0

    def push(self, chunk: bytes) -> None:
        end = self._came + len(chunk)
        self._check(end)
        if self._place is None:
            self._pieces.append(chunk)
        else:
            self._place[self._came : end] = chunk
        self._came = end

    def body(self) -> Buffer:
        return b"".join(self._pieces) if self._place is None else self._place[: self._came]

    def _check(self, length: int) -> None:
        if length > self._max_bytes:
            message = f"an answer of {length} bytes or more exceeds max_reply_bytes = {self._max_bytes}"
            raise Failure("invalid_input", message, request_id=self.headers.get("x-request-id"))


def failure_of_response(reply: Reply, endpoint: Endpoint) -> Failure:
    """The failure in an answer that is no output."""
    body = bytes(reply.body())
    request_id = reply.headers.get("x-request-id")
    retry_after = _retry_after(reply.headers.get("retry-after"))
    if reply.media_type == _PROBLEM:
        try:
            problem = json.loads(body)
        except (ValueError, RecursionError):
            problem = None
        if isinstance(problem, dict):
            return failure_of_problem(problem, reply.status, retry_after, request_id)
    shown = reply.media_type or "of no type"
    if 200 <= reply.status < 300:
        message = f"{endpoint.name} answered in an unknown format ({shown}): is it a node of Callboard?"
        return Failure("internal", message, request_id=request_id, status=reply.status)
    if 300 <= reply.status < 400:
        message = f"{endpoint.name} redirects to {reply.headers.get('location', 'nowhere')}: use that address"
        return Failure("internal", message, request_id=request_id, status=reply.status, was_started=False)
    kind = _KINDS.get(reply.status, "failed" if reply.status < 500 else "internal")
    text = " ".join(body[:200].decode("utf-8", "replace").split())
    return Failure(
        kind,
        f"{endpoint.name} answered {reply.status} ({shown}), which is no answer of a node: {text}",
        request_id=request_id,
        status=reply.status,
        retry_after=retry_after,
        # A proxy answers 502 and 503 also after it has sent the whole call on.
        error_type=CONNECTION_LOST if kind == "unavailable" else None,
        retryable=reply.status == 429,
        was_started=reply.status >= 500,
    )


def failure_of_problem(
    problem: dict[str, Any], status: int | None, retry_after: float | None, request_id: str | None
) -> Failure:
    """The failure that a problem document tells."""

    def text(name: str) -> str | None:
        found = problem.get(name)
        return found if isinstance(found, str) else None

    status = status if isinstance(status, int) else None
    kind = text("kind") or _KINDS.get(status or 0, "internal")
    retryable = problem.get("retryable") is True
    return Failure(
        kind,
        text("message") or text("detail") or text("title") or "no message",
        details=problem.get("details"),
        remote_traceback=text("remote_trace"),
        request_id=text("request_id") or request_id,
        retry_after=retry_after,
        status=status,
        error_type=text("error_type"),
        stage=text("stage"),
        retryable=retryable,
        was_started=not (
            kind in ("unauthenticated", "permission_denied", "not_found")
            or (retryable and kind in ("overloaded", "unavailable"))
        ),
    )


def _retry_after(text: str | None) -> float | None:
    """Seconds, or a date."""
    if text is None:
        return None
    if text.isdecimal():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
        from datetime import datetime, timezone

        return max(0.0, (at - datetime.now(at.tzinfo or timezone.utc)).total_seconds())
    except (ValueError, TypeError):
        return None


class FrameReader:
    """The outputs of a stream, in bytes as they come."""

    def __init__(self, response: httpx.Response, max_bytes: int) -> None:
        media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self._request_id = response.headers.get("x-request-id")
        self._max_bytes = max_bytes
        self._single = media_type == ENVELOPE.decode()
        self.is_done = False
        self._count = 0
        self._pending = bytearray()
        if not self._single and media_type != _STREAM_TYPE:
            raise self._failed("internal", f"the answer is in an unknown format ({media_type or 'of no type'})")

    def push(self, chunk: bytes | None) -> Iterator[Buffer]:
        """The outputs that are complete with this chunk. None is the end of the answer."""
        self._pending += chunk or b""
        if self._single:
            yield from self._push_single(chunk)
            return
        while len(self._pending) >= _FRAME.size:
            kind, length = _FRAME.unpack_from(self._pending)
            if length > self._max_bytes:
                message = f"an output of {length} bytes exceeds max_reply_bytes = {self._max_bytes}"
                raise self._failed("invalid_input", message)
            end = _FRAME.size + length
            if len(self._pending) < end:
                break
            envelope = bytes(memoryview(self._pending)[_FRAME.size : end])
            del self._pending[:end]
            if kind == _END:
                self.is_done = True
                return
            if kind == _ERROR:
                raise self._problem(envelope)
            if kind != _OUTPUT:
                raise self._failed("internal", f"a frame of kind {kind}, which is not known")
            self._count += 1
            yield envelope
        if chunk is None:
            raise self.cut(self._failed(CONNECTION_LOST, "the answer ended"))

    def _push_single(self, chunk: bytes | None) -> Iterator[Buffer]:
        if len(self._pending) > self._max_bytes:
            message = f"an answer of {len(self._pending)} bytes or more exceeds max_reply_bytes = {self._max_bytes}"
            raise self._failed("invalid_input", message)
        if chunk is None:
            self.is_done = True
            yield bytes(self._pending)

    def cut(self, failure: Failure) -> Failure:
        """The failure of a stream that was cut."""
        if failure.kind == "deadline_exceeded":
            return failure
        message = f"the stream was cut after {self._count} outputs: {failure.message}"
        return Failure("unavailable", message, request_id=self._request_id, status=503, error_type=CONNECTION_LOST)

    def _problem(self, envelope: bytes) -> Failure:
        try:
            problem = decode(envelope)
        except (EnvelopeError, TypeError):
            problem = None
        if not isinstance(problem, dict):
            return self._failed("internal", "an error that cannot be read")
        return failure_of_problem(problem, problem.get("status"), None, self._request_id)

    def _failed(self, kind: str, message: str) -> Failure:
        return Failure(kind, message, request_id=self._request_id)


# ---- Exceptions ------------------------------------------------------------------------------------------------------


def late(*, was_started: bool) -> Failure:
    message = "the deadline passed before the outcome was there"
    return Failure("deadline_exceeded", message, status=504, was_started=was_started)


def failure_of_exception(error: httpx.HTTPError, endpoint: Endpoint, body: object) -> Failure:
    """The failure that an exception of httpx stands for. It tells whether the call may have run."""
    if isinstance(error, httpx.ConnectTimeout):
        return _no_connection(endpoint, "it did not answer within the connect timeout", retryable=True)
    if isinstance(error, httpx.PoolTimeout):
        message = "the deadline passed before one of `max_connections` was free"
        return Failure("deadline_exceeded", message, status=504, was_started=False)
    if isinstance(error, httpx.TimeoutException):
        return late(was_started=isinstance(body, Sending) and body.is_whole)
    if isinstance(error, (httpx.ConnectError, httpx.ProxyError)):
        return _not_connected(error, endpoint)
    if isinstance(error, (httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
        return Failure("internal", f"the request cannot be sent: {error}", was_started=False)
    if isinstance(error, httpx.RemoteProtocolError) and "disconnected" not in str(error):
        hint = "does the port speak TLS? then use https://" if not endpoint.is_tls else "is it a node of Callboard?"
        return Failure("internal", f"{endpoint.name} does not answer in HTTP ({error}): {hint}")
    was_started = not isinstance(body, Sending) or body.is_whole
    words = "the call may have run" if was_started else "it was not started"
    return Failure(
        "unavailable",
        f"the connection to {endpoint.name} was lost, and {words}: {error or type(error).__name__}",
        status=503,
        error_type=CONNECTION_LOST,
        retryable=not was_started,
        was_started=was_started,
    )


def _not_connected(error: httpx.TransportError, endpoint: Endpoint) -> Failure:
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and len(causes) < 10:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    if any(isinstance(each, socket.gaierror) for each in causes):
        return _no_connection(endpoint, f"the host is not known: {error}", retryable=False)
    if any(isinstance(each, ssl.SSLCertVerificationError) for each in causes):
        return _no_connection(endpoint, f"its certificate is not believed: {error}", retryable=False)
    if any(isinstance(each, ssl.SSLError) for each in causes) or "SSL" in str(error):
        return _no_connection(endpoint, f"no TLS with this port (is it plain http://?): {error}", retryable=False)
    return _no_connection(endpoint, str(error) or type(error).__name__, retryable=True)


def _no_connection(endpoint: Endpoint, reason: str, *, retryable: bool) -> Failure:
    return Failure(
        "unavailable",
        f"no node answers at {endpoint.name}: {reason}",
        status=503,
        error_type=NO_CONNECTION,
        retryable=retryable,
        was_started=False,
    )
