"""The node's side of one worker: what it may send, and what the worker must answer."""

from __future__ import annotations

import contextlib
import math
import os
import reprlib
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from callboard._envelope import EnvelopeError, decode, encode
from callboard._frames import FrameError, Reader, Writer
from callboard._shared_memory import IS_SUPPORTED, Incoming, Outgoing

PROTOCOL = 1
MAX_BYTES = 64 << 20
MAX_BATCH_SIZE = 32

# The most outputs of a call that a worker may have asked for.
MAX_CREDIT = 1024

# The pause after each byte of a slow frame: the worker reads the bytes one by one.
BYTE_SECONDS = 0.001


CREDIT = "`call_credit`"


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
    credit: Annotated[int, msgspec.Meta(ge=1, le=MAX_CREDIT)] | None = None
    credit_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None


class CallCredit(msgspec.Struct, tag="call_credit", tag_field="type"):
    id: int
    outputs: Annotated[int, msgspec.Meta(ge=1, le=MAX_CREDIT)]
    bytes: Annotated[int, msgspec.Meta(ge=0)] = 0


class CancelCall(msgspec.Struct, tag="cancel_call", tag_field="type"):
    id: int


class Log(msgspec.Struct, tag="log", tag_field="type"):
    message: str
    level: Literal["error", "warn", "info", "debug"] = "info"
    target: str = ""
    request_id: str | None = None


Message = Ready | Failed | Output | Outcomes | Call | CallCredit | CancelCall | Log
_decode_head = msgspec.msgpack.Decoder(Message).decode


# ---- The node's side -------------------------------------------------------------------------------------------------


class Worker:
    """One child, from its start to its end."""

    def __init__(self, command: Sequence[str], timeout: float) -> None:
        self._timeout = timeout
        self.last_batch = 0
        self._last_call = -1
        # The outputs that may be sent of the call that streams; its unread bytes, and those at which it pauses.
        self._credit = self._unread = 0
        self._half: float = math.inf
        self.calls = False
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(timeout)
        self._reader = Reader(self._socket)
        self._reader.max_bytes = MAX_BYTES
        self._writer = Writer(self._socket, lambda: None)
        self._memories = Outgoing()
        with theirs:
            # The output of the child goes to standard error: standard output has the results.
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
        """The next message that is no log record, and no credit but where that is expected; None at the end of the
        socket."""
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
            if not isinstance(message, (Log, CallCredit)):
                return message, [memoryview(part) for part in frame[1]]
            if frame[1]:
                raise Violation(f"`{type(message).__name__.lower()}` with a part")
            if isinstance(message, CallCredit):
                self._take_credit(message)
                if expected == CREDIT:
                    return message, []
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
        self.last_batch += 1
        return frame({"type": "batch", "id": self.last_batch, "items": [item or {}] * len(values), **more}, values)

    def shared_batch(self, *values: Any) -> None:
        """Sends a new batch in shared memory, if it is large."""
        parts = [encode(value) for value in values]
        self.last_batch += 1
        head = {"type": "batch", "id": self.last_batch, "items": [{}] * len(values)}
        self._writer.send(msgspec.msgpack.encode(head), [len(part) for part in parts], parts)

    def until_free(self) -> None:
        """Awaits that no memory of a batch is used."""
        deadline = time.monotonic() + self._timeout
        while not self._memories.is_free():
            if time.monotonic() > deadline:
                raise Violation(f"it uses the memory of a batch {self._timeout:g} s after its outcomes")
            time.sleep(BYTE_SECONDS)

    def call(self, *, streams: bool = False) -> tuple[Call, Any]:
        """The next call of the running batch, and its input."""
        message, parts = self.receive("`call`")
        if streams and (isinstance(message, Outcomes) or (isinstance(message, Call) and message.credit is None)):
            raise NotForIt("read streams")
        if not isinstance(message, Call) or len(parts) != 1:
            raise Violation(f"{self._name(message, parts)}, where `call` was expected")
        if message.batch != self.last_batch or message.id <= self._last_call:
            raise Violation(f"call {message.id} of batch {message.batch} after call {self._last_call}")
        if message.route != "/called":
            raise Violation(f"a call of {message.route!r}, where '/called' was expected")
        self._last_call, self._credit, self._unread = message.id, message.credit or 0, 0
        self._half = (message.credit_bytes + 1) // 2 if message.credit_bytes else math.inf
        return message, decode(parts[0])

    def outputs(self, call: int, *values: Any) -> None:
        """Sends the next outputs of a call that streams, as the worker asks for them."""
        for value in values:
            while not self._credit or self._unread >= self._half:
                message, parts = self.receive(CREDIT)
                if not isinstance(message, CallCredit):
                    raise Violation(f"{self._name(message, parts)}, where {CREDIT} was expected")
            self._credit -= 1
            self._unread += len(encode(value))
            self.write(frame({"type": "call_output", "id": call, "unknown": 1}, [value]))

    def _take_credit(self, message: CallCredit) -> None:
        if message.id == self._last_call:
            self._credit += message.outputs
            self._unread -= message.bytes
        if self._credit > MAX_CREDIT:
            raise Violation(f"it asks for {self._credit} outputs of a call, more than {MAX_CREDIT}")
        if self._unread < 0:
            raise Violation(f"it has read {-self._unread} bytes more of a call than were sent")

    def result(self, call: int, *values: Any, **error: Any) -> None:
        self.write(frame({"type": "result", "id": call, "unknown": 1, **({"error": error} if error else {})}, values))

    def outcomes(self, count: int, batch: int | None = None) -> list[Any]:
        """The output or `Error` of each item of a batch, by default the last."""
        batch = batch or self.last_batch
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
        """Sends `stop`. Frames that the worker has sent since its last answer show up here."""
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
