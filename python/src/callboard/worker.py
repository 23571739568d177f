"""A replica: `python -m callboard.worker TARGET` serves one route over the socket that is its standard input.

The protocol is `docs/worker-protocol.md`. The main thread receives a batch, runs user code (asynchronous code in its
loop) and sends: a call costs one wake-up. While user code runs, cancellations are read when it looks at
`context.cancelled`, or by its event loop. A second thread sleeps until the socket ends, and ends the process: it never
outlives its node.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import inspect
import logging
import os
import platform
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NoReturn

import msgspec

from callboard import _api, _depends
from callboard._api import CallError, Context, HTTPException, InvalidInput, SetupContext
from callboard._calls import Result, WorkerCalls
from callboard._envelope import Buffer, Decoder, EnvelopeError, encode_pieces
from callboard._frames import MAX_HEAD_BYTES, FrameError, Reader, Writer
from callboard._hooks import Health, Preparation, finish, warm_up
from callboard._runner import CURRENT, Cancelled, Failure, Runner, setup_arguments
from callboard._shared_memory import IS_SUPPORTED, Incoming, Outgoing
from callboard._signature import _plain
from callboard._target import Route, TargetError, load_route
from callboard._version import __version__

PROTOCOL = 1

# The longest text of an error or log record. A head has at most 4 MiB.
_MAX_TEXT = 16 << 10
# As many wrong fields as the HTTP edge lists.
_MAX_FIELDS = 32
# A node reads a head of 64 levels.
_MAX_DETAIL_LEVELS = 32
_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_PR_SET_PDEATHSIG = 1
_HANG_UP = select.POLLHUP | getattr(select, "POLLRDHUP", 0)
_WATCH_SECONDS = 0.05

_encode_head = msgspec.msgpack.Encoder().encode
log = logging.getLogger("callboard")


# ---- Messages of the node --------------------------------------------------------------------------------------------


class Start(msgspec.Struct, tag="start", tag_field="type"):
    protocol: int
    stage: str = ""
    replica: int = 0
    generation: int = 0
    max_batch_size: int = 1
    max_bytes: int = 64 << 20
    shared_memory: bool = False
    settings: dict[str, Any] | None = None
    # How many batches may be open at once, and how many outputs of an item may wait for their reader.
    max_batches: int = 1
    credit: int | None = None


class Item(msgspec.Struct):
    remaining_ms: float | None = None
    request_id: str | None = None
    traceparent: str | None = None
    caller: str | None = None
    route: str | None = None


class BatchHead(msgspec.Struct, tag="batch", tag_field="type"):
    id: int
    items: list[Item]


class Cancel(msgspec.Struct, tag="cancel", tag_field="type"):
    id: int
    item: int


class Credit(msgspec.Struct, tag="credit", tag_field="type"):
    id: int
    item: int
    outputs: int


class Ping(msgspec.Struct, tag="ping", tag_field="type"):
    pass


class Stop(msgspec.Struct, tag="stop", tag_field="type"):
    pass


class Batch:
    """A batch that runs."""

    def __init__(self, head: BatchHead, parts: list[Buffer], credit: int | None) -> None:
        now = time.monotonic()
        self.id = head.id
        self.parts = parts
        self.contexts = [_context(item, now, (head.id, index)) for index, item in enumerate(head.items)]
        self.on_cancel: Callable[[int], object] | None = None
        # For each item, what its outputs wait for.
        self.credit = [asyncio.Semaphore(credit) for _ in head.items] if credit else None

    def cancel(self, index: int) -> None:
        if 0 <= index < len(self.contexts):
            self.contexts[index]._cancelled = True
            if self.on_cancel is not None:
                self.on_cancel(index)


def _context(item: Item, now: float, place: tuple[int, int]) -> Context:
    return Context(
        request_id=item.request_id,
        route=item.route,
        caller=item.caller,
        traceparent=item.traceparent,
        deadline=None if item.remaining_ms is None else now + item.remaining_ms / 1000,
        _place=place,
    )


# ---- The worker ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Prepared:
    """What a replica need not do, because the process that it was forked from has done it."""

    route: Route
    instance: Any = None
    # What `setup` was run for; None if it was not run.
    set_up_for: Start | None = None


class Worker:
    """Speaks the protocol for one route."""

    def __init__(self, sock: socket.socket, target: str, prepared: Prepared | None = None) -> None:
        self._target = target
        self._prepared = prepared
        self._socket = sock
        self._reader = Reader(sock)
        self._decode = msgspec.msgpack.Decoder(Start | BatchHead | Cancel | Credit | Result | Ping | Stop).decode
        self._writer = Writer(sock, self._look)
        # The thread that has it reads.
        self._reading = threading.Lock()
        # The batches that have not begun, and `stop`.
        self._messages: deque[Start | Batch | Stop] = deque()
        self._running: dict[int, Batch] = {}
        self._max_batches = 1
        # Why this replica ends; all further outcomes say `last`.
        self._unwell: str | None = None
        self._credit: int | None = None
        # The event loop, where there is one, and what wakes it.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: Callable[[], object] | None = None
        self._max_bytes = 0
        self._may_call = False
        self._decoder = Decoder()
        self._calls = WorkerCalls(self._send, lambda: self._read(wait=True), self._reading, self._running)

    def main(self) -> int:
        """Serves until `stop`, and returns the exit code."""
        threading.Thread(target=self._watch, name="callboard-watcher", daemon=True).start()
        _api.look = self._look
        start = self._next()
        if not isinstance(start, Start):
            self._end("the first frame is not `start`", 1)
        self._max_bytes = start.max_bytes
        logging.getLogger().handlers = [_LogHandler(self)]
        # An import that is over may have set the level.
        if self._prepared is None or "log_level" in (start.settings or {}):
            set_log_level(start.settings or {})
        with self._starting():
            if start.protocol != PROTOCOL:
                raise TargetError(f"protocol {start.protocol}: this worker speaks {PROTOCOL}")
            prepared = self._prepared or Prepared(load_route(self._target))
            route = prepared.route
            shared = prepared.set_up_for
            if shared is not None and shared.settings != start.settings:
                raise TypeError(f"{route.name}: share_setup needs the same settings for all replicas")
            instance = route.instance() if shared is None else prepared.instance
            context = setup_context(route, start, instance)
        self._may_call = bool(_depends.depends_of(route.owner))
        self._calls.max_bytes, self._calls.awaits = start.max_bytes, route.signature.is_async
        _depends.current = self._calls
        setup = getattr(instance, "setup", None) if shared is None else None
        hooks = [setup, *(getattr(instance, name, None) for name in ("cleanup", "health"))]
        # Async code needs a loop from its setup on.
        if route.signature.is_async or any(map(inspect.iscoroutinefunction, hooks)):
            return asyncio.run(self._serve_async(route, instance, setup, context, start))
        return self._serve(route, instance, setup, context)

    def _serve(self, route: Route, instance: Any, setup: Callable[..., Any] | None, context: SetupContext) -> int:
        with self._starting():
            if setup is not None:
                setup(**setup_arguments(setup, context))
            runner = Runner(route, instance)
            # A dependency is called for an item only.
            if not self._may_call:
                finish(warm_up(route, runner))
        self._health = Health(instance)
        self._ready()
        while isinstance(message := self._next(), Batch):
            self._run(message, runner)
        if hasattr(instance, "cleanup"):
            instance.cleanup()
        return 0

    async def _serve_async(
        self, route: Route, instance: Any, setup: Callable[..., Any] | None, context: SetupContext, start: Start
    ) -> int:
        """The loop runs all the time, so that tasks of the user's own go on between batches."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        own = threading.get_ident()

        def wake() -> None:
            if threading.get_ident() == own:
                arrived.set()
            else:
                loop.call_soon_threadsafe(arrived.set)

        self._loop, self._wake = loop, wake
        loop.add_reader(self._socket, self._look)
        # What has come with `start` does not wake the loop.
        self._look()
        with self._starting():
            if setup is not None:
                await _maybe(setup(**setup_arguments(setup, context)))
            runner = Runner(route, instance)
            if not self._may_call:
                await warm_up(route, runner)
        self._health = Health(instance)
        if runner.signature.is_async and not runner.signature.batched:
            self._max_batches = min(start.max_batches, runner.concurrency)
            self._credit = start.credit
        self._ready()
        tasks: set[asyncio.Task[None]] = set()
        while isinstance(message := await self._next_in_loop(arrived), Batch):
            if self._max_batches == 1:
                await self._run_in_loop(message, runner, loop)
                continue
            task = asyncio.create_task(self._run_in_loop(message, runner, loop))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        if hasattr(instance, "cleanup"):
            await _maybe(instance.cleanup())
        return 0

    @contextlib.contextmanager
    def _starting(self) -> Iterator[None]:
        """An exception before `ready` is reported, and ends the process."""
        try:
            yield
        except Exception as error:
            self._send(failed(error))
            self._end(None, 1)

    async def _run_in_loop(self, batch: Batch, runner: Runner, loop: asyncio.AbstractEventLoop) -> None:
        if not runner.signature.is_async:
            results = runner.run(self._inputs(batch), batch.contexts, self._emitter(batch))
            self._finish(batch, results, runner, await self._health.reason())
            return

        def started(cancel: Callable[[int], None]) -> None:
            batch.on_cancel = lambda index: loop.call_soon_threadsafe(cancel, index)

        inputs, send = self._inputs(batch), self._emitter(batch)

        async def emit(index: int, output: Any) -> None:
            if batch.credit is not None:
                await batch.credit[index].acquire()
            send(index, output)

        results = await runner.run_async(inputs, batch.contexts, emit, started)
        self._finish(batch, results, runner, await self._health.reason())

    async def _next_in_loop(self, arrived: asyncio.Event) -> Start | Batch | Stop:
        while not self._messages:
            arrived.clear()
            await arrived.wait()
        return self._messages.popleft()

    # ---- Reading -----------------------------------------------------------------------------------------------------

    def _next(self) -> Start | Batch | Stop:
        with self._reading:
            while not self._messages:
                self._read(wait=True)
            return self._messages.popleft()

    def _look(self) -> None:
        """Takes the frames that have come, unless another thread reads. A forked process has no socket."""
        if self._socket.fileno() >= 0 and self._reading.acquire(blocking=False):
            try:
                while self._read(wait=False):
                    pass
            finally:
                self._reading.release()
                # A thread that waits for a call may have found that this one reads.
                self._calls.wake_another()

    def _watch(self) -> NoReturn:
        """The watching thread. It sleeps until the socket ends, and reads the rest: the end is the end of the process.

        Frames do not wake it, so it costs a call nothing.
        """
        poll = select.poll()
        poll.register(self._socket, _HANG_UP)
        while not any(event & _HANG_UP for _, event in poll.poll()):
            # Not every system waits for these events alone.
            time.sleep(_WATCH_SECONDS)
        with self._reading:
            while True:
                self._read(wait=True)

    def _read(self, *, wait: bool) -> bool:
        """Takes the next frame, if there is one. The end of the socket ends the process, whatever user code does."""
        try:
            frame = self._reader.read(wait=wait)
            if frame is not None:
                self._take(self._decode(frame[0]), frame[1])
            return frame is not None
        except (EOFError, OSError):
            self._end(None, 0)
        except MemoryError as error:
            self._end(f"out of memory for a batch; see memory_limit and max_batch_bytes: {error}", 1)
        except Exception as error:
            self._end(f"a frame that is not of the protocol: {error}", 1)

    def _take(self, message: Start | BatchHead | Cancel | Credit | Result | Ping | Stop, parts: list[Buffer]) -> None:
        if isinstance(message, (Cancel, Credit)):
            # The batch may just have ended.
            batch = self._running.get(message.id)
            if batch is None:
                return
            if isinstance(message, Cancel):
                batch.cancel(message.item)
            elif self._loop is not None and batch.credit is not None:
                self._loop.call_soon_threadsafe(_give_credit, batch.credit[message.item], message.outputs)
            return
        if isinstance(message, Ping):
            # The loop answers: code that blocks it has stopped.
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._send, {"type": "pong"})
            return
        if isinstance(message, Result):
            if len(parts) != (message.error is None):
                raise FrameError(f"a result with {len(parts)} parts")
            self._calls.take(message, parts)
            return
        if isinstance(message, BatchHead):
            if len(parts) != len(message.items):
                raise FrameError(f"a batch of {len(message.items)} items with {len(parts)} parts")
            if len(self._running) == self._max_batches:
                raise FrameError(f"batch {message.id} while batch {next(iter(self._running))} runs")
            if message.id in self._running:
                raise FrameError(f"batch {message.id} runs already")
            batch = self._running[message.id] = Batch(message, parts, self._credit)
            self._messages.append(batch)
        else:
            if isinstance(message, Start):
                if self._reader.max_bytes:
                    raise FrameError("a second `start`")
                self._reader.max_bytes = message.max_bytes
                if message.shared_memory and IS_SUPPORTED:
                    self._reader.memories, self._writer.memories = Incoming(), Outgoing()
            self._messages.append(message)
        if self._wake is not None:
            self._wake()

    # ---- Running -----------------------------------------------------------------------------------------------------

    def _run(self, batch: Batch, runner: Runner) -> None:
        results = runner.run(self._inputs(batch), batch.contexts, self._emitter(batch))
        self._finish(batch, results, runner, finish(self._health.reason()))

    def _inputs(self, batch: Batch) -> list[Any]:
        inputs: list[Any] = []
        for part in batch.parts:
            try:
                inputs.append(self._decoder.decode(part))
            except Exception as error:
                inputs.append(Failure(error))
        # The batch is still referred to while the next one is awaited.
        batch.parts = []
        return inputs

    def _emitter(self, batch: Batch) -> Callable[[int, Any], None]:
        def emit(index: int, output: Any) -> None:
            pieces = encode_pieces(output)
            size = self._checked(sum(map(len, pieces)))
            self._send({"type": "output", "id": batch.id, "item": index}, [size], pieces)

        return emit

    def _finish(self, batch: Batch, results: list[Any], runner: Runner, unwell: str | None) -> None:
        """Sends the outcome of each item. A replica that is not well ends after it."""
        items: list[dict[str, Any] | None] = []
        lengths: list[int] = []
        parts: list[Buffer] = []
        total = 0
        for result in results:
            if isinstance(result, Failure):
                items.append(error_map(result.error))
                continue
            if not runner.signature.streams:
                try:
                    pieces = encode_pieces(result)
                    size = sum(map(len, pieces))
                    total = self._checked(total + size)
                except Exception as error:
                    items.append({"message": f"the output of {runner.name}: {error}"})
                    continue
                lengths.append(size)
                parts += pieces
            items.append(None)
        # A batch may follow as soon as this one is answered.
        del self._running[batch.id]
        self._calls.end(batch.id)
        head = {"type": "outcomes", "id": batch.id, "items": items}
        if unwell is None and self._unwell is None:
            self._send(head, lengths, parts)
            return
        if self._unwell is None:
            log.error("this replica ends, and is started again: %s", unwell)
        self._unwell = self._unwell or unwell
        self._send({**head, "last": True}, lengths, parts)
        # With several batches at once, more may be on their way: the node ends this process when all are answered.
        if self._max_batches == 1:
            self._end(None, 1)

    def _checked(self, total: int) -> int:
        if total > self._max_bytes:
            raise ValueError(f"{total} bytes exceed max_bytes = {self._max_bytes}")
        return total

    # ---- Sending -----------------------------------------------------------------------------------------------------

    def _ready(self) -> None:
        head: dict[str, Any] = {"type": "ready", "protocol": PROTOCOL, "worker": version()}
        if self._reader.memories is not None:
            head["shared_memory"] = True
        if self._max_batches > 1:
            head["max_batches"] = self._max_batches
        if self._may_call:
            head["calls"] = True
        self._send(head)

    def send_log(self, level: str, target: str, message: str, request_id: str | None) -> None:
        head = {"type": "log", "level": level, "target": target, "message": _clip(message)}
        self._send(head if request_id is None else {**head, "request_id": request_id})

    def _send(self, head: dict[str, Any], lengths: Sequence[int] = (), parts: Sequence[Buffer] = ()) -> None:
        encoded = _encode_head(head)
        if len(encoded) > MAX_HEAD_BYTES:
            items = head["items"]
            room = MAX_HEAD_BYTES // (8 * len(items))
            encoded = _encode_head({**head, "items": [_shortened(item, room) for item in items]})
        try:
            self._writer.send(encoded, lengths, parts)
        except OSError:
            self._end(None, 0)

    def _end(self, message: str | None, code: int) -> NoReturn:
        """Ends the process from any thread, without waiting for user code."""
        if message is not None:
            print(f"callboard.worker: {message}", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _give_credit(credit: asyncio.Semaphore, outputs: int) -> None:
    for _ in range(outputs):
        credit.release()


async def _maybe(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


def version() -> str:
    """This worker, for the log."""
    return f"{platform.python_implementation()} {platform.python_version()}, callboard {__version__}"


def setup_context(route: Route, start: Start, instance: Any) -> SetupContext:
    """Where the instance starts, with what it has prepared."""
    settings = start.settings or {}
    device = str(settings.get("device") or route.service.device or "cpu")
    preparation = Preparation(route.owner, settings.get("cache"))
    preparation.run(instance)
    return SetupContext(start.stage, start.replica, start.generation, device, settings, preparation.cache)


# ---- Errors ----------------------------------------------------------------------------------------------------------


def failed(error: BaseException) -> dict[str, Any]:
    """An exception before `ready` as a message."""
    return {"type": "failed", "message": _clip(_message(error)), "trace": _clip(_trace(error, whole=True) or "")}


def error_map(error: BaseException) -> dict[str, Any]:
    """An exception as the protocol's map."""
    if isinstance(error, InvalidInput) and error.fields:
        fields = [{"path": _clip(path), "message": _clip(message)} for path, message in error.fields[:_MAX_FIELDS]]
        return {"message": _clip(str(error)), "invalid": True, "details": {"fields": fields}}
    if isinstance(error, (InvalidInput, EnvelopeError)):
        return {"message": _clip(str(error)), "invalid": True}
    if isinstance(error, HTTPException):
        return _http_error(error)
    if isinstance(error, CallError):
        return _passed_on(error)
    if isinstance(error, (Cancelled, asyncio.CancelledError)):
        return {"message": "cancelled: the caller has left", "type": "Cancelled"}
    found: dict[str, Any] = {"message": _clip(_message(error)), "type": _type_name(error)}
    trace = _trace(error)
    if trace:
        found["trace"] = _clip(trace)
    return found


def _http_error(error: HTTPException) -> dict[str, Any]:
    found: dict[str, Any] = {"message": _clip(error.message), "status": error.status_code}
    if not isinstance(error.detail, str):
        found["details"] = _details(error.detail)
    if error.retry_after_ms is not None:
        found["retry_after_ms"] = error.retry_after_ms
    return found


def _passed_on(error: CallError) -> dict[str, Any]:
    """The error of a call that this one has made."""
    more = {
        "status": error.status_code,
        "type": error.type,
        "retry_after_ms": error.retry_after_ms,
        "stage": error.stage,
    }
    found = {"message": _clip(error.message), "kind": error.kind, **{key: more[key] for key in more if more[key]}}
    if error.details is not None:
        found["details"] = _details(error.details)
    trace = error.trace or _trace(error)
    return {**found, "trace": _clip(trace)} if trace else found


def _details(detail: Any) -> Any:
    """Details as plain MessagePack."""
    try:
        plain = msgspec.to_builtins(_plain(detail), str_keys=True)
        fits = _is_flat(plain, _MAX_DETAIL_LEVELS) and len(_encode_head(plain)) <= _MAX_TEXT
        return plain if fits else _clip(repr(detail))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _clip(repr(detail))


def _is_flat(value: Any, levels: int) -> bool:
    """Whether lists and maps go no deeper than this many levels."""
    if not isinstance(value, (list, tuple, dict)):
        return True
    children = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_flat(child, levels - 1) for child in children)


def _message(error: BaseException) -> str:
    """What the last line of a traceback says."""
    if isinstance(error, TargetError):
        return str(error)
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _trace(error: BaseException, *, whole: bool = False) -> str | None:
    """The traceback from the first frame of user code on; None if there is none."""
    tail: TracebackType | None = error.__traceback__
    while not whole and tail is not None and tail.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        tail = tail.tb_next
    if tail is None and not whole:
        return None
    return "".join(traceback.format_exception(type(error), error, tail))


def _clip(text: str) -> str:
    """A text that fits into a head, with its begin and end. It is UTF-8 even if user code made halves of characters."""
    if len(text) > _MAX_TEXT:
        half = _MAX_TEXT // 2
        text = f"{text[:half]}\n… {len(text) - _MAX_TEXT} characters …\n{text[-half:]}"
    return text.encode(errors="replace").decode()


def _shortened(item: dict[str, Any] | None, room: int) -> dict[str, Any] | None:
    """An error without what makes a head too long. A character has at most four bytes."""
    if item is None:
        return None
    kept = {key: value for key, value in item.items() if key not in ("trace", "details", "type")}
    return {**kept, "message": kept["message"][:room]}


# ---- Log records -----------------------------------------------------------------------------------------------------


class _LogHandler(logging.Handler):
    """Sends records to the node, each with the id of the call that it belongs to."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = self.format(record)
            # A process that user code has forked must not write into the socket.
            if os.getpid() != self._pid:
                sys.stderr.write(message + "\n")
                return
            context = CURRENT.get()
            request_id = None if context is None else context.request_id
            self._worker.send_log(_level(record.levelno), record.name, message, request_id)
        except Exception:
            self.handleError(record)


def _level(number: int) -> str:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warn"
    return "info" if number >= logging.INFO else "debug"


def set_log_level(settings: dict[str, Any]) -> None:
    level = str(settings.get("log_level") or "info").upper()
    logging.getLogger().setLevel({"WARN": "WARNING"}.get(level, level) if level in _LEVELS else "INFO")


_LEVELS = ("ERROR", "WARN", "WARNING", "INFO", "DEBUG")


# ---- The process -----------------------------------------------------------------------------------------------------


def _take_socket() -> socket.socket:
    """The socket that is standard input. User code finds an empty standard input."""
    sock = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.register_at_fork(after_in_child=sock.close)
    return sock


def _end_with_parent() -> None:
    """Linux kills this process when its parent ends, even while user code holds the interpreter.

    A parent that ended before this call has closed the socket, which the watching thread sees at once.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m callboard.worker TARGET, such as app.py:Name", file=sys.stderr)
        return 2
    sock = begin("worker")
    return 2 if sock is None else serve(sock, arguments[0])


def begin(program: str) -> socket.socket | None:
    """Makes this a process of a node, and returns its socket. None after a line that says why there is none."""
    _end_with_parent()
    # The node decides when this process stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        sock = _take_socket()
    except OSError as error:
        print(f"callboard.{program}: standard input is not a socket ({error}): a node starts workers", file=sys.stderr)
        return None
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # It was for the start of this process: the app's own processes find what is beside them.
    os.environ.pop("PYTHONSAFEPATH", None)
    return sock


def serve(sock: socket.socket, target: str, prepared: Prepared | None = None) -> int:
    """Serves a replica over its socket, and returns the exit code."""
    try:
        return Worker(sock, target, prepared).main()
    finally:
        # A thread of the app may keep the process; the node does not wait for it.
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
