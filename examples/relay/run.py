"""Runs the participant and the gateway as two processes; then again, and kills the participant in the middle.

pip install .
python examples/relay/run.py target/release/callboard
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def start_participant(callboard: str) -> tuple[subprocess.Popen[str], str]:
    command = [callboard, "serve", str(HERE / "participant.py"), "--http", "127.0.0.1:0"]
    participant = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert participant.stderr is not None
    for line in participant.stderr:
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return participant, found[0]
    raise RuntimeError("the participant did not start")


def start_gateway(url: str, directory: str, days: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "gateway.py"), url, directory, str(days)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main(callboard: str) -> None:
    participant, url = start_participant(callboard)
    try:
        with tempfile.TemporaryDirectory() as directory:
            out = Path(directory)
            print(start_gateway(url, directory, 3).communicate()[0], end="")
            print((out / "submission.csv").read_text(), end="")

            gateway = start_gateway(url, directory, 1_000_000)
            assert gateway.stdout is not None
            print(gateway.stdout.readline(), end="")
            participant.kill()
            print(gateway.stdout.read().splitlines()[-1])
            gateway.wait()
            result = json.loads((out / "result.json").read_text())
            assert (result["succeeded"], result["blame"], result["error"]) == (False, "participant", "ConnectionLost")
            assert not (out / "submission.csv").exists()
    finally:
        participant.kill()
        participant.wait()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "callboard")
