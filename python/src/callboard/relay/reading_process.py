"""The process that reads replies. Its gateway is `reading.py`, which starts it.

Its messages are lengths of 64 bits and as many bytes, of MessagePack or of a reply.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from callboard._envelope import Buffer, MissingPackageError, decode
from callboard._process import take_socket
from callboard.relay.errors import InvalidReply
from callboard.relay.payload import read_response
from callboard.relay.replies import Kind, OtherId, rows_of

READY = b"ready"

_LENGTH = struct.Struct("<Q")
_KINDS: dict[str, Kind] = {"bool": bool, "int": int, "float": float, "str": str}


class Start(msgspec.Struct):
    id_column: str
    # The names of types by those of columns.
    columns: dict[str, str]
    max_bytes: int
    memory: int
    protocol: str = "http"


class Answer(msgspec.Struct):
    columns: dict[str, list[bool | int | float | str]] = {}
    invalid: str | None = None
    missing: str | None = None


def send(sock: socket.socket, data: Buffer, until: float | None) -> None:
    for piece in (_LENGTH.pack(len(data)), data):
        sock.settimeout(None if until is None else max(0.001, until - time.monotonic()))
        sock.sendall(piece)


def receive(sock: socket.socket, until: float | None, most: int) -> Buffer:
    (length,) = _LENGTH.unpack(_exact(sock, _LENGTH.size, until))
    if length > most:
        raise EOFError
    return _exact(sock, length, until)


def _exact(sock: socket.socket, size: int, until: float | None) -> Buffer:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        sock.settimeout(None if until is None else max(0.001, until - time.monotonic()))
        came = sock.recv_into(view[at:])
        if not came:
            raise EOFError
        at += came
    return data


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with take_socket() as sock, contextlib.suppress(EOFError, OSError):
        start = msgspec.msgpack.decode(receive(sock, None, 1 << 30), type=Start)
        columns = {name: _KINDS[kind] for name, kind in start.columns.items()}
        _limit(start.memory)
        send(sock, READY, None)
        while True:
            ids = [_id(each) for each in msgspec.msgpack.decode(receive(sock, None, 1 << 40))]
            answer = _read(receive(sock, None, 1 << 40), ids, columns, start)
            send(sock, msgspec.msgpack.encode(answer), None)


def _id(sent: Any) -> Any:
    return OtherId(*sent) if isinstance(sent, list) else sent


def _limit(memory: int) -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    with contextlib.suppress(OSError):
        # A machine without memory ends this process first.
        Path("/proc/self/oom_score_adj").write_text("1000")


def _read(reply: Buffer, ids: list[Any], columns: Mapping[str, Kind], start: Start) -> Answer:
    try:
        value = (read_response if start.protocol == "grpc" else decode)(reply, start.max_bytes)
        rows = rows_of(value, ids, start.id_column, columns, start.max_bytes)
        return Answer({name: rows[name] for name in columns})
    except InvalidReply as error:
        return Answer(invalid=str(error))
    except MissingPackageError as error:
        return Answer(missing=str(error))
    except MemoryError:
        return Answer(invalid="the reply needs more memory to be read than the gateway gives for it")
    except Exception as error:
        # The packages that read these bytes have exceptions of many classes.
        return Answer(invalid=f"the reply cannot be read: {type(error).__name__}: {error}")
