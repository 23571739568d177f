"""The services on BentoML.

Settings: `batchable` with `max_batch_size`, and `max_latency_ms` at its default, because its dispatcher refuses calls
that it expects to exceed it; `traffic.timeout` and `traffic.max_concurrency` for the bound of the queue; the access log
off, as its page on performance says; tensors as files, its form of binary inputs and outputs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import bentoml
import numpy as np
from bentoml.validators import ContentType

import models
from arguments import Arguments

PROCESSES = int(os.environ.get("PEERS_PROCESSES", "1"))
TRAFFIC = {"timeout": 1, "max_concurrency": 128} if os.environ.get("PEERS_BOUNDED") else {}
LOGGING = {"access": {"enabled": False}}
File = Annotated[Path, ContentType("application/octet-stream")]


@bentoml.service(workers=PROCESSES, logging=LOGGING)
class Model:
    @bentoml.api
    def echo(self, item: dict[str, Any]) -> dict[str, Any]:
        return models.echo(item)

    @bentoml.api(batchable=True, max_batch_size=models.MAX_BATCH)
    def square(self, items: list[dict[str, float]]) -> list[dict[str, float]]:
        return models.square(items)

    @bentoml.api(batchable=True, max_batch_size=models.MAX_BATCH)
    def slow_square(self, items: list[dict[str, float]]) -> list[dict[str, float]]:
        return models.slow_square(items)

    @bentoml.api
    def tensor(self, data: File, /, context: bentoml.Context) -> File:
        answer = Path(context.temp_dir) / "answer.npy"
        np.save(answer, models.negative(np.load(data)))
        return answer

    @bentoml.api
    def stream(self, count: int) -> Iterator[str]:
        for item in models.count({"count": count}):
            yield f"data: {item}\n\n"


@bentoml.service(workers=PROCESSES, logging=LOGGING, traffic=TRAFFIC)
class Worker:
    def __init__(self) -> None:
        models.started()

    @bentoml.api
    def work(self, item: dict[str, float]) -> dict[str, float]:
        return models.work(item)


if __name__ == "__main__":
    arguments = Arguments.parse()
    service = "Worker" if arguments.case == "work" else "Model"
    os.environ |= {"PEERS_PROCESSES": str(arguments.processes), "BENTOML_DO_NOT_TRACK": "True"}
    if arguments.bounded:
        os.environ["PEERS_BOUNDED"] = "1"
    address = ["--host", "127.0.0.1", "--port", str(arguments.port)]
    os.execvp("bentoml", ["bentoml", "serve", f"peer_bentoml:{service}", *address])
