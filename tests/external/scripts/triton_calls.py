"""Everything of tritonclient.http but datatypes: health, metadata, configuration, statistics, errors, parameters, streams."""

import json
import sys
import urllib.error
import urllib.request

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

address = sys.argv[1]
client = triton.InferenceServerClient(address, concurrency=4, network_timeout=60, connection_timeout=60)


def array(name, datatype, values, shape=None, binary=True):
    values = np.asarray(values)
    tensor = triton.InferInput(name, list(values.shape if shape is None else shape), datatype)
    return tensor.set_data_from_numpy(values, binary_data=binary)


def numbers(values, binary=True):
    return array("input", "FP64", np.array(values, dtype=np.float64), binary=binary)


def refused(call, status, words):
    try:
        call()
    except InferenceServerException as error:
        assert error.status() in (str(status), None), error
        assert words in error.message(), error
        return error
    raise AssertionError(f"nobody refused: {words}")


# Health and what there is.
assert client.is_server_live()
assert client.is_server_ready()
server = client.get_server_metadata()
assert server["name"] == "callboard" and "binary_tensor_data" in server["extensions"], server
names = {"every", "any", "samples", "greet", "number", "fail", "deep/inside", "nap", "who", "count"}
index = client.get_model_repository_index()
assert {model["name"] for model in index} == names, index
assert all(model["state"] == "READY" for model in index), index
for name in names:
    assert client.is_model_ready(name), name
    assert client.get_model_metadata(name)["name"] == name
    assert client.get_model_config(name)["name"] == name
assert not client.is_model_ready("nobody")
refused(lambda: client.get_model_metadata("nobody"), 404, "unknown model: 'nobody'")
refused(lambda: client.get_model_metadata("number", model_version="7"), 404, "version 7")
refused(lambda: client.load_model("nobody"), 400, "model control")
refused(lambda: client.unload_model("number"), 400, "model control")

