"""Models served by the binary, called by the Open Inference Protocol with binary tensors."""

import http.client
import json
import os
import pathlib
import subprocess
import time

import ml_dtypes
import numpy as np

DATATYPES = {
    "BOOL": np.bool_, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "UINT8": np.uint8,
    "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "FP16": np.float16, "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip
NAMES = {np.dtype(dtype): name for name, dtype in DATATYPES.items()}


class Refused(Exception):
    """An answer that is no 200."""


def texts_to_bytes(texts):
    encoded = [str(text).encode() for text in texts.ravel()]
    return b"".join(len(text).to_bytes(4, "little") + text for text in encoded)


def texts_from_bytes(data):
    texts, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        texts.append(data[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return texts


class Edge:
    """A node that serves these models, a mapping of names to files, each at `/v2/models/NAME` and `/NAME`."""

    def __init__(self, binary, directory, models, keys='engine = "onnxruntime"'):
        directory = pathlib.Path(directory)
        stage = '[[stage]]\nname = "{0}"\nkind = "onnx"\nmodel = "{1}"\n{2}\n[[route]]\npath = "/{0}"\nstages = ["{0}"]\n'
        text = "".join(stage.format(name, path, keys) for name, path in models.items())
        (directory / "callboard.toml").write_text(text)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CALLBOARD_")}
        environment["VIRTUAL_ENV"] = os.path.dirname(os.path.dirname(os.path.abspath(os.sys.executable)))
        self.log = open(directory / "log", "w+")
        command = [binary, "serve", str(directory), "--http", "127.0.0.1:0", "--log-access", "false"]
        self.process = subprocess.Popen(command, stderr=self.log, stdout=self.log, env=environment)
        deadline, address = time.monotonic() + 240, None
        while address is None:
            self.log.seek(0)
            text = self.log.read()
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise Refused(text)
            lines = [line for line in text.splitlines() if "listening on http://" in line]
            address = lines[0].rsplit("//", 1)[1] if lines else None
            time.sleep(0.02)
        self.connection = http.client.HTTPConnection(address, timeout=120)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()

    def post(self, path, body, headers):
        self.connection.request("POST", path, body, headers)
        answer = self.connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise Refused(f"{answer.status} {data[:600].decode(errors='replace')}")
        return answer, data

    def json(self, name, item):
        return json.loads(self.post(f"/{name}", json.dumps(item), {"content-type": "application/json"})[1])

    def infer(self, name, inputs):
        """The outputs by name. Arrays of objects are texts."""
        described, parts = [], []
        for key, array in inputs.items():
            array = np.ascontiguousarray(array) if array.ndim else array
            is_text = array.dtype.kind in "OUST"
            data = texts_to_bytes(array) if is_text else array.tobytes()
            parts.append(data)
            described.append({
                "name": key, "shape": list(array.shape), "datatype": "BYTES" if is_text else NAMES[array.dtype],
                "parameters": {"binary_data_size": len(data)},
            })  # fmt: skip
        head = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
        size = {"Inference-Header-Content-Length": str(len(head)), "content-type": "application/octet-stream"}
        answer, data = self.post(f"/v2/models/{name}/infer", b"".join([head, *parts]), size)
        at = int(answer.getheader("Inference-Header-Content-Length") or len(data))
        outputs = {}
        for output in json.loads(data[:at])["outputs"]:
            size = output.get("parameters", {}).get("binary_data_size")
            if size is None:
                outputs[output["name"]] = output["data"]
                continue
            part, at = data[at : at + size], at + size
            if output["datatype"] == "BYTES":
                array = np.array(texts_from_bytes(part), dtype=object)
            else:
                array = np.frombuffer(part, DATATYPES[output["datatype"]])
            outputs[output["name"]] = array.reshape(output["shape"])
        return outputs
