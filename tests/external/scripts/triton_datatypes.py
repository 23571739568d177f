"""Every datatype there and back, in binary and, where the client allows it, in JSON: extremes, empty arrays, odd places."""

import sys

import ml_dtypes
import numpy as np
import tritonclient.http as triton
from tritonclient.utils import np_to_triton_dtype

client = triton.InferenceServerClient(sys.argv[1], network_timeout=60, connection_timeout=60)
chance = np.random.default_rng(7)


def extremes(dtype):
    if dtype == np.bool_:
        return np.array([[True, False], [False, True]])
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return np.array([[info.min, info.max], [0, info.max - 1]], dtype)
    info = ml_dtypes.finfo(dtype) if dtype == ml_dtypes.bfloat16 else np.finfo(dtype)
    return np.array([[info.min, info.max], [-0.0, info.tiny]], dtype)


TYPES = [np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64]
TYPES += [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
words = [["", "a"], ["ü€😀", "x" * 70_000], ["\x00", '"\\\n'], ["b", "c"], ["d", "e"]]
arrays = {np_to_triton_dtype(np.dtype(dtype)): extremes(np.dtype(dtype)) for dtype in TYPES}
arrays["BYTES"] = np.array(words, dtype=object)
assert len(arrays) == 14, arrays.keys()


def asked(arrays, binary_in, binary_out):
    inputs = []
    for name, values in arrays.items():
        binary = binary_in(name)
        inputs.append(triton.InferInput(name, values.shape, name).set_data_from_numpy(values, binary_data=binary))
    outputs = [triton.InferRequestedOutput(name, binary_data=binary_out(name)) for name in arrays]
    return client.infer("every", inputs, outputs=outputs)


def check(arrays, answer):
    for name, values in arrays.items():
        got = answer.as_numpy(name)
        if name == "BYTES":
            as_bytes = lambda item: item if isinstance(item, bytes) else item.encode()
            wanted = [as_bytes(item) for item in values.reshape(-1)]
            assert [as_bytes(item) for item in got.reshape(-1)] == wanted and got.shape == values.shape, name
        else:
            assert got.dtype == values.dtype and got.shape == values.shape, (name, got.dtype, got.shape)
            assert got.tobytes() == values.tobytes(), (name, got, values)


always, never = lambda _: True, lambda _: False
no_json_in = lambda name: name == "BF16"
check(arrays, asked(arrays, always, always))
check(arrays, asked(arrays, no_json_in, always))
check(arrays, asked(arrays, always, never))
check(arrays, asked(arrays, no_json_in, never))

# Every other one in binary: the parts lie behind each other, at any place.
for _ in range(20):
    names = list(arrays)
    chance.shuffle(names)
    mixed = {name: arrays[name] for name in names}
    picked = {name for name in names if chance.random() < 0.5} | {"BF16"}
    check(mixed, asked(mixed, lambda name: name in picked, lambda name: name not in picked))

# NaN and infinities survive in binary; bytes that are no text, too.
strange = dict(arrays)
strange["FP32"] = np.array([[np.nan, np.inf], [-np.inf, 1]], np.float32)
strange["FP16"] = np.array([[np.nan, np.inf], [-np.inf, 1]], np.float16)
strange["BF16"] = np.array([[np.nan, np.inf], [-np.inf, 1]], ml_dtypes.bfloat16)
check(strange, asked(strange, always, always))

# Arrays without elements, and the answer to a client that names no outputs.
empty = {name: np.empty((0, 2), values.dtype) for name, values in arrays.items()}
inputs = [triton.InferInput(name, [0, 2], name).set_data_from_numpy(values) for name, values in empty.items()]
answer = client.infer("every", inputs)
for output in answer.get_response()["outputs"]:
    assert output["shape"] == [0, 2] and output["parameters"]["binary_data_size"] == 0, output

# Packed requests, and answers that are packed where that helps: always the same arrays.
for coding in ("gzip", "deflate"):
    for binary in (always, never):
        names = [name for name in arrays if name != "BF16"]
        inputs = [triton.InferInput(n, arrays[n].shape, n).set_data_from_numpy(arrays[n], binary(n)) for n in names]
        bf16 = triton.InferInput("BF16", [2, 2], "BF16").set_data_from_numpy(arrays["BF16"])
        outputs = [triton.InferRequestedOutput(name, binary_data=binary(name)) for name in arrays]
        packing = {"request_compression_algorithm": coding, "response_compression_algorithm": coding}
        check(arrays, client.infer("every", [*inputs, bf16], outputs=outputs, **packing))

# Any number of axes.
for shape in [(1,), (2, 3, 4), (1, 1, 1, 1, 1, 7)]:
    values = chance.random(shape, np.float32)
    sent = triton.InferInput("x", shape, "FP32").set_data_from_numpy(values)
    assert np.array_equal(client.infer("any", [sent]).as_numpy("x"), values), shape
