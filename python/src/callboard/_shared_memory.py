"""Memory that a node and its worker share, for large frames: `docs/worker-protocol.md`, section "Shared memory".

A sender writes into memory of its own, and again when the receiver has set the first byte to 0. Linux only.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import sys
import weakref
from collections.abc import Iterable, Sequence

import numpy as np

from callboard._envelope import Buffer

IS_SUPPORTED = sys.platform == "linux" and hasattr(os, "memfd_create")
# The highest number of a memory, and what is added to that of a new one.
MAX_NUMBER = 4
IS_NEW = 0x80
# Frames with fewer bytes go through the socket, which is as fast.
LEAST_BYTES = 256 << 10

# The offset of the first part. The offset of each part is a multiple of the second number.
_FIRST_PART = 64
_ALIGNMENT = 64
# One that the node may still read, and the next.
_OWN_MEMORIES = 2
# After this many frames in a row that need less than a quarter of it, a memory is replaced by a smaller one.
_SMALL_USES = 32
# User code that keeps arrays of this many memories gets copies from then on: each has descriptors.
_MAX_MAPPED = 64
_USED, _FREE = b"\1", b"\0"


class SharedMemoryError(Exception):
    """The node broke the rules of shared memory."""


def places(lengths: Iterable[int]) -> list[tuple[int, int]]:
    """The begin and end of parts of these lengths."""
    found, end = [], _FIRST_PART
    for length in lengths:
        start = end + -end % _ALIGNMENT
        end = start + length
        found.append((start, end))
    return found


# ---- The receiver ----------------------------------------------------------------------------------------------------


class Incoming:
    """Memories that the node writes. Arrays are views of them; a memory is free again when the last view is gone."""

    def __init__(self) -> None:
        self._memories: dict[int, _TheirMemory] = {}

    def read(self, memory: int, descriptor: int | None, lengths: Sequence[int]) -> list[Buffer]:
        """The parts of a frame. `descriptor` is that of a new memory."""
        number = memory & ~IS_NEW
        if descriptor is not None:
            if not 0 < number <= MAX_NUMBER or not _is_sealed(descriptor):
                os.close(descriptor)
                raise SharedMemoryError(f"memory {number} is not sealed against shrinking, or not known")
            self._memories[number] = _TheirMemory(descriptor)
        if number not in self._memories:
            raise SharedMemoryError(f"memory {number} is not known")
        return self._memories[number].read(places(lengths))


def _is_sealed(descriptor: int) -> bool:
    """Whether it is memory of which no page can vanish, which ends a process that reads it."""
    try:
        return bool(fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:
        return False


class _TheirMemory:
    mapped = 0

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._mapping: mmap.mmap | None = None
        # A process that user code forks has copies of all views, and does not read.
        self._pid = os.getpid()
        self._bytes = os.fstat(descriptor).st_size
        if _TheirMemory.mapped < _MAX_MAPPED:
            # Without address space for it, it is copied.
            with contextlib.suppress(OSError):
                self._mapping = mmap.mmap(descriptor, self._bytes, mmap.MAP_SHARED, mmap.PROT_READ)
                _TheirMemory.mapped += 1

    def __del__(self) -> None:
        os.close(self._descriptor)
        if self._mapping is not None:
            _TheirMemory.mapped -= 1

    def read(self, parts: list[tuple[int, int]]) -> list[Buffer]:
        if parts and parts[-1][1] > self._bytes:
            raise SharedMemoryError(f"a frame needs {parts[-1][1]} bytes of a memory that has {self._bytes}")
        if self._mapping is None:
            copies = [self._copy(start, end) for start, end in parts]
            self._release()
            return copies
        # All views refer to this array.
        whole = np.frombuffer(self._mapping, np.uint8)
        weakref.finalize(whole, self._release).atexit = False
        return [whole.data[start:end] for start, end in parts]

    def _copy(self, start: int, end: int) -> Buffer:
        copy = np.empty(end - start, np.uint8).data
        at = 0
        while at < len(copy):
            at += os.preadv(self._descriptor, [copy[at:]], start + at)
        return copy

    def _release(self) -> None:
        """Lets the node write again. A node that has closed this memory does not look at it."""
        if os.getpid() == self._pid:
            os.pwrite(self._descriptor, _FREE, 0)


# ---- The sender ------------------------------------------------------------------------------------------------------


class Outgoing:
    """Memories that this process writes."""

    def __init__(self) -> None:
        self._memories: list[_OwnMemory | None] = [None] * _OWN_MEMORIES
        self._oldest = 0

    def is_free(self) -> bool:
        """Whether the receiver uses none of them."""
        return all(memory.is_free() for memory in self._memories if memory is not None)

    def place(self, lengths: Sequence[int], pieces: Sequence[Buffer]) -> tuple[int, int | None]:
        """Writes parts, which are in pieces. The number of their memory, and its descriptor if it is new.

        The number is 0 if they go through the socket: they are few bytes, or the system lacks memory or descriptors.
        """
        if sum(lengths) < LEAST_BYTES:
            return 0, None
        parts = places(lengths)
        try:
            index, is_new = self._memory(parts[-1][1])
        except OSError:
            return 0, None
        memory = self._memories[index]
        assert memory is not None
        memory.write(parts, pieces)
        return (index + 1) | (IS_NEW if is_new else 0), memory.descriptor if is_new else None

    def _memory(self, size: int) -> tuple[int, bool]:
        """The index of a memory that the node does not read, and whether it is new."""

        def rank(index: int) -> int:
            memory = self._memories[index]
            if memory is None:
                return 2
            return int(memory.size < size) if memory.is_free() else 3 + (index != self._oldest)

        index = min(range(_OWN_MEMORIES), key=rank)
        memory = self._memories[index]
        if memory is not None and memory.size >= size and memory.is_free() and memory.is_of_use_for(size):
            memory.allocate(size)
            return index, False
        self._oldest = (index + 1) % _OWN_MEMORIES
        self._memories[index] = _OwnMemory(size)
        return index, True


class _OwnMemory:
    def __init__(self, size: int) -> None:
        self.size = 1 << (size - 1).bit_length()
        self._allocated = 0
        self._small_uses = 0
        self.descriptor = os.memfd_create("callboard", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, self.size)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.allocate(size)
        self._mapping = mmap.mmap(self.descriptor, self.size)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            os.close(self.descriptor)

    def is_free(self) -> bool:
        return self._mapping[:1] == _FREE

    def is_of_use_for(self, size: int) -> bool:
        """Whether it is not too large for what frames need lately."""
        self._small_uses = 0 if size > self.size // 4 else self._small_uses + 1
        return self._small_uses < _SMALL_USES

    def allocate(self, end: int) -> None:
        """Takes the memory from the system, so that a lack of it is an error here and no signal in `write`."""
        if end > self._allocated:
            os.posix_fallocate(self.descriptor, 0, end)
            self._allocated = end

    def write(self, parts: list[tuple[int, int]], pieces: Sequence[Buffer]) -> None:
        self._mapping[:1] = _USED
        remaining = iter(pieces)
        for at, end in parts:
            while at < end:
                piece = next(remaining)
                self._mapping[at : at + len(piece)] = piece
                at += len(piece)
