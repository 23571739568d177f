"""What the Python client costs: its calls in turns with httpx and requests alone, which send and receive bytes.

    benches/python_client.py CALLBOARD [ROUNDS]

Needs the package with `client` and `requests`; the workers run in the same interpreter. The figure is the ratio of the
medians; for the asynchronous client, of the time for 16 calls at the same time.
"""

import asyncio
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
"""
ENVELOPE = {"content-type": "application/vnd.callboard.envelope", "accept": "application/vnd.callboard.envelope"}
BYTES = {"content-type": "application/octet-stream", "accept": "application/octet-stream"}
ANSWERED = {**BYTES, "accept": "application/json"}


def in_turns(rounds, ours, theirs):
    """The median seconds of both."""
    taken = [], []
    for number in range(rounds + rounds // 10 + 1):
        for times, call in zip(taken, (ours, theirs) if number % 2 else (theirs, ours)):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [statistics.median(times[rounds // 10 + 1 :]) for times in taken]


def show(name, rounds, ours, theirs, limit):
    own, other = in_turns(rounds, ours, theirs)
    print(f"{name}: {own * 1e3:.3f} ms, alone {other * 1e3:.3f} ms: {own / other:.2f} (asked: {limit})", flush=True)


def measure(url, rounds):
    client, plain, session = cb.Client(url, start_up_wait=60), httpx.Client(), requests.Session()
    text = "x" * 100
    body = encode(text)
    assert client.call("/echo", text) == text
    theirs = lambda: plain.post(url + "/echo", content=body, headers=ENVELOPE).content
    show("100 B, against httpx", rounds, lambda: client.call("/echo", text), theirs, "at most 1.3")

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

    async def gather(make):
        await asyncio.gather(*(make() for _ in range(16)))

    theirs = lambda: all_of(lambda: plain.post(url + "/echo", content=body, headers=ENVELOPE))
    ours = lambda: all_of(lambda: asynchronous.call("/echo", text))
    show("16 tasks of 100 B, against httpx", max(5, rounds // 10), ours, theirs, "at most 1.3")


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
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


main(*sys.argv[1:])
