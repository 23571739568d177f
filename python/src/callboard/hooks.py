"""Runs what an app does once per node: `python -m callboard.hooks TARGET`, as a helper process of the node.

The functions with `on_start` run in the order of the file, then a line says that all have run. At `SIGTERM`, which the
node sends after its calls and stages have ended, those with `on_stop` run. All run in one event loop: a task that one
of them starts goes on between them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from callboard._awaiting import settled
from callboard._errors import said_in_line
from callboard._hooks import NodeHooks
from callboard._target import load_module, split
from callboard.doctor import asks_for_help

# The node waits for this line.
READY = "callboard.hooks: ready"

_USAGE = "usage: python -m callboard.hooks TARGET, such as app.py or package.module"
_TELL_SECONDS = 5.0


class _Watch:
    """Says every few seconds which function the start waits for."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._begin = time.monotonic()
        self._name = ""

    def __enter__(self) -> _Watch:
        threading.Thread(target=self._tell, name="callboard-hooks", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def begins(self, name: str) -> None:
        self._begin, self._name = time.monotonic(), name

    def _tell(self) -> None:
        while not self._over.wait(_TELL_SECONDS):
            print(f"on_start: `{self._name}` has run for {time.monotonic() - self._begin:.0f} s", flush=True)


async def _run(hooks: NodeHooks) -> int:
    with _Watch() as watch:
        for hook in hooks.start:
            watch.begins(hook.__name__)
            if not await _has_run(hook, "on_start"):
                return 1
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print(READY, flush=True)
    await stopped.wait()
    # A failure of one is not that of the next.
    return int(not all([await _has_run(hook, "on_stop") for hook in hooks.stop]))


async def _has_run(hook: Callable[[], Any], kind: str) -> bool:
    try:
        await settled(hook())
    except (Exception, SystemExit) as error:
        traceback.print_exception(error)
        print(f"callboard.hooks: {kind} `{hook.__name__}`: {said_in_line(error)}", file=sys.stderr, flush=True)
        return False
    return True


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
    return asyncio.run(_run(NodeHooks([load_module(split(arguments[0])[0])])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
