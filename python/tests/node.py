"""A node for tests: starts a worker as a real child, and speaks the protocol with it."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from callboard._envelope import decode, encode

HERE = Path(__file__).parent
TIMEOUT_SECONDS = 20
_BUILT = [HERE.parents[1] / "target" / profile / "callboard" for profile in ("debug", "release")]
_OWN = Path(sys.executable).with_name("callboard")
# The real program, if there is one: that of the environment, the last one that was built, or an installed one.
PROGRAM: str | None = (
    str(_OWN)
    if _OWN.exists()
    else max((str(path) for path in _BUILT if path.exists()), key=os.path.getmtime, default=shutil.which("callboard"))
)
# Children find the package without an installation.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}


class Node:
    """One child, from its start to its end."""

    def __init__(self, target: str, **start: Any) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.child = subprocess.Popen(
            [sys.executable, "-m", "callboard.worker", target],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=HERE,
            env=ENVIRONMENT,
            text=True,
        )
        theirs.close()
        self.logs: list[dict[str, Any]] = []
        self.send({"type": "start", "protocol": 1, "max_bytes": 1 << 20, "stage": "s", "later": None, **start})

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.child.kill()
        self.child.communicate()

    # ---- Frames ------------------------------------------------------------------------------------------------------

    def send(self, head: dict[str, Any], values: list[Any] | None = None) -> None:
        parts = [encode(value) for value in values or []]
        encoded = msgspec.msgpack.encode(head)
        prefix = struct.pack(f"<II{len(parts)}Q", len(encoded), len(parts), *map(len, parts))
        self.socket.sendall(prefix + encoded + b"".join(parts))

    def exact(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            more = self.socket.recv(size - len(received))
            if not more:
                raise EOFError
            received += more
        return received

    def receive_any(self) -> tuple[dict[str, Any], list[Any]]:
        head_bytes, count = struct.unpack("<II", self.exact(8))
        lengths = struct.unpack(f"<{count}Q", self.exact(8 * count))
        head = msgspec.msgpack.decode(self.exact(head_bytes))
        return head, [decode(self.exact(length)) for length in lengths]

    def receive(self) -> tuple[dict[str, Any], list[Any]]:
        """The next frame that is no log record."""
        while True:
            head, values = self.receive_any()
            if head["type"] != "log":
                return head, values
            self.logs.append(head)

    # ---- Messages ----------------------------------------------------------------------------------------------------

    def ready(self, max_batches: int = 1) -> Node:
        head, _ = self.receive()
        assert (head["type"], head.get("max_batches", 1)) == ("ready", max_batches), head
        return self

    def batch(self, values: list[Any], ident: int = 1, items: list[dict[str, Any]] | None = None) -> None:
        self.send({"type": "batch", "id": ident, "items": items or [{} for _ in values]}, values)

    def outcomes(self) -> tuple[list[Any], list[tuple[int, Any]]]:
        """An output or an error for each item of the batch, and the outputs of streams."""
        streamed = []
        while True:
            head, values = self.receive()
            if head["type"] == "output":
                streamed.append((head["item"], values[0]))
                continue
            assert head["type"] == "outcomes", head
            if not values:
                return head["items"], streamed
            outputs = iter(values)
            found = [next(outputs) if item is None else item for item in head["items"]]
            assert next(outputs, None) is None
            return found, streamed

    def call(self, *values: Any) -> list[Any]:
        self.batch(list(values))
        return self.outcomes()[0]

    def stop(self) -> tuple[int, str, str]:
        """The exit code, and what the child printed."""
        self.send({"type": "stop"})
        return self.end()

    def end(self) -> tuple[int, str, str]:
        out, err = self.child.communicate(timeout=TIMEOUT_SECONDS)
        return self.child.returncode, out, err
