"""Replicas on GPUs, on a machine that has some: what they see, how they fail, and what they serve.

    benches/gpus.py CALLBOARD [--dry]

Needs the package and PyTorch with CUDA; the workers run in the same interpreter. Where no GPU is found it says so in
one line, and succeeds. It takes minutes. A claim that does not hold ends it with an error. With `--dry` two replicas on
the CPU do the parts that need no GPU, without PyTorch.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import callboard as cb

APP = """
import os
import callboard as cb

SEEN = os.environ.get("CUDA_VISIBLE_DEVICES")
SIZE = {size}

@cb.service(devices={devices}, contract="pure", timeout="60s")
class Gpu:
    def setup(self, device: str) -> None:
        self.device = device
        if device != "cpu":
            import torch
            assert torch.cuda.device_count() == 1, torch.cuda.device_count()
            self.weights = torch.randn(SIZE, SIZE, device=device)

    @cb.batched(max_batch_size=64)
    def predict(self, seeds: list[int]) -> list[float]:
        if self.device == "cpu":
            return [float(seed) for seed in seeds]
        import torch
        rows = torch.tensor(seeds, device=self.device, dtype=torch.float32)
        return (rows[:, None] @ self.weights[:1]).sum(1).mul(0).add(rows).tolist()

    @cb.route("/place")
    def place(self) -> list[str | int | None]:
        import time
        # The next call goes to another replica.
        time.sleep(0.05)
        return [self.device, SEEN, os.getpid()]

    @cb.route("/large")
    @cb.batched(max_batch_size=8, max_delay="1s")
    def large(self, items: list[int]) -> list[int]:
        # A device has memory for two of them.
        if self.device == "cpu":
            if len(items) > 2:
                raise MemoryError
            return [len(items)] * len(items)
        import torch
        _, total = torch.cuda.mem_get_info()
        held = [torch.empty(int(total * 0.3), dtype=torch.uint8, device=self.device) for _ in items]
        return [len(held)] * len(items)
"""
CALLS = 20_000


def found():
    """The names of the GPUs; none where PyTorch finds none."""
    try:
        import torch
    except ImportError:
        return [], "PyTorch is not installed"
    if not torch.cuda.is_available():
        return [], "PyTorch finds none"
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())], ""


def until(what, is_so):
    end = time.monotonic() + 120
    while not is_so():
        if time.monotonic() > end:
            raise SystemExit(f"gpus: not within two minutes: {what}")
        time.sleep(0.2)


def run(count, devices, size):
    """The figures of one node, by their names."""
    figures = {}
    with tempfile.TemporaryDirectory() as directory:
        app = Path(directory, "gpus.py")
        app.write_text(APP.format(devices=devices, size=size))
        begin = time.monotonic()
        with cb.start(str(app)) as node:
            figures["seconds to the first answer"] = time.monotonic() - begin
            client = node.client()

            def places():
                return {tuple(place) for place in client.map("/place", [{}] * 32 * count, in_flight=8 * count)}

            seen = places()
            assert len({pid for _, _, pid in seen}) == count, seen
            if size:
                assert len({own for _, own, _ in seen}) == count and {name for name, *_ in seen} == {"cuda:0"}, seen
                page = urllib.request.urlopen(f"{node.url}/metrics", timeout=30).read().decode()
                assert page.count("callboard_device_memory_used_bytes{") >= count, page
            begin = time.monotonic()
            answers = list(client.map("/gpu", range(CALLS), in_flight=256))
            figures["calls per second"] = CALLS / (time.monotonic() - begin)
            assert answers == [float(seed) for seed in range(CALLS)]
            # More at a time than there is memory for: all are answered, in smaller batches.
            parts = list(client.map("/large", range(8 * count), in_flight=8 * count))
            assert max(parts) <= 3, parts
            figures["largest batch that found memory"] = max(parts)
            killed = min(pid for _, _, pid in seen)
            os.kill(killed, signal.SIGKILL)
            until("a killed replica is back", lambda: len({pid for _, _, pid in places()} - {killed}) == count)
    return figures


def main(arguments):
    os.environ["PATH"] = f"{Path(arguments[0]).resolve().parent}{os.pathsep}{os.environ['PATH']}"
    names, reason = (["CPU", "CPU"], "") if "--dry" in arguments else found()
    if not names:
        print(f"gpus: no GPU ({reason}): nothing was run")
        return
    is_dry = "--dry" in arguments
    figures = run(len(names), '["cpu", "cpu"]' if is_dry else '"auto"', 0 if is_dry else 4096)
    if not is_dry:
        print(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout, end="")
    print(f"{len(names)} x {names[0]}")
    for name, value in figures.items():
        print(f"  {name}: {value:.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
