"""Frames in shared memory: what arrives, when memory is written again, and what is refused."""

from __future__ import annotations

import fcntl
import gc
import os
import socket
import struct
import sys
from typing import Any

import numpy as np
import pytest

from callboard import _shared_memory
from callboard._envelope import decode, encode_pieces
from callboard._frames import FrameError, Reader, Writer
from callboard._shared_memory import IS_NEW, LEAST_BYTES, Incoming, Outgoing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has sealed memory")
ELEMENTS = LEAST_BYTES // 4


class Pair:
    """Both ends of a socket that share memory."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.socket = ours
        self.writer, self.reader = Writer(ours, lambda: None), Reader(theirs)
        self.writer.memories, self.reader.memories = Outgoing(), Incoming()
        self.reader.max_bytes = 1 << 30

    def send(self, *values: Any) -> list[Any]:
        pieces = [encode_pieces(value) for value in values]
        self.writer.send(
            b"\xc0", [sum(map(len, part)) for part in pieces], [piece for part in pieces for piece in part]
        )
        frame = self.reader.read()
        assert frame is not None and bytes(frame[0]) == b"\xc0"
        return [decode(part) for part in frame[1]]

    def sizes(self) -> list[int]:
        assert self.writer.memories is not None
        return [0 if memory is None else memory.size for memory in self.writer.memories._memories]


def numbers(first: int) -> np.ndarray[Any, Any]:
    return np.arange(first, first + ELEMENTS, dtype=np.float32)


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_values_arrive_as_they_were_sent() -> None:
    pair = Pair()
    for first in range(5):
        values = [numbers(first), "text", {"a": [b"x" * 2000, None]}, numbers(first + 1)[:77]]
        found = pair.send(*values)
        assert found[1:3] == values[1:3]
        for index in (0, 3):
            np.testing.assert_array_equal(found[index], values[index])
            assert found[index].flags.aligned and not found[index].flags.writeable
        del found
    assert pair.sizes()[1] == 0, "one memory was enough"


def test_memory_is_not_written_while_an_array_is_a_view_of_it() -> None:
    pair = Pair()
    kept, _ = pair.send(numbers(1), "text")
    part_of_another = pair.send(numbers(2))[0][10:12]
    for first in range(3, 10):
        np.testing.assert_array_equal(pair.send(numbers(first))[0], numbers(first))
    np.testing.assert_array_equal(kept, numbers(1))
    assert part_of_another.tolist() == [12, 13]


def test_user_code_that_keeps_all_arrays_gets_copies_in_the_end() -> None:
    before, pair = descriptors(), Pair()
    kept = [pair.send(numbers(first))[0] for first in range(3 * _shared_memory._MAX_MAPPED)]
    assert all(array[0] == first for first, array in enumerate(kept))
    assert descriptors() - before < 3 * _shared_memory._MAX_MAPPED
    del kept, pair
    assert descriptors() == before
    assert _shared_memory._TheirMemory.mapped == 0


def test_a_thousand_frames_leave_no_descriptor() -> None:
    pair = Pair()
    pair.send(numbers(0))
    before = descriptors()
    for first in range(1000):
        pair.send(numbers(first))
    # The parts of earlier tests may end meanwhile.
    assert descriptors() <= before


def test_a_forked_process_does_not_free_memory() -> None:
    pair = Pair()
    kept = pair.send(numbers(1))
    if (pid := os.fork()) == 0:
        del kept
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)
    assert pair.writer.memories is not None and not pair.writer.memories.is_free()
    kept.clear()
    assert pair.writer.memories.is_free()


def test_memory_grows_with_frames_and_shrinks_later() -> None:
    pair = Pair()
    for first in range(_shared_memory._SMALL_USES + 2):
        pair.send(np.zeros(8 * ELEMENTS, np.float32) if first == 1 else numbers(0))
        assert pair.sizes() == [[2 << 18, 16 << 18][0 < first <= _shared_memory._SMALL_USES], 0]


def placed(bytes_: int) -> tuple[int, int | None]:
    return Outgoing().place([bytes_], [bytes(bytes_)])


def test_a_few_bytes_and_those_of_a_system_without_memory_go_through_the_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> int:
        raise OSError("no memory")

    assert placed(LEAST_BYTES)[0] == IS_NEW | 1
    assert placed(LEAST_BYTES - 1) == (0, None)
    monkeypatch.setattr(os, "memfd_create", refuse)
    assert placed(LEAST_BYTES) == (0, None)


def memory(size: int, seals: int) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def refused(number: int, *sent: int, agreed: bool = True) -> str:
    """Why a frame with one part of 64 bytes in this memory is refused, and that all descriptors are closed."""
    before, pair = descriptors() - len(sent), Pair()
    if not agreed:
        pair.reader.memories = None
    frame = struct.pack("<IIQ", 1, 1 | number << 24, 64) if number else struct.pack("<II", 1, 0)
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(sent)}i", *sent))] if sent else []
    pair.socket.sendmsg([frame + b"\xc0"], control)
    for descriptor in sent:
        os.close(descriptor)
    with pytest.raises(FrameError) as error:
        pair.reader.read()
    message = str(error.value)
    del error, pair
    assert descriptors() == before
    return message


def test_what_breaks_the_rules_is_refused_and_closed() -> None:
    good = lambda: memory(128, fcntl.F_SEAL_SHRINK)  # noqa: E731
    assert refused(0, good()) == "a descriptor that belongs to no frame"
    assert refused(IS_NEW | 1) == "a frame with new memory has no descriptor"
    assert refused(IS_NEW | 1, good(), good()).startswith("more than one descriptor")
    assert refused(IS_NEW | 1, *(good() for _ in range(9))).startswith("more than one descriptor")
    not_sealed = "memory 1 is not sealed against shrinking, or not known"
    assert refused(IS_NEW | 1, memory(128, fcntl.F_SEAL_GROW)) == not_sealed
    assert refused(IS_NEW | 1, os.open("/dev/zero", os.O_RDONLY)) == not_sealed
    assert refused(IS_NEW | 1, memory(127, fcntl.F_SEAL_SHRINK)) == "a frame needs 128 bytes of a memory that has 127"
    assert refused(IS_NEW | 5, good()) == "memory 5 is not sealed against shrinking, or not known"
    assert refused(1) == "memory 1 is not known"
    assert refused(1, agreed=False) == "a frame in shared memory, which was not agreed upon"


def test_a_worker_shares_memory_only_if_the_node_does() -> None:
    from node import Node

    for start, shares in (({}, False), ({"shared_memory": True}, True)):
        with Node("app.py:Scale", max_bytes=1 << 24, **start) as node:
            head, _ = node.receive()
            assert head.get("shared_memory", False) is shares
            if not shares:
                (found,) = node.call({"x": numbers(1)})
                np.testing.assert_array_equal(found, 2 * numbers(1))
