"""Checks a worker in any language: `python -m callboard.conformance [--timeout SECONDS] COMMAND ARGS…`.

This is the node's side of `docs/worker-protocol.md`. The worker must implement the echo contract: for a text it answers
the text in upper case, for the text "fail" an error, for any other value the same value. If it says in `ready` that it
calls, it answers a map with the one key `call` with what the route `/called` answers for the value of that key. Each
check starts the command anew, and kills what is left of it; those of shared memory are skipped if the worker has none.
The exit code is 1 if a check has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import reprlib
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from callboard._envelope import EnvelopeError, decode, encode
from callboard._frames import FrameError, Reader, Writer
from callboard._shared_memory import IS_SUPPORTED, Incoming, Outgoing

PROTOCOL = 1
MAX_BYTES = 64 << 20
MAX_BATCH_SIZE = 32

# The pause after each byte of a slow frame: the worker reads the bytes one by one.
_BYTE_SECONDS = 0.001
# The time for which an idle worker is watched.
_QUIET_SECONDS = 0.3
_LARGE_BYTES = 8 << 20


class Violation(Exception):
    """The worker has broken the protocol or the echo contract."""


class NotForIt(Exception):
    """The check is for something that the worker does not do."""


# ---- Messages of the worker ------------------------------------------------------------------------------------------


class Ready(msgspec.Struct, tag="ready", tag_field="type"):
    protocol: int
    worker: str = ""
    shared_memory: bool = False
    calls: bool = False
    ahead: int = 0


class Failed(msgspec.Struct, tag="failed", tag_field="type"):
    message: str
    trace: str | None = None


class Error(msgspec.Struct):
    message: str
    invalid: bool = False
    status: Annotated[int, msgspec.Meta(ge=400, le=599)] | None = None
    type: str | None = None
    details: Any = None
    retry_after_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None
    trace: str | None = None


class Output(msgspec.Struct, tag="output", tag_field="type"):
    id: int
    item: int


class Outcomes(msgspec.Struct, tag="outcomes", tag_field="type"):
    id: int
    items: list[Error | None]


class Call(msgspec.Struct, tag="call", tag_field="type"):
    id: Annotated[int, msgspec.Meta(ge=0)]
    batch: int
    route: str
    item: Annotated[int, msgspec.Meta(ge=0)] | None = None


class CancelCall(msgspec.Struct, tag="cancel_call", tag_field="type"):
    id: int


class Log(msgspec.Struct, tag="log", tag_field="type"):
    message: str
    level: Literal["error", "warn", "info", "debug"] = "info"
    target: str = ""
    request_id: str | None = None


Message = Ready | Failed | Output | Outcomes | Call | CancelCall | Log
_decode_head = msgspec.msgpack.Decoder(Message).decode


# ---- The node's side -------------------------------------------------------------------------------------------------


class Worker:
    """One child, from its start to its end."""

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        self._timeout = timeout
        self._batches = 0
        self._last_call = -1
        self.calls = False
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(timeout)
        self._reader = Reader(self._socket)
        self._reader.max_bytes = MAX_BYTES
        self._writer = Writer(self._socket, lambda: None)
        self._memories = Outgoing()
        with theirs:
            # What the child prints goes to standard error: standard output has the results.
            self._child = subprocess.Popen(command, stdin=theirs.fileno(), stdout=2, start_new_session=True)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()

    # ---- Frames ------------------------------------------------------------------------------------------------------

    def write(self, *pieces: bytes) -> None:
        """Sends all pieces in one write."""
        try:
            self._socket.sendall(b"".join(pieces))
        except TimeoutError:
            raise Violation(f"it has not read a frame within {self._timeout:g} s") from None
        except OSError:
            # The worker has ended. The next read tells how.
            pass

    def receive(self, expected: str) -> tuple[Message | None, list[memoryview]]:
        """The next message that is no log record; None at the end of the socket."""
        deadline = time.monotonic() + self._timeout
        while time.monotonic() < deadline:
            try:
                frame = self._reader.read()
                if frame is None:
                    continue
                message = _decode_head(frame[0])
            except TimeoutError:
                break
            except (ConnectionResetError, EOFError):
                return None, []
            except (FrameError, msgspec.MsgspecError) as error:
                raise Violation(f"a frame that is not of the protocol: {error}") from None
            if not isinstance(message, Log):
                return message, [memoryview(part) for part in frame[1]]
            if frame[1]:
                raise Violation("a log record with a part")
        raise Violation(f"no {expected} within {self._timeout:g} s")

    def close(self) -> None:
        """Ends the socket, as a node does that dies."""
        self._socket.close()

    # ---- Messages ----------------------------------------------------------------------------------------------------

    def start(self, *, shared_memory: bool = False, ahead: int = 0) -> None:
        """Sends `start`, and awaits `ready`."""
        if shared_memory and not IS_SUPPORTED:
            raise NotForIt("share memory")
        head = {"type": "start", "protocol": PROTOCOL, "stage": "echo", "replica": 0, "generation": 0}
        limits = {"max_batch_size": MAX_BATCH_SIZE, "max_bytes": MAX_BYTES, "settings": {}}
        if shared_memory:
            limits["shared_memory"] = True
            self._reader.memories, self._writer.memories = Incoming(), self._memories
        if ahead:
            limits["ahead"] = ahead
        self.write(frame({**head, **limits, "unknown": {"to": ["all", 1]}}))
        message, parts = self.receive("`ready`")
        if isinstance(message, Failed):
            raise Violation(f"it cannot start: {message.message}")
        if not isinstance(message, Ready) or parts:
            raise Violation(f"{self._name(message, parts)}, where `ready` was expected")
        if message.protocol != PROTOCOL:
            raise Violation(f"it speaks protocol {message.protocol} instead of {PROTOCOL}")
        if shared_memory and not message.shared_memory:
            raise NotForIt("share memory")
        if message.ahead > ahead:
            raise Violation(f"it says `ahead` {message.ahead}, where `start` said {ahead}")
        if ahead and not message.ahead:
            raise NotForIt("take a batch ahead")
        if message.shared_memory and not shared_memory:
            raise Violation("it says `shared_memory`, which `start` did not")
        self.calls = message.calls

    def batch(self, values: list[Any], item: dict[str, Any] | None = None, **more: Any) -> bytes:
        """The frame of a new batch."""
        self._batches += 1
        return frame({"type": "batch", "id": self._batches, "items": [item or {}] * len(values), **more}, values)

    def shared_batch(self, *values: Any) -> None:
        """Sends a new batch in shared memory, if it is large."""
        parts = [encode(value) for value in values]
        self._batches += 1
        head = {"type": "batch", "id": self._batches, "items": [{}] * len(values)}
        self._writer.send(msgspec.msgpack.encode(head), [len(part) for part in parts], parts)

    def until_free(self) -> None:
        """Awaits that no memory of a batch is used."""
        deadline = time.monotonic() + self._timeout
        while not self._memories.is_free():
            if time.monotonic() > deadline:
                raise Violation(f"it uses the memory of a batch {self._timeout:g} s after its outcomes")
            time.sleep(_BYTE_SECONDS)

    def call(self) -> tuple[Call, Any]:
        """The next call of the running batch, and its input."""
        message, parts = self.receive("`call`")
        if not isinstance(message, Call) or len(parts) != 1:
            raise Violation(f"{self._name(message, parts)}, where `call` was expected")
        if message.batch != self._batches or message.id <= self._last_call:
            raise Violation(f"call {message.id} of batch {message.batch} after call {self._last_call}")
        if message.route != "/called":
            raise Violation(f"a call of {message.route!r}, where '/called' was expected")
        self._last_call = message.id
        return message, decode(parts[0])

    def result(self, call: int, *values: Any, **error: Any) -> None:
        self.write(frame({"type": "result", "id": call, "unknown": 1, **({"error": error} if error else {})}, values))

    def outcomes(self, count: int, batch: int | None = None) -> list[Any]:
        """The output or `Error` of each item of a batch, by default the last."""
        batch = batch or self._batches
        message, parts = self.receive("`outcomes`")
        if not isinstance(message, Outcomes):
            raise Violation(f"{self._name(message, parts)}, where `outcomes` was expected")
        if message.id != batch:
            raise Violation(f"`outcomes` of batch {message.id}, while batch {batch} runs")
        if len(message.items) != count:
            raise Violation(f"{len(message.items)} outcomes for {count} items")
        successes = message.items.count(None)
        if len(parts) != successes:
            raise Violation(f"{len(parts)} parts for {successes} successes")
        try:
            outputs = [decode(part) for part in parts]
        except EnvelopeError as error:
            raise Violation(f"a part that is not an envelope: {error}") from None
        rest = iter(outputs)
        return [next(rest) if item is None else item for item in message.items]

    def echo(self, *values: Any, item: dict[str, Any] | None = None, **more: Any) -> None:
        """Runs a batch, and compares its outcomes with the contract."""
        self.write(self.batch(list(values), item, **more))
        self.compare(*values)

    def compare(self, *values: Any) -> None:
        """Compares the outcomes of the batch that was written."""
        for index, (value, found) in enumerate(zip(values, self.outcomes(len(values)), strict=True)):
            if value == "fail":
                if not isinstance(found, Error):
                    raise Violation(f'item {index}: {reprlib.repr(found)} for "fail", where an error was expected')
                continue
            expected = value.upper() if isinstance(value, str) else value
            if why := difference(expected, found):
                raise Violation(f"item {index}{why}")

    def finish(self) -> None:
        """Sends `stop`. What the worker has sent since its last answer shows up here."""
        self.write(frame({"type": "stop"}))
        message, parts = self.receive("end of the socket after `stop`")
        if message is not None:
            raise Violation(f"{self._name(message, parts)}, which was not asked for")

    def exit_code(self, reason: str) -> int:
        """Awaits the end of the process."""
        try:
            code: int = self._child.wait(self._timeout)
        except subprocess.TimeoutExpired:
            raise Violation(f"it has not ended within {self._timeout:g} s after {reason}") from None
        return code

    def _name(self, message: Message | None, parts: list[memoryview]) -> str:
        if message is None:
            return f"the end of the socket (exit code {self.exit_code('the end of its socket')})"
        return f"`{type(message).__name__.lower()}` with {len(parts)} parts"


def frame(head: dict[str, Any], values: Sequence[Any] = ()) -> bytes:
    """A frame whose parts are these values."""
    parts = [encode(value) for value in values]
    encoded = msgspec.msgpack.encode(head)
    lengths = struct.pack(f"<II{len(parts)}Q", len(encoded), len(parts), *map(len, parts))
    return b"".join((lengths, encoded, *parts))


def difference(expected: Any, found: Any) -> str | None:
    """The place of the first difference, and what is there. Types count, and the order of maps."""
    if isinstance(found, Error):
        return f": the error {found.message!r}, where {reprlib.repr(expected)} was expected"
    children: list[tuple[Any, Any]] = []
    equal = type(expected) is type(found)
    if equal and isinstance(expected, dict):
        equal = list(expected) == list(found)
        children = [(key, expected[key]) for key in expected]
    elif equal and isinstance(expected, list):
        equal = len(expected) == len(found)
        children = list(enumerate(expected))
    elif equal:
        # NaN is the only value that differs from itself.
        equal = expected == found or (expected != expected and found != found)
    if not equal:
        return f": {reprlib.repr(found)}, where {reprlib.repr(expected)} was expected"
    inner = ((key, difference(value, found[key])) for key, value in children)
    return next((f"[{key!r}]{why}" for key, why in inner if why), None)


# ---- The checks ------------------------------------------------------------------------------------------------------

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
        time.sleep(_BYTE_SECONDS)
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
    message, parts = worker.receive("`outcomes`")
    if isinstance(message, CancelCall) and message.id == call.id:
        message, parts = worker.receive("`outcomes`")
    if not isinstance(message, Outcomes) or len(message.items) != 1:
        raise Violation(f"{worker._name(message, parts)}, where `outcomes` was expected")


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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m callboard.conformance", description="Checks a worker of any language.")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS", help="of each wait; default 10")
    parser.add_argument("command", metavar="COMMAND", help="the worker, which implements the echo contract")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS")
    options = parser.parse_args(arguments)
    code = 0
    for name, _ in CHECKS:
        try:
            why = failure(name, [options.command, *options.arguments], options.timeout)
        except NotForIt as error:
            print(f"skipped {name}: it does not {error}", flush=True)
            continue
        print(f"ok {name}" if why is None else f"FAILED {name}: {why}", flush=True)
        if why is not None:
            code = 1
            # Nothing else can succeed.
            if name == "start":
                break
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
