"""The closed loop: wrk, a generator of others, with the processor time of server and generator around it."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

from cases import Request
from servers import Server

SCRIPT = Path(__file__).resolve().with_name("wrk.lua")


@dataclasses.dataclass(frozen=True)
class Measured:
    """A round of load. Times are in seconds."""

    connections: int
    per_second: float
    p50: float
    p99: float
    # The share of answers that were no success, and of requests without an answer.
    refused: float
    cpu_per_request: float
    memory_bytes: int
    # How much of a core the generator took.
    generator: float


def warm_up(server: Server, request: Request, connections: int) -> None:
    """A second of load that is not measured."""
    _run(server, request, connections, 1)


def measure(server: Server, request: Request, connections: int, seconds: float) -> Measured:
    before, own = server.cpu_seconds(), _children_seconds()
    told = _run(server, request, connections, seconds)
    taken, own = server.cpu_seconds() - before, _children_seconds() - own
    good = told["requests"] - told["refused"]
    return Measured(
        connections=connections,
        per_second=good / told["seconds"],
        p50=told["p50"],
        p99=told["p99"],
        refused=(told["refused"] + told["failed"]) / max(1.0, told["requests"] + told["failed"]),
        cpu_per_request=taken / max(1.0, good),
        memory_bytes=server.memory_bytes(),
        generator=own / told["seconds"],
    )


def _run(server: Server, request: Request, connections: int, seconds: float) -> dict[str, float]:
    with tempfile.NamedTemporaryFile() as body:
        body.write(request.body)
        body.flush()
        run = _wrk if shutil.which("wrk") else _bench
        # wrk takes whole seconds only.
        return run(server, request, body.name, connections, max(1, round(seconds)))


def _wrk(server: Server, request: Request, body: str, connections: int, seconds: int) -> dict[str, float]:
    headers = "\n".join(f"{name}: {value}" for name, value in request.headers.items())
    load = ["-t1", f"-c{connections}", f"-d{seconds}s", "--timeout=10s", "-s", str(SCRIPT)]
    report = subprocess.run(
        ["wrk", *load, f"http://127.0.0.1:{server.port}{request.path}"],
        env={**os.environ, "PEERS_BODY": body, "PEERS_HEADERS": headers},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    found: dict[str, float] = json.loads(report.splitlines()[-1])
    return found


def _bench(server: Server, request: Request, body: str, connections: int, seconds: int) -> dict[str, float]:
    """`callboard bench`, where wrk is not installed."""
    kinds = [f"--content-type={request.headers['content-type']}"]
    kinds += [f"--header={name}: {value}" for name, value in request.headers.items() if name != "content-type"]
    load = ["-c", str(connections), "-d", f"{seconds}s", "--warm-up", "0s", "--threads", "1", "--format", "json"]
    command = [os.environ["PEERS_CALLBOARD"], "bench", f"http://127.0.0.1:{server.port}", request.path]
    report = subprocess.run([*command, "--file", body, *kinds, *load], capture_output=True, check=True, text=True)
    told = json.loads(report.stdout)["target"]
    requests = told["requests_per_second"] * seconds
    milliseconds = told["latency_ms"]
    quantiles = {name: milliseconds[name] / 1000 for name in ("p50", "p99")}
    return {"seconds": seconds, "requests": requests, "refused": 0, "failed": 0, **quantiles}


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
