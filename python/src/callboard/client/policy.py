"""Whether a failed call is made again, and when. Pure: the time is handed in, in seconds of one clock."""

from __future__ import annotations

import random
import threading

from callboard.client.errors import KINDS
from callboard.client.transport import Failure, Options, Settings

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
# A node that asks for a longer wait is not called again: the caller decides.
LONGEST_RETRY_AFTER = 10.0
# The error type of an answer that exceeds `max_reply_bytes`.
REPLY_TOO_LARGE = "reply_too_large"


class RetryBudget:
    """Retries are at most a fifth of the calls of the last 10 s, plus ten a second, so that they add no overload."""

    CALLS_FOR_ONE = 5
    SECONDS = 10
    RESERVE_PER_SECOND = 10

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The calls of each second, minus the price of its retries.
        self._balance = dict.fromkeys(range(self.SECONDS), 0)
        self._newest = self.SECONDS - 1
        self._start: float | None = None

    def called(self, now: float) -> None:
        """Counts a call."""
        with self._lock:
            second = self._second(now)
            self._balance[second] += 1

    def take(self, now: float) -> bool:
        """Takes one retry. False: the budget is used up."""
        with self._lock:
            second = self._second(now)
            reserve = self.RESERVE_PER_SECOND * self.SECONDS * self.CALLS_FOR_ONE
            is_available = sum(self._balance.values()) + reserve >= self.CALLS_FOR_ONE
            if is_available:
                self._balance[second] -= self.CALLS_FOR_ONE
            return is_available

    def _second(self, now: float) -> int:
        """The current second, after those that are too old were dropped."""
        if self._start is None:
            self._start = now
        second = max(self._newest, self.SECONDS - 1 + int(now - self._start))
        if second != self._newest:
            kept = range(second - self.SECONDS + 1, second + 1)
            self._balance = {each: self._balance.get(each, 0) for each in kept}
            self._newest = second
        return second


class Absence:
    """Since when the node has not answered.

    All calls wait for a node that has not answered yet, and calls of a stream also for one that went away. The wait
    is the same for all of them together, so that a long stream does not wait again for each of its inputs. Once it is
    used up, calls of a stream fail at once, and one of them a second looks whether the node is there.
    """

    LOOK = 1.0

    def __init__(self, wait: float) -> None:
        self._wait = wait
        self._began: float | None = None
        self._last = 0.0
        self.has_answered = False
        # The failure after the wait, and when a call of a stream is made again.
        self._gone: Failure | None = None
        self._look = 0.0

    def called(self, now: float) -> None:
        """A call begins. The wait of calls that are long over is not its own."""
        if now > self._last + self._wait:
            self._began = None
        if not self.has_answered:
            self.until(now)

    def until(self, now: float) -> float:
        """The end of the wait, which begins now if there was none."""
        began = self._began if self._began is not None else now
        self._began, self._last = began, now
        return began + self._wait

    def used_up(self, failure: Failure, now: float) -> bool:
        """A call of a stream has failed after the wait, or would fail whenever it is made. Whether one did before."""
        was_gone, self._gone, self._look = self._gone is not None, failure.repeated(), now + self.LOOK
        return was_gone

    def is_gone(self, now: float) -> bool:
        """Whether calls of a stream fail at once."""
        return self._gone is not None and now < self._look

    def failure(self, now: float) -> Failure | None:
        """The failure of a call of a stream that begins now. None: it is made."""
        gone = self._gone
        if gone is None or now < self._look:
            return gone and gone.repeated()
        self._look = now + self.LOOK
        return None

    def answered(self) -> None:
        """The node is there."""
        self._began, self.has_answered, self._gone = None, True, None


class Attempts:
    """One call: its deadline, and its way through the retries."""

    def __init__(self, settings: Settings, options: Options, budget: RetryBudget, absence: Absence, now: float) -> None:
        self.deadline = None if options.timeout is None else now + options.timeout
        self._settings = settings
        self._options = options
        self._budget = budget
        self._absence = absence
        absence.called(now)
        self._made = 0
        self._pause = FIRST_PAUSE
        self._lost: Failure | None = None
        budget.called(now)

    def remaining(self, now: float) -> float | None:
        """Seconds until the caller gives up."""
        return None if self.deadline is None else self.deadline - now

    def check(self, now: float) -> None:
        """Raises the failure of a call of a stream whose node is gone, before it is made."""
        failure = self._absence.failure(now) if self._options.is_of_stream else None
        if failure is not None:
            try:
                raise failure
            finally:
                # A frame that has its own error is a cycle.
                del failure

    def answered(self) -> None:
        """The node is there."""
        self._absence.answered()

    def pause(self, failure: Failure, now: float) -> float:
        """The seconds to wait before the next attempt. Raises the failure of the call if there is none."""
        self._made += 1
        # With jitter, so that calls that failed together are not repeated together.
        wait = (failure.retry_after or 0.0) + self._pause * (0.5 + random.random())
        is_late = self.deadline is not None and now + wait >= self.deadline
        if is_late or not self._may_repeat(failure, now + wait, now):
            try:
                raise self._final(failure)
            finally:
                # A frame that has its own error is a cycle, which keeps the input of the call.
                del failure
        if failure.is_lost:
            self._lost = failure.alone()
        self._pause = min(self._pause * 2, LONGEST_PAUSE)
        return wait

    def _may_repeat(self, failure: Failure, then: float, now: float) -> bool:
        kind = KINDS.get(failure.kind)
        if kind is None or not kind.is_retryable:
            return False
        if not (failure.retryable or (failure.is_lost and self._options.idempotent)):
            if failure.is_unsent and self._options.is_of_stream:
                self._absence.used_up(failure, now)
            return False
        if self._waits_for_node(failure):
            if then <= self._absence.until(now):
                return True
            failure.message += f" after {self._settings.start_up_wait:g} s"
            if self._options.is_of_stream and self._absence.used_up(failure, now):
                return False
            if not self._absence.has_answered:
                return False
        if failure.kind == "overloaded" and self._options.is_of_stream:
            return True
        if self._made >= self._settings.attempts or (failure.retry_after or 0.0) > LONGEST_RETRY_AFTER:
            return False
        return failure.is_unsent or self._budget.take(now)

    def _waits_for_node(self, failure: Failure) -> bool:
        # A node that names a stage is there.
        is_absent = failure.kind == "unavailable" and not failure.was_started and failure.stage is None
        return is_absent and (self._options.is_of_stream or not self._absence.has_answered)

    def _final(self, last: Failure) -> Failure:
        """If an earlier attempt may have run, a later refusal does not hide that."""
        lost, self._lost = self._lost, None
        return lost if lost is not None and not last.was_started else last
