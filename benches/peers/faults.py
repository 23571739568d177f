"""What happens to callers when something goes wrong: killed workers, overload, SIGTERM, clients that leave."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from cases import Request
from closed_loop import measure, warm_up
from open_loop import Outcome, leave, offer
from peers import Peer
from servers import Server, is_alive

# An answer is of use within this time.
USEFUL_SECONDS = 1.0
CLIENT_TIMEOUT = 5.0
# How long new workers are waited for.
BACK_SECONDS = 8
# What says that there is too much to do. Other statuses come when a call that was let in is too late.
REFUSALS = (409, 429, 503)
KILL_RATE, KILL_WORK = 200, 1
OVERLOAD, OVERLOAD_WORK = 5, 5
STOP_RATE, STOP_WORK, STOP_SECONDS = 40, 10, 15
TOLD_ROUNDS = 20
LEAVERS, LEAVING_WORK, LEAVING_AFTER = 20, 100, 0.05

Figures = dict[str, float | int | str | None]


class Start(Protocol):
    """Starts a server of a peer; the request makes it ready."""

    def __call__(
        self, case: str, request: Request, processes: int, *, bounded: bool = False
    ) -> AbstractContextManager[Server]: ...


@dataclasses.dataclass
class Watch:
    """What is seen of the workers after a kill."""

    killed_at: float = 0
    back_seconds: float | None = None


def kill(start: Start, peer: Peer, seconds: float, processes: int) -> Figures:
    """Kills one worker under load."""
    request, watch = peer.work(KILL_WORK), Watch()
    with start("work", request, processes) as server:
        asyncio.run(_all_workers(server, processes))

        async def event() -> None:
            victim = server.workers()[0]
            os.kill(victim, signal.SIGKILL)
            watch.killed_at = time.time()
            await _back(server, victim, processes, watch)

        outcomes = asyncio.run(offer(server.port, request, KILL_RATE, seconds, CLIENT_TIMEOUT, event, seconds / 3))
    after = [outcome for outcome in outcomes if outcome.ended >= watch.killed_at]
    good = [outcome for outcome in after if outcome.is_good and outcome.due >= watch.killed_at]
    return {
        **_summary(outcomes),
        "full_strength_seconds": watch.back_seconds,
        "first_answer_seconds": min((outcome.ended for outcome in good), default=0) - watch.killed_at if good else None,
        "slowest_seconds": max((outcome.seconds for outcome in after if outcome.is_good), default=None),
    }


async def _all_workers(server: Server, processes: int) -> None:
    """The first answer may come before the other workers are ready."""
    until = time.monotonic() + server.peer.start_seconds
    while len(server.workers()) < processes and time.monotonic() < until:
        await asyncio.sleep(0.01)


async def _back(server: Server, victim: int, processes: int, watch: Watch) -> None:
    """Looks until there are as many workers as before, with a new one among them."""
    until = time.monotonic() + BACK_SECONDS
    while time.monotonic() < until:
        if len([pid for pid in server.workers() if pid != victim]) >= processes:
            watch.back_seconds = time.time() - watch.killed_at
            return
        await asyncio.sleep(0.005)


def overload(start: Start, peer: Peer, seconds: float) -> Figures:
    """Five times as many calls as it can answer. Good answers are those within a second."""
    request = peer.work(OVERLOAD_WORK)
    with start("work", request, 1, bounded=True) as server:
        warm_up(server, request, 16)
        peak = measure(server, request, 16, seconds / 2).per_second
        own = time.process_time()
        outcomes = asyncio.run(offer(server.port, request, OVERLOAD * peak, seconds, CLIENT_TIMEOUT))
        own = time.process_time() - own
    spent = max(outcome.ended for outcome in outcomes) - outcomes[0].due
    # The queue is filled first, and the last answers come when nothing more is offered.
    useful = [outcome for outcome in outcomes if outcome.is_good and outcome.seconds <= USEFUL_SECONDS]
    refused = [outcome.seconds for outcome in outcomes if outcome.status in REFUSALS]
    within = [outcome for outcome in useful if outcome.ended <= outcomes[0].due + seconds]
    return {
        **_summary(outcomes),
        "peak_per_second": peak,
        "goodput": len(within) / seconds / peak,
        "refused_p50_seconds": _quantile(refused, 50),
        "refused_p99_seconds": _quantile(refused, 99),
        "late": len(outcomes) - len(useful) - len(refused),
        "generator": own / spent,
    }


def stop(start: Start, peer: Peer, seconds: float) -> Figures:
    """SIGTERM under load: calls that were sent before are to be answered."""
    request, signalled, ended = peer.work(STOP_WORK), 0.0, None
    with start("work", request, 1) as server:

        async def event() -> None:
            nonlocal signalled, ended
            signalled = time.time()
            server.process.send_signal(signal.SIGTERM)
            while server.process.poll() is None and time.time() < signalled + STOP_SECONDS:
                await asyncio.sleep(0.005)
            ended = time.time() - signalled

        outcomes = asyncio.run(offer(server.port, request, STOP_RATE, seconds, CLIENT_TIMEOUT, event, seconds / 2))
        left = len([pid for pid in server.tree() if is_alive(pid) and pid != server.process.pid])
        code = server.process.poll()
    before = [outcome for outcome in outcomes if outcome.due < signalled]
    return {
        **_summary(outcomes),
        "cut": sum(not outcome.is_good for outcome in before),
        "ended_seconds": ended if code is not None else None,
        "exit_code": code,
        "processes_left": left,
    }


def leaving(start: Start, peer: Peer) -> Figures:
    """Clients that leave while one call runs and the others wait: what is worked on for nobody?"""
    request = peer.work(LEAVING_WORK)
    with start("work", request, 1) as server:
        before = len(server.ledger())
        left = asyncio.run(leave(server.port, request, LEAVERS, LEAVING_AFTER))
        # All of them, one after the other, and a second more.
        time.sleep(LEAVERS * LEAVING_WORK / 1000 + 1)
        ledger = server.ledger()[before:]
        # It still serves.
        status, _ = server.post(peer.work(1))
    begun = [at for word, at in ledger if word == "began"]
    return {
        "clients": LEAVERS,
        "begun": len(begun),
        "begun_for_nobody": sum(at > left for at in begun),
        "serves_after": status,
    }


def told(start: Start, peer: Peer) -> Figures:
    """A client leaves while its call runs, and the call looks whether it has: after how long is it told?"""
    waits: list[float] = []
    with start("told", peer.request("told"), 1) as server:
        for _ in range(TOLD_ROUNDS):
            before = len(server.ledger())
            left = asyncio.run(leave(server.port, peer.request("waits"), 1, LEAVING_AFTER))
            until = time.monotonic() + CLIENT_TIMEOUT
            while len(server.ledger()) < before + 2 and time.monotonic() < until:
                time.sleep(0.005)
            waits += [at - left for word, at in server.ledger()[before:] if word == "told"]
    return {"told": len(waits), "of": TOLD_ROUNDS, "p50_seconds": _quantile(waits, 50), "slowest_seconds": max(waits)}


def _summary(outcomes: list[Outcome]) -> Figures:
    counts = Counter(str(outcome.status or outcome.reason) for outcome in outcomes)
    good = [outcome.seconds for outcome in outcomes if outcome.is_good]
    return {
        "offered": len(outcomes),
        "answered": len(good),
        "failed": len(outcomes) - len(good),
        "outcomes": ", ".join(f"{count} × {what}" for what, count in counts.most_common()),
        "p50_seconds": _quantile(good, 50),
        "p99_seconds": _quantile(good, 99),
    }


def _quantile(values: list[float], percent: int) -> float | None:
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


FAULTS: dict[str, Callable[[Start, Peer, float], Figures]] = {
    "kill_only": lambda start, peer, seconds: kill(start, peer, seconds, 1),
    "kill_one_of_two": lambda start, peer, seconds: kill(start, peer, seconds, 2),
    "overload": overload,
    "stop": stop,
    "leaving": lambda start, peer, seconds: leaving(start, peer),
    "told": lambda start, peer, seconds: told(start, peer),
}
