"""The services on Callboard.

Settings: `max_batch_size` as in every other peer, no delay (the default); `limits.default_timeout` is the time within
which an answer is of use, by which calls are refused while the queue is too long; `contract` says that work may run
again. No access log, as of every peer; no balancer has to notice the end, so `drain_delay` is 0.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import callboard as cb
import numpy as np
from numpy.typing import NDArray

import models
from arguments import Arguments

REPLICAS = int(os.environ.get("PEERS_PROCESSES", "1"))


@cb.function(replicas=REPLICAS, max_batch_size=models.MAX_BATCH)
def echo(item: dict[str, Any]) -> dict[str, Any]:
    return models.echo(item)


@cb.service(replicas=REPLICAS)
class Square:
    @cb.batched(max_batch_size=models.MAX_BATCH)
    def predict(self, items: list[dict[str, float]]) -> list[dict[str, float]]:
        return models.square(items)


@cb.service(replicas=REPLICAS, route="/slow_square")
class SlowSquare:
    @cb.batched(max_batch_size=models.MAX_BATCH)
    def predict(self, items: list[dict[str, float]]) -> list[dict[str, float]]:
        return models.slow_square(items)


@cb.function(replicas=REPLICAS)
def tensor(array: NDArray[np.float32]) -> NDArray[np.float32]:
    return models.negative(array)


@cb.service(replicas=REPLICAS)
class Stream:
    def predict(self, item: dict[str, int]) -> Iterator[dict[str, int]]:
        yield from models.count(item)


@cb.service(replicas=REPLICAS, contract="idempotent")
class Work:
    def setup(self) -> None:
        models.started()

    def predict(self, item: dict[str, float]) -> dict[str, float]:
        return models.work(item)


@cb.service(replicas=REPLICAS)
class Noop:
    @cb.batched(max_batch_size=models.MAX_BATCH)
    def predict(self, items: list[Any]) -> list[Any]:
        return items


@cb.service
class Told:
    def predict(self, item: dict[str, float], context: cb.Context) -> dict[str, float]:
        models.note("began")
        until = time.monotonic() + item["ms"] / 1000
        while time.monotonic() < until and not context.cancelled:
            time.sleep(0.001)
        models.note("told" if context.cancelled else "ended")
        return item


if __name__ == "__main__":
    arguments = Arguments.parse()
    name = arguments.case if arguments.case in ("echo", "tensor") else arguments.case.title().replace("_", "")
    target = f"{__file__}:{name}"
    os.environ["PEERS_PROCESSES"] = str(arguments.processes)
    binary = os.environ["PEERS_CALLBOARD"]
    address = ["--http", f"127.0.0.1:{arguments.port}", "--admin", "none"]
    limits = ["--default-timeout", "1s"] if arguments.bounded else []
    os.execv(binary, [binary, "serve", target, *address, *limits, "--access-log", "false", "--drain-delay", "0s"])
