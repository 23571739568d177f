"""The services on mpservice, with Starlette on uvicorn, as its documentation wires them up.

Settings: `batch_size` and `batch_wait_time` of a worker at 1 ms (its default is 10 ms); `capacity` is its bound of
requests, which are refused beyond it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from mpservice.http import start_server
from mpservice.mpserver import AsyncServer, ProcessServlet, ServerBacklogFull, Worker
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import models
from arguments import Arguments

CASE = os.environ.get("PEERS_CASE", "echo")
BOUNDED = bool(os.environ.get("PEERS_BOUNDED"))
PROCESSES = int(os.environ.get("PEERS_PROCESSES", "1"))
CALLS: dict[str, Any] = {
    "echo": models.echo,
    "square": models.square,
    "slow_square": models.slow_square,
    "tensor": models.negative,
    "work": models.work,
}


class Model(Worker):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        models.started()

    def call(self, x: Any) -> Any:
        return CALLS[CASE](x)


async def call(request: Request, item: Any) -> Any:
    return await request.state.model.call(item, timeout=1 if BOUNDED else 60)


async def of_json(request: Request) -> Response:
    try:
        return JSONResponse(await call(request, json.loads(await request.body())))
    except (ServerBacklogFull, TimeoutError) as error:
        return Response(str(error), status_code=503)


async def of_array(request: Request) -> Response:
    answer = io.BytesIO()
    np.save(answer, await call(request, np.load(io.BytesIO(await request.body()))))
    return Response(answer.getvalue(), media_type="application/x-npy")


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    batch = {"batch_size": models.MAX_BATCH, "batch_wait_time": 0.001} if CASE in ("square", "slow_square") else {}
    servlet = ProcessServlet(Model, cpus=PROCESSES, **batch)
    async with AsyncServer(servlet, capacity=128 if BOUNDED else 256) as model:
        yield {"model": model}


handler = of_array if CASE == "tensor" else of_json
app = Starlette(lifespan=lifespan, routes=[Route(f"/{CASE}", handler, methods=["POST"])])

if __name__ == "__main__":
    arguments = Arguments.parse()
    os.environ |= {"PEERS_CASE": arguments.case, "PEERS_PROCESSES": str(arguments.processes)}
    if arguments.bounded:
        os.environ["PEERS_BOUNDED"] = "1"
    start_server(
        "peer_mpservice:app", host="127.0.0.1", port=arguments.port, workers=1, access_log=False, log_level="warning"
    )
