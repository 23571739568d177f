"""Ordered streams of calls: how far ahead they are, how long they wait, and their progress bar.

At most `look_ahead` inputs are pulled and not yet answered. A result is late `timeout` after its consumer began to wait
for it with all earlier ones there; a call's own deadline leaves each call ahead of it the same time.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

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

    def call_timeout(self, outstanding: int) -> float:
        """The time of a call with this number of calls ahead of it."""
        return min(self.timeout * (outstanding + 1), _MAX_TIMEOUT)

    def late(self, options: Options) -> DeadlineExceededError:
        message, request_id = f"there was no result within {self.timeout:g} s", options.request_id
        return DeadlineExceededError(message, kind="deadline_exceeded", status_code=504, request_id=request_id)


class Bar:
    """A progress bar of tqdm, or none."""

    def __init__(self, inputs: Any, wanted: bool, route: str) -> None:
        self._bar: Any = None
        if wanted:
            try:
                from tqdm.auto import tqdm
            except ImportError:
                raise ImportError("progress=True needs tqdm: pip install 'callboard[progress]'") from None
            self._bar = tqdm(total=len(inputs) if isinstance(inputs, Sized) else None, desc=route, unit="call")

    def step(self) -> None:
        if self._bar is not None:
            self._bar.update()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
