"""KServe's own client over gRPC, with the retries that it has by default, and over REST by versions 1 and 2."""

import asyncio
import logging
import sys
import urllib.request

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

# It logs the errors that are asked for here.
logging.disable(logging.CRITICAL)
address = sys.argv[1]
base = f"http://{address}"


def request(model, name, values, datatype, raw=True):
    tensor = InferInput(name, list(values.shape), datatype)
    tensor.set_data_from_numpy(values, binary_data=raw)
    return InferRequest(model_name=model, infer_inputs=[tensor], request_id="a")


def number(model, value, raw=True):
    return request(model, "input", np.array([value]), "FP64", raw)


def metric(line):
    with urllib.request.urlopen(f"{base}/metrics") as page:
        lines = page.read().decode().splitlines()
    return next((float(text.split()[-1]) for text in lines if text.startswith(f"{line} ")), 0.0)


async def in_flight(count):
    for _ in range(2000):
        if metric("callboard_in_flight") == count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not {count} calls are in flight")


async def refused(call, status, words):
    try:
        await call
    except grpc.RpcError as error:
        assert error.code() == status and words in error.details(), error
        return
    raise AssertionError(f"not refused: {words}")


async def over_grpc():
    async with InferenceGRPCClient(address) as client:
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready("samples")
        for raw in (True, False):
            answer = await client.infer(number("number", 21.0, raw))
            assert answer.id == "a" and answer.outputs[0].as_numpy().tolist() == [42.0], answer
        rows = np.arange(6, dtype=np.float32).reshape(2, 3)
        answer = await client.infer(request("samples", "x", rows, "FP32"))
        assert answer.get_output_by_name("sum").as_numpy().tolist() == [[3.0], [12.0]], answer
        # Above the 8 MiB that a server of theirs takes.
        large = np.arange(3 << 20, dtype=np.float32).reshape(3, 1 << 20)
        answer = await client.infer(request("any", "x", large, "FP32"))
        assert np.array_equal(answer.outputs[0].as_numpy(), large)
        print("infer")

        await refused(client.is_model_ready("nobody"), grpc.StatusCode.NOT_FOUND, "nobody")
        await refused(client.infer(number("nobody", 1.0)), grpc.StatusCode.NOT_FOUND, "nobody")
        await refused(client.infer(request("number", "input", np.array([1]), "INT64")), grpc.StatusCode.INVALID_ARGUMENT, "input")
        failed = 'callboard_requests_total{route="/fail",outcome="failed"}'
        before = metric(failed)
        await refused(client.infer(number("fail", 1.0)), grpc.StatusCode.UNKNOWN, "unwell")
        assert metric(failed) == before + 1, "a failure was repeated"
        print("statuses")

        await refused(client.infer(number("nap", 60.0), timeout=0.2), grpc.StatusCode.DEADLINE_EXCEEDED, "")
        await in_flight(0)
        nap = asyncio.ensure_future(client.infer(number("nap", 60.0)))
        await in_flight(1)
        nap.cancel()
        await in_flight(0)
        print("cancelled")

    # Their numbering of the calls of the repository, which Triton numbers otherwise.
    async with grpc.aio.insecure_channel(address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        load = stub.RepositoryModelLoad(messages.RepositoryModelLoadRequest(model_name="samples"))
        await refused(load, grpc.StatusCode.INVALID_ARGUMENT, "model control")
    print("repository")


async def over_rest():
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        assert await client.is_server_ready(base) and await client.is_model_ready(base, "number")
        answer = await client.infer(base, number("number", 21.0), model_name="number")
        assert answer.outputs[0].as_numpy().tolist() == [42.0], answer
    print("v2")
    async with InferenceRESTClient(RESTConfig(protocol="v1")) as client:
        predict = lambda model, instances: client.infer(base, {"instances": instances}, model_name=model)
        assert await predict("number", [1, 2.5]) == {"predictions": [2.0, 5.0]}
        rows = await predict("samples", [[1, 2, 3], {"x": [4, 5, 6]}])
        assert [row["sum"] for row in rows["predictions"]] == [[6.0], [15.0]], rows
        assert await predict("any", [[[1, 2]], [3]]) == {"predictions": [[[1.0, 2.0]], [3.0]]}
        greeted = await predict("greet", [{"name": "Ada"}])
        assert greeted == {"predictions": [{"text": "hello Ada", "letters": [3]}]}, greeted
        for model, instances, status in (("nobody", [1], 404), ("number", ["x"], 400), ("count", [{"to": 1}], 400), ("fail", [1], 500)):
            try:
                await predict(model, instances)
                raise AssertionError(f"{model} was not refused")
            except httpx.HTTPStatusError as error:
                assert error.response.status_code == status, error
    print("v1")


asyncio.run(over_grpc())
asyncio.run(over_rest())
