"""A worker that keeps the echo contract of `callboard.conformance`, or breaks one rule: `echo.py [FAULT]`."""

from __future__ import annotations

import sys
import time
from typing import Any, NoReturn

import callboard as cb
from callboard._messages import Batch
from callboard._process import take_socket
from callboard._runner import Failure
from callboard.worker import Worker


@cb.function
def echo(value: Any) -> Any:
    if value == "fail":
        raise ValueError("the input says so")
    return value.upper() if isinstance(value, str) else value


@cb.service
class Caller:
    """As `echo`, and calls."""

    called = cb.depends("/called")

    async def predict(self, value: Any) -> Any:
        if isinstance(value, dict) and list(value) == ["call"]:
            return await self.called(value["call"])
        if isinstance(value, dict) and list(value) == ["stream"]:
            return [output async for output in self.called(value["stream"])]
        return echo(value)


@cb.service
class OldCaller:
    """As `Caller`, and reads no streams."""

    called = cb.depends("/called")

    async def predict(self, value: Any) -> Any:
        if isinstance(value, dict) and list(value) == ["call"]:
            return await self.called(value["call"])
        return echo(value)


class Faulty(Worker):
    """Breaks the rule that the command line names."""

    fault = ""

    def _finish(self, batch: Batch, results: list[Any], runner: Any, unwell: str | None) -> None:
        if self.fault == "count":
            results, batch.contexts = results[:31], batch.contexts[:31]
        if self.fault == "order" and len(results) > 1:
            results[0], results[1] = results[1], results[0]
        if self.fault == "fail":
            results = ["FAIL" if isinstance(result, Failure) else result for result in results]
        if self.fault == "true":
            for result in results:
                if isinstance(result, dict) and "a" in result:
                    result["a"][1] = 1
        super()._finish(batch, results, runner, unwell)

    def _inputs(self, batch: Batch, runner: Any) -> list[Any]:
        if self.fault == "keeps":
            self.kept = batch.parts
        return super()._inputs(batch, runner)

    def _ready(self) -> None:
        self._may_call = self.fault == "silent"
        super()._ready()
        if self.fault == "unasked":
            self._send({"type": "output", "id": 1, "item": 0})

    def _end(self, message: str | None, code: int) -> NoReturn:
        if self.fault == "stays":
            time.sleep(1000)
        super()._end(message, code)


if __name__ == "__main__":
    Faulty.fault = sys.argv[1]
    sys.exit(Faulty(take_socket(), "echo.py:echo").main() or 3 * (Faulty.fault == "code"))
