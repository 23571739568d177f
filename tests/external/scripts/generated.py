"""Has openapi-python-client write a client of a document, and calls a route, a model and a function with it.

    generated.py DOCUMENT DIRECTORY BASE
"""

import base64
import subprocess
import sys
from pathlib import Path


def main(document, directory, base):
    generator = Path(sys.executable).with_name("openapi-python-client")
    made = subprocess.run(
        [generator, "generate", "--path", document, "--meta", "none", "--output-path", f"{directory}/made", "--overwrite"],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    print(made.stdout)
    assert "WARNING" not in made.stdout and "omitted" not in made.stdout, made.stdout
    sys.path.insert(0, directory)

    from made import Client
    from made.api.models import infer, model, model_config
    from made.api.routes import call, post_digits
    from made.models import FunctionCall, FunctionCallKwargs, Image, InferenceInput, InferenceInputParameters, InferenceRequest

    client = Client(base_url=base)
    seven = base64.b64encode(Path("examples/digits/seven.png").read_bytes()).decode()

    label = post_digits.sync(client=client, body=Image(image=seven))
    assert label.label == "7" and len(label.top) == 3, label
    problem = post_digits.sync(client=client, body=Image(image="AAAA"))
    assert problem.kind == "invalid_input" and problem.status == 400, problem

    called = call.sync("digits", client=client, body=FunctionCall(kwargs=FunctionCallKwargs.from_dict({"image": seven})))
    assert called["label"] == "7", called

    metadata = model.sync("digits", client=client)
    assert metadata.inputs[0].name == "image", metadata
    assert model_config.sync("digits", client=client).max_batch_size == 0
    picture = InferenceInput(
        name="image",
        datatype="BYTES",
        shape=[1],
        data=[seven],
        parameters=InferenceInputParameters.from_dict({"content_type": "base64"}),
    )
    answer = infer.sync("digits", client=client, body=InferenceRequest(inputs=[picture]))
    labels = [output.data[0] for output in answer.outputs if output.name == "label"]
    assert labels == ["7"], answer


main(*sys.argv[1:])
