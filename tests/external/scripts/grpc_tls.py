"""tritonclient.grpc over TLS: HTTP/2 by ALPN on the port of HTTP."""

import sys

import numpy as np
import tritonclient.grpc as triton

address, certificate = sys.argv[1:]
client = triton.InferenceServerClient(address, ssl=True, root_certificates=certificate)
image = triton.InferInput("image", [1, 1, 8, 8], "FP32")
image.set_data_from_numpy(np.zeros((1, 1, 8, 8), np.float32))
assert client.infer("digits", [image]).as_numpy("logits").shape == (1, 10)
