"""Answers over HTTP, without a socket: envelopes, frames of a stream, problem documents, and no answer at all."""

from __future__ import annotations

import json
import re
import socket
import ssl
import struct
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import unquote

import httpx
import numpy as np

from callboard._envelope import Buffer, EnvelopeError, decode, encode
from callboard._errors import is_handled
from callboard.client._http_request import ENVELOPE, SMALL_BYTES, STREAM_TYPE, Endpoint, Sending
from callboard.client._mistakes import redirected
from callboard.client.errors import KINDS
from callboard.client.policy import REPLY_TOO_LARGE
from callboard.client.transport import Failure

_PROBLEM = "application/problem+json"
FRAME = struct.Struct("<B3xI")
OUTPUT, ERROR, END = 0, 1, 2

# What a status means where no kind is said.
_KINDS = {
    **{row.status: kind for kind, row in KINDS.items()},
    **dict.fromkeys((405, 406, 408, 411, 413, 414, 415, 422, 431), "invalid_input"),
    500: "internal",
    502: "unavailable",
}


# ---- Answers ---------------------------------------------------------------------------------------------------------


class Reply:
    """An answer as it comes. Its bytes are received into their place if their count is known."""

    def __init__(self, response: httpx.Response, max_bytes: int) -> None:
        self.status = response.status_code
        self.headers = response.headers
        # The route as its caller has named it: a path, perhaps with a method before it.
        request = response.request
        self.method: str | None = request.headers.get("x-callboard-method")
        path = unquote(request.url.path)
        self.called = path if self.method is None else f"{self.method} {path}"
        self.media_type = _media_type(response)
        # An answer without a body is a None.
        self._has_no_body = response.status_code in (204, 205)
        self.is_envelope = self._has_no_body or (has_outputs(response) and self.media_type == ENVELOPE.decode())
        self._max_bytes = max_bytes
        announced = response.headers.get("content-length", "")
        length = int(announced) if announced.isdecimal() else 0
        self._check(length)
        self._place = np.empty(length, np.uint8).data if length > SMALL_BYTES else None
        # Pieces would cost an object for each few bytes that a server sends.
        self._body: bytes | bytearray = b""
        self._came = 0

    def push(self, chunk: bytes) -> None:
        end = self._came + len(chunk)
        self._check(end)
        if self._place is None and not self._came:
            self._body = chunk
        elif self._place is None:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += chunk
        else:
            self._place[self._came : end] = chunk
        self._came = end

    def body(self) -> Buffer:
        if self._has_no_body:
            return encode(None)
        return self._body if self._place is None else self._place[: self._came]

    def _check(self, length: int) -> None:
        if length > self._max_bytes:
            message = f"an answer of {length} bytes or more exceeds max_reply_bytes = {self._max_bytes}"
            request_id = self.headers.get("x-request-id")
            raise Failure("internal", message, request_id=request_id, error_type=REPLY_TOO_LARGE)


def has_outputs(response: httpx.Response) -> bool:
    """Whether an answer has outputs, whatever status the code has chosen: an error of a node is a problem document."""
    is_ours = _media_type(response) in (ENVELOPE.decode(), STREAM_TYPE.decode())
    return response.is_success or (is_ours and response.status_code >= 400)


