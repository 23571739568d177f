"""Services with hooks: what they prepare, how they warm up, and whether they are well."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import callboard as cb
from callboard import _after


@cb.service
class Prepared:
    def prepare(self, cache: Path) -> None:
        with open(cache / "runs", "a") as runs:
            runs.write("x")

    def setup(self, cache: Path) -> None:
        self.runs = (cache / "runs").read_text()

    def predict(self, value: Any) -> str:
        return self.runs


@cb.service
class PreparedLater:
    @classmethod
    async def prepare(cls, cache: Path) -> None:
        await asyncio.sleep(0)
        (cache / "model").write_text("weights")

    def predict(self, value: Any) -> Any:
        return value


@cb.service(examples=["a", "fail"])
class Warm:
    def setup(self) -> None:
        self.seen: list[str] = []

    def predict(self, text: str) -> list[str]:
        self.seen.append(text)
        if text == "fail":
            raise ValueError("no such text")
        return self.seen

    @cb.route("/endless", examples=[np.ones(2, np.float32)])
    def endless(self, start: NDArray[np.float32]) -> Iterator[float]:
        while True:
            yield float(start[0])


@cb.service
class Unwell:
    def setup(self) -> None:
        self.answer: Any = True

    def predict(self, answer: Any) -> int:
        if answer == "leave":
            raise SystemExit(3)
        self.answer = answer
        return os.getpid()

    def health(self) -> bool:
        if self.answer == "raise":
            raise RuntimeError("the device is lost")
        return self.answer

    def cleanup(self, error: BaseException | None) -> None:
        print(f"cleaned up after {error!r}", flush=True)


@cb.service
class UnwellLater:
    async def predict(self, answer: bool) -> bool:
        self.answer = answer
        return answer

    async def health(self) -> bool:
        await asyncio.sleep(0)
        return self.answer

    async def cleanup(self, error: BaseException | None) -> None:
        print(f"cleaned up after {error!r}", flush=True)


@cb.service
class CleansUpBadly:
    def setup(self) -> None:
        # The limit for a `cleanup` that hangs.
        _after.STOP_SECONDS = 0.2
        self.how = ""

    def predict(self, how: str) -> str:
        self.how = how
        if how in ("leave", "hang"):
            raise SystemExit(3)
        return how

    def health(self) -> bool:
        return self.how != "unwell"

    def cleanup(self, error: BaseException | None) -> None:
        if self.how == "hang":
            threading.Event().wait()
        raise ValueError("the disk is full")


@cb.service
class CleansUpBadlyLater:
    async def predict(self, how: str) -> str:
        return how

    async def cleanup(self) -> None:
        raise ValueError("the disk is full")
