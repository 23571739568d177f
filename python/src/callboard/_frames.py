"""Frames over the socket between a node and its worker: `docs/worker-protocol.md`, section "Frames".

`Reader` belongs to the thread that reads. `Writer` may be used by several threads. A frame beyond the limits is refused
before anything is allocated for it.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
from collections.abc import Sequence

import numpy as np

from callboard._envelope import Buffer

MAX_HEAD_BYTES = 4 << 20
MAX_PARTS = 65_536

_PREFIX = struct.Struct("<II")
# A read takes this much at once: small frames cost one system call.
_CHUNK_BYTES = 64 << 10
# Frames up to this size are joined and sent whole; larger ones are sent piece by piece, without a copy.
_JOIN_BYTES = 64 << 10
# The most pieces of one `sendmsg`, which is the limit of Linux and macOS.
_MAX_PIECES = 1024


class FrameError(Exception):
    """What came is not a frame, or exceeds a limit."""


class Reader:
    """Reads frames. `max_bytes` limits the parts of one frame; no frame has parts before it is set."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._chunk = memoryview(bytearray(_CHUNK_BYTES))
        self._start = 0
        self._end = 0
        self.max_bytes = 0

    def read(self) -> tuple[memoryview, list[memoryview]] | None:
        """The head and the parts of the next frame, or None at the end of the socket."""
        if self._start == self._end and not self._refill():
            return None
        head_bytes, count = _PREFIX.unpack(self._exact(_PREFIX.size))
        if head_bytes > MAX_HEAD_BYTES:
            raise FrameError(f"a head of {head_bytes} bytes exceeds {MAX_HEAD_BYTES}")
        if count > MAX_PARTS:
            raise FrameError(f"a frame of {count} parts exceeds {MAX_PARTS}")
        lengths = struct.unpack(f"<{count}Q", self._exact(8 * count))
        if sum(lengths) > self.max_bytes:
            raise FrameError(f"a frame of {sum(lengths)} bytes exceeds max_bytes = {self.max_bytes}")
        head = self._exact(head_bytes)
        return head, [self._exact(length) for length in lengths]

    def _exact(self, size: int) -> memoryview:
        """The next bytes, in memory of their own: arrays are views of it."""
        # NumPy's memory is aligned for every element type, and is not filled with zeros first.
        view = np.empty(size, np.uint8).data
        at = 0
        while at < size:
            if self._start < self._end:
                taken = min(size - at, self._end - self._start)
                view[at : at + taken] = self._chunk[self._start : self._start + taken]
                self._start += taken
                at += taken
            elif size - at >= _CHUNK_BYTES:
                received = self._socket.recv_into(view[at:])
                if not received:
                    raise FrameError("the socket ended inside a frame")
                at += received
            elif not self._refill():
                raise FrameError("the socket ended inside a frame")
        return view

    def _refill(self) -> bool:
        self._start, self._end = 0, self._socket.recv_into(self._chunk)
        return self._end > 0


class Writer:
    """Writes frames, each whole, from any thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._lock = threading.Lock()

    def send(self, head: bytes, parts: Sequence[list[Buffer]] = ()) -> None:
        """Sends one frame. Each part is an envelope in pieces. Blocks while the node does not read."""
        lengths = [part_bytes(part) for part in parts]
        pieces: list[Buffer] = [_PREFIX.pack(len(head), len(parts)), struct.pack(f"<{len(lengths)}Q", *lengths), head]
        pieces += itertools.chain.from_iterable(parts)
        with self._lock:
            if sum(lengths) + len(head) <= _JOIN_BYTES:
                self._socket.sendall(b"".join(pieces))
            else:
                self._send_pieces([memoryview(piece) for piece in pieces if len(piece)])

    def _send_pieces(self, pieces: list[memoryview]) -> None:
        first = 0
        while first < len(pieces):
            sent = self._socket.sendmsg(pieces[first : first + _MAX_PIECES])
            while first < len(pieces) and sent >= len(pieces[first]):
                sent -= len(pieces[first])
                first += 1
            if sent:
                pieces[first] = pieces[first][sent:]


def part_bytes(part: list[Buffer]) -> int:
    """The length of an envelope in pieces."""
    return sum(map(len, part))
