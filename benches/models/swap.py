"""Swaps of a served model under load over HTTP, next to the same load without swaps, in turns.

    python benches/models/swap.py CALLBOARD [ROUNDS] [MODEL]

CALLBOARD is the release binary. Each round has a load without swaps and one during which new versions of the model are
put into the watched directory, one after the other: failed calls, and the ratio of the 99th percentiles.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import numpy as np
import onnx
from networks import NETWORKS

binary = sys.argv[1]
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
name = sys.argv[3] if len(sys.argv) > 3 else "bert_tiny"
SECONDS, SWAPS = 8, 3
os.environ["VIRTUAL_ENV"] = os.path.dirname(os.path.dirname(os.path.abspath(sys.executable)))


class Node:
    """A node that serves a directory of models, and watches it."""

    def __init__(self, directory):
        self.models = directory / "models"
        self.model = directory / "model.onnx"
        onnx.save(NETWORKS[name](), self.model)
        self.version = 0
        self.add_version()
        self.log = directory / "log"
        command = [binary, "serve", self.models, "--watch", "200ms", "--http", "127.0.0.1:0", "--admin", "none"]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([*command, "--log-access", "false"], stdout=log, stderr=log)
        until = time.monotonic() + 60
        while "listening on http://" not in self.log.read_text():
            assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()
            time.sleep(0.05)
        self.url = next(word for word in self.log.read_text().split() if word.startswith("http://"))

    def add_version(self):
        """A version appears whole, as by a rename."""
        self.version += 1
        place = self.models / "m"
        place.mkdir(parents=True, exist_ok=True)
        coming = self.models.parent / "coming"
        coming.mkdir()
        shutil.copy(self.model, coming / "model.onnx")
        coming.rename(place / str(self.version))

    def live(self):
        with urllib.request.urlopen(f"{self.url}/v2/models/m") as answer:
            return json.load(answer)["versions"]

    def swap(self):
        self.add_version()
        until = time.monotonic() + 30
        while str(self.version) not in self.live():
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)


def load(node, item, swaps):
    """The report of `callboard bench` with this many swaps beside it."""
    command = [binary, "bench", node.url, "/m", "--file", item, "-H", "accept: application/x-npy", "-c", "8",
               "-d", f"{SECONDS}s", "--warm-up", "500ms", "--format", "json", "--threads", "1"]  # fmt: skip
    done = []

    def swap():
        time.sleep(1)
        for _ in range(swaps):
            node.swap()
            done.append(node.version)

    swapping = threading.Thread(target=swap)
    swapping.start()
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["target"]
    swapping.join()
    assert len(done) == swaps
    return report


print("load", os.getloadavg(), "cores", os.cpu_count(), "model", name)
with tempfile.TemporaryDirectory() as place:
    directory = pathlib.Path(place)
    node = Node(directory)
    try:
        item = directory / "item.npy"
        np.save(item, np.arange(64, dtype=np.int64))
        calm, swapped, failed, calls = [], [], 0, 0
        for number in range(rounds):
            for swaps in (0, SWAPS) if number % 2 else (SWAPS, 0):
                report = load(node, item, swaps)
                (swapped if swaps else calm).append(report["latency_ms"]["p99"])
                if swaps:
                    failed, calls = failed + report["failed"] + report["unsent"], calls + report["requests"]
    finally:
        node.process.kill()
        node.process.wait()
    ratio = statistics.median(swapped) / statistics.median(calm)
    print(f"{rounds * SWAPS} swaps: {failed} of {calls} calls failed; p99 {statistics.median(swapped):.1f} ms, without "
          f"swaps {statistics.median(calm):.1f} ms ({ratio:.2f}x, asked: at most 1.5)")  # fmt: skip
print("load", os.getloadavg())
