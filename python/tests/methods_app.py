"""A class with several methods, for test_methods.py."""

from __future__ import annotations

import os
import time

import callboard as cb

SETUPS = 0


@cb.service(timeout="2s")
class Model:
    def setup(self) -> None:
        global SETUPS
        SETUPS += 1
        self.mixed = 0

    def predict(self, text: str) -> dict[str, object]:
        return {"text": text, "pid": os.getpid(), "setups": SETUPS}

    @cb.route("/upper")
    @cb.batched(max_batch_size=8)
    def upper(self, texts: list[str]) -> list[str]:
        self.mixed += any(not isinstance(text, str) or text[0] not in "ab" for text in texts) or len(texts) > 8
        return [text.upper() for text in texts]

    @cb.route("/sizes")
    def sizes(self, n: int) -> dict[str, int]:
        return {"mixed": self.mixed}

    @cb.route("/slow")
    def slow(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    @cb.route("/crash")
    def crash(self, n: int) -> int:
        os._exit(7)
