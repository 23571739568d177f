"""The errors that services raise, and that their callers get."""

from __future__ import annotations

import http
from collections.abc import Iterable
from typing import Any

from callboard._headers import Headers, checked, pairs_of


class HTTPException(Exception):
    """Raise it in a service: the call is answered with this status. A batch may return it in the place of one item.

    * `status_code`: from 400 to 599.
    * `detail`: a text is the message of the error; any other value goes to the client as `details`, with the usual
      words of the status as the message. `None`: the usual words alone. Keys that are numbers become texts.
    * `headers`: a mapping, or pairs of name and value, in which a name may occur more than once: all are sent in this
      order. At most 16 headers with 2048 bytes in all, and none of the server's own, such as `Content-Length` or
      `Set-Cookie`. `Retry-After` is in seconds.

    Raises `ValueError` for a status or header that is wrong.
    """

    def __init__(
        self,
        status_code: int,
        detail: Any = None,
        headers: Headers | None = None,
    ) -> None:
        if not isinstance(status_code, int):
            raise TypeError(
                f"HTTPException: the first argument is the status, not {status_code!r}: HTTPException(400, …)"
            )
        if not 400 <= status_code <= 599:
            raise ValueError(f"HTTPException: the status {status_code} is not from 400 to 599")
        self.status_code = status_code
        self.detail = _phrase(status_code) if detail is None else detail
        self.headers = checked(headers)
        super().__init__(status_code, self.detail)

    @property
    def message(self) -> str:
        """The text of the error, as the client gets it."""
        return self.detail if isinstance(self.detail, str) else _phrase(self.status_code)

    @property
    def retry_after(self) -> int | None:
        """`Retry-After` in seconds; None without that header."""
        seconds = next((value for name, value in self.headers if name.lower() == "retry-after"), "")
        return int(seconds) if seconds.isdecimal() else None

    @property
    def other_headers(self) -> list[tuple[str, str]]:
        """The headers but `Retry-After`, which is a time for the node."""
        return [(name, value) for name, value in self.headers if name.lower() != "retry-after"]

    def __str__(self) -> str:
        return f"{self.status_code}: {self.message}"


def _phrase(status_code: int) -> str:
    try:
        return http.HTTPStatus(status_code).phrase
    except ValueError:
        return f"status {status_code}"


class InvalidInput(ValueError):
    """Raise it for an input that is wrong although it fits the type hints: status 422.

    A service raises it by itself for an input that does not fit the hints. `fields` are pairs of a place in the input,
    such as `"$.items[2].price"`, and what is wrong there; clients get them as `details["fields"]`.
    """

    def __init__(self, message: str = "", fields: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.fields = list(fields)


class CallError(Exception):
    """A call of a client, or of another service, has failed.

    A client raises a class for each `kind`, from `callboard.client`. A service that does not catch the error of a call
    it has made fails with the same error.
    """

    message: str
    """The error in one sentence."""
    kind: str
    """One of the words in `docs/errors.md`, such as `"invalid_input"`, `"overloaded"` or `"failed"`."""
    status_code: int | None
    """The HTTP status, or that of the kind where there was no answer: 503 for a lost connection."""
    type: str | None
    """The class of the exception that the service raised, such as `"KeyError"`, or a type of `docs/errors.md`."""
    details: Any
    """More about the error as plain data, such as `{"fields": [{"path": "$.a", "message": "…"}]}`; often None."""
    retry_after: float | None
    """Seconds after which the call may be made again; None if the node did not say."""
    headers: list[tuple[str, str]]
    """The headers that a called service gave its `HTTPException`; empty for the errors of a client."""
    remote_traceback: str | None
    """The traceback of the service, if its code raised."""
    stage: str | None
    """The stage that failed."""
    request_id: str | None
    """The name of the call in the log of the node."""
    retryable: bool
    """Whether the same call may be made again: it does no harm, and may succeed."""
    was_started: bool
    """Whether code of the service may have run."""

    def __init__(
        self,
        message: str,
        *,
        kind: str = "failed",
        status_code: int | None = None,
        type: str | None = None,
        details: Any = None,
        retry_after: float | None = None,
        headers: Headers | None = None,
        remote_traceback: str | None = None,
        stage: str | None = None,
        request_id: str | None = None,
        retryable: bool = False,
        was_started: bool = True,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.status_code = status_code
        self.type = type
        self.details = details
        self.retry_after = retry_after
        self.headers = pairs_of(headers)
        self.remote_traceback = remote_traceback
        self.stage = stage
        self.request_id = request_id
        self.retryable = retryable
        self.was_started = was_started

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"
