"""tritonclient.http.aio: 64 callers at once, each with its own numbers, in binary and JSON."""

import asyncio
import sys

import numpy as np
import tritonclient.http.aio as triton
from tritonclient.utils import InferenceServerException


async def caller(client, number):
    for turn in range(10):
        values = np.full((1 + number % 5, 3), number * 100 + turn, np.float32)
        sent = triton.InferInput("x", values.shape, "FP32")
        sent.set_data_from_numpy(values, binary_data=turn % 2 == 0)
        wanted = triton.InferRequestedOutput("sum", binary_data=turn % 3 == 0)
        coding = [None, "gzip", "deflate"][number % 3]
        packing = {"request_compression_algorithm": coding, "response_compression_algorithm": coding}
        answer = await client.infer("samples", [sent], outputs=[wanted], request_id=f"{number}-{turn}", **packing)
        assert answer.get_response()["id"] == f"{number}-{turn}"
        assert np.array_equal(answer.as_numpy("sum"), values.sum(axis=1, keepdims=True))


async def main():
    async with triton.InferenceServerClient(sys.argv[1], conn_limit=64, conn_timeout=60) as client:
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready("samples") and not await client.is_model_ready("nobody")
        assert (await client.get_model_metadata("samples"))["platform"] == "callboard"
        await asyncio.gather(*(caller(client, number) for number in range(64)))
        statistics = await client.get_inference_statistics("samples")
        assert statistics["model_stats"][0]["inference_count"] == sum(10 * (1 + n % 5) for n in range(64)), statistics
        try:
            await client.infer("samples", [triton.InferInput("y", [1], "FP32").set_data_from_numpy(np.zeros(1, np.float32))])
            raise AssertionError("nobody refused 'y'")
        except InferenceServerException as error:
            assert error.status() == "400" and "'y'" in error.message(), error


asyncio.run(main())
