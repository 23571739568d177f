"""tritonclient.grpc, synchronous: every call, every datatype, parameters, deadlines, cancellation, streams, compression."""

import queue
import sys
import time
import urllib.request

import grpc
import ml_dtypes
import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

address = sys.argv[1]
client = triton.InferenceServerClient(address)


def array(name, datatype, values):
    tensor = triton.InferInput(name, values.shape, datatype)
    tensor.set_data_from_numpy(values)
    return tensor


def numbers(values):
    return array("input", "FP64", np.array(values, dtype=np.float64))


def refused(call, status, words):
    try:
        call()
    except InferenceServerException as error:
        assert error.status() == f"StatusCode.{status}", error
        assert words in error.message(), error
        return
    raise AssertionError(f"nobody refused: {words}")


def metric(name):
    with urllib.request.urlopen(f"http://{address}/metrics") as page:
        lines = page.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def becomes(name, value):
    end = time.monotonic() + 20
    while metric(name) != value:
        assert time.monotonic() < end, name
        time.sleep(0.01)


# What there is.
assert client.is_server_live() and client.is_server_ready()
server = client.get_server_metadata()
assert server.name == "callboard" and "statistics" in server.extensions and "generate" not in server.extensions, server
names = {"every", "any", "samples", "greet", "number", "fail", "deep/inside", "nap", "who", "count"}
index = client.get_model_repository_index()
assert {model.name for model in index.models} == names and all(model.state == "READY" for model in index.models), index
for name in names:
    assert client.is_model_ready(name), name
    assert client.get_model_metadata(name).name == name
    assert client.get_model_config(name).config.name == name
greet = client.get_model_metadata("greet", as_json=True)
assert greet["inputs"][1] == {"name": "times", "datatype": "UINT8", "shape": ["1"]}, greet
samples = client.get_model_config("samples").config
assert samples.max_batch_size > 0 and list(samples.input[0].dims) == [3] and samples.input[0].data_type == 11, samples
assert client.get_model_config("count").config.model_transaction_policy.decoupled
refused(lambda: client.is_model_ready("nobody"), "NOT_FOUND", "unknown model: 'nobody'")
refused(lambda: client.get_model_metadata("number", model_version="7"), "NOT_FOUND", "version 7")
refused(lambda: client.load_model("nobody"), "INVALID_ARGUMENT", "model control")
refused(lambda: client.get_system_shared_memory_status(), "UNIMPLEMENTED", "SystemSharedMemoryStatus")
refused(lambda: client.get_trace_settings(), "UNIMPLEMENTED", "TraceSetting")
refused(lambda: client.get_log_settings(), "UNIMPLEMENTED", "LogSettings")
print("models")


# Every datatype as raw bytes, extremes and empty arrays.
def extremes(dtype):
    if dtype == np.bool_:
        return np.array([[True, False], [False, True]])
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return np.array([[info.min, info.max], [0, info.max - 1]], dtype)
    info = np.finfo(dtype)
    return np.array([[info.min, info.max], [-0.0, info.tiny]], dtype)


TYPES = [np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64]
TYPES += [np.float16, np.float32, np.float64]
arrays = {np_to_triton_dtype(np.dtype(dtype)): extremes(np.dtype(dtype)) for dtype in TYPES}
arrays["BF16"] = np.array([[1.5, -2.0], [0.25, 3e38]], ml_dtypes.bfloat16)
arrays["BYTES"] = np.array([["", "ü€😀"], ["x" * 70_000, "\x00"]], dtype=object)
assert len(arrays) == 14, arrays.keys()
for every in (arrays, {name: values[:0] for name, values in arrays.items()}):
    for coding in (None, "gzip", "deflate"):
        inputs = [array(name, name, values) for name, values in every.items()]
        answer = client.infer("every", inputs, compression_algorithm=coding)
        for name, values in every.items():
            got = answer.as_numpy(name)
            assert got.shape == values.shape, (name, got.shape)
            if name == "BYTES":
                assert [item.decode() for item in got.reshape(-1)] == list(values.reshape(-1)), coding
            else:
                assert got.tobytes() == values.tobytes(), (coding, name)
print("datatypes")

# Calls: ids, versions, chosen outputs, classes, rows, sequences, priorities.
asked = [triton.InferRequestedOutput("letters"), triton.InferRequestedOutput("text")]
inputs = [array("name", "BYTES", np.array(["Ada"], dtype=object)), array("times", "UINT8", np.array([2], np.uint8))]
answer = client.infer("greet", inputs, outputs=asked, request_id="seven", model_version="1")
assert answer.as_numpy("letters").tolist() == [3, 3] and answer.as_numpy("text").tolist() == [b"hello Ada and Ada"]
response = answer.get_response()
assert (response.id, response.model_version, response.model_name) == ("seven", "1", "greet"), response
many = np.arange(3 * 50, dtype=np.float32).reshape(50, 3)
answer = client.infer("samples", [array("x", "FP32", many)])
assert np.array_equal(answer.as_numpy("sum"), many.sum(axis=1, keepdims=True))
best = triton.InferRequestedOutput("scores", class_count=2)
classes = client.infer("samples", [array("x", "FP32", many[:1])], outputs=[best]).as_numpy("scores")
assert classes.tolist() == [[b"2.000000:2", b"1.000000:1"]], classes
for priority in range(4):
    assert client.infer("number", [numbers([1])], priority=priority, timeout=60_000_000).as_numpy("output") == [2.0]
