"""Runs what an app does once per node: `python -m callboard.hooks TARGET`, as a helper process of the node.

The functions with `on_start` run in the order of the file, then a line says that all have run. At `SIGTERM`, which the
node sends after its calls and stages have ended, those with `on_stop` run. All run in one task of one event loop: what
one of them starts goes on between them.

* **Late:** a function that waits in the event loop is cancelled after its timeout. One that blocks ends the process.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from callboard._api import NOTED, ON_START, ON_STOP
from callboard._errors import said_in_line
from callboard._hooks import NodeHooks
from callboard._target import TargetError, load_module, split
from callboard.doctor import asks_for_help

# The node waits for this line.
READY = "callboard.hooks: ready"

_USAGE = "usage: python -m callboard.hooks TARGET, such as app.py or package.module"
_TELL_SECONDS = 5.0
# A cancelled function ends what it has begun.
_CANCEL_SECONDS = 1.0


class _Process:
    """The functions of an app in this process. A thread watches the one that runs."""

    def __init__(self, hooks: NodeHooks, output: TextIO) -> None:
        self._hooks = hooks
        self._output = output
        self._kind = "on_start"

    async def run(self) -> int:
        for hook in self._hooks.start:
            if not await self._has_run(hook, getattr(hook, ON_START)):
                return 1
        self._kind = "on_stop"
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        print(READY, file=self._output, flush=True)
        await stopped.wait()
        # A failure of one is not that of the next.
        return int(not all([await self._has_run(hook, getattr(hook, ON_STOP)) for hook in self._hooks.stop]))

    async def _has_run(self, hook: Callable[[], Any], millis: int) -> bool:
        limit, over = millis / 1000, threading.Event()
        threading.Thread(target=self._watch, args=(hook, limit, over), name="callboard-hooks", daemon=True).start()
        try:
            result = hook()
            if inspect.isawaitable(result):
                await _within(limit, result)
        # What one of them raises, such as `CancelledError`, is no matter of the others.
        except BaseException as error:
            traceback.print_exception(error)
            self._fails(hook, said_in_line(error))
            return False
        finally:
            over.set()
        return True

    def _fails(self, hook: Callable[[], Any], reason: str) -> None:
        print(f"callboard.hooks: {self._kind} `{hook.__name__}`: {reason}", file=sys.stderr, flush=True)

    def _watch(self, hook: Callable[[], Any], limit: float, over: threading.Event) -> None:
        """Says every few seconds what the process waits for, and ends it in the end."""
        most = limit + _CANCEL_SECONDS if inspect.iscoroutinefunction(hook) else limit
        begin = time.monotonic()
        while not over.wait(max(0.0, min(_TELL_SECONDS, begin + most - time.monotonic()))):
            seconds = time.monotonic() - begin
            if seconds >= most:
                self._fails(hook, _late(limit))
                os._exit(1)
            print(f"{self._kind}: `{hook.__name__}` has run for {seconds:.0f} s", file=self._output, flush=True)


def _late(limit: float) -> str:
    return f"it took longer than its timeout of {limit:g} s"


async def _within(limit: float, result: Any) -> None:
    """Awaits in this task, unlike `asyncio.wait_for`: what `on_start` enters, `on_stop` may have to leave."""
    task, is_late = asyncio.current_task(), False

    def cancel() -> None:
        nonlocal is_late
        is_late = True
        if task is not None:
            task.cancel()

    timer = asyncio.get_running_loop().call_later(limit, cancel)
    try:
        await result
    except asyncio.CancelledError:
        if is_late:
            raise TimeoutError(_late(limit)) from None
        raise
    finally:
        timer.cancel()


def main(arguments: list[str]) -> int:
    if asks_for_help(arguments):
        print(_USAGE)
        return 0
    if len(arguments) != 1:
        print(_USAGE, file=sys.stderr)
        return 2
    os.environ.pop("PYTHONSAFEPATH", None)
    # Ctrl-C goes to the node, which decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The app may do with its standard output what it likes.
    output = os.fdopen(os.dup(1), "w")
    source, _ = split(arguments[0])
    hooks = NodeHooks([load_module(source)])
    try:
        hooks.check(NOTED, source)
    except TargetError as error:
        print(f"callboard.hooks: {error}", file=sys.stderr)
        return 1
    return asyncio.run(_Process(hooks, output).run())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
