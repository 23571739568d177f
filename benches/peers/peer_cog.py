"""The services on Cog, without its container: the same server and worker that it starts inside of one.

Settings: asynchronous predictors with `concurrency.max` of 64, its way to take more than one call at a time; beyond it
a call is refused. It has no batches: a call of `square` is a batch of one.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cog import BasePredictor

import models
from arguments import Arguments

model = ThreadPoolExecutor(1)


class Echo(BasePredictor):
    async def predict(self, text: str, number: int) -> dict[str, Any]:
        return models.echo({"text": text, "number": number})


class Square(BasePredictor):
    async def predict(self, x: float) -> dict[str, Any]:
        return dict(models.square([{"x": x}])[0])


class Work(BasePredictor):
    def setup(self) -> None:
        models.started()

    async def predict(self, ms: float) -> dict[str, Any]:
        return dict(await asyncio.get_running_loop().run_in_executor(model, models.work, {"ms": ms}))


if __name__ == "__main__":
    import coglet

    arguments = Arguments.parse()
    os.environ |= {"COG_MAX_CONCURRENCY": "64", "COG_LOG_LEVEL": "warning"}
    name = arguments.case.capitalize()
    coglet.server.serve(predictor_ref=f"peer_cog.py:{name}", host="127.0.0.1", port=arguments.port)
