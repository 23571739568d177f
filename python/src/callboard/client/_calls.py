"""Calls that are made at the same time: each has an outcome, which may be of another thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from callboard._envelope import Buffer
from callboard.client.transport import Failure, Options

# A future of this event loop, or one of `callboard.client._background`.
Outcome = Any


class CallsApart:
    """Calls at the same time, each by itself. Used in one event loop."""

    def __init__(self, make: Callable[[Sequence[Buffer], Options], Awaitable[Buffer]]) -> None:
        self._make = make
        # The event loop of the first call.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._open: set[asyncio.Task[None]] = set()

    def begin(self, pieces: Sequence[Buffer], options: Options, outcome: Outcome) -> asyncio.Task[None]:
        """Begins a call. `outcome` gets its envelope or its `Failure`, and to cancel it cancels the call."""
        loop = self.use()
        task = loop.create_task(self._end(pieces, options, outcome))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        # Also if it was cancelled before it began.
        task.add_done_callback(lambda _: outcome.cancel())

        def left(outcome: Any) -> None:
            if outcome.cancelled():
                with contextlib.suppress(RuntimeError):
                    # The client may be in another thread.
                    loop.call_soon_threadsafe(task.cancel)

        outcome.add_done_callback(left)
        return task

    async def _end(self, pieces: Sequence[Buffer], options: Options, outcome: Outcome) -> None:
        try:
            succeed(outcome, await self._make(pieces, options))
        except asyncio.CancelledError:
            # A task that ends so keeps the frames of its call.
            outcome.cancel()
        except Exception as error:
            fail(outcome, error)

    def use(self) -> asyncio.AbstractEventLoop:
        """This event loop, which is that of all calls."""
        self.loop = asyncio.get_running_loop()
        return self.loop

    def finish(self) -> None:
        """No further calls begin."""

    async def aclose(self) -> None:
        """Ends all calls."""
        await ended(*self._open)


async def ended(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def succeed(outcome: Outcome, envelope: Buffer) -> None:
    # The client may have cancelled it.
    if not outcome.done():
        outcome.set_result(envelope)


def fail(outcome: Outcome, error: Exception) -> None:
    if not outcome.done():
        # A future keeps the frames of its error, which have the input and the future.
        outcome.set_exception(error.alone() if isinstance(error, Failure) else error.with_traceback(None))
