"""A replica: `python -m callboard.worker TARGET` serves one route over the socket that is its standard input.

The protocol is `docs/worker-protocol.md`. The main thread receives a batch, runs user code (asynchronous code in its
loop) and sends: a call costs one wake-up. While user code runs, cancellations are read when it looks at
`context.cancelled`, or by its event loop. A second thread sleeps until the socket ends, and ends the process: it never
outlives its node.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import logging
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NoReturn

import msgspec

from callboard import _after, _context, _depends
from callboard._after import PENDING
from callboard._awaiting import finish, settled
from callboard._calls import WorkerCalls
from callboard._context import Context, SetupContext
from callboard._envelope import Buffer, Decoder
from callboard._errors import error_map, failed, forget, said_in_line, shortened
from callboard._frames import MAX_HEAD_BYTES, FrameError, Reader, Writer
from callboard._hooks import Health, cleaned_up, setup_context, warm_up
from callboard._logs import LogHandler, set_log_level
from callboard._messages import (
    PROTOCOL,
    Batch,
    BatchHead,
    CallOutput,
    Cancel,
    Credit,
    Message,
    Ping,
    Result,
    Start,
    Stop,
    decode_message,
)
from callboard._process import begin, version
from callboard._response import SENT, add_chosen, begun
from callboard._runner import RELAY, Failure, Runner, setup_arguments
from callboard._said import clip, said
from callboard._shared_memory import IS_SUPPORTED, Incoming, Outgoing
from callboard._target import Route, TargetError, beside, load_module, route_of, split
from callboard.metrics import REGISTRY

_HANG_UP = select.POLLHUP | getattr(select, "POLLRDHUP", 0)
_WATCH_SECONDS = 0.05
_BEAT_MILLIS = 1000

_encode_head = msgspec.msgpack.Encoder().encode
log = logging.getLogger("callboard")


@dataclasses.dataclass
class Prepared:
    """The work that a replica is spared: the process from which it was forked has done it."""

    module: ModuleType
    # None if replicas of several routes are forked from it.
    route: Route | None = None
    instance: Any = None
    # The start that `setup` has run for; None if it has not run.
    set_up_for: Start | None = None


class Worker:
    """Speaks the protocol for one route, and for those that its replica runs beside it."""

    def __init__(self, sock: socket.socket, target: str, prepared: Prepared | None = None) -> None:
        self._target = target
        self._prepared = prepared
        self._socket = sock
        self._reader = Reader(sock)
        self._writer = Writer(sock, self._look)
        # The thread that has it reads.
        self._reading = threading.Lock()
        # The batches that do not run yet, and `stop`.
        self._messages: deque[Start | Batch | Stop] = deque()
        self._running: dict[int, Batch] = {}
        self._max_batches = 1
        self._ahead = 0
        # Why this replica ends; all further outcomes say `last`.
        self._unwell: str | None = None
        # The phase of the start, if the node wants to know it.
        self._phase: str | None = None
        # The code with which this process ends when its socket has ended.
        self.exit_code = 0
        self._credit: int | None = None
        # By method; None is that of the target.
        self._runners: dict[str | None, Runner] = {}
        # The event loop, where there is one, and what wakes it.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._wake: Callable[[], object] | None = None
        self._max_bytes = 0
        self._may_call = False
        self._takes_metrics = False
        self._decoder = Decoder()
        self._calls = WorkerCalls(
            self._send, self._read, sock.fileno(), self._reading, self._writer.is_sending, self._running
        )

    def main(self) -> int:
        """Serves until `stop`, and returns the exit code."""
        threading.Thread(target=self._watch, name="callboard-watcher", daemon=True).start()
        _context.look, _context.is_over = self._look, self._is_over
        start = self._next()
        if not isinstance(start, Start):
            self._end("the first frame is not `start`", 1)
        self._max_bytes, self._takes_metrics = start.max_bytes, start.metrics
        self._phase = "starting" if start.progress else None
        self._ahead = min(start.ahead, 1)
        logging.getLogger().handlers = [LogHandler(self._send_log)]
        # An import that is over may have set the level.
        if self._prepared is None or "log_level" in (start.settings or {}):
            set_log_level(start.settings or {})
        with self._starting():
            if start.protocol != PROTOCOL:
                raise TargetError(f"protocol {start.protocol}: this worker speaks {PROTOCOL}")
            self._says("importing")
            prepared = self._prepared or Prepared(load_module(split(self._target)[0]))
            route = prepared.route or route_of(prepared.module, self._target)
            shared = prepared.set_up_for
            if shared is not None and shared.settings != start.settings:
                raise TypeError(f"{route.name}: share_setup needs the same settings for all replicas")
            instance = route.instance() if shared is None else prepared.instance
            if hasattr(instance, "prepare"):
                self._says("preparing")
            context = setup_context(route, start, instance)
            routes = [each.computed() for each in (route, *beside(route, start.methods))]
            if route.service.keyed is not None:
                instance.context = context
        self._may_call = bool(_depends.depends_of(route.owner))
        self._calls.max_bytes, self._calls.awaits = start.max_bytes, route.in_loop
        _depends.current = self._calls
        setup = getattr(instance, "setup", None) if shared is None else None
        hooks = [setup, *(getattr(instance, name, None) for name in ("cleanup", "health"))]
        # Async code needs a loop from its setup on, and so do calls in several threads.
        if any(each.in_loop for each in routes) or any(map(inspect.iscoroutinefunction, hooks)):
            return asyncio.run(self._serve_async(routes, instance, setup, context, start))
        return self._serve(routes, instance, setup, context, start)

    def _serve(
        self, routes: list[Route], instance: Any, setup: Callable[..., Any] | None, context: SetupContext, start: Start
    ) -> int:
        with self._starting():
            if setup is not None:
                self._says("setup")
                setup(**setup_arguments(setup, context))
            self._make_runners(routes, instance, start)
            # A dependency is called for an item only.
            if not self._may_call:
                self._says("warming up")
                for route, runner in zip(routes, self._runners.values(), strict=True):
                    finish(warm_up(route, runner))
        self._health = Health(instance)
        self._ready()
        try:
            while isinstance(message := self._next(), Batch):
                self._run(message, self._runners[message.method])
                if self._unwell is not None:
                    PENDING.cut_after(None)
                    finish(cleaned_up(instance, RuntimeError(self._unwell)))
                    self._end(None, 1)
        except SystemExit as error:
            # The batch waits for the end of this process.
            cut = threading.Timer(_after.STOP_SECONDS, self._cut_cleanup, (error,))
            cut.daemon = True
            cut.start()
            finish(cleaned_up(instance, error))
            cut.cancel()
            raise
        PENDING.cut_after(message.timeout_ms if isinstance(message, Stop) else None)
        return int(not finish(cleaned_up(instance, None)))

    def _cut_cleanup(self, error: SystemExit) -> NoReturn:
        log.error("cleanup did not end within %.1f s of a SystemExit and is cut", _after.STOP_SECONDS)
        self._end(said_in_line(error), _exit_code(error))

    async def _serve_async(
        self, routes: list[Route], instance: Any, setup: Callable[..., Any] | None, context: SetupContext, start: Start
    ) -> int:
        """The loop runs all the time, so that tasks of the user's own go on between batches."""
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        self._loop_thread = threading.get_ident()

        def wake() -> None:
            if threading.get_ident() == self._loop_thread:
                arrived.set()
            else:
                loop.call_soon_threadsafe(arrived.set)

        self._loop, self._wake = loop, wake
        loop.add_reader(self._socket, self._look)
        # Frames that arrived with `start` do not wake the loop.
        self._look()
        with self._starting():
            if setup is not None:
                self._says("setup")
                await settled(setup(**setup_arguments(setup, context)))
            self._make_runners(routes, instance, start)
            if not self._may_call:
                self._says("warming up")
                for route, runner in zip(routes, self._runners.values(), strict=True):
                    await warm_up(route, runner)
        self._health = Health(instance)
        runner = self._runners[None]
        if runner.in_loop and not runner.signature.batched:
            self._max_batches = min(start.max_batches, runner.concurrency)
            self._credit = start.credit
        if self._max_batches > 1:
            self._ahead = 0
        self._ready()
        tasks: set[asyncio.Task[None]] = set()
        while isinstance(message := await self._next_in_loop(arrived), Batch):
            runner = self._runners[message.method]
            if self._max_batches == 1:
                await self._run_in_loop(message, runner, loop)
                if self._unwell is not None:
                    await asyncio.to_thread(PENDING.cut_after, None)
                    await cleaned_up(instance, RuntimeError(self._unwell))
                    self._end(None, 1)
                continue
            # It does not look for `_unwell`: the node ends this process when all its batches are answered.
            task = asyncio.create_task(self._run_in_loop(message, runner, loop))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        if PENDING.pending:
            await asyncio.to_thread(PENDING.cut_after, message.timeout_ms if isinstance(message, Stop) else None)
        error = None if self._unwell is None else RuntimeError(self._unwell)
        return int(not await cleaned_up(instance, error))

    def _make_runners(self, routes: list[Route], instance: Any, start: Start) -> None:
        names = [None, *(route.attribute for route in routes[1:])]
        contracts = start.contracts or [route.service.contract for route in routes]
        self._runners = {
            name: Runner(route, instance, start.files, contract)
            for name, route, contract in zip(names, routes, contracts, strict=True)
        }

    @contextlib.contextmanager
    def _starting(self) -> Iterator[None]:
        """An exception before `ready` is reported, and ends the process."""
        try:
            yield
        except Exception as error:
            self._send(failed(error))
            self._end(None, 1)

    async def _run_in_loop(self, batch: Batch, runner: Runner, loop: asyncio.AbstractEventLoop) -> None:
        if not runner.in_loop:
            results = runner.run(self._inputs(batch, runner), batch.contexts, self._emitter(batch, runner))
            self._finish(batch, results, runner, await self._health.reason())
            return

        def started(cancel: Callable[[int], None]) -> None:
            batch.on_cancel = lambda index: loop.call_soon_threadsafe(cancel, index)

        inputs, send = self._inputs(batch, runner), self._emitter(batch, runner)

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
        if self._ahead:
            # A frame behind a batch may cancel it.
            self._look()
        return self._messages.popleft()

    # ---- Reading -----------------------------------------------------------------------------------------------------

    def _next(self) -> Start | Batch | Stop:
        with self._reading:
            # A frame behind a batch may cancel it: a batch that arrived before its turn does not begin then.
            self._reader.look()
            while self._read(wait=False):
                pass
            while not self._messages:
                self._read(wait=True)
            return self._messages.popleft()

    def _look(self) -> None:
        """Takes the frames that arrived, unless another thread reads. A forked process has no socket."""
        if self._socket.fileno() >= 0 and self._reading.acquire(blocking=False):
            try:
                self._reader.look()
                while self._read(wait=False):
                    pass
            finally:
                self._reading.release()
                # A thread that waits for a call may have found that this one reads.
                self._calls.wake_another()

    def _watch(self) -> NoReturn:
        """The watching thread. It sleeps until the socket ends, and reads the rest: the end is the end of the process.

        Frames do not wake it, so it costs a call nothing. Until this replica is ready it says every second what is
        done, as a sign of life.
        """
        poll = select.poll()
        poll.register(self._socket, _HANG_UP)
        while not any(event & _HANG_UP for _, event in poll.poll(None if self._calls.is_ready else _BEAT_MILLIS)):
            if not self._calls.is_ready:
                self._says(self._phase)
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
                self._take(decode_message(frame[0]), frame[1])
            return frame is not None
        except (EOFError, OSError):
            self._end(None, self.exit_code)
        except MemoryError as error:
            self._end(f"out of memory for a batch; see memory_limit and max_batch_bytes: {error}", 1)
        except Exception as error:
            self._end(f"a frame that is not of the protocol: {error}", 1)

    def _take(self, message: Message, parts: list[Buffer]) -> None:
        # Most often of all.
        if isinstance(message, CallOutput):
            if len(parts) != 1:
                raise FrameError(f"an output with {len(parts)} parts")
            self._calls.take_output(message.id, parts[0])
            return
        if isinstance(message, (Cancel, Credit)):
            # The batch may just have ended.
            batch = self._running.get(message.id)
            if batch is None:
                return
            if isinstance(message, Cancel):
                batch.cancel(message.item)
            elif self._loop is not None and batch.credit is not None:
                give = functools.partial(_give_credit, batch.credit[message.item], message.outputs)
                # To wake the loop costs as much as an output.
                give() if threading.get_ident() == self._loop_thread else self._loop.call_soon_threadsafe(give)
            return
        if isinstance(message, Ping):
            # The loop answers: code that blocks it has stopped.
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._send, {"type": "pong"})
            return
        if isinstance(message, Result):
            self._calls.take(message, parts)
            return
        if isinstance(message, BatchHead):
            if len(parts) != len(message.items):
                raise FrameError(f"a batch of {len(message.items)} items with {len(parts)} parts")
            if len(self._running) == self._max_batches + self._ahead:
                raise FrameError(f"batch {message.id} while batch {next(iter(self._running))} runs")
            if message.id in self._running:
                raise FrameError(f"batch {message.id} runs already")
            if message.method is not None and message.method not in self._runners:
                raise FrameError(f"batch {message.id} is of the unknown method {message.method!r}")
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
        results = runner.run(self._inputs(batch, runner), batch.contexts, self._emitter(batch, runner))
        self._finish(batch, results, runner, finish(self._health.reason()))

    def _inputs(self, batch: Batch, runner: Runner) -> list[Any]:
        """The inputs of a batch that begins now."""
        is_as_sent = runner.signature.takes_frames_as_sent
        # In a thread nothing awaits, whatever this says.
        self._calls.awaits = runner.in_loop
        inputs: list[Any] = []
        for part, context in zip(batch.parts, batch.contexts, strict=True):
            # A gateway of evaluations decides the library of each frame that has no hint.
            self._decoder.unpacks = RELAY in context.tags
            self._decoder.is_as_sent = is_as_sent or self._decoder.unpacks
            try:
                inputs.append(self._decoder.decode(part))
            except Exception as error:
                inputs.append(Failure(error))
        # The batch is still referred to while the next one is awaited.
        batch.parts = []
        return inputs

    def _emitter(self, batch: Batch, runner: Runner) -> Callable[[int, Any], None]:
        def emit(index: int, output: Any) -> None:
            pieces = runner.encode(output)
            size = self._checked(sum(map(len, pieces)))
            head = {"type": "output", "id": batch.id, "item": index}
            context = batch.contexts[index]
            if context._response is not SENT and (response := begun(context)):
                head["response"] = response
            self._send(head, [size], pieces)

        return emit

    def _finish(self, batch: Batch, results: list[Any], runner: Runner, unwell: str | None) -> None:
        """Sends the outcome of each item. A replica that is not well ends after it."""
        items: list[dict[str, Any] | None] = []
        lengths: list[int] = []
        parts: list[Buffer] = []
        failures: list[BaseException] = []
        total, chosen, encode = 0, 0, runner.encode
        responses: list[dict[str, Any] | None] = []
        for result, context in zip(results, batch.contexts, strict=True):
            if isinstance(result, Failure):
                items.append(error_map(result.error))
                failures.append(result.error)
                continue
            try:
                if not runner.signature.streams:
                    is_plain = context._response is None and not context.tags
                    pieces = encode(result) if is_plain else runner.encoded(result, context)
                    size = len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces))
                    total = self._checked(total + size)
                if context._response is not None:
                    chosen = add_chosen(responses, len(items), context, chosen)
            except Exception as error:
                items.append({"message": f"the output of {runner.name}: {said(error)}"})
                continue
            if not runner.signature.streams:
                lengths.append(size)
                parts += pieces
            items.append(None)
        # Items may share an error, whose text each of them needs.
        for failure in failures:
            forget(failure)
        if failures:
            from callboard._out_of_memory import free_memory, is_out_of_memory

            if any(map(is_out_of_memory, failures)):
                free_memory()
        # A batch may follow as soon as this one is answered.
        del self._running[batch.id]
        # It has the tasks, and the batch is still referred to while the next one is awaited.
        batch.on_cancel = None
        self._calls.end(batch.id)
        head = {"type": "outcomes", "id": batch.id, "items": items}
        if responses:
            head["responses"] = responses
        if unwell is None and self._unwell is None:
            self._send(head, lengths, parts)
            self._begin_after(batch)
            return
        if self._unwell is None:
            log.error("this replica ends, and is started again: %s", unwell)
        self._unwell = self._unwell or unwell
        REGISTRY.flush()
        self._send({**head, "last": True}, lengths, parts)
        self._begin_after(batch)

    def _is_over(self, context: Context) -> bool:
        return context._place is not None and context._place[0] not in self._running

    def _begin_after(self, batch: Batch) -> None:
        """Starts the work after the answers of a batch."""
        for context in batch.contexts:
            if context._after is not None:
                PENDING.begin(context, self._loop)

    def _checked(self, total: int) -> int:
        if total > self._max_bytes:
            raise ValueError(f"{total} bytes exceed max_bytes = {self._max_bytes}")
        return total

    # ---- Sending -----------------------------------------------------------------------------------------------------

    def _says(self, phase: str | None) -> None:
        """Says what is done until this replica is ready, if the node wants to know it."""
        if self._phase is not None:
            self._phase = phase
            self._send({"type": "starting", "phase": phase})

    def _ready(self) -> None:
        self._calls.is_ready = True
        self._phase = None
        head: dict[str, Any] = {"type": "ready", "protocol": PROTOCOL, "worker": version()}
        if self._reader.memories is not None:
            head["shared_memory"] = True
        if self._max_batches > 1:
            head["max_batches"] = self._max_batches
        if self._ahead:
            head["ahead"] = self._ahead
        if self._may_call:
            head["calls"] = True
        if len(self._runners) > 1:
            head["methods"] = True
        self._send(head)
        if self._takes_metrics:
            REGISTRY.connect(lambda samples: self._send({"type": "metrics", "samples": samples}))

    def _send_log(self, level: str, target: str, message: str, request_id: str | None) -> None:
        head = {"type": "log", "level": level, "target": target, "message": clip(message)}
        self._send(head if request_id is None else {**head, "request_id": request_id})

    def _send(self, head: dict[str, Any], lengths: Sequence[int] = (), parts: Sequence[Buffer] = ()) -> None:
        encoded = _encode_head(head)
        if len(encoded) > MAX_HEAD_BYTES:
            items = head["items"]
            room = MAX_HEAD_BYTES // (8 * len(items))
            encoded = _encode_head({**head, "items": [shortened(item, room) for item in items]})
        try:
            self._writer.send(encoded, lengths, parts)
        except OSError:
            self._end(None, self.exit_code)

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


# ---- The process -----------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m callboard.worker TARGET, such as app.py:Name", file=sys.stderr)
        return 2
    sock = begin("worker")
    return 2 if sock is None else serve(sock, arguments[0])


def serve(sock: socket.socket, target: str, prepared: Prepared | None = None) -> int:
    """Serves a replica over its socket, and returns the exit code."""
    replica = Worker(sock, target, prepared)
    try:
        # Other threads may end the process with the socket.
        replica.exit_code = replica.main()
        return replica.exit_code
    except (KeyboardInterrupt, SystemExit) as error:
        # The node reads why user code ends its replica.
        replica.exit_code = _exit_code(error)
        print(f"callboard.worker: {said_in_line(error)}", file=sys.stderr, flush=True)
        return replica.exit_code
    finally:
        REGISTRY.flush()
        # A thread of the app may keep the process; the node does not wait for it.
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _exit_code(error: KeyboardInterrupt | SystemExit) -> int:
    code = error.code if isinstance(error, SystemExit) else 1
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
