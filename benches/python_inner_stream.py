"""What the stream of a stream costs in Python: a service that yields, and one that passes its outputs on, in turns.

    benches/python_inner_stream.py CALLBOARD [ROUNDS]

Needs the package; the workers run in the same interpreter. A round reads 20,000 small outputs of each route over one
connection. The figures are medians for one output: the time of the reader, and the CPU time of the node with its
workers. The last line is the difference: what an inner stream costs over the outer one.
"""

import contextlib
import os
import pathlib
import statistics
import sys
import tempfile
import time

import callboard as cb

APP = """
from collections.abc import AsyncIterator
import callboard as cb

@cb.service
class Words:
    @cb.concurrent(max=8)
    async def predict(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number

@cb.service
class Relay:
    words = cb.depends(Words)

    @cb.concurrent(max=8)
    async def predict(self, count: int) -> AsyncIterator[int]:
        async for number in self.words.predict(count):
            yield number
"""
OUTPUTS = 20_000
TICKS = os.sysconf("SC_CLK_TCK")


def processes():
    """The node and its workers: all that have its marker among their variables."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if int(entry.name) != os.getpid() and MARKER in (entry / "environ").read_bytes():
                found.append(entry)
    return found


def cpu_seconds(entries):
    """The CPU time of these processes until now."""
    total = 0
    for entry in entries:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def measured(client, entries, route):
    """Microseconds for one output: of time, and of CPU."""
    cpu, start = cpu_seconds(entries), time.perf_counter()
    for number, output in enumerate(client.replies(route, OUTPUTS)):
        assert output == number
    assert number == OUTPUTS - 1
    seconds = time.perf_counter() - start
    return seconds / OUTPUTS * 1e6, (cpu_seconds(entries) - cpu) / OUTPUTS * 1e6


def main(binary, rounds=7):
    os.environ["PATH"] = f"{pathlib.Path(binary).resolve().parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["BENCH_INNER_STREAM"] = str(os.getpid())
    routes = {"/words": [], "/relay": []}
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory) / "app.py"
        file.write_text(APP)
        with cb.start(str(file), log="warn") as node, node.client(timeout=600) as client:
            entries = processes()
            for _ in range(int(rounds) + 1):
                for route, found in routes.items():
                    found.append(measured(client, entries, route))
    medians = {}
    for route, found in routes.items():
        # The first one warms up.
        medians[route] = [statistics.median(column) for column in zip(*found[1:], strict=True)]
        print(f"{route:8} {medians[route][0]:7.1f} µs an output, {medians[route][1]:7.1f} µs of CPU")
    more = [inner - outer for inner, outer in zip(medians["/relay"], medians["/words"], strict=True)]
    print(f"{'more':8} {more[0]:7.1f} µs an output, {more[1]:7.1f} µs of CPU")


if __name__ == "__main__":
    MARKER = f"BENCH_INNER_STREAM={os.getpid()}".encode()
    main(*sys.argv[1:])
