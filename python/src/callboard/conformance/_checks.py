"""The checks by their names. Each has a worker of its own."""

from __future__ import annotations

import math
import reprlib
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from callboard._envelope import encode
from callboard.conformance._node import (
    BYTE_SECONDS,
    MAX_BATCH_SIZE,
    CancelCall,
    Error,
    NotForIt,
    Outcomes,
    Violation,
    Worker,
    frame,
)

# The time for which an idle worker is watched.
_QUIET_SECONDS = 0.3
_LARGE_BYTES = 8 << 20

# Integers at the limits of each of MessagePack's forms.
_POSITIVE = [0, 1, *(2**bits + step for bits in (7, 8, 16, 31, 32, 53, 63) for step in (-1, 0, 1)), 2**64 - 1]
_NEGATIVE = [-1, -32, -33, *(-(2**bits) - step for bits in (7, 15, 31, 53) for step in (0, 1)), -(2**63)]
# A float without a fraction is left out: languages with one type of numbers answer an integer.
_FLOATS = [0.5, -0.1, 1e-300, -123456.789, 5e-324, math.inf, -math.inf, math.nan]
_TEXTS = ["", "a", "Grüße, 世界 🦀", "x" * 31, "x" * 32, "x" * 255, "x" * 256, "x" * 65_536, "a\0b"]
_BYTES = [b"", b"\0", bytes(range(256)), b"x" * 1023, b"x" * 1024, b"x" * 65_537]
_NESTED = {
    "b": [],
    "a": [None, True, -7, 0.25, "text", b"bytes", [1, [2, [3, {"deep": {"er": {}}}]]]],
    "10": {"__proto__": 1, "": "empty", "é": [False]},
    "9": [b"first" * 300, {"second": b"segment" * 300}],
    "many": list(range(70_000)),
    "keys": {f"key {number}": number for number in range(300)},
}
# Three bytes, in a segment although they are few: the last example of the envelope in `docs/wire.md`.
_SMALL_SEGMENT = bytes.fromhex(
    "8943424501000000 0a00000001000000 4300000000000000 0300000000000000 d707000000000000" + "00" * 24 + "070707"
)


