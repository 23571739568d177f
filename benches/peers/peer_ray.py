"""The services on Ray Serve.

Settings: `RAY_SERVE_THROUGHPUT_OPTIMIZED`, which its page on performance recommends; `serve.batch` with a wait of 1 ms
(its default is 10 ms); `max_ongoing_requests` above the connections, so that batches fill; `max_queued_requests` as the
bound of the queue; no access log and no dashboard.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import ray
from ray import serve
from ray.serve.schema import LoggingConfig
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

import models
from arguments import Arguments


class Echo:
    async def __call__(self, request: Request) -> Any:
        return models.echo(await request.json())


class Square:
    @serve.batch(max_batch_size=models.MAX_BATCH, batch_wait_timeout_s=0.001)
    async def run(self, items: list[Any]) -> list[Any]:
        return models.square(items)

    async def __call__(self, request: Request) -> Any:
        return await self.run(await request.json())


class SlowSquare:
    def __init__(self) -> None:
        self.model = ThreadPoolExecutor(1)

    @serve.batch(max_batch_size=models.MAX_BATCH, batch_wait_timeout_s=0.001)
    async def run(self, items: list[Any]) -> list[Any]:
        return await asyncio.get_running_loop().run_in_executor(self.model, models.slow_square, items)

    async def __call__(self, request: Request) -> Any:
        return await self.run(await request.json())


class Tensor:
    async def __call__(self, request: Request) -> Response:
        answer = io.BytesIO()
        np.save(answer, models.negative(np.load(io.BytesIO(await request.body()))))
        return Response(answer.getvalue(), media_type="application/x-npy")


class Stream:
    async def __call__(self, request: Request) -> StreamingResponse:
        item = await request.json()

        def events() -> Iterator[str]:
            for output in models.count(item):
                yield f"data: {output}\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")


class Work:
    def __init__(self) -> None:
        self.model = ThreadPoolExecutor(1)
        models.started()

    async def __call__(self, request: Request) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.model, models.work, await request.json())


SERVICES = {
    "echo": Echo,
    "square": Square,
    "slow_square": SlowSquare,
    "tensor": Tensor,
    "stream": Stream,
    "work": Work,
}

if __name__ == "__main__":
    arguments = Arguments.parse()
    os.environ |= {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    variables = {name: value for name, value in os.environ.items() if name.startswith("PEERS_")}
    ray.init(
        num_cpus=max(2, arguments.processes),
        include_dashboard=False,
        object_store_memory=200 << 20,
        log_to_driver=False,
        runtime_env={"env_vars": {**variables, "PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}},
    )
    serve.start(
        http_options={"host": "127.0.0.1", "port": arguments.port, "request_timeout_s": 60},
        logging_config=LoggingConfig(enable_access_log=False, log_level="WARNING"),
    )
    deployment = serve.deployment(
        SERVICES[arguments.case],
        num_replicas=arguments.processes,
        max_ongoing_requests=1 if arguments.case == "work" else 100,
        max_queued_requests=128 if arguments.bounded else -1,
        ray_actor_options={"num_cpus": 0.5},
    )
    serve.run(deployment.bind(), route_prefix=f"/{arguments.case}", blocking=False)
    ended.wait()
    serve.shutdown()
