"""The service `before.py` of a system answers as its `answers.json` says: `before.py mosec`.

The system is installed in this environment. Its processes are a process group, which is killed at the end.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 120
MIGRATE = Path("examples/migrate").absolute()
sys.path.insert(0, str(MIGRATE))

from record import ask

UVICORN = ["-m", "uvicorn", "before:app", "--port"]
# What the first line of each `before.py` says. The port follows.
COMMANDS = {
    "bentoml": ["-m", "bentoml", "serve", "before:Reviews", "--host", "127.0.0.1", "--port"],
    "fastapi": UVICORN,
    "litserve": ["before.py"],
    "mosec": ["before.py", "--port"],
    "mpservice": UVICORN,
    "octoai": ["-m", "octoai.server", "--service-module", "before", "run", "--port"],
}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def wait_until_ready(server, url, request, log):
    began = time.monotonic()
    while True:
        # A service that is not loaded yet may refuse the connection, or answer with 503.
        with contextlib.suppress(OSError):
            if ask(url, request)["status"] == 200:
                return
        over = server.poll() is not None or time.monotonic() - began > LIMIT
        assert not over, f"it does not answer:\n{log.read_text()}"
        time.sleep(0.1)


def without(answer, name):
    """The answer without a field that is never the same, such as the time that the call took."""
    if not isinstance(answer["body"], dict):
        return answer
    return {**answer, "body": {key: value for key, value in answer["body"].items() if key != name}}


def main(system):
    directory = MIGRATE / system
    requests, answers = (json.loads((directory / f"{name}.json").read_text()) for name in ("requests", "answers"))
    assert len(requests) == len(answers), "record the answers again"
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(temporary) / "log"
        # No file appears beside the examples, and no usage is reported.
        environment = {
            **os.environ, "TMPDIR": temporary, "BENTOML_HOME": temporary, "BENTOML_DO_NOT_TRACK": "1",
            "PYTHONDONTWRITEBYTECODE": "1", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        with log.open("w") as output:
            server = subprocess.Popen(
                [sys.executable, *COMMANDS[system], str(port)],
                cwd=directory, env=environment, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        try:
            wait_until_ready(server, url, requests[0], log)
            for request, expected in zip(requests, answers, strict=True):
                ignored = request.get("ignore")
                found, expected = (without(each, ignored) for each in (ask(url, request), expected))
                assert found == expected, f"{request}: {found} and not {expected}"
        finally:
            stop(server)
    print(f"{len(answers)} answers are as recorded")


def stop(server):
    """Asks first: bentoml ends its workers, which are groups of their own."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal_number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(5)


if __name__ == "__main__":
    main(*sys.argv[1:])
