"""The services on LitServe.

Settings: `max_batch_size` with its default `batch_timeout` of 0, `fast_queue` (ZeroMQ, which its documentation
recommends for high rates), one API server, and `restart_workers`; `timeout` is the time after which a request that has
not begun is refused.
"""

import io
from collections.abc import Iterator
from typing import Annotated, Any

import litserve
import numpy as np
from fastapi import Depends, Request, Response

import models
from arguments import Arguments


async def body(request: Request) -> bytes:
    return await request.body()


# The body as it is. LitServe hands the type of `decode_request` to FastAPI as it is, so here types are no texts.
Body = Annotated[bytes, Depends(body)]


class Echo(litserve.LitAPI):
    def setup(self, device: str) -> None:
        pass

    def predict(self, x: Any) -> Any:
        return models.echo(x)


class Square(Echo):
    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, x: Any) -> Any:
        return models.square(x)

    def unbatch(self, output: Any) -> Any:
        return output


class SlowSquare(Square):
    def predict(self, x: Any) -> Any:
        return models.slow_square(x)


class Tensor(Echo):
    def decode_request(self, request: Body) -> Any:
        return np.load(io.BytesIO(request))

    def predict(self, x: Any) -> Any:
        return models.negative(x)

    def encode_response(self, output: Any) -> Response:
        answer = io.BytesIO()
        np.save(answer, output)
        return Response(answer.getvalue(), media_type="application/x-npy")


class Stream(Echo):
    def predict(self, x: Any) -> Iterator[Any]:
        yield from models.count(x)

    def encode_response(self, output: Iterator[Any]) -> Any:
        for item in output:
            yield f"data: {item}\n\n"


class Work(Echo):
    def setup(self, device: str) -> None:
        models.started()

    def predict(self, x: Any) -> Any:
        return models.work(x)


APIS = {
    "echo": Echo,
    "square": Square,
    "slow_square": SlowSquare,
    "tensor": Tensor,
    "stream": Stream,
    "work": Work,
}

if __name__ == "__main__":
    arguments = Arguments.parse()
    batch = models.MAX_BATCH if arguments.case in ("square", "slow_square") else 1
    api = APIS[arguments.case](max_batch_size=batch, stream=arguments.case == "stream", api_path=f"/{arguments.case}")
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        workers_per_device=arguments.processes,
        timeout=1 if arguments.bounded else 30,
        fast_queue=True,
        restart_workers=True,
    )
    server.run(
        host="127.0.0.1",
        port=arguments.port,
        num_api_servers=1,
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )
