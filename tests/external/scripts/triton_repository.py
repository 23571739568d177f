"""Loads and unloads a model of the server at the address given, which lets its clients do so."""

import sys

import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

client = triton.InferenceServerClient(sys.argv[1])
[model] = client.get_model_repository_index()
name, version = model["name"], int(model["version"])
assert model["state"] == "READY", model

client.unload_model(name)
[model] = client.get_model_repository_index()
assert model == {"name": name, "state": "UNAVAILABLE", "reason": "unloaded"}, model
assert not client.is_model_ready(name)

client.load_model(name)
assert client.is_model_ready(name)
[model] = client.get_model_repository_index()
assert int(model["version"]) == version, model
# One that is served is made anew.
client.load_model(name)
[again] = client.get_model_repository_index()
assert int(again["version"]) == version, again

for wrong in [lambda: client.load_model("nobody"), lambda: client.load_model(name, config="{}")]:
    try:
        wrong()
        raise SystemExit("it was not refused")
    except InferenceServerException as error:
        assert error.status() == "400", error
assert client.is_model_ready(name)