for sequence in (3, "a talk", 2**62):
    who = lambda **flags: client.infer("who", [numbers([0])], sequence_id=sequence, **flags).as_numpy("output")[0]
    replicas = {int(who(sequence_start=True)), *(int(who()) for _ in range(20)), int(who(sequence_end=True))}
    assert len(replicas) == 1, replicas
statistics = client.get_inference_statistics("number").model_stats[0]
assert statistics.inference_stats.success.count == statistics.inference_count >= 4, statistics
assert len(client.get_inference_statistics().model_stats) == 10
print("calls")

# Mistakes.
refused(lambda: client.infer("nobody", [numbers([1])]), "NOT_FOUND", "unknown model")
refused(lambda: client.infer("number", []), "INVALID_ARGUMENT", "expected 1 inputs but got 0")
refused(lambda: client.infer("number", [array("x", "FP64", np.array([1.0]))]), "INVALID_ARGUMENT", "'x'")
refused(lambda: client.infer("number", [numbers([1, 2])]), "INVALID_ARGUMENT", "shape")
refused(lambda: client.infer("fail", [numbers([1])]), "UNKNOWN", "the model is unwell")
to = lambda number: [array("to", "UINT64", np.array([number], np.uint64))]
refused(lambda: client.infer("count", to(1)), "UNIMPLEMENTED", "ModelStreamInfer")
# Deadlines: of the call, of the protocol, and one that is over at once.
refused(lambda: client.infer("nap", [numbers([60])], client_timeout=0.05), "DEADLINE_EXCEEDED", "")
refused(lambda: client.infer("nap", [numbers([60])], timeout=50_000), "DEADLINE_EXCEEDED", "deadline")
refused(lambda: client.infer("nap", [numbers([60])], client_timeout=0.000_001), "DEADLINE_EXCEEDED", "")
becomes("callboard_in_flight", 0.0)
print("mistakes")

# A cancelled call frees its permit.
ended = queue.Queue()
call = client.async_infer("nap", [numbers([60])], callback=lambda result, error: ended.put(error))
becomes("callboard_in_flight", 1.0)
call.cancel()
assert ended.get(timeout=20).status() == "StatusCode.CANCELLED"
becomes("callboard_in_flight", 0.0)
print("cancelled")

# 64 MiB there and back.
large = np.arange(16 * 1024 * 1024, dtype=np.float32)
for sent, coding in ((large, None), (large[:1_000_000], "gzip")):
    got = client.infer("any", [array("x", "FP32", sent)], compression_algorithm=coding).as_numpy("x")
    assert np.array_equal(got, sent), coding
print("large")

# Streams: plain models in order, a decoupled one with its last response, errors within the stream.
answers = queue.Queue()
client.start_stream(callback=lambda result, error: answers.put((result, error)))
for number in (1, 2, 3):
    client.async_stream_infer("number", [numbers([number])], request_id=str(number))
for number in (1, 2, 3):
    result, error = answers.get(timeout=20)
    assert error is None and result.get_response().id == str(number), error
    assert result.as_numpy("output").tolist() == [2.0 * number]
    assert result.get_response().parameters["triton_final_response"].bool_param
client.async_stream_infer("fail", [numbers([1])], request_id="f")
result, error = answers.get(timeout=20)
assert result is None and "the model is unwell" in error.message(), error
client.async_stream_infer("count", to(5), request_id="five", enable_empty_final_response=True)
counted = []
while True:
    result, error = answers.get(timeout=20)
    assert error is None, error
    response = result.get_response()
    assert response.id == "five"
    counted += [] if not response.outputs else result.as_numpy("number").tolist()
    if response.parameters["triton_final_response"].bool_param:
        break
assert counted == [1, 2, 3, 4, 5], counted
client.async_stream_infer("count", to(1000), request_id="far")
told = [answers.get(timeout=20) for _ in range(101)]
assert all(error is None for _, error in told[:100]) and "who can count that far" in told[100][1].message()
client.stop_stream()

client.start_stream(callback=lambda result, error: answers.put((result, error)), headers={"triton_grpc_error": "true"})
client.async_stream_infer("fail", [numbers([1])])
result, error = answers.get(timeout=20)
assert error.status() == "StatusCode.UNKNOWN" and "unwell" in error.message(), error
client.stop_stream()

# A stream that is cancelled cancels its calls.
client.start_stream(callback=lambda result, error: answers.put((result, error)))
client.async_stream_infer("nap", [numbers([60])])
becomes("callboard_in_flight", 1.0)
client.stop_stream(cancel_requests=True)
becomes("callboard_in_flight", 0.0)
print("streams")

# Keep-alive pings, also more often than other servers allow, while a model computes.
pinging = triton.InferenceServerClient(
    address,
    keepalive_options=triton.KeepAliveOptions(100, 2_000, True, 0),
)
assert pinging.infer("nap", [numbers([1.5])]).as_numpy("output").tolist() == [1.5]
print("pings")
