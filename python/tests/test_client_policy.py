"""Retries on paper: which failed call is made again, and when."""

from __future__ import annotations

import random
from collections import deque

import pytest

from callboard.client._http_reply import _retry_after
from callboard.client.policy import Absence, Attempts, RetryBudget
from callboard.client.transport import Failure, Options, Settings

UNUSED = Options()


def test_retries_are_at_most_a_fifth_of_the_calls_and_ten_a_second() -> None:
    """For any order of calls and losses, counted over ten seconds."""
    chance = random.Random(7)
    for _ in range(50):
        budget, now, history = RetryBudget(), 0.0, deque[tuple[float, int, int]]()
        for _ in range(100):
            now += chance.random() * 0.7
            calls, losses = chance.randrange(60), chance.randrange(60)
            for _ in range(calls):
                budget.called(now)
            history.append((now, calls, sum(budget.take(now) for _ in range(losses))))
            called = sum(calls for at, calls, _ in history if now - at < 20)
            taken = sum(taken for at, _, taken in history if now - at < 9)
            assert taken <= called / 5 + 2 * 10 * 10


def attempts(
    options: Options = UNUSED,
    *,
    budget: RetryBudget | None = None,
    absence: Absence | None = None,
    now: float = 0.0,
    limit: int = 3,
) -> Attempts:
    if absence is None:
        absence = Absence(10)
        absence.answered()
    return Attempts(Settings(attempts=limit), options, budget or RetryBudget(), absence, now)


REFUSED = Failure("overloaded", "full", retryable=True, was_started=False, retry_after=1.0)
LOST = Failure("unavailable", "lost", is_lost=True)
STREAM = Options(is_of_stream=True)


def gone() -> Failure:
    """A new one each time, because the last one tells the wait."""
    return Failure("unavailable", "gone", is_unsent=True, retryable=True, was_started=False)


def test_a_refused_call_is_made_again_after_the_time_that_the_node_says() -> None:
    call = attempts()
    assert 1.01 <= call.pause(REFUSED, 0.0) <= 1.03
    assert 1.02 <= call.pause(REFUSED, 1.0) <= 1.06
    with pytest.raises(Failure):
        call.pause(REFUSED, 2.0)


@pytest.mark.parametrize(
    "failure",
    [
        LOST,
        Failure("failed", "no"),
        Failure("worker_failed", "it died", retryable=True),
        Failure("overloaded", "much later", retryable=True, was_started=False, retry_after=11.0),
    ],
)
def test_what_may_have_run_is_not_made_again(failure: Failure) -> None:
    with pytest.raises(Failure):
        attempts().pause(failure, 0.0)


def test_only_a_lost_connection_is_repeated_for_an_idempotent_caller_and_not_an_error_that_has_its_type() -> None:
    attempts(Options(idempotent=True)).pause(LOST, 0.0)
    forged = Failure("unavailable", "forged", error_type="connection_lost")
    with pytest.raises(Failure):
        attempts(Options(idempotent=True)).pause(forged, 0.0)


def test_a_call_that_no_node_had_costs_nothing_of_the_budget_and_an_error_that_has_its_type_does() -> None:
    budget = RetryBudget()
    while budget.take(0.0):
        pass
    attempts(budget=budget).pause(gone(), 0.0)
    forged = Failure("unavailable", "forged", error_type="no_connection", retryable=True, was_started=False)
    with pytest.raises(Failure):
        attempts(budget=budget).pause(forged, 0.0)


def test_a_lost_call_that_may_run_twice_is_made_again_and_a_refusal_afterwards_does_not_hide_it() -> None:
    call = attempts(Options(idempotent=True))
    call.pause(LOST, 0.0)
    call.pause(REFUSED, 0.1)
    with pytest.raises(Failure) as last:
        call.pause(REFUSED, 0.2)
    assert last.value is LOST


def test_no_attempt_begins_after_the_deadline() -> None:
    with pytest.raises(Failure):
        attempts(Options(timeout=0.9)).pause(REFUSED, 0.0)
    attempts(Options(timeout=1.2)).pause(REFUSED, 0.0)


def test_calls_of_a_stream_wait_for_room_until_their_deadline() -> None:
    call = attempts(Options(timeout=60.0, is_of_stream=True))
    assert 50 < until_it_fails(call, REFUSED) < 60


def until_it_fails(call: Attempts, failure: Failure, now: float = 0.0) -> float:
    with pytest.raises(Failure):
        while True:
            now += call.pause(failure, now)
    return now


def test_calls_of_a_stream_wait_together_for_a_node_that_went_away() -> None:
    absence = Absence(10)
    absence.answered()
    assert 8 < until_it_fails(attempts(STREAM, absence=absence), gone()) <= 10
    now = 10.0
    # A plain call never waits.
    assert now < until_it_fails(attempts(absence=absence, now=now), gone(), now) < now + 1
    with pytest.raises(Failure) as last:
        attempts(STREAM, absence=absence, now=now, limit=1).pause(gone(), now)
    assert last.value.message == "gone after 10 s"
    absence.answered()
    attempts(STREAM, absence=absence, now=now).check(now)
    assert until_it_fails(attempts(STREAM, absence=absence, now=now), gone(), now) > now + 8