def _media_type(response: httpx.Response) -> str:
    media_type: str = response.headers.get("content-type", "")
    return media_type.partition(";")[0].strip().lower()


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
            failure = failure_of_problem(problem, reply.status, retry_after, request_id)
            if reply.method is not None and failure.error_type == "method_not_allowed":
                # The node names that of the request, which has an envelope in a `POST`.
                failure.message = failure.message.replace("POST", reply.method, 1)
            return failure
    shown = reply.media_type or "of no type"
    # What has the id of a node, and is no error of it, was chosen by code, which has run.
    has_run = request_id is not None
    if 200 <= reply.status < 300:
        message = f"{endpoint.name} answered in an unknown format ({shown}): is it a node of Callboard?"
        return Failure("internal", message, request_id=request_id, status=reply.status)
    if 300 <= reply.status < 400:
        location = reply.headers.get("location")
        if has_run:
            failure = redirected(reply.called, reply.status, location, str(endpoint.base))
            failure.request_id = request_id
            return failure
        message = f"{endpoint.name} redirects to {location or 'nowhere'}: use that address"
        return Failure("internal", message, status=reply.status, was_started=False)
    kind = _KINDS.get(reply.status, "failed" if reply.status < 500 else "internal")
    text = " ".join(body[:200].decode("utf-8", "replace").split())
    return Failure(
        kind,
        f"{endpoint.name} answered {reply.status} ({shown}), which is no answer of a node: {text}",
        request_id=request_id,
        status=reply.status,
        retry_after=retry_after,
        # A proxy answers 502 and 503 also after it has sent the whole call on.
        is_lost=kind == "unavailable",
        retryable=reply.status == 429 and not has_run,
        was_started=reply.status >= 500 or has_run,
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
    message = text("message") or text("detail") or text("title") or "no message"
    if text("error_type") == "not_acceptable" and STREAM_TYPE.decode() in message:
        # The caller has asked for one output, and not for a media type.
        message = "this route answers with a stream: use `replies`"
    return Failure(
        kind,
        message,
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


class Frames:
    """Frames in bytes as they come."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pending = bytearray()
        # The bytes to come of a frame that is too long.
        self._skipped = 0

    def push(self, data: bytes | bytearray) -> Iterator[tuple[int, Any]]:
        """The kind of each complete frame, with its envelope, or with the failure of one that is too long."""
        pending = self._pending
        pending += data
        while True:
            if self._skipped:
                skipped = min(self._skipped, len(pending))
                del pending[:skipped]
                self._skipped -= skipped
            if len(pending) < FRAME.size:
                return
            kind, length = FRAME.unpack_from(pending)
            if length > self._max_bytes:
                del pending[: FRAME.size]
                self._skipped = length
                message = f"an output of {length} bytes exceeds max_reply_bytes = {self._max_bytes}"
                yield ERROR, Failure("internal", message, error_type=REPLY_TOO_LARGE)
                continue
            end = FRAME.size + length
            if len(pending) < end:
                return
            envelope = bytes(memoryview(pending)[FRAME.size : end])
            del pending[:end]
            yield kind, envelope


class FrameReader:
    """The outputs of a stream, in bytes as they come."""

    def __init__(self, response: httpx.Response, max_bytes: int) -> None:
        media_type = _media_type(response)
        self._request_id = response.headers.get("x-request-id")
        self._max_bytes = max_bytes
        self._single = media_type == ENVELOPE.decode()
        self.is_done = False
        self._count = 0
        self._pending = bytearray()
        self._frames = Frames(max_bytes)
        if not self._single and media_type != STREAM_TYPE.decode():
            raise self._failed("internal", f"the answer is in an unknown format ({media_type or 'of no type'})")

    def push(self, chunk: bytes | None) -> Iterator[Buffer]:
        """The outputs that are complete with this chunk. None is the end of the answer."""
        if self._single:
            yield from self._push_single(chunk)
            return
        for kind, envelope in self._frames.push(chunk or b""):
            if kind == END:
                self.is_done = True
                return
            if kind == ERROR:
                failure = envelope if isinstance(envelope, Failure) else failure_of_frame(envelope)
                failure.request_id = failure.request_id or self._request_id
                raise failure
            if kind != OUTPUT:
                raise self._failed("internal", f"a frame of kind {kind}, which is not known")
            self._count += 1
            yield envelope
        if chunk is None:
            raise self.cut(self._failed("unavailable", "the answer ended"))

    def _push_single(self, chunk: bytes | None) -> Iterator[Buffer]:
        self._pending += chunk or b""
        if len(self._pending) > self._max_bytes:
            message = f"an answer of {len(self._pending)} bytes or more exceeds max_reply_bytes = {self._max_bytes}"
            raise self._failed("internal", message, REPLY_TOO_LARGE)
        if chunk is None:
            self.is_done = True
            yield bytes(self._pending)

    def cut(self, failure: Failure) -> Failure:
        """The failure of a stream that was cut."""
        if failure.kind == "deadline_exceeded":
            return failure
        message = f"the stream was cut after {self._count} outputs: {failure.message}"
        return Failure("unavailable", message, request_id=self._request_id, status=503, is_lost=True)

    def _failed(self, kind: str, message: str, error_type: str | None = None) -> Failure:
        return Failure(kind, message, request_id=self._request_id, error_type=error_type)


def failure_of_frame(envelope: bytes) -> Failure:
    """The failure that a frame of an error tells."""
    try:
        problem = decode(envelope)
    except (EnvelopeError, TypeError):
        problem = None
    if not isinstance(problem, dict):
        return Failure("internal", "an error that cannot be read")
    return failure_of_problem(problem, problem.get("status"), None, None)


# ---- Exceptions ------------------------------------------------------------------------------------------------------

# httpx has one class for a connection that ended before or in the middle of an answer, and for bytes that are no HTTP.
_ENDED = re.compile("disconnected|closed connection")
# In TLS 1.3 the client may have sent its call before it reads this. The node has read nothing of it.
_REFUSED = re.compile("(?i)alert.*(certificate|unknown ca|access denied)")


def late(*, was_started: bool) -> Failure:
    what = "the outcome was there" if was_started else "the call was sent: it was not started"
    message = f"the deadline passed before {what}"
    return Failure("deadline_exceeded", message, status=504, was_started=was_started)


def failure_of_exception(
    error: httpx.HTTPError | ssl.SSLError,
    endpoint: Endpoint,
    body: object,
    *,
    is_late: bool,
) -> Failure:
    """The failure that an exception of httpx stands for. It tells whether the call may have run.

    A timeout of a call that is not late is that of the system, which has lost the host.
    """
    if isinstance(error, httpx.ConnectTimeout):
        if is_late:
            return late(was_started=False)
        return _no_connection(endpoint, "it did not answer within the connect timeout", retryable=True)
    if isinstance(error, httpx.PoolTimeout):
        message = "the deadline passed before one of `max_connections` was free"
        return Failure("deadline_exceeded", message, status=504, was_started=False)
    if isinstance(error, httpx.TimeoutException) and is_late:
        return late(was_started=isinstance(body, Sending) and body.is_whole)
    if isinstance(error, (httpx.ConnectError, httpx.ProxyError)):
        return _not_connected(error, endpoint)
    if isinstance(error, (httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
        return Failure("internal", f"the request cannot be sent: {error}", was_started=False)
    if isinstance(error, httpx.RemoteProtocolError) and not _ENDED.search(str(error)):
        hint = "does the port speak TLS? then use https://" if not endpoint.is_tls else "is it a node of Callboard?"
        return Failure("internal", f"{endpoint.name} does not answer in HTTP ({error}): {hint}")
    causes = _causes(error)
    if any(isinstance(each, ssl.SSLError) and _REFUSED.search(str(each)) for each in causes):
        return _no_connection(endpoint, f"it does not take the certificate of this client: {error}", retryable=False)
    was_started = not isinstance(body, Sending) or body.is_whole
    return lost(endpoint, str(error) or str(causes[-1]) or type(error).__name__, was_started=was_started)


def lost(endpoint: Endpoint, reason: str, *, was_started: bool) -> Failure:
    words = "the call may have run" if was_started else "it was not started"
    return Failure(
        "unavailable",
        f"the connection to {endpoint.name} was lost, and {words}: {reason}",
        status=503,
        retryable=not was_started,
        was_started=was_started,
        is_lost=True,
    )


def _not_connected(error: httpx.TransportError, endpoint: Endpoint) -> Failure:
    causes = _causes(error)
    if any(isinstance(each, socket.gaierror) for each in causes):
        return _no_connection(endpoint, f"the host is not known: {error}", retryable=False)
    if any(isinstance(each, ssl.SSLCertVerificationError) for each in causes):
        return _no_connection(endpoint, f"its certificate is not believed: {error}", retryable=False)
    if any(isinstance(each, ssl.SSLError) for each in causes) or "SSL" in str(error):
        return _no_connection(endpoint, f"no TLS with this port (is it plain http://?): {error}", retryable=False)
    # The error of the system says more than that all attempts failed.
    return _no_connection(endpoint, str(causes[-1]) or str(error) or type(error).__name__, retryable=True)


def _causes(error: BaseException) -> list[BaseException]:
    """The error and its causes, without what the caller handles."""
    causes = [error]
    while len(causes) < 10:
        last = causes[-1]
        if isinstance(last, OSError) and last.errno is not None:
            break
        # httpcore removes the `__cause__` of an error that leaves its pool.
        cause = last.__cause__ or last.__context__
        # anyio makes a group of the errors of a host's addresses.
        grouped = getattr(cause, "exceptions", None)
        cause = grouped[0] if grouped else cause
        if cause is None or is_handled(cause) or not _is_of_connections(cause):
            break
        causes.append(cause)
    return causes


def _is_of_connections(error: BaseException) -> bool:
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in ("httpx", "httpcore", "anyio")


def _no_connection(endpoint: Endpoint, reason: str, *, retryable: bool) -> Failure:
    return Failure(
        "unavailable",
        f"no node answers at {endpoint.name}: {reason}",
        status=503,
        retryable=retryable,
        was_started=False,
        is_unsent=True,
    )