def _batch_of_one(worker: Worker) -> None:
    call = {"remaining_ms": 5000, "request_id": "r-1", "caller": "a key", "route": "/echo"}
    worker.echo("hello", item={**call, "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
    worker.finish()


def _batch_of_32(worker: Worker) -> None:
    for _ in range(2):
        worker.echo(*(f"text {number}" for number in range(16)), "fail", *range(15))
    worker.echo("fail", "fail")
    worker.finish()


def _large_value(worker: Worker) -> None:
    worker.echo(bytes(range(256)) * (_LARGE_BYTES // 256))
    worker.finish()


def _values(*values: Any) -> Callable[[Worker], None]:
    # A text would come back in upper case; inside a list it does not.
    items = [[value] if isinstance(value, str) else value for value in values]

    def check(worker: Worker) -> None:
        for first in range(0, len(items), MAX_BATCH_SIZE):
            worker.echo(*items[first : first + MAX_BATCH_SIZE])
        worker.echo(list(values))
        worker.finish()

    return check


def _small_segment(worker: Worker) -> None:
    batch = worker.batch([None])
    empty = encode(None)
    start = struct.pack("<Q", len(_SMALL_SEGMENT))
    worker.write(batch[:8], start, batch[16 : -len(empty)], _SMALL_SEGMENT)
    worker.compare(b"\7\7\7")
    worker.finish()


def _unknown_keys(worker: Worker) -> None:
    unknown = {"unknown": {"keys": [1, None, {"a": b"b"}], "n": 2**63}}
    worker.echo("a", 1, item=unknown, **unknown)
    # Keys of an item that a worker may have no use for.
    worker.echo("a", item={"session": 2**64 - 1, "headers": {"x-a": "b"}, "tags": {"a": "b"}})
    worker.write(frame({"type": "cancel", "id": 77, "item": 0, **unknown}))
    worker.echo("b")
    worker.finish()


def _byte_by_byte(worker: Worker) -> None:
    for byte in worker.batch(["slowly", b"x"]):
        worker.write(bytes((byte,)))
        time.sleep(BYTE_SECONDS)
    worker.compare("slowly", b"x")
    worker.finish()


def _two_frames(worker: Worker) -> None:
    cancel = frame({"type": "cancel", "id": 77, "item": 0})
    worker.write(cancel, worker.batch(["together"]))
    worker.compare("together")
    worker.finish()


def _cancel_unknown(worker: Worker) -> None:
    worker.echo("before")
    for ident, item in ((1, 0), (1, 99), (2**64 - 1, 0)):
        worker.write(frame({"type": "cancel", "id": ident, "item": item}))
    worker.echo("after")
    worker.finish()


def _cancel_running(worker: Worker) -> None:
    batch = worker.batch(["a", "b"])
    worker.write(batch, frame({"type": "cancel", "id": 1, "item": 0}))
    # Any outcome will do.
    worker.outcomes(2)
    worker.echo("after")
    worker.finish()


def _batch_ahead(worker: Worker) -> None:
    first, second = worker.batch(["a"]), worker.batch(["b", "c"])
    worker.write(first, second, frame({"type": "cancel", "id": 2, "item": 0}))
    if worker.outcomes(1, batch=1) != ["A"]:
        raise Violation("another outcome of the first batch")
    cancelled, other = worker.outcomes(2)
    if not isinstance(cancelled, Error):
        raise Violation("an item ran that was cancelled before its turn")
    if other != "C":
        raise Violation(f"{reprlib.repr(other)} for an item beside a cancelled one")
    worker.echo("after")
    worker.finish()


def _calls(check: Callable[[Worker], None]) -> Callable[[Worker], None]:
    """A check for workers that call."""

    def checked(worker: Worker) -> None:
        if not worker.calls:
            raise NotForIt("call")
        check(worker)
        worker.echo("after")
        worker.finish()

    return checked


@_calls
def _two_calls(worker: Worker) -> None:
    large = bytes(range(256)) * 1024
    worker.write(worker.batch([{"call": "a"}, {"call": large}]))
    for _ in range(2):
        call, value = worker.call()
        worker.result(call.id, [value])
    worker.compare(["a"], [large])


@_calls
def _failed_call(worker: Worker) -> None:
    worker.write(worker.batch([{"call": 1}]))
    worker.result(
        worker.call()[0].id,
        message="no room",
        kind="overloaded",
        retry_after_ms=1000,
        headers=[["x-a", "b"]],
        unknown=[1],
    )
    if not isinstance(worker.outcomes(1)[0], Error):
        raise Violation("an output, although its call has failed")


@_calls
def _left_call(worker: Worker) -> None:
    worker.write(worker.batch([{"call": 1}]))
    call, _ = worker.call()
    worker.write(frame({"type": "cancel", "id": call.batch, "item": 0}))
    worker.result(call.id, message="the caller has left", kind="cancelled")
    _until_outcomes(worker, call.id)


def _until_outcomes(worker: Worker, call: int) -> None:
    """Takes any outcome of an item whose caller has left. The worker may have given up its call."""
    message, parts = worker.receive("`outcomes`")
    if isinstance(message, CancelCall) and message.id == call:
        message, parts = worker.receive("`outcomes`")
    if not isinstance(message, Outcomes) or len(message.items) != 1:
        raise Violation(f"{worker._name(message, parts)}, where `outcomes` was expected")


def _outputs(worker: Worker, *outputs: Any) -> int:
    """Sends the outputs of the stream that an item reads. The number of the call."""
    worker.write(worker.batch([{"stream": "a"}]))
    call, value = worker.call(streams=True)
    if value != "a":
        raise Violation(f"a call with {reprlib.repr(value)}, where 'a' was expected")
    worker.outputs(call.id, *outputs)
    return call.id


@_calls
def _stream(worker: Worker) -> None:
    many = [*range(3000), bytes(range(256)) * 1024, None]
    worker.result(_outputs(worker, *many))
    worker.compare(many)
    worker.result(_outputs(worker))
    worker.compare([])


@_calls
def _failed_stream(worker: Worker) -> None:
    worker.result(_outputs(worker, 1, 2), message="no more", kind="worker_failed")
    if not isinstance(worker.outcomes(1)[0], Error):
        raise Violation("an output, although its stream has failed")


@_calls
def _left_stream(worker: Worker) -> None:
    call = _outputs(worker, 1, 2)
    worker.write(frame({"type": "cancel", "id": worker.last_batch, "item": 0}))
    worker.result(call, message="the caller has left", kind="cancelled")
    _until_outcomes(worker, call)


@_calls
def _unknown_result(worker: Worker) -> None:
    worker.result(2**40, "not asked for")
    worker.echo("before")


def _nothing_unasked(worker: Worker) -> None:
    time.sleep(_QUIET_SECONDS)
    worker.echo("a")
    time.sleep(_QUIET_SECONDS)
    worker.finish()


def _stop(worker: Worker) -> None:
    worker.finish()
    code = worker.exit_code("`stop`")
    if code != 0:
        raise Violation(f"it ended with exit code {code} after `stop`")


def _socket_ends(worker: Worker) -> None:
    worker.echo("a")
    worker.close()
    worker.exit_code("the end of the socket")


def _socket_ends_in_a_frame(worker: Worker) -> None:
    batch = worker.batch(["a" * 100])
    worker.write(batch[: len(batch) // 2])
    worker.close()
    worker.exit_code("the end of the socket")


def _shared_memory(worker: Worker) -> None:
    for number in range(4):
        values = [bytes([number]) * _LARGE_BYTES, "text", "fail", number, [b"x" * (1000 + number)]]
        worker.shared_batch(*values)
        worker.compare(*values)
        worker.until_free()
    worker.echo(b"x" * _LARGE_BYTES, "through the socket")
    worker.finish()


def _larger_memory(worker: Worker) -> None:
    for size in (1 << 20, 3 << 20, 1 << 20, 7 << 20):
        worker.shared_batch(b"x" * size)
        worker.compare(b"x" * size)
        worker.until_free()
    worker.finish()


def _broken(*numbers: int) -> Callable[[Worker], None]:
    def check(worker: Worker) -> None:
        # A head of one byte, where one comes at all.
        worker.write(struct.pack(f"<II{len(numbers) - 2}Q", *numbers), b"\xc0")
        worker.exit_code("the frame")

    return check


CHECKS: list[tuple[str, Callable[[Worker], None]]] = [
    ("start", lambda worker: None),
    ("a batch of one", _batch_of_one),
    ("a batch of 32 with errors", _batch_of_32),
    ("a large value", _large_value),
    ("null and bool", _values(None, True, False)),
    ("integers", _values(*_POSITIVE, *_NEGATIVE)),
    ("floats", _values(*_FLOATS)),
    ("texts", _values(*_TEXTS)),
    ("byte strings", _values(*_BYTES)),
    ("lists and maps", _values([], {}, _NESTED)),
    ("a small segment", _small_segment),
    ("unknown keys", _unknown_keys),
    ("a frame byte by byte", _byte_by_byte),
    ("two frames in one write", _two_frames),
    ("cancel of an unknown item", _cancel_unknown),
    ("cancel of a running item", _cancel_running),
    ("a batch ahead", _batch_ahead),
    ("two calls", _two_calls),
    ("a call that fails", _failed_call),
    ("a call whose item is cancelled", _left_call),
    ("a result of no call", _unknown_result),
    ("a call that streams", _stream),
    ("a stream that fails", _failed_stream),
    ("a stream whose item is cancelled", _left_stream),
    ("nothing unasked", _nothing_unasked),
    ("stop", _stop),
    ("the end of the socket", _socket_ends),
    ("the end of the socket in a frame", _socket_ends_in_a_frame),
    ("a head of 4 GiB", _broken(2**32 - 1, 0)),
    ("a head beyond 4 MiB", _broken((4 << 20) + 1, 0)),
    ("too many parts", _broken(1, 65_537)),
    ("parts beyond max_bytes", _broken(1, 2, 2**40, 2**40)),
    ("shared memory", _shared_memory),
    ("larger memory", _larger_memory),
    ("unknown memory", _broken(1, 1 | 3 << 24, 64)),
    ("new memory without its descriptor", _broken(1, 1 | 0x81 << 24, 64)),
]
# Only for workers that share memory.
SHARED_MEMORY = [name for name, _ in CHECKS if "memory" in name]


def failure(name: str, command: Sequence[str], timeout: float) -> str | None:
    """Runs one check on a child of its own. The reason of a failure, or None."""
    try:
        with Worker(command, timeout) as worker:
            worker.start(shared_memory=name in SHARED_MEMORY, ahead=int(name == "a batch ahead"))
            dict(CHECKS)[name](worker)
    except Violation as error:
        return str(error)
    except OSError as error:
        return f"{command[0]} cannot be started: {error.strerror}"
    return None
