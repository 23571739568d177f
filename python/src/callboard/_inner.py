"""The options of a call of another service: its time, and how often it is made again, by the policy of clients."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from callboard._current import CURRENT
from callboard._exceptions import CallError
from callboard._options import timeout_ms

# The most outputs of a stream that come before they are read.
CREDIT = 16
# The most bytes of them; of large ones fewer come.
CREDIT_BYTES = 8 << 20
_MAX_RETRIES = 100


@dataclasses.dataclass(frozen=True)
class InnerOptions:
    """The options of a call, or of all calls of a handle. The default is the time of the call that it is made for."""

    timeout_ms: int | None = None
    retries: int = 0

    def with_given(self, given: dict[str, Any]) -> InnerOptions:
        """These with other ones. Raises `TypeError` or `ValueError` for a value that is wrong."""
        found: dict[str, Any] = {}
        if "timeout" in given:
            found["timeout_ms"] = None if given["timeout"] is None else timeout_ms(given["timeout"])
        if "retries" in given:
            retries = given["retries"]
            if not isinstance(retries, int) or isinstance(retries, bool) or not 0 <= retries <= _MAX_RETRIES:
                raise ValueError(f"retries={retries!r}: must be an integer from 0 to {_MAX_RETRIES}")
            found["retries"] = retries
        return dataclasses.replace(self, **found)

    def deadline(self) -> float | None:
        """The end of a call that begins now, on the clock of `time.monotonic()`. That of its own call is no later."""
        outer = CURRENT.get()
        ends = [] if outer is None or outer.deadline is None else [outer.deadline]
        if self.timeout_ms is not None:
            ends.append(time.monotonic() + self.timeout_ms / 1000)
        return min(ends, default=None)

    def attempts(self) -> InnerAttempts | Once:
        """What decides whether a call is made again."""
        return InnerAttempts(self) if self.retries else Once(self)


def after_error(path: str) -> CallError:
    """The error of a call that work after an answer makes: it would have no caller, or that of another call."""
    message = f"{path} cannot be called after the answer: its call is over; call it in `predict`, or by a `Client`"
    return CallError(message, kind="unavailable")


class Once:
    """One call that is not made again."""

    __slots__ = ("_timeout_ms",)

    def __init__(self, options: InnerOptions) -> None:
        self._timeout_ms = options.timeout_ms

    def remaining_ms(self) -> int | None:
        return self._timeout_ms

    def pause(self, error: CallError) -> float | None:
        return None


class InnerAttempts:
    """One call that may be made again. All attempts have one deadline."""

    def __init__(self, options: InnerOptions) -> None:
        # A worker whose calls are not made again does not need them.
        from callboard.client import policy
        from callboard.client.transport import Options, Settings

        global _budget
        _budget = _budget or policy.RetryBudget()
        # Inner calls do not wait for an absent node: theirs runs.
        node = policy.Absence(0.0)
        node.answered()
        deadline, now = options.deadline(), time.monotonic()
        limits = Options(timeout=None if deadline is None else deadline - now)
        self._policy = policy.Attempts(Settings(attempts=options.retries + 1), limits, _budget, node, now)

    def remaining_ms(self) -> int | None:
        """The time for the next attempt."""
        remaining = self._policy.remaining(time.monotonic())
        return None if remaining is None else max(1, int(remaining * 1000))

    def pause(self, error: CallError) -> float | None:
        """The seconds until the call is made again. None: the error is that of the call."""
        from callboard.client.transport import Failure

        failure = Failure(error.kind, error.message, retry_after=error.retry_after, retryable=error.retryable)
        try:
            return self._policy.pause(failure, time.monotonic())
        except Failure:
            return None


_budget: Any = None
