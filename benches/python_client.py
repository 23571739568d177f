"""What the Python client costs: its calls in turns with httpx and requests alone, which send and receive bytes.

    benches/python_client.py CALLBOARD [ROUNDS]

Needs the package with `client` and `requests`; the workers run in the same interpreter. The figure is the ratio of the
medians; for the asynchronous client, of the time for 16 or 64 calls at the same time. The last one is of 50,000 rows
through a batched route: `client.map`, in turns with `callboard bench` over 64 connections. The CPU time of the client
is that of this process.
"""

import asyncio
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import httpx
import numpy as np
import requests

import callboard as cb
from callboard._envelope import encode

APP = """
from typing import Any
import callboard as cb

@cb.function
def echo(value: Any) -> Any:
    return value

@cb.function
def size(value: Any) -> int:
    return len(value)

@cb.service
class Length:
    @cb.batched(max_batch_size=64)
    def predict(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]
"""
ROWS = 50_000
# Of each task.
CALLS = 4
ENVELOPE = {"content-type": "application/vnd.callboard.envelope", "accept": "application/vnd.callboard.envelope"}
BYTES = {"content-type": "application/octet-stream", "accept": "application/octet-stream"}
ANSWERED = {**BYTES, "accept": "application/json"}


def in_turns(rounds, ours, theirs):
    """The median seconds of both, and those of their CPU."""
    taken = {ours: ([], []), theirs: ([], [])}
    for number in range(rounds + rounds // 10 + 1):
        for call in (ours, theirs) if number % 2 else (theirs, ours):
            start, used = time.perf_counter(), time.process_time()
            call()
            for times, now, then in zip(taken[call], (time.perf_counter(), time.process_time()), (start, used)):
                times.append(now - then)
    return [[statistics.median(times[rounds // 10 + 1 :]) for times in taken[call]] for call in (ours, theirs)]


def show(name, rounds, ours, theirs, limit, count=1):
    (own, own_cpu), (other, other_cpu) = in_turns(rounds, ours, theirs)
    print(
        f"{name}: {own / count * 1e3:.3f} ms, alone {other / count * 1e3:.3f} ms: {own / other:.2f} (asked: {limit}); "
        f"CPU {own_cpu / count * 1e3:.3f} and {other_cpu / count * 1e3:.3f} ms: {own_cpu / other_cpu:.2f}",
        flush=True,
    )


def measure(url, rounds):
    client, plain, session = cb.Client(url, start_up_wait=60), httpx.Client(), requests.Session()
    text = "x" * 100
    body = encode(text)
    assert client.call("/echo", text) == text
    theirs = lambda: plain.post(url + "/echo", content=body, headers=ENVELOPE).content
    show("100 B, against httpx", rounds, lambda: client.call("/echo", text), theirs, "at most 1.0")

    array = np.arange(8 << 20, dtype=np.float64)
    raw = array.tobytes()
    assert np.array_equal(client.call("/echo", array), array)
    several = max(5, rounds // 100)
    theirs = lambda: session.post(url + "/echo", data=raw, headers=BYTES).content
    show("64 MiB there and back, against requests", several, lambda: client.call("/echo", array), theirs, "at most 1.2")
    theirs = lambda: session.post(url + "/size", data=raw, headers=ANSWERED).content
    show("64 MiB there, against requests", several, lambda: client.call("/size", array), theirs, "at most 1.2")

    loop = asyncio.new_event_loop()
    asynchronous, plain = cb.AsyncClient(url), httpx.AsyncClient()
    all_of = lambda make: loop.run_until_complete(gather(make))

    async def gather(make, tasks):
        async def task():
            for _ in range(CALLS):
                await make()

        await asyncio.gather(*(task() for _ in range(tasks)))

    theirs = lambda: plain.post(url + "/echo", content=body, headers=ENVELOPE)
    ours = lambda: asynchronous.call("/echo", text)
    for tasks, limit in ((1, "at most 1.0"), (16, "at most 0.33"), (64, "at most 0.33")):
        calls = [lambda make=make, tasks=tasks: loop.run_until_complete(gather(make, tasks)) for make in (ours, theirs)]
        show(f"tasks of 100 B: {tasks}, against httpx", max(5, rounds // (8 * tasks)), *calls, limit, tasks * CALLS)


def measure_map(callboard, url):
    client, rows = cb.Client(url), [f"row {number}" for number in range(ROWS)]
    bench = [callboard, "bench", url, "/length", "--json", '"row 12345"', "-c", "64", "--requests", str(ROWS)]
    bench += ["--warm-up", "0s", "--duration", "5m", "--format", "json"]
    rates, cpu = ([], []), []
    for _ in range(3):
        start, used = time.perf_counter(), time.process_time()
        assert list(client.map("/length", rows)) == [len(row) for row in rows]
        rates[0].append(ROWS / (time.perf_counter() - start))
        cpu.append((time.process_time() - used) / ROWS)
        report = json.loads(subprocess.run(bench, check=True, capture_output=True).stdout)
        rates[1].append(report["target"]["requests_per_second"])
    (own, other), each = map(statistics.median, rates), statistics.median(cpu) * 1e3
    print(f"{ROWS} rows by map: {own:.0f}/s, bench -c 64 {other:.0f}/s: {own / other:.2f} (asked: at least 0.5)")
    print(f"client CPU for each: {each:.3f} ms (asked: at most 0.15)")


def main(callboard, rounds=1000):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as directory:
        app = pathlib.Path(directory, "app.py")
        app.write_text(APP)
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), *sys.path[1:])))
        environment = {**os.environ, "PYTHONPATH": path, "VIRTUAL_ENV": sys.prefix}
        command = [callboard, "serve", app, "--http", address, "--admin", "off", "--max-body-bytes", "128MiB"]
        server = subprocess.Popen([*command, "--log", "error"], env=environment, stderr=subprocess.DEVNULL)
        try:
            measure(f"http://{address}", int(rounds))
            measure_map(callboard, f"http://{address}")
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


main(*sys.argv[1:])
