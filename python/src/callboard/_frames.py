"""Frames over the socket between a node and its worker: `docs/worker-protocol.md`, section "Frames".

`Reader` is for one thread at a time. `Writer` may be used by several threads. A frame beyond the limits is refused
before anything is allocated for it.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from callboard._envelope import Buffer
from callboard._shared_memory import IS_NEW, Incoming, Outgoing, SharedMemoryError

MAX_HEAD_BYTES = 4 << 20
MAX_PARTS = 65_536

_PREFIX = struct.Struct("<II")
_DESCRIPTOR = struct.Struct("i")
# Plain numbers: to combine members of an enumeration costs a microsecond.
_DONT_WAIT = int(socket.MSG_DONTWAIT)
_CLOSE_ON_EXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_CONTROL_BYTES = socket.CMSG_SPACE(_DESCRIPTOR.size)
# In the second number, the number of parts is below the number of their memory.
_MEMORY_SHIFT = 24
# A read takes what is there, up to this much: small frames cost one system call.
_CHUNK_BYTES = 64 << 10
# The most pieces of one `sendmsg`, which is the limit of Linux and macOS.
_MAX_PIECES = 1024


class FrameError(Exception):
    """The received bytes are not a frame, or exceed a limit."""


class Reader:
    """Reads frames. `max_bytes` limits the parts of one frame; no frame has parts before it is set."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        # The received bytes that are not read yet lie from `_start` to `_end`.
        self._chunk = memoryview(bytearray(_CHUNK_BYTES))
        self._start = 0
        self._end = 0
        self.max_bytes = 0
        # Whether the last receipt without waiting, of this look, took all that had come.
        self._is_empty = False
        # Set if frames may lie in shared memory.
        self.memories: Incoming | None = None
        # The descriptors that no frame has taken yet.
        self._descriptors: deque[int] = deque()

    def look(self) -> None:
        """Begins to read without waiting, until there is no frame. What comes meanwhile is for the next look."""
        self._is_empty = False

    def read(self, *, wait: bool = True) -> tuple[Buffer, list[Buffer]] | None:
        """The head and the parts of the next frame. `EOFError` is the end of the socket.

        Without `wait`, None if the frame has not come; one that is larger than the buffer is waited for in any case.
        """
        try:
            while (frame := self._frame()) is None:
                if self._is_empty and not wait:
                    self._is_empty = False
                    return None
                self._fill(0 if wait else _DONT_WAIT, inside=self._end > self._start)
            return frame
        except BlockingIOError:
            return None

    def _frame(self) -> tuple[Buffer, list[Buffer]] | None:
        start, came = self._start, self._end - self._start
        if came < _PREFIX.size:
            return None
        head_bytes, count = _PREFIX.unpack_from(self._chunk, start)
        if head_bytes > MAX_HEAD_BYTES:
            raise FrameError(f"a head of {head_bytes} bytes exceeds {MAX_HEAD_BYTES}")
        memory, count = count >> _MEMORY_SHIFT, count & ((1 << _MEMORY_SHIFT) - 1)
        if count > MAX_PARTS:
            raise FrameError(f"a frame of {count} parts exceeds {MAX_PARTS}")
        prefix_bytes = _PREFIX.size + 8 * count
        if came < prefix_bytes <= _CHUNK_BYTES:
            return None
        self._start += _PREFIX.size
        lengths = struct.unpack(f"<{count}Q", self._exact(8 * count))
        total = sum(lengths)
        if total > self.max_bytes:
            raise FrameError(f"a frame of {total} bytes exceeds max_bytes = {self.max_bytes}")
        if came < prefix_bytes + head_bytes + (0 if memory else total) <= _CHUNK_BYTES:
            self._start = start
            return None
        head = self._exact(head_bytes)
        if memory:
            parts = self._shared(memory, lengths)
        elif total <= self._end - self._start:
            parts = self._copied(lengths, total)
        else:
            parts = [self._exact(length) for length in lengths]
        if self._descriptors and self._start == self._end:
            os.close(self._descriptors.popleft())
            raise FrameError("a descriptor that belongs to no frame")
        return head, parts

    def _shared(self, memory: int, lengths: Sequence[int]) -> list[Buffer]:
        if self.memories is None:
            raise FrameError("a frame in shared memory, which was not agreed upon")
        if memory & IS_NEW and not self._descriptors:
            raise FrameError("a frame with new memory has no descriptor")
        try:
            return self.memories.read(memory, self._descriptors.popleft() if memory & IS_NEW else None, lengths)
        except SharedMemoryError as error:
            raise FrameError(str(error)) from None

    def _copied(self, lengths: Sequence[int], total: int) -> list[Buffer]:
        """The next parts, which have all come."""
        data, end = bytes(self._chunk[self._start : self._start + total]), 0
        parts: list[Buffer] = []
        for length in lengths:
            start, end = end, end + length
            parts.append(data[start:end])
        self._start += total
        return parts

    def _exact(self, size: int) -> Buffer:
        """The next bytes, in memory of their own: arrays are views of it."""
        while self._end - self._start < size <= _CHUNK_BYTES:
            self._fill()
        came = self._chunk[self._start : min(self._start + size, self._end)]
        at = len(came)
        self._start += at
        if at == size:
            return bytes(came)
        # NumPy's memory is aligned for every element type, and is not filled with zeros first.
        view = np.empty(size, np.uint8).data
        view[:at] = came
        while at < size:
            at += self._receive(view[at:])
        return view

    def _fill(self, flags: int = 0, *, inside: bool = True) -> None:
        """Receives more into the buffer."""
        came = self._end - self._start
        self._chunk[:came] = self._chunk[self._start : self._end]
        self._start, self._end = 0, came
        self._end += self._receive(self._chunk[came:], flags, inside=inside)

    def _receive(self, view: memoryview, flags: int = 0, *, inside: bool = True) -> int:
        if self.memories is None:
            received = self._socket.recv_into(view, 0, flags)
            control: list[tuple[int, int, bytes]] = []
        else:
            received, control, answer, _ = self._socket.recvmsg_into([view], _CONTROL_BYTES, flags | _CLOSE_ON_EXEC)
            if control:
                self._take_descriptors(control, is_cut=bool(answer & socket.MSG_CTRUNC))
        # Bytes behind a descriptor come alone.
        self._is_empty = flags == _DONT_WAIT and not control and received < len(view)
        if not received:
            raise FrameError("the socket ended inside a frame") if inside else EOFError
        return received

    def _take_descriptors(self, control: list[tuple[int, int, bytes]], *, is_cut: bool) -> None:
        came = [
            descriptor
            for level, kind, data in control
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            for (descriptor,) in _DESCRIPTOR.iter_unpack(data)
        ]
        if is_cut or len(came) > 1 or len(self._descriptors) > 1:
            for descriptor in came:
                os.close(descriptor)
            raise FrameError("more than one descriptor with a frame, or this process has none left")
        self._descriptors.extend(came)


