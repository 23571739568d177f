"""What the Python client over QUIC costs, in turns with grpcio's client: an echo of 100 B, one caller and 64 tasks.

    benches/python_native.py CALLBOARD [ROUNDS]

Needs the package with its extension, and `grpcio`. Both servers are processes of their own. The node has two routes: a
model in Rust that gives its 25 numbers back, and a service in Python, which gets batches. The other server is grpcio's
asynchronous one: Python above a C core. A round lasts half a second on each side; the figure is the ratio of the
medians of requests per second.
"""

import asyncio
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import grpc
import grpc.aio
import numpy as np

import callboard as cb

APP = """
import callboard as cb

model = cb.pipeline(cb.onnx("identity.onnx", max_batch_size=64))

@cb.service
class Echo:
    @cb.batched(max_batch_size=64)
    def predict(self, values: list[bytes]) -> list[bytes]:
        return values
"""
SERVER = """
import asyncio, grpc.aio, grpc

async def echo(request, context):
    return request

async def main():
    server = grpc.aio.server()
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench.Bench", handlers)])
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()

asyncio.run(main())
"""
BODY = b"x" * 100
NUMBERS = np.arange(25, dtype=np.float32)
SECONDS = 0.5


def identity():
    """A model of ONNX: the message, field by field."""

    def field(number, value):
        if isinstance(value, int):
            return bytes([number << 3, value])
        value = value.encode() if isinstance(value, str) else value
        return bytes([number << 3 | 2, len(value)]) + value

    def value(name):
        shape = field(1, field(2, "batch")) + field(1, field(1, NUMBERS.size))
        return field(1, name) + field(2, field(1, field(1, 1) + field(2, shape)))

    node = field(1, "x") + field(2, "y") + field(4, "Identity")
    graph = field(1, node) + field(2, "identity") + field(11, value("x")) + field(12, value("y"))
    return field(1, 8) + field(7, graph) + field(8, field(2, 13))


def one(call):
    """Calls per second of one caller."""
    number, start = 0, time.perf_counter()
    while time.perf_counter() < start + SECONDS:
        call()
        number += 1
    return number / (time.perf_counter() - start)


def tasks(loop, call, count=64):
    """Calls per second of many tasks of one loop."""

    async def caller(end):
        number = 0
        while time.perf_counter() < end:
            await call()
            number += 1
        return number

    async def all_of():
        start = time.perf_counter()
        numbers = await asyncio.gather(*(caller(start + SECONDS) for _ in range(count)))
        return sum(numbers) / (time.perf_counter() - start)

    return loop.run_until_complete(all_of())


def show(name, rounds, ours, theirs):
    rates = [], []
    for number in range(rounds + 1):
        for measured, run in zip(rates, (ours, theirs)) if number % 2 else zip(rates[::-1], (theirs, ours)):
            measured.append(run())
    own, other = (statistics.median(measured[1:]) for measured in rates)
    print(f"{name}: {own:.0f}/s, grpcio {other:.0f}/s: {own / other:.2f} (asked: at least 2)", flush=True)


def measure(url, port, rounds):
    routes = {"a model in Rust": ("/model", NUMBERS), "a service in Python": ("/echo", BODY)}
    with cb.Client(url, start_up_wait=60) as client, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        echo = channel.unary_unary("/bench.Bench/Echo")
        assert echo(BODY) == client.call("/echo", BODY) == BODY and (client.call("/model", NUMBERS) == NUMBERS).all()
        for name, (route, value) in routes.items():
            ours, theirs = (lambda: client.call(route, value)), (lambda: echo(BODY))  # noqa: B023
            show(f"one caller, {name}", rounds, lambda: one(ours), lambda: one(theirs))  # noqa: B023

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    async def connect():
        return cb.AsyncClient(url), grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    client, channel = loop.run_until_complete(connect())
    echo = channel.unary_unary("/bench.Bench/Echo")
    for name, (route, value) in routes.items():
        ours, theirs = (lambda: client.call(route, value)), (lambda: echo(BODY))  # noqa: B023
        show(f"64 tasks, {name}", rounds, lambda: tasks(loop, ours), lambda: tasks(loop, theirs))  # noqa: B023
    loop.run_until_complete(client.aclose())
    loop.run_until_complete(channel.close())


def main(callboard, rounds=9):
    with tempfile.TemporaryDirectory() as directory:
        os.environ["XDG_STATE_HOME"] = directory
        app = pathlib.Path(directory, "app.py")
        app.write_text(APP)
        app.with_name("identity.onnx").write_bytes(identity())
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), *sys.path[1:])))
        environment = {**os.environ, "PYTHONPATH": path, "VIRTUAL_ENV": sys.prefix}
        command = [callboard, "serve", app, "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0"]
        pipe = {"stdout": subprocess.PIPE, "text": True}
        node = subprocess.Popen(command, env=environment, stderr=subprocess.STDOUT, **pipe)
        server = subprocess.Popen([sys.executable, "-c", SERVER], **pipe)
        try:
            url = next(word for line in node.stdout for word in line.split() if word.startswith("quic://"))
            measure(url, int(server.stdout.readline()), int(rounds))
        finally:
            for process in (node, server):
                process.send_signal(signal.SIGTERM)
                process.wait()


main(*sys.argv[1:])
