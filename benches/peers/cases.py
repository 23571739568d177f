"""What is measured: each case with the request that it sends, and what a right answer holds."""

from __future__ import annotations

import dataclasses
import json
import struct

JSON = {"content-type": "application/json"}
EVENTS = 100
SIDE = 512


@dataclasses.dataclass(frozen=True)
class Request:
    path: str
    body: bytes
    headers: dict[str, str]
    # What the answer to it holds.
    answer: bytes

    def bytes(self, host: str) -> bytes:
        """The request as it goes over the line."""
        head = {"host": host, "content-length": str(len(self.body)), **self.headers}
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


def of_json(path: str, value: object, answer: str, **headers: str) -> Request:
    return Request(path, json.dumps(value).encode(), {**JSON, **headers}, answer.encode())


def npy(path: str) -> Request:
    """A mebibyte of float32 as a file of NumPy."""
    header = repr({"descr": "<f4", "fortran_order": False, "shape": (SIDE, SIDE)}).encode()
    header += b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    body = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack("<f", 1.0) * SIDE * SIDE
    return Request(
        path, body, {"content-type": "application/x-npy", "accept": "application/x-npy"}, struct.pack("<f", -1.0) * SIDE
    )


TEXT = "a message whose length makes a body of about a hundred bytes, as always"
ECHO = {"text": TEXT, "number": 7}
SQUARE = {"x": 3.0}
COUNT = {"count": EVENTS}


@dataclasses.dataclass(frozen=True)
class Case:
    title: str
    request: Request
    # What the callers have of an ideal server of this case; None if no model bounds it.
    ideal: float | None = None


CASES = {
    "echo": Case("echo of 100 bytes of JSON", of_json("/echo", ECHO, TEXT)),
    "square": Case("NumPy square in batches up to 32", of_json("/square", SQUARE, "9.0")),
    "slow_square": Case("5 ms for a batch up to 32", of_json("/slow_square", SQUARE, "9.0"), ideal=32 / 0.005),
    "tensor": Case("a tensor of 1 MiB in and out", npy("/tensor")),
    "stream": Case(
        f"a stream of {EVENTS} events", of_json("/stream", COUNT, f"{EVENTS - 1}", accept="text/event-stream")
    ),
}
# What is measured of Callboard alone: `noop` is an echo in batches, next to one in Rust; `told` waits until its caller
# has left, or for so long.
OWN = {
    "noop": Case("a no-op in batches up to 32", of_json("/noop", ECHO, TEXT)),
    "told": Case("a call that waits for its caller to leave", of_json("/told", {"ms": 0}, "ms")),
    "waits": Case("the same for two seconds", of_json("/told", {"ms": 2000}, "ms")),
}


def work(milliseconds: float) -> Request:
    """A model that is busy for so long; for faults."""
    return of_json("/work", {"ms": milliseconds}, "ms")
