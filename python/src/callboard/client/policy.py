"""Whether a failed call is made again, and when. Pure: the time is handed in, in seconds of one clock."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

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
    used up, calls of a stream fail at once. One of them a second looks whether the node is there, and the calls that
    begin meanwhile wait for its outcome. A new stream begins with nothing known.
    """

    LOOK = 1.0

    def __init__(self, wait: float) -> None:
        self._wait = wait
        self._began: float | None = None
        self._last = 0.0
        self.has_answered = False
        # The failure after the wait.
        self._gone: Failure | None = None
        # The call that looks for the node. `_look` is the end of the others' wait for it; without one, its begin.
        self._looker: object | None = None
        self._look = 0.0
        self._waiting: list[Callable[[], object]] = []

    def called(self, now: float) -> None:
        """A call begins. The wait of calls that are long over is not its own, and neither is their failure."""
        # With a short wait there are still looks.
        kept = self._wait if self._gone is None else max(self._wait, 2 * self.LOOK)
        if now > max(self._last + kept, self._look):
            self._began = None
            self._settle(None)
        if not self.has_answered:
            self.until(now)

    def stream_begins(self) -> None:
        """The calls of a new stream are made, whatever those of an earlier one have found."""
        self._settle(None)

    def until(self, now: float) -> float:
        """The end of the wait, which begins now if there was none."""
        began = self._began if self._began is not None else now
        self._began, self._last = began, now
        return began + self._wait

    def used_up(self, failure: Failure, now: float) -> bool:
        """A call of a stream has failed after the wait, or would fail whenever it is made. Whether one did before."""
        was_gone, self._last = self._gone is not None, now
        self._settle(failure.repeated(), now + self.LOOK)
        return was_gone

    def is_gone(self, now: float) -> bool:
        """Whether calls of a stream fail at once, or wait for one that looks for the node."""
        return self._gone is not None and now < self._look

    def look(self, call: object, longest: float, now: float) -> float | None:
        """How long this call of a stream waits for one that looks for the node, which is `longest` at most.

        None: the call is made. Raises the failure of a call that is not.
        """
        if self._gone is None:
            return None
        if self._looker is not None and now < self._look:
            return self._look - now
        if self._looker is not None:
            # It has a connection: else it had failed by now. Its answer may take as long as it likes.
            self._settle(None)
            return None
        if now < self._look:
            raise self._gone.repeated()
        self._looker, self._look = call, now + longest
        return None

    def when_known(self, tell: Callable[[], object]) -> None:
        """`tell` is called once the look is over. It may be in another thread, and it raises nothing."""
        self._waiting.append(tell)

    def over(self, call: object) -> None:
        """A call has ended. If it has looked for the node and not found out, another one looks."""
        if self._looker is call:
            self._settle(self._gone)

    def answered(self) -> None:
        """The node is there."""
        self._began, self.has_answered = None, True
        self._settle(None)

    def _settle(self, gone: Failure | None, look: float = 0.0) -> None:
        """What is known now, and when the next look begins. No call looks any more."""
        self._gone, self._looker, self._look = gone, None, look
        waiting, self._waiting = self._waiting, []
        for tell in waiting:
            tell()


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

    def check(self, now: float) -> float | None:
        """The seconds that a call of a stream waits for one that looks for the node, up to its deadline.

        None: it is made now. Raises its failure if the node is gone.
        """
        if not self._options.is_of_stream:
            return None
        wait = self._absence.look(self, self._settings.connect_timeout + Absence.LOOK, now)
        return wait if wait is None or self.deadline is None else min(wait, self.deadline - now)

    def over(self) -> None:
        """The call has ended, in whichever way."""
        self._absence.over(self)

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
