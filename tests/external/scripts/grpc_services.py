"""grpcio's own clients of health, also across a drain, and of reflection; calls by a reflected schema; Triton's aio."""

import asyncio
import json
import os
import signal
import sys
import threading

import grpc
import numpy as np
import tritonclient.grpc.aio as triton
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

address, process = sys.argv[1], int(sys.argv[2])
channel = grpc.insecure_channel(address)
health = health_pb2_grpc.HealthStub(channel)
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def check(service):
    return health.Check(health_pb2.HealthCheckRequest(service=service), timeout=20).status


for service in ("", "liveness", "readiness", "inference.GRPCInferenceService", "digits"):
    assert check(service) == SERVING, service
try:
    check("nobody")
    raise AssertionError("nobody is no service")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.NOT_FOUND, error
print("health")


# A client that knows nothing but the names of the service and of its methods.
reflected = ProtoReflectionDescriptorDatabase(channel)
services = set(reflected.get_services())
assert {"inference.GRPCInferenceService", "grpc.health.v1.Health", "callboard.v1.Inference"} <= services, services
pool = descriptor_pool.DescriptorPool(reflected)
methods = pool.FindServiceByName("callboard.v1.Inference").methods_by_name
request_of, reply_of = (message_factory.GetMessageClass(methods["Call"].__getattribute__(of)) for of in ("input_type", "output_type"))
call = channel.unary_unary(
    "/callboard.v1.Inference/Call",
    request_serializer=request_of.SerializeToString,
    response_deserializer=reply_of.FromString,
)
body = json.dumps({"image": np.zeros((1, 8, 8)).tolist()}).encode()
reply = call(request_of(route="/digits", body=body), timeout=20)
assert reply.content_type == "application/json" and len(json.loads(reply.body)) == 10, reply
try:
    call(request_of(route="/digits", body=b"{}"), timeout=20)
    raise AssertionError("there is no image")
except grpc.RpcError as error:
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "image" in error.details(), error
print("reflection")


async def calls():
    async with triton.InferenceServerClient(address) as client:
        assert await client.is_server_ready()
        image = triton.InferInput("image", [1, 1, 8, 8], "FP32")
        image.set_data_from_numpy(np.zeros((1, 1, 8, 8), np.float32))
        answers = await asyncio.gather(*(client.infer("digits", [image]) for _ in range(50)))
        assert {answer.as_numpy("logits").shape for answer in answers} == {(1, 10)}

        async def requests():
            for number in range(10):
                yield {"model_name": "digits", "inputs": [image], "request_id": str(number)}

        ids = []
        async for result, error in client.stream_infer(requests()):
            assert error is None, error
            ids.append(result.get_response().id)
        assert ids == [str(number) for number in range(10)], ids


asyncio.run(calls())
print("aio")

states, ended = [], []


def watch():
    try:
        for state in health.Watch(health_pb2.HealthCheckRequest(), timeout=60):
            states.append(state.status)
            if len(states) == 1:
                os.kill(process, signal.SIGTERM)
    except grpc.RpcError as error:
        ended.append(error.code())


watcher = threading.Thread(target=watch)
watcher.start()
watcher.join(60)
assert states == [SERVING, NOT_SERVING] and ended == [grpc.StatusCode.UNAVAILABLE], (states, ended)
print("drain")