# Signatures, with the axis of many samples exactly where the configuration says so.
greet = client.get_model_metadata("greet")
assert greet["inputs"] == [
    {"name": "name", "datatype": "BYTES", "shape": [1]},
    {"name": "times", "datatype": "UINT8", "shape": [1]},
], greet
assert greet["outputs"][1] == {"name": "letters", "datatype": "UINT32", "shape": [-1]}, greet
samples, configured = client.get_model_metadata("samples"), client.get_model_config("samples")
assert samples["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}], samples
assert configured["max_batch_size"] > 0 and configured["input"][0]["dims"] == [3], configured
assert configured["input"][0]["data_type"] == "TYPE_FP32", configured
assert client.get_model_config("number")["max_batch_size"] == 0
assert client.get_model_config("count")["model_transaction_policy"]["decoupled"] is True

# Calls: binary and JSON in every mixture, chosen outputs, ids, versions.
assert client.infer("number", [numbers([2.5])]).as_numpy("output").tolist() == [5.0]
assert client.infer("number", [numbers([2.5], binary=False)]).as_numpy("output").tolist() == [5.0]
assert client.infer("deep/inside", [array("input", "INT32", np.array([41], np.int32))]).as_numpy("output") == [42]
names = np.array(["Ada"], dtype=object)
for binary_in in (True, False):
    for binary_out in (True, False):
        asked = [triton.InferRequestedOutput("letters", binary_data=binary_out), triton.InferRequestedOutput("text")]
        inputs = [array("name", "BYTES", names, binary=binary_in), array("times", "UINT8", np.array([2], np.uint8))]
        answer = client.infer("greet", inputs, outputs=asked, request_id="seven", model_version="1")
        assert answer.as_numpy("letters").tolist() == [3, 3]
        assert answer.as_numpy("text").tolist() == [b"hello Ada and Ada"]
        response = answer.get_response()
        assert response["id"] == "seven" and response["model_version"] == "1" and response["model_name"] == "greet"
        assert [output["name"] for output in response["outputs"]] == ["letters", "text"]
only = client.infer("greet", [array("name", "BYTES", names)], outputs=[triton.InferRequestedOutput("text")])
assert only.as_numpy("letters") is None and "id" not in only.get_response()

# Many samples at once are as many calls.
many = np.arange(3 * 50, dtype=np.float32).reshape(50, 3)
answer = client.infer("samples", [array("x", "FP32", many)])
assert np.array_equal(answer.as_numpy("sum"), many.sum(axis=1, keepdims=True))
assert np.array_equal(answer.as_numpy("scores"), many)
best = triton.InferRequestedOutput("scores", class_count=2)
classes = client.infer("samples", [array("x", "FP32", many[:1])], outputs=[best]).as_numpy("scores")
assert classes.tolist() == [[b"2.000000:2", b"1.000000:1"]], classes

# Raw binary requests: the body is the array.
request = urllib.request.Request(f"http://{address}/v2/models/samples/infer", data=many[:1].tobytes())
request.add_header("Inference-Header-Content-Length", "0")
with urllib.request.urlopen(request) as raw:
    front = json.loads(raw.read(int(raw.headers["Inference-Header-Content-Length"])))
    assert [output["shape"] for output in front["outputs"]] == [[1, 1], [1, 3]], front

# Mistakes are told in words.
refused(lambda: client.infer("nobody", [numbers([1])]), 404, "unknown model")
refused(lambda: client.infer("number", []), 400, "expected 1 inputs but got 0")
refused(lambda: client.infer("number", [array("x", "FP64", np.array([1.0]))]), 400, "'x'")
refused(lambda: client.infer("number", [array("input", "FP32", np.array([1], np.float32))]), 400, "'FP64'")
refused(lambda: client.infer("number", [numbers([1, 2])]), 400, "shape")
refused(lambda: client.infer("samples", [array("x", "FP32", many[:, :2].copy())]), 400, "[-1, 3]")
refused(lambda: client.infer("samples", [array("x", "FP32", np.zeros((10_000, 3), np.float32))]), 400, "batch-size")
refused(lambda: client.infer("number", [numbers([1])], outputs=[triton.InferRequestedOutput("y")]), 400, "'y'")
refused(lambda: client.infer("fail", [numbers([1])]), 500, "the model is unwell")
refused(lambda: client.infer("count", [array("to", "UINT64", np.array([1], np.uint64))]), 400, "generate_stream")
try:
    urllib.request.urlopen(f"http://{address}/v2/models/number/infer")
    raise AssertionError("GET is no way to infer")
except urllib.error.HTTPError as error:
    assert error.code == 405 and error.headers["content-type"] == "application/json"
    assert "error" in json.load(error)

# Parameters: a timeout in microseconds, priorities, sequences that stay with their replica.
refused(lambda: client.infer("nap", [numbers([60])], timeout=50_000), 504, "deadline")
for priority in range(4):
    assert client.infer("number", [numbers([1])], priority=priority, timeout=60_000_000).as_numpy("output") == [2.0]
for sequence in (3, "a talk", 2**64 - 1):
    who = lambda **flags: client.infer("who", [numbers([0])], sequence_id=sequence, **flags).as_numpy("output")[0]
    replicas = {int(who(sequence_start=True)), *(int(who()) for _ in range(20)), int(who(sequence_end=True))}
    assert len(replicas) == 1, replicas
assert len({int(client.infer("who", [numbers([0])], sequence_id=n).as_numpy("output")[0]) for n in range(1, 60)}) > 1
assert client.infer("number", [numbers([1])], parameters={"mine": "x"}).as_numpy("output") == [2.0]

# What was counted.
statistics = client.get_inference_statistics("number")["model_stats"][0]
succeeded = statistics["inference_stats"]["success"]
assert statistics["version"] == "1" and statistics["inference_count"] == succeeded["count"] >= 7, statistics
assert succeeded["ns"] > 0 and 0 < statistics["execution_count"] <= succeeded["count"] and statistics["last_inference"] > 0
failed = client.get_inference_statistics("fail")["model_stats"][0]["inference_stats"]["fail"]
assert failed["count"] == 1 and failed["ns"] > 0, failed
assert client.get_inference_statistics("samples")["model_stats"][0]["inference_count"] == 52
assert len(client.get_inference_statistics()["model_stats"]) == 10


# The generate extension, which tritonclient has not: JSON in, JSON out, or events.
def generate(model, body, verb="generate"):
    request = urllib.request.Request(f"http://{address}/v2/models/{model}/{verb}", data=json.dumps(body).encode())
    return urllib.request.urlopen(request)


with generate("greet", {"name": "Ada", "times": 2, "id": "5", "parameters": {"priority": 1}}) as answer:
    said = json.load(answer)
    assert said["text"] == "hello Ada and Ada" and said["letters"] == [3, 3] and said["id"] == "5", said
    assert said["model_name"] == "greet" and said["model_version"] == "1", said
with generate("samples", {"x": [1, 2, 3]}) as answer:
    assert json.load(answer)["sum"] == 6
with generate("count", {"to": 3}, "generate_stream") as events:
    assert events.headers["content-type"].startswith("text/event-stream")
    told = [json.loads(line[6:]) for line in events.read().decode().split("\n\n") if line]
    assert [event["number"] for event in told] == [1, 2, 3], told
with generate("count", {"to": 1000}, "generate_stream") as events:
    told = [json.loads(line[6:]) for line in events.read().decode().split("\n\n") if line]
    assert len(told) == 101 and "who can count that far" in told[-1]["error"], told[-1]
with generate("greet", {"name": "Ada"}, "generate_stream") as events:
    assert json.loads(events.read().decode()[6:])["text"] == "hello Ada"
for body, model, verb, words in [
    ({"to": 2}, "count", "generate", "generate_stream"),
    ({}, "greet", "generate", "name"),
    ([], "greet", "generate_stream", "object"),
    ({"input": 1}, "fail", "generate_stream", "unwell"),
]:
    try:
        generate(model, body, verb)
        raise AssertionError(f"nobody refused {body} to {model}")
    except urllib.error.HTTPError as error:
        assert error.code >= 400 and words in json.load(error)["error"], (model, verb)
