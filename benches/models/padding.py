"""Texts of different lengths: an encoder with padding, without it, and bare ONNX Runtime that pads by itself.

    python benches/models/padding.py --callboard PATH [--rounds 5] [--seconds 4] [--callers 64] [--layers 6]
                                     [--width 384] [--heads 12]

Each caller sends items with 8 to 128 tokens, one after the other. A row has items per second, the median of the rounds,
in which all rows take turns. Bare ONNX Runtime takes batches of the same items; `batch 1` needs no padding.
"""

import argparse
import http.client
import itertools
import json
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time

import numpy as np
import onnx
import onnxruntime

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests/external/scripts"))
from networks import encoder
from onnx_edge import Edge

options = argparse.ArgumentParser()
options.add_argument("--callboard", required=True)
options.add_argument("--rounds", type=int, default=5)
options.add_argument("--seconds", type=float, default=4)
options.add_argument("--callers", type=int, default=64)
options.add_argument("--layers", type=int, default=6)
options.add_argument("--width", type=int, default=384)
options.add_argument("--heads", type=int, default=12)
options = options.parse_args()

SHORTEST, LONGEST, WORDS = 8, 128, 1000
BUCKETS = [16, 32, 64, 128]
PAD = 'pad = { axis = "sequence", mask = "attention_mask"'
STAGES = {
    "unpadded": "",
    "padded to the longest": PAD + " }",
    "padded to buckets": f"{PAD}, buckets = {BUCKETS} }}",
}

chance = np.random.default_rng(7)
lengths = chance.integers(SHORTEST, LONGEST + 1, 512)
items = [chance.integers(0, WORDS, length) for length in lengths]


def rate(start_all):
    """Items per second of a function that takes the moment of its end, and returns how many it did."""
    start = time.perf_counter()
    done = start_all(start + options.seconds)
    return done / (time.perf_counter() - start)


def bare(session, batch):
    at = itertools.cycle(range(0, len(items) - batch + 1, batch))

    def run(end):
        done = 0
        while time.perf_counter() < end:
            start = next(at)
            chosen = items[start : start + batch]
            longest = max(map(len, chosen))
            ids = np.zeros((batch, longest), np.int64)
            mask = np.zeros((batch, longest), np.int64)
            for row, item in enumerate(chosen):
                ids[row, : len(item)] = item
                mask[row, : len(item)] = 1
            vectors = session.run(None, {"ids": ids, "attention_mask": mask})[0]
            done += len([vectors[row, : len(item)] for row, item in enumerate(chosen)])
        return done

    return rate(run)


def served(edge, with_mask):
    """Items per second of all callers, each with its connection. Answers are binary: JSON would be the cost."""
    host, port = edge.connection.host, edge.connection.port
    # Made before: the callers share the cores with the node.
    head = {"accept": "application/msgpack", "content-type": "application/json"}
    bodies = []
    for item in items:
        fields = {"ids": item.tolist(), **({"attention_mask": [1] * len(item)} if with_mask else {})}
        bodies.append(json.dumps(fields).encode())
    counts = [0] * options.callers

    def call(caller, end):
        connection = http.client.HTTPConnection(host, port, timeout=120)
        for at in itertools.count(caller * 37):
            if time.perf_counter() >= end:
                break
            connection.request("POST", "/m", bodies[at % len(bodies)], head)
            answer = connection.getresponse()
            data = answer.read()
            assert answer.status == 200, data[:300]
            counts[caller] += 1
        connection.close()

    def run(end):
        threads = [threading.Thread(target=call, args=(caller, end)) for caller in range(options.callers)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        return sum(counts)

    return rate(run)


print("load", os.getloadavg(), "cores", os.cpu_count(), "onnxruntime", onnxruntime.__version__, vars(options))
with tempfile.TemporaryDirectory() as directory:
    directory = pathlib.Path(directory)
    model = directory / "model.onnx"
    onnx.save(encoder(options.layers, options.width, options.heads, WORDS, masked=True), model)
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    edges, rows = {}, {}
    for name, pad in STAGES.items():
        (directory / name).mkdir()
        keys = f'engine = "onnxruntime"\nmax_batch_size = 32\n{pad}'
        edges[name] = Edge(options.callboard, directory / name, {"m": model}, keys)
    try:
        for _ in range(options.rounds):
            for batch in [1, 8, 32]:
                rows.setdefault(f"bare, batch {batch}", []).append(bare(session, batch))
            for name, edge in edges.items():
                rows.setdefault(name, []).append(served(edge, with_mask=name == "unpadded"))
    finally:
        for edge in edges.values():
            edge.__exit__()
best = max(statistics.median(rates) for name, rates in rows.items() if name.startswith("bare"))
for name, rates in rows.items():
    spread = f"{min(rates):.0f} to {max(rates):.0f}"
    median = statistics.median(rates)
    print(f"{name}: {median:.1f}/s ({spread}), {median / best:.2f} of bare's best", flush=True)
print("load", os.getloadavg())
