"""The errors of calls: one class for each kind of `docs/errors.md`, all of them a `CallError`."""

from __future__ import annotations

import dataclasses

from callboard._exceptions import CallError
from callboard.client.transport import Failure


class InvalidInputError(CallError):
    """The request is wrong: the message names the field and what was expected. Statuses 400, 413, 415, 422 …"""


class UnauthenticatedError(CallError):
    """A key is required, and none or an invalid one was sent. Status 401."""


class PermissionDeniedError(CallError):
    """The caller is known and may not do this. Status 403."""


class NotFoundError(CallError):
    """There is no such route or function. Status 404."""


class OverloadedError(CallError):
    """A bound was reached, and nothing was started. Repeat it after `retry_after`. Status 429."""


class CancelledCallError(CallError):
    """The caller has left. Status 499."""


class FailedError(CallError):
    """The code of the service has failed: `type` and `trace` are of its exception. Its own status, or 500."""


class WorkerFailedError(CallError):
    """The worker died or broke its contract. Status 500."""


class InternalError(CallError):
    """A defect of the framework, or an answer that is not one of a node or exceeds `max_reply_bytes`. Status 500."""


class InvalidOutputError(InternalError):
    """The call succeeded, but its output does not fit `returns`. `details["fields"]` has each path and its misfit."""


class UnavailableError(CallError, ConnectionError):
    """No node answers, it is not ready, or the connection was lost: see `was_started`. Status 503."""

    __str__ = CallError.__str__


class DeadlineExceededError(CallError, TimeoutError):
    """The time was up before there was an outcome. Status 504."""

    __str__ = CallError.__str__


@dataclasses.dataclass(frozen=True)
class Kind:
    """What follows from a kind alone: its row in `docs/errors.md`."""

    error: type[CallError]
    # The status of an error without one of its own. Over QUIC only user code gives one.
    status: int
    # Whether the same call may succeed if it is made again unchanged.
    is_retryable: bool = False


# A new kind is a class above and a row here.
KINDS = {
    "invalid_input": Kind(InvalidInputError, 400),
    "unauthenticated": Kind(UnauthenticatedError, 401),
    "permission_denied": Kind(PermissionDeniedError, 403),
    "not_found": Kind(NotFoundError, 404),
    "overloaded": Kind(OverloadedError, 429, is_retryable=True),
    "cancelled": Kind(CancelledCallError, 499),
    "failed": Kind(FailedError, 500),
    "worker_failed": Kind(WorkerFailedError, 500),
    "internal": Kind(InternalError, 500),
    "unavailable": Kind(UnavailableError, 503, is_retryable=True),
    "deadline_exceeded": Kind(DeadlineExceededError, 504),
}


def to_error(failure: Failure, request_id: str | None = None) -> CallError:
    """The error that a caller sees. The traceback of the service is shown below its own."""
    kind = KINDS.get(failure.kind)
    error = (CallError if kind is None else kind.error)(
        failure.message,
        kind=failure.kind,
        status_code=kind.status if failure.status is None and kind is not None else failure.status,
        details=failure.details,
        retry_after=failure.retry_after,
        type=failure.error_type,
        remote_traceback=failure.remote_traceback,
        stage=failure.stage,
        request_id=failure.request_id or request_id,
        retryable=failure.retryable,
        was_started=failure.was_started,
    )
    if failure.remote_traceback and hasattr(error, "add_note"):
        error.add_note(f"The service's own traceback:\n{failure.remote_traceback}")
    return error
