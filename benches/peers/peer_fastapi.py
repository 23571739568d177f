"""The services on FastAPI, which has no batches and no workers: both are written by hand, as its users do.

Settings: `orjson` is no longer needed, because FastAPI writes answers of declared types by pydantic; uvicorn with
uvloop and httptools and without access log; Granian with uvloop, `--respawn-failed-workers` and its own bound of
requests (`--backpressure`), uvicorn with `--limit-concurrency`. A model runs in one thread of each process, so that a
process has one call of it at a time, as everywhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

import models
from arguments import Arguments

Batch = Callable[[list[dict[str, float]]], list[dict[str, float]]]
model = ThreadPoolExecutor(1)


class Batcher:
    """Collects what has come while the model was busy."""

    def __init__(self, run: Batch) -> None:
        self._run = run
        self._queue: asyncio.Queue[tuple[dict[str, float], asyncio.Future[dict[str, float]]]] = asyncio.Queue()

    async def call(self, item: dict[str, float]) -> dict[str, float]:
        answer: asyncio.Future[dict[str, float]] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((item, answer))
        return await answer

    async def serve(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < models.MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            outputs = await asyncio.get_running_loop().run_in_executor(model, self._run, [item for item, _ in batch])
            for (_, answer), output in zip(batch, outputs, strict=True):
                if not answer.done():
                    answer.set_result(output)


fast, slow = Batcher(models.square), Batcher(models.slow_square)


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    models.started()
    tasks = [asyncio.create_task(batcher.serve()) for batcher in (fast, slow)]
    yield
    for task in tasks:
        task.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/echo")
async def echo(item: dict[str, Any]) -> dict[str, Any]:
    return models.echo(item)


@app.post("/square")
async def square(item: dict[str, float]) -> dict[str, float]:
    return await fast.call(item)


@app.post("/slow_square")
async def slow_square(item: dict[str, float]) -> dict[str, float]:
    return await slow.call(item)


@app.post("/tensor")
async def tensor(request: Request) -> Response:
    answer = io.BytesIO()
    np.save(answer, models.negative(np.load(io.BytesIO(await request.body()))))
    return Response(answer.getvalue(), media_type="application/x-npy")


@app.post("/stream")
async def stream(item: dict[str, int]) -> StreamingResponse:
    async def events() -> AsyncIterator[str]:
        for output in models.count(item):
            yield f"data: {output}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@app.post("/work")
async def work(item: dict[str, float]) -> dict[str, float]:
    return await asyncio.get_running_loop().run_in_executor(model, models.work, item)


def commands(arguments: Arguments) -> dict[str, list[str]]:
    address = ["--host", "127.0.0.1", "--port", str(arguments.port), "--workers", str(arguments.processes)]
    return {
        "uvicorn": [
            *("uvicorn", "peer_fastapi:app", *address, "--no-access-log", "--log-level", "warning"),
            *("--loop", "uvloop", "--http", "httptools"),
            *(("--limit-concurrency", "128") if arguments.bounded else ()),
        ],
        "granian": [
            *("granian", "peer_fastapi:app", *address, "--interface", "asgi", "--loop", "uvloop"),
            *("--no-access-log", "--respawn-failed-workers"),
            *(("--backpressure", "128") if arguments.bounded else ()),
        ],
    }


if __name__ == "__main__":
    command = commands(Arguments.parse())[os.environ["PEERS_SERVER"]]
    os.execvp(command[0], command)