class Writer:
    """Writes frames, each whole, from any thread. It reads while the socket is full: the node may be writing, too."""

    def __init__(self, sock: socket.socket, read: Callable[[], object]) -> None:
        self._socket = sock
        self._read = read
        self._lock = threading.Lock()
        # Set if frames may lie in shared memory.
        self.memories: Outgoing | None = None
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN | select.POLLOUT)

    def is_sending(self) -> bool:
        """Whether a thread writes a frame, perhaps this one."""
        return self._lock.locked()

    def send(self, head: bytes, lengths: Sequence[int] = (), parts: Sequence[Buffer] = ()) -> None:
        """Sends one frame: the lengths of its parts, and all parts in pieces. Blocks while the node does not read."""
        with self._lock:
            memory, descriptor = 0, None
            if self.memories is not None:
                memory, descriptor = self.memories.place(lengths, parts)
            count = len(lengths) | memory << _MEMORY_SHIFT
            prefix = struct.pack(f"<II{len(lengths)}Q", len(head), count, *lengths)
            pieces, first = [prefix, head, *(() if memory else parts)], 0
            while first < len(pieces):
                sent = self._send_some(pieces[first : first + _MAX_PIECES], descriptor)
                # It goes with the first byte.
                descriptor = None
                while first < len(pieces) and sent >= len(pieces[first]):
                    sent -= len(pieces[first])
                    first += 1
                if sent:
                    pieces[first] = memoryview(pieces[first])[sent:]

    def _send_some(self, pieces: list[Buffer], descriptor: int | None) -> int:
        control = []
        if descriptor is not None:
            control.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(descriptor)))
        while True:
            try:
                return self._socket.sendmsg(pieces, control, _DONT_WAIT)
            except BlockingIOError:
                if any(event & select.POLLIN for _, event in self._poll.poll()):
                    self._read()
