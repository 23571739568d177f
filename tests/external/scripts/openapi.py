"""Holds a server's OpenAPI document against openapi-spec-validator and against what the server answers (schemathesis).

    openapi.py ADDRESS ROUTES [KEY]

ROUTES, between commas, have rules that no schema tells, so that a request that fits may be refused; `*` is all of them. KEY is for a server that asks for one.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from openapi_spec_validator import OpenAPIV31SpecValidator

HERE = Path(__file__).parent
EXAMPLES = os.environ.get("CALLBOARD_OPENAPI_EXAMPLES", "25")


# What these take is more than their schema says. A form has only texts, and one part of a list looks like a single one, so that
# much that does not fit becomes what does. In MessagePack the number of an enum's variant is as good as its name.
LENIENT = ("multipart/form-data", "application/x-www-form-urlencoded", "application/msgpack")


def main(address, own_rules, key=None):
    base = f"http://{address}"
    headers = {"x-api-key": key} if key else {}
    document = json.load(urllib.request.urlopen(urllib.request.Request(f"{base}/openapi.json", headers=headers)))
    assert ("securitySchemes" in document["components"]) == bool(key)
    OpenAPIV31SpecValidator(document).validate()
    if key:
        # Either of two headers will do. schemathesis spoils one and leaves the other, so it is told of one.
        document["security"] = [{"header": []}]
    for operations in document["paths"].values():
        for operation in operations.values():
            # What the code of a route may choose is any status: with it declared, none would be undeclared.
            for chosen in ("4XX", "5XX"):
                operation["responses"].pop(chosen, None)
    ruled = list(document["paths"]) if own_rules == "*" else own_rules.split(",")
    ask(base, with_bodies(document, lambda media_type: media_type not in LENIENT), ruled, key, "all")
    ask(base, with_bodies(document, lambda media_type: media_type in LENIENT), ruled, key, "positive")


def with_bodies(document, wanted):
    """The document with these media types of requests only."""
    document = json.loads(json.dumps(document))
    for path, operations in list(document["paths"].items()):
        for operation in operations.values():
            content = operation.get("requestBody", {}).get("content", {})
            for media_type in [media_type for media_type in content if not wanted(media_type)]:
                del content[media_type]
            if "requestBody" in operation and not content:
                del document["paths"][path]
    return document


def ask(base, document, ruled, key, mode):
    config = "\n".join(
        f'[[operations]]\ninclude-path = "{path}"\nchecks.positive_data_acceptance.enabled = false\n' for path in ruled
    )
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        (directory / "openapi.json").write_text(json.dumps(document))
        (directory / "schemathesis.toml").write_text((HERE / "schemathesis.toml").read_text() + config)
        command = [Path(sys.executable).with_name("st"), "--config-file", "schemathesis.toml", "run", "openapi.json"]
        command += ["--url", base, "--max-examples", EXAMPLES, "--mode", mode]
        command += ["--header", f"x-api-key: {key}"] if key else []
        environment = {**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE / "schemathesis_hooks")}
        code = subprocess.run(command, cwd=directory, env=environment).returncode
        if code:
            sys.exit(code)


main(*sys.argv[1:])
