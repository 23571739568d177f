"""An ONNX model served without a line of configuration: its signature, and its answers to many pictures at once."""

import sys

import numpy as np
import tritonclient.http as triton

client = triton.InferenceServerClient(sys.argv[1], network_timeout=60, connection_timeout=60)
[model] = client.get_model_repository_index()
name = model["name"]
metadata, config = client.get_model_metadata(name), client.get_model_config(name)
[image], [logits] = metadata["inputs"], metadata["outputs"]
assert image["shape"] == [-1, 1, 8, 8] and image["datatype"] == "FP32", metadata
assert logits["shape"] == [-1, 10], metadata
assert config["max_batch_size"] > 0 and config["input"][0]["dims"] == [1, 8, 8], config

chance = np.random.default_rng(7)
pictures = chance.random((25, 1, 8, 8), np.float32)
together = client.infer(name, [triton.InferInput(image["name"], pictures.shape, "FP32").set_data_from_numpy(pictures)])
together = together.as_numpy(logits["name"])
assert together.shape == (25, 10) and np.isfinite(together).all()
for picture, expected in zip(pictures, together):
    alone = triton.InferInput(image["name"], [1, 1, 8, 8], "FP32").set_data_from_numpy(picture[None])
    answer = client.infer(name, [alone]).as_numpy(logits["name"])
    assert np.allclose(answer[0], expected, atol=1e-5)
