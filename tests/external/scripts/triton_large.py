"""64 MiB in and 64 MiB out, several times on one connection; one byte more than the server takes is refused."""

import sys

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

client = triton.InferenceServerClient(sys.argv[1], network_timeout=120, connection_timeout=120)
values = np.arange(16 * 1024 * 1024, dtype=np.float32).reshape(4096, 4096)
assert values.nbytes == 64 * 1024 * 1024
sent = triton.InferInput("x", values.shape, "FP32").set_data_from_numpy(values)
for _ in range(3):
    assert np.array_equal(client.infer("any", [sent]).as_numpy("x"), values)

beyond = np.zeros(17 * 1024 * 1024, np.float32)
sent = triton.InferInput("x", beyond.shape, "FP32").set_data_from_numpy(beyond)
try:
    client.infer("any", [sent])
    raise AssertionError("nobody refused 68 MiB")
except InferenceServerException as error:
    assert error.status() == "413" and "limit" in error.message(), error
