"""Models served over HTTP and called in process, next to bare ONNX Runtime in Python, in turns.

    python benches/models/compare.py CALLBOARD CALLS [ROUNDS] [MODEL …]

CALLBOARD is the release binary, CALLS that of `cargo bench -p callboard-onnx --bench calls --no-run`. A row has medians
of the rounds' medians and their ratio to bare ONNX Runtime. Of some models a further row has 64 callers.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests/external/scripts"))
from networks import NETWORKS  # noqa: E402
from onnx_edge import Edge  # noqa: E402

onnxruntime.set_default_logger_severity(3)
binary, calls = sys.argv[1:3]
rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 7
OPEN_AXIS = 64
# With 64 callers, the longest batch, and the seconds of a round: many batches long.
MANY_CALLERS = {"bert_tiny": (32, 3), "bert_base": (8, 30)}
os.environ["VIRTUAL_ENV"] = os.path.dirname(os.path.dirname(os.path.abspath(sys.executable)))


def inputs_of(session, batch=1):
    inputs = {}
    for one in session.get_inputs():
        shape = [length if isinstance(length, int) else batch if at == 0 else OPEN_AXIS for at, length in enumerate(one.shape)]
        numbers = np.arange(int(np.prod(shape))).reshape(shape) * 31 % 97
        inputs[one.name] = numbers.astype(np.int64) if "int64" in one.type else (numbers / 97).astype(np.float32)
    return inputs


def median_ms(call, count):
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


class InProcess:
    def __init__(self, model, engine):
        command = [calls, str(model), engine]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def median_ms(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def one_caller(name, model, directory):
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    inputs = inputs_of(session)
    bare = lambda: session.run(None, inputs)  # noqa: E731
    bare()
    count = max(3, min(200, int(1500 / median_ms(bare, 3))))
    (directory / "rten").mkdir()
    here = InProcess(model, "onnxruntime")
    keys = 'engine = "{}"\nmax_batch_size = 1'
    with Edge(binary, directory, {"m": model}, keys.format("onnxruntime")) as edge, Edge(
        binary, directory / "rten", {"m": model}, keys.format("rten")
    ) as other:
        sides = {
            "bare": lambda: median_ms(bare, count),
            "http": lambda: median_ms(lambda: edge.infer("m", inputs), count),
            "in process": lambda: here.median_ms(count),
            "rten, http": lambda: median_ms(lambda: other.infer("m", inputs), max(2, count // 8)),
        }
        medians = {side: [] for side in sides}
        for _ in range(rounds):
            for side, measure in sides.items():
                medians[side].append(measure())
    here.end()
    best = {side: statistics.median(values) for side, values in medians.items()}
    ratios = ", ".join(f"{side} {value:.2f} ms ({value / best['bare']:.3f}x)" for side, value in best.items())
    allowed = best["bare"] * 1.05 + 0.3
    print(f"{name}: {ratios}; http {'within' if best['http'] <= allowed else 'beyond'} 1.05x + 0.3 ms", flush=True)


def many_callers(name, model, directory):
    """Items per second: bare with its best batch, and 64 connections of `callboard bench`."""
    most, seconds = MANY_CALLERS[name]
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    np.save(directory / "item.npy", next(iter(inputs_of(session).values()))[0])
    with Edge(binary, directory, {"m": model}, f'engine = "onnxruntime"\nmax_batch_size = {most}') as edge:
        url = f"http://{edge.connection.host}:{edge.connection.port}"
        bench = [binary, "bench", url, "/m", "--file", str(directory / "item.npy"), "-H", "accept: application/x-npy",
                 "-c", "64", "-d", f"{seconds}s", "--warm-up", "500ms", "--format", "json", "--threads", "1"]  # fmt: skip
        ours, bare = [], {}
        for _ in range(rounds):
            for batch in [size for size in (1, 2, 4, 8, 16, 32) if size <= most]:
                inputs = inputs_of(session, batch)
                run = lambda: session.run(None, inputs)  # noqa: B023, E731
                count = max(2, min(30, int(1000 / median_ms(run, 1))))
                bare.setdefault(batch, []).append(batch / median_ms(run, count) * 1e3)
            report = json.loads(subprocess.run(bench, check=True, capture_output=True, text=True).stdout)
            ours.append(rate_of(report))
    best, size = max((statistics.median(values), batch) for batch, values in bare.items())
    rate = statistics.median(ours)
    print(f"{name}, 64 callers: bare's best {best:.1f}/s (batches of {size}), http {rate:.1f}/s ({rate / best:.3f}x)", flush=True)


def rate_of(report):
    """The rate of successful calls, wherever the report has it."""
    found = [report]
    while found:
        one = found.pop()
        if isinstance(one, dict):
            for key, value in one.items():
                if key in ("rps", "per_second", "requests_per_second") and isinstance(value, (int, float)):
                    return value
            found.extend(one.values())
        elif isinstance(one, list):
            found.extend(one)
    raise SystemExit(f"no rate in {report}")


print("load", os.getloadavg(), "cores", os.cpu_count(), "onnxruntime", onnxruntime.__version__)
for name, make in NETWORKS.items():
    if sys.argv[4:] and name not in sys.argv[4:]:
        continue
    with tempfile.TemporaryDirectory() as directory:
        model = pathlib.Path(directory) / "model.onnx"
        onnx.save(make(), model)
        one = pathlib.Path(directory, "one")
        one.mkdir()
        if name != "bert_tiny":
            one_caller(name, model, one)
        if name in MANY_CALLERS:
            many_callers(name, model, pathlib.Path(directory))
print("load", os.getloadavg())