def test_calls_of_a_stream_fail_at_once_after_the_wait_and_one_a_second_looks_for_the_node() -> None:
    absence = Absence(10)
    now = until_it_fails(attempts(STREAM, absence=absence), gone())
    for at in (now, now + 0.9):
        assert absence.is_gone(at)
        with pytest.raises(Failure) as failed:
            attempts(STREAM, absence=absence, now=at).check(at)
        assert (failed.value.message, failed.value.is_unsent, failed.value.retryable) == ("gone after 10 s", True, True)
        # Another object each time: a call may change its own.
        failed.value.message += "!"
    attempts(absence=absence, now=now).check(now)
    look = now + 1.1
    call, other = (attempts(STREAM, absence=absence, now=look) for _ in range(2))
    assert call.check(look) is None and other.check(look) is not None
    with pytest.raises(Failure):
        call.pause(gone(), look)
    assert absence.is_gone(look + 0.9)
    with pytest.raises(Failure):
        other.check(look)
    absence.answered()
    assert not absence.is_gone(look)
    assert attempts(STREAM, absence=absence, now=look).check(look) is None


def looking() -> tuple[Absence, Attempts, float]:
    """A node that is gone, the call that looks for it, and when."""
    absence = Absence(10)
    now = until_it_fails(attempts(STREAM, absence=absence), gone()) + 1.1
    call = attempts(STREAM, absence=absence, now=now)
    assert call.check(now) is None
    return absence, call, now


def test_calls_wait_for_the_one_that_looks_for_the_node_until_it_has_failed_or_is_answered() -> None:
    for is_there in (True, False):
        absence, call, now = looking()
        told: list[bool] = []
        absence.when_known(lambda: told.append(True))  # noqa: B023 - in this round
        others = [attempts(STREAM, absence=absence, now=now) for _ in range(63)]
        assert all(other.check(now) == 3 for other in others) and absence.is_gone(now) and not told
        # Up to their own deadline.
        assert attempts(Options(timeout=0.5, is_of_stream=True), absence=absence, now=now).check(now) == 0.5
        if is_there:
            call.answered()
            assert all(other.check(now) is None for other in others)
        else:
            with pytest.raises(Failure):
                call.pause(gone(), now)
            for other in others:
                with pytest.raises(Failure, match="gone after 10 s"):
                    other.check(now)
        call.over()
        assert told == [True] and absence.is_gone(now) is not is_there


def test_another_call_looks_for_the_node_if_the_one_that_did_ends_without_an_outcome() -> None:
    absence, call, now = looking()
    other, third = (attempts(STREAM, absence=absence, now=now) for _ in range(2))
    other.over()
    assert other.check(now) == 3
    told: list[bool] = []
    absence.when_known(lambda: told.append(True))
    call.over()
    assert told and other.check(now) is None and third.check(now) == 3


def test_calls_do_not_wait_for_the_answer_of_the_one_that_looks_for_the_node_but_for_its_connection() -> None:
    absence, _, now = looking()
    others = [attempts(STREAM, absence=absence, now=now) for _ in range(2)]
    assert all(other.check(now + 3) is None for other in others)


def test_an_hour_later_or_for_a_new_stream_nothing_is_known_of_a_node_that_was_gone() -> None:
    for is_new, later in ((False, 3600.0), (False, 11.0), (True, 0.1), (True, 1.5)):
        absence = Absence(10)
        absence.answered()
        now = until_it_fails(attempts(STREAM, absence=absence), gone()) + later
        if is_new:
            absence.stream_begins()
        calls = [attempts(STREAM, absence=absence, now=now) for _ in range(64)]
        assert not absence.is_gone(now) and all(call.check(now) is None for call in calls)


def test_calls_of_one_stream_keep_what_they_know_although_there_is_no_wait() -> None:
    absence, now = Absence(0), 5.0
    until_it_fails(attempts(STREAM, absence=absence, now=now), gone(), now)
    for _ in range(5):
        now += 1.1
        call, other = (attempts(STREAM, absence=absence, now=now) for _ in range(2))
        assert call.check(now) is None and other.check(now) is not None
        until_it_fails(call, gone(), now)


def test_a_host_that_is_not_known_is_looked_for_once_a_second() -> None:
    absence, unknown = Absence(10), Failure("unavailable", "not known", is_unsent=True, was_started=False)
    assert until_it_fails(attempts(STREAM, absence=absence), unknown) == 0.0 and absence.is_gone(0.5)


def test_the_wait_of_an_earlier_stream_is_not_that_of_a_later_one() -> None:
    absence = Absence(10)
    absence.answered()
    first = until_it_fails(attempts(STREAM, absence=absence), gone())
    later = first + 11
    assert until_it_fails(attempts(STREAM, absence=absence, now=later), gone(), later) > later + 8


def test_a_wait_ends_although_each_attempt_takes_longer_than_it() -> None:
    call, now = attempts(STREAM, absence=Absence(0.2)), 0.0
    with pytest.raises(Failure):
        for _ in range(5):
            now += 2
            now += call.pause(gone(), now)


def test_a_stage_that_is_not_there_is_not_a_node_that_went_away() -> None:
    failure = Failure("unavailable", "failed", stage="model", retryable=True, was_started=False)
    assert until_it_fails(attempts(STREAM), failure) < 1


def test_an_unanswered_call_of_a_stream_is_not_made_again_because_the_node_is_absent() -> None:
    with pytest.raises(Failure):
        attempts(STREAM).pause(LOST, 0.0)


def test_retries_end_with_the_budget() -> None:
    budget = RetryBudget()
    while budget.take(0.0):
        pass
    with pytest.raises(Failure):
        attempts(budget=budget).pause(REFUSED, 0.0)


def test_a_retry_after_is_seconds_or_a_date() -> None:
    assert _retry_after("3") == 3.0
    assert _retry_after("Mon, 01 Jan 2001 00:00:00 GMT") == 0.0
    assert (_retry_after("Fri, 01 Jan 2100 00:00:00 GMT") or 0) > 1e6
    assert _retry_after("soon") is None and _retry_after(None) is None
