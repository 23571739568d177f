"""multi-model-server answers as `examples/migrate/torchserve/answers.json` says. Starts the server of this environment.

The server and its workers are a process group, which is killed at the end.
"""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

LIMIT = 120
MIGRATE = Path("examples/migrate").absolute()
EXAMPLE = MIGRATE / "torchserve"
sys.path.insert(0, str(MIGRATE))

from record import ask


def free_port():
    """The server takes no port from 32768 on."""
    while True:
        port = random.randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def configure(directory):
    """Writes the archive and the configuration, with ports of its own; returns the URL."""
    with zipfile.ZipFile(directory / "reviews.mar", "w") as archive:
        for path in sorted((EXAMPLE / "model").rglob("*")):
            archive.write(path, path.relative_to(EXAMPLE / "model"))
    text = (EXAMPLE / "before.properties").read_text()
    settings = re.sub(r"(?m)(:|port=)\d+$", lambda found: f"{found[1]}{free_port()}", text)
    (directory / "before.properties").write_text(settings)
    return re.search(r"inference_address=(\S+)", settings)[1]


def wait_until_ready(server, url, log):
    began = time.monotonic()
    while True:
        try:
            # A worker that is not loaded yet is a 503.
            if ask(url, {"path": "/predictions/reviews", "body": {"text": "good"}})["status"] == 200:
                return
        except OSError:
            pass
        over = server.poll() is not None or time.monotonic() - began > LIMIT
        assert not over, f"it does not answer:\n{log.read_text()}"
        time.sleep(0.1)


def main():
    requests, answers = (json.loads((EXAMPLE / f"{name}.json").read_text()) for name in ("requests", "answers"))
    assert len(requests) == len(answers), "record the answers again"
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        url, log = configure(directory), directory / "log"
        program = Path(sys.executable).with_name("multi-model-server")
        command = [program, "--start", "--foreground", "--model-store", name, "--models", "reviews=reviews.mar"]
        # Its sockets and the file of its process id are in the temporary directory.
        path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "TMPDIR": name, "PATH": path}
        with log.open("w") as output:
            server = subprocess.Popen(
                [*command, "--mms-config", "before.properties"],
                cwd=name, env=environment, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        try:
            wait_until_ready(server, url, log)
            for request, expected in zip(requests, answers, strict=True):
                found = ask(url, request)
                assert found == expected, f"{request}: {found} and not {expected}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    print(f"{len(answers)} answers are as recorded")


if __name__ == "__main__":
    main()
