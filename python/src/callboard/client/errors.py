"""The errors of calls: one class for each kind of `docs/errors.md`, all of them a `CallError`."""

from __future__ import annotations

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


CLASSES: dict[str, type[CallError]] = {
    "invalid_input": InvalidInputError,
    "unauthenticated": UnauthenticatedError,
    "permission_denied": PermissionDeniedError,
    "not_found": NotFoundError,
    "overloaded": OverloadedError,
    "cancelled": CancelledCallError,
    "failed": FailedError,
    "worker_failed": WorkerFailedError,
    "internal": InternalError,
    "unavailable": UnavailableError,
    "deadline_exceeded": DeadlineExceededError,
}


# The status of an error without one of its own, as `docs/errors.md` has it. Over QUIC only user code gives one.
_STATUSES = {
    "invalid_input": 400, "unauthenticated": 401, "permission_denied": 403, "not_found": 404, "overloaded": 429,
    "cancelled": 499, "failed": 500, "worker_failed": 500, "internal": 500, "unavailable": 503,
    "deadline_exceeded": 504,
}  # fmt: skip


def to_error(failure: Failure, request_id: str | None = None) -> CallError:
    """The error that a caller sees. The traceback of the service is shown below its own."""
    error = CLASSES.get(failure.kind, CallError)(
        failure.message,
        kind=failure.kind,
        status_code=_STATUSES.get(failure.kind) if failure.status is None else failure.status,
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
