"""Work after an answer: `context.after(fn, …)` runs in the replica once the answer of its call is sent."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from typing import Any

from callboard._awaiting import apart, is_own_cancellation
from callboard._context import OVER, Context, Work
from callboard._current import running
from callboard._errors import forget
from callboard._exceptions import HTTPException
from callboard.metrics import metric

# The most functions that wait or run in one process.
MAX_PENDING = 1000
# How long the end of a replica waits for them, or for `cleanup`, if the node does not say.
STOP_SECONDS = 4.0

log = logging.getLogger("callboard")


class AfterWork:
    """The functions of all calls of this process. Those of async code run in its loop, the others in one thread."""

    def __init__(self) -> None:
        # Those that wait or run, and those of calls of this worker that have no answer yet.
        self.pending = self._noted = 0
        self._changed = threading.Condition()
        # Functions for the thread that have not begun.
        self._waiting: deque[tuple[Work, Context]] = deque()
        self._thread: threading.Thread | None = None
        # The loop refers to them weakly.
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, context: Context) -> None:
        """Counts one more function of a call that has no answer. Raises `HTTPException` if there is no room for it."""
        # Nobody tells when a call is over whose context a test has made.
        own = 0 if context._place else len(context._after or ())
        with self._changed:
            if self.pending + self._noted + own >= MAX_PENDING:
                raise HTTPException(503, f"after: {MAX_PENDING} functions wait in this replica already")
            self._noted += context._place is not None

    def begin(self, context: Context, loop: asyncio.AbstractEventLoop | None) -> None:
        """Starts the functions of a call that has its answer."""
        works, context._after = context._after or [], None
        with self._changed:
            self.pending += len(works)
            self._noted -= len(works) if context._place else 0
        # They call nothing as this call.
        context._place = OVER
        for work in works:
            if loop is not None and inspect.iscoroutinefunction(work[0]):
                task = loop.create_task(_run_in_loop(work, context))
                self._tasks.add(task)
                task.add_done_callback(self._task_ended)
                continue
            with self._changed:
                self._waiting.append((work, context))
                self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_all, name="callboard-after", daemon=True)
                self._thread.start()

    def cut_after(self, timeout_ms: int | None) -> None:
        """Waits as long as a stop with this timeout may: the rest of it is for `cleanup`. Tells how many are cut."""
        seconds = STOP_SECONDS if timeout_ms is None else 0.8 * timeout_ms / 1000
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
                (fn, args, kwargs), context = self._waiting.popleft()
            try:
                with running(context):
                    result = fn(*args, **kwargs)
                    if inspect.isawaitable(result):
                        asyncio.run(_awaited(result))
            except BaseException as error:
                _tell(fn, error, context.request_id)
            finally:
                # What it refers to is free while the next one is awaited.
                del fn, args, kwargs, context
                result = None
                self._ended()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._ended()

    def _ended(self) -> None:
        with self._changed:
            self.pending -= 1
            self._changed.notify_all()


PENDING = AfterWork()


async def run_now(context: Context, *, in_loop: bool) -> None:
    """Runs the functions of a call in this process, without a node, and waits for them."""
    works, context._after = context._after or [], None
    for work in works:
        context._after, context._place = [work], None
        if in_loop and inspect.iscoroutinefunction(work[0]):
            PENDING.begin(context, asyncio.get_running_loop())
            await PENDING.wait_in_loop()
        else:
            PENDING.begin(context, None)
            PENDING._wait(None)
    context._place = OVER


async def _run_in_loop(work: Work, context: Context) -> None:
    fn, args, kwargs = work
    try:
        with running(context):
            await apart(fn)(*args, **kwargs)
    except BaseException as error:
        # `sys.exit` in it ends no calls of others.
        if is_own_cancellation(error):
            raise
        _tell(fn, error, context.request_id)


async def _awaited(result: Any) -> Any:
    return await result


def _count_failures(count: int) -> None:
    """Counts functions that have failed, or are cut."""
    metric("after_failures", help="Functions after answers that failed or were cut.").inc(count)


def _tell(fn: Any, error: BaseException, request_id: str | None) -> None:
    """Logs and counts a failure. Afterwards the error keeps nothing."""
    _count_failures(1)
    name = getattr(fn, "__qualname__", repr(fn))
    log.error("after the answer of %s: %s failed", request_id or "a call", name, exc_info=error)
    forget(error)
