"""Work after an answer: `context.after(fn, …)` runs in the replica once the answer of its call is sent."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from callboard._exceptions import HTTPException
from callboard.metrics import metric

# A function with its arguments.
Work = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

# The most functions that wait or run in one process.
MAX_PENDING = 1000
# How long a stop waits for them, if the node does not say.
_STOP_SECONDS = 4.0

log = logging.getLogger("callboard")


class AfterWork:
    """The functions of all calls of this process. Those of async code run in its loop, the others in one thread."""

    def __init__(self) -> None:
        self.pending = 0
        self._changed = threading.Condition()
        # Functions for the thread that have not begun.
        self._waiting: deque[tuple[Work, str | None]] = deque()
        self._thread: threading.Thread | None = None
        # The loop refers to them weakly.
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, works: list[Work], request_id: str | None, loop: asyncio.AbstractEventLoop | None) -> None:
        """Starts the functions of a call that has its answer."""
        for work in works:
            with self._changed:
                self.pending += 1
            if loop is not None and inspect.iscoroutinefunction(work[0]):
                task = loop.create_task(_run_in_loop(work, request_id))
                self._tasks.add(task)
                task.add_done_callback(self._task_ended)
                continue
            with self._changed:
                self._waiting.append((work, request_id))
                self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_all, name="callboard-after", daemon=True)
                self._thread.start()

    def cut_after(self, timeout_ms: int | None) -> None:
        """Waits as long as a stop with this timeout may: the rest of it is for `cleanup`. Tells how many are cut."""
        seconds = _STOP_SECONDS if timeout_ms is None else 0.8 * timeout_ms / 1000
        if self.pending and (cut := self._wait(seconds)):
            _count_failures(cut)
            log.error("%d functions after answers did not end within %.1f s (stop_timeout) and are cut", cut, seconds)

    def _wait(self, seconds: float | None) -> int:
        """Waits until all have ended, and returns how many have not."""
        with self._changed:
            self._changed.wait_for(lambda: not self.pending, seconds)
            return self.pending

    async def wait_in_loop(self) -> None:
        """Waits for the async functions."""
        await asyncio.gather(*self._tasks)

    def _run_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                (fn, args, kwargs), request_id = self._waiting.popleft()
            try:
                result = fn(*args, **kwargs)
                if inspect.isawaitable(result):
                    asyncio.run(_awaited(result))
            except BaseException as error:
                _tell(fn, error, request_id)
            finally:
                # What it refers to is free while the next one is awaited.
                del fn, args, kwargs
                self._ended()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._ended()

    def _ended(self) -> None:
        with self._changed:
            self.pending -= 1
            self._changed.notify_all()


PENDING = AfterWork()


async def run_now(works: list[Work], request_id: str | None, *, in_loop: bool) -> None:
    """Runs the functions of a call in this process, without a node, and waits for them."""
    for work in works:
        if in_loop and inspect.iscoroutinefunction(work[0]):
            PENDING.begin([work], request_id, asyncio.get_running_loop())
            await PENDING.wait_in_loop()
        else:
            PENDING.begin([work], request_id, None)
            PENDING._wait(None)


def check_room(own: int) -> None:
    """Raises `HTTPException` if a call with this many functions cannot have one more."""
    if PENDING.pending + own >= MAX_PENDING:
        raise HTTPException(503, f"after: {MAX_PENDING} functions wait in this replica already")


async def _run_in_loop(work: Work, request_id: str | None) -> None:
    fn, args, kwargs = work
    try:
        await fn(*args, **kwargs)
    except Exception as error:
        _tell(fn, error, request_id)


async def _awaited(result: Any) -> Any:
    return await result


def _count_failures(count: int) -> None:
    """Counts functions that have failed, or are cut."""
    metric("after_failures", help="Functions after answers that failed or were cut.").inc(count)


def _tell(fn: Any, error: BaseException, request_id: str | None) -> None:
    _count_failures(1)
    name = getattr(fn, "__qualname__", repr(fn))
    log.error("after the answer of %s: %s failed", request_id or "a call", name, exc_info=error)
