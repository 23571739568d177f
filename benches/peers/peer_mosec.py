"""The services on mosec.

Settings: `max_batch_size` with `max_wait_time`, the pair that its documentation describes, at 1 ms, the shortest that
it takes (0 means 10 ms); JSON as it reads and writes it by itself, or by msgspec (`PEERS_JSON=msgspec`), for which its
documentation has `serialize` and `deserialize`; `--capacity` for the bounded queue and `--timeout` for the time within
which an answer is of use.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import msgspec
import numpy as np
from mosec import Server, SSEWorker, Worker

import models
from arguments import Arguments


class Msgspec(Worker):
    def deserialize(self, data: bytes) -> Any:
        return msgspec.json.decode(data)

    def serialize(self, data: Any) -> bytes:
        return msgspec.json.encode(data)


Json: Any = Msgspec if os.environ.get("PEERS_JSON") == "msgspec" else Worker


class Echo(Json):
    def forward(self, data: Any) -> Any:
        return models.echo(data)


class Square(Json):
    def forward(self, data: Any) -> Any:
        return models.square(data)


class SlowSquare(Json):
    def forward(self, data: Any) -> Any:
        return models.slow_square(data)


class Tensor(Worker):
    resp_mime_type = "application/x-npy"

    def deserialize(self, data: bytes) -> Any:
        return np.load(io.BytesIO(data))

    def serialize(self, data: Any) -> bytes:
        answer = io.BytesIO()
        np.save(answer, data)
        return answer.getvalue()

    def forward(self, data: Any) -> Any:
        return models.negative(data)


class Stream(SSEWorker):
    def deserialize(self, data: bytes) -> Any:
        return msgspec.json.decode(data)

    def forward(self, data: Any) -> Any:
        for item in models.count(data):
            self.send_stream_event(msgspec.json.encode(item).decode())
        return None


class Work(Json):
    def __init__(self) -> None:
        models.started()

    def forward(self, data: Any) -> Any:
        return models.work(data)


WORKERS = {
    "echo": Echo,
    "square": Square,
    "slow_square": SlowSquare,
    "tensor": Tensor,
    "stream": Stream,
    "work": Work,
}

if __name__ == "__main__":
    arguments = Arguments.parse()
    limits = ["--capacity", "128", "--timeout", "1000"] if arguments.bounded else []
    address = ["--address", "127.0.0.1", "--port", str(arguments.port)]
    sys.argv = [sys.argv[0], *address, *limits, "--log-level", "warning"]
    server = Server()
    batch = models.MAX_BATCH if arguments.case in ("square", "slow_square") else 1
    server.append_worker(
        WORKERS[arguments.case],
        num=arguments.processes,
        max_batch_size=batch,
        max_wait_time=1 if batch > 1 else 0,
        route=f"/{arguments.case}",
    )
    server.run()
