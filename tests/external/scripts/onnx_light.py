"""The nine networks of the `onnx` package, on both engines, against bare ONNX Runtime.

    onnx_light.py BINARY [all]

rten's networks are only loaded, unless `all` is given: a debug build takes minutes for an answer.
"""

import pathlib
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx_edge import Edge, Refused

# rten has no LRN, and would compute the softmax of an old squeezenet over another axis.
ONLY_ONNX_RUNTIME = {
    "light_bvlc_alexnet": "LRN",
    "light_inception_v1": "LRN",
    "light_squeezenet": "Softmax before opset 13",
    "light_zfnet512": "LRN",
}

files = sorted(pathlib.Path(onnx.__file__).parent.glob("backend/test/data/light/*.onnx"))
assert len(files) == 9, files
chance = np.random.default_rng(7)
for file in files:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    inputs = {one.name: chance.random(one.shape, np.float32) for one in session.get_inputs()}
    expected = session.run(None, inputs)
    names = [one.name for one in session.get_outputs()]
    del session
    for engine in ["onnxruntime", "rten"]:
        with tempfile.TemporaryDirectory() as directory:
            try:
                with Edge(sys.argv[1], directory, {"m": file}, f'engine = "{engine}"') as edge:
                    if engine == "rten" and sys.argv[2:] != ["all"]:
                        edge.connection.request("GET", "/v2/models/m")
                        assert edge.connection.getresponse().status == 200
                        continue
                    answer = edge.infer("m", inputs)
            except Refused as error:
                assert engine == "rten" and file.stem in ONLY_ONNX_RUNTIME, error
                reason = ONLY_ONNX_RUNTIME[file.stem]
                assert reason in str(error) and "pip install onnxruntime" in str(error), error
                print(file.stem, engine, f"refused: {reason}")
                continue
        for name, value in zip(names, expected, strict=True):
            # Another order of sums.
            assert np.allclose(answer[name], value, 1e-3, 1e-5), (file.stem, engine, np.abs(answer[name] - value).max())
        print(file.stem, engine, "agrees")
