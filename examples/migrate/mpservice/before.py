"""A pipeline of mpservice behind FastAPI: uvicorn before:app --port 8001"""

from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Body, FastAPI, HTTPException
from mpservice.mpserver import AsyncServer, ProcessServlet, SequentialServlet, ServerBacklogFull, Worker


class Clean(Worker):
    def call(self, x: str) -> list[str]:
        return x.lower().split()


class Rate(Worker):
    def __init__(self, **kwargs) -> None:
        super().__init__(batch_size=32, batch_wait_time=0.01, **kwargs)
        self.words = {"good": 1, "great": 2, "bad": -1}

    def call(self, x: list[list[str]]) -> list[int]:
        return [sum(self.words.get(word, 0) for word in words) for words in x]


@asynccontextmanager
async def lifespan(app: FastAPI):
    servlet = SequentialServlet(ProcessServlet(Clean), ProcessServlet(Rate, cpus=2))
    async with AsyncServer(servlet, capacity=256) as app.state.server:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/rate")
async def rate(text: Annotated[str, Body()]) -> int:
    try:
        return await app.state.server.call(text, timeout=5)
    except ServerBacklogFull as error:
        raise HTTPException(503, str(error)) from error
    except TimeoutError as error:
        raise HTTPException(504, str(error)) from error
