"""Sends the requests of an example to its service in the other system, and keeps the answers for the tests.

Start `before.py` by hand, as its first line says, in an environment with that system. Then:

    python record.py mosec http://127.0.0.1:8001

A second system with the same requests has a file of its own: `python record.py torchserve URL answers-torchserve.json`.
"""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


def ask(url: str, request: dict[str, Any]) -> dict[str, Any]:
    """The status and the body of the answer. The body is JSON, or text if it cannot be read as JSON."""
    body = request["text"] if "text" in request else json.dumps(request["body"])
    headers = {"content-type": request.get("type", "application/json")}
    call = urllib.request.Request(url + request["path"], body.encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(call, timeout=60) as answer:
            status, data = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, data = error.code, error.read()
    try:
        return {"status": status, "body": json.loads(data)}
    except ValueError:
        return {"status": status, "body": data.decode()}


def main(name: str, url: str, file: str = "answers.json") -> None:
    directory = Path(__file__).parent / name
    requests = json.loads((directory / "requests.json").read_text())
    answers = [json.dumps(ask(url, request)) for request in requests]
    (directory / file).write_text("[\n  " + ",\n  ".join(answers) + "\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
