"""Ordered streams of calls: how far ahead they are, how long they wait, and their progress.

At most `look_ahead` inputs are pulled and not yet answered. A result is late `timeout` after its consumer began to wait
for it with all earlier ones there; a call's own deadline leaves each call ahead of it the same time.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sized
from typing import Any

from callboard._exceptions import CallError
from callboard._options import positive, timeout_ms
from callboard.client.errors import DeadlineExceededError
from callboard.client.transport import Options

LOOK_AHEAD = 64
TIMEOUT = 30.0
# A node has at most an hour for a call.
_MAX_TIMEOUT = 3600.0


class Window:
    """The settings of one stream."""

    def __init__(self, look_ahead: int, timeout: str | float | None) -> None:
        self.look_ahead = positive("look_ahead", look_ahead)
        self.timeout = TIMEOUT if timeout is None else timeout_ms(timeout) / 1000
        self._options: dict[int, Options] = {}

    def options(self, shared: Options, outstanding: int) -> Options:
        """The options of a call with this number of calls ahead of it."""
        found = self._options.get(outstanding)
        if found is None:
            timeout = min(self.timeout * (outstanding + 1), _MAX_TIMEOUT)
            found = self._options[outstanding] = dataclasses.replace(shared, timeout=timeout)
        return found

    def late(self, options: Options) -> DeadlineExceededError:
        message, request_id = f"there was no result within {self.timeout:g} s", options.request_id
        return DeadlineExceededError(message, kind="deadline_exceeded", status_code=504, request_id=request_id)


def is_raised(errors: str) -> bool:
    if errors not in ("return", "raise"):
        raise ValueError(f'errors={errors!r}: "return" or "raise"')
    return errors == "raise"


class Bar:
    """The progress on standard error: a bar of tqdm where it is installed, and else a line. Or nothing."""

    def __init__(self, inputs: Any, wanted: bool, route: str) -> None:
        self._bar: Any = None
        self._errors = 0
        if wanted:
            total = len(inputs) if isinstance(inputs, Sized) else None
            try:
                from tqdm.auto import tqdm
            except ImportError:
                self._bar = _Line(total, route)
            else:
                self._bar = tqdm(total=total, desc=route, unit="call")

    def step(self, result: Any) -> None:
        """Counts a result, which may be an error."""
        if self._bar is None:
            return
        if isinstance(result, CallError):
            self._errors += 1
            self._bar.set_postfix(errors=self._errors, refresh=False)
        self._bar.update()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class _Line:
    """A line that is written over on a terminal. In a file there is one every ten seconds, and one at the end."""

    def __init__(self, total: int | None, route: str) -> None:
        self._file = sys.stderr
        self._is_terminal = self._file.isatty()
        self._route = route
        self._of = "" if total is None else f"/{total}"
        self._count = self._errors = 0
        self._start = time.monotonic()
        self._next = self._start

    def set_postfix(self, errors: int, refresh: bool) -> None:
        """As that of tqdm."""
        self._errors = errors

    def update(self) -> None:
        self._count += 1
        now = time.monotonic()
        if now >= self._next:
            self._next = now + (0.1 if self._is_terminal else 10)
            if self._count > 1:
                self._write("\r" if self._is_terminal else "", "" if self._is_terminal else "\n")

    def close(self) -> None:
        self._write("\r" if self._is_terminal else "", "\n")

    def _write(self, begin: str, end: str) -> None:
        rate = self._count / max(time.monotonic() - self._start, 1e-3)
        errors = f", {self._errors} errors" if self._errors else ""
        self._file.write(f"{begin}{self._route}: {self._count}{self._of} calls, {rate:.0f}/s{errors}{end}")
        self._file.flush()
