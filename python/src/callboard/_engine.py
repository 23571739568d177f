"""Runs a pipeline by the engine of a node, in this process: its steps mean in a test what they mean on a node.

The engine is in the extension. It gives batches of items to Python, whose code runs here: in the event loop of the
test, or, if no code waits, in the thread that makes the call.
"""

from __future__ import annotations

import asyncio
import collections
import copy
import dataclasses
import functools
import itertools
import select
import threading
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from callboard._awaiting import finish
from callboard._compose import Step, tree
from callboard._context import Context
from callboard._envelope import decode, encode
from callboard._errors import call_error, let_go
from callboard._exceptions import InvalidInput
from callboard._response import Declared, Response
from callboard._runner import Failure as ItemFailure
from callboard._target import Route, TargetError
from callboard.client.errors import to_error
from callboard.client.local import Outputs
from callboard.client.transport import Failure

if TYPE_CHECKING:
    from callboard._native import Engine

# The open calls of one `batch()`. Other bounds are those of a node: a call that finds a full queue is `overloaded`.
_MAX_CALLS = 64


class Stage(Protocol):
    """A service or function that is a step."""

    # Whether its code is asynchronous.
    waits: bool

    @property
    def main(self) -> Route: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def run(
        self, items: list[bytes], method: str | None, contexts: list[Context]
    ) -> list[tuple[list[bytes], ItemFailure | None]]:
        """For each item its outputs, and what ended it."""


@dataclasses.dataclass
class _Call:
    number: int
    context: Context
    # The exceptions of its items, by the numbers that the engine has of them.
    errors: list[BaseException] = dataclasses.field(default_factory=list)
    # Its outputs, and the error that ended it.
    outcome: tuple[list[bytes], Failure | None] | None = None
    has_ended: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    def end(self, outputs: list[bytes], failure: Failure | None) -> None:
        self.outcome = (outputs, failure)
        self.has_ended.set()


class Steps:
    """The steps of a pipeline. `stages` has what runs each service or function in them."""

    def __init__(self, app: Step, stages: Mapping[Any, Stage]) -> None:
        self._stages: dict[str, Stage] = {}
        for stage in stages.values():
            if self._stages.setdefault(stage.main.stage, stage) is not stage:
                raise TargetError(f"two steps are both called `{stage.main.stage}`: give one a route")
        self._plan = encode(tree(app, lambda owner: stages[owner].main.stage))
        said = [stage.main.response for stage in stages.values()]
        declared = [each for each in said if each is not None]
        self._declared = functools.reduce(Declared.followed_by, declared) if declared else None
        self._streams = any(stage.main.signature.streams for stage in stages.values())
        self.waits = any(stage.waits for stage in stages.values())
        self._calls: dict[int, _Call] = {}
        self._numbers = itertools.count()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._events = select.poll()
        # Events of the engine that nothing has handled yet.
        self._taken: collections.deque[Any] = collections.deque()
        self._open: list[Stage] = []
        self._lock = threading.RLock()
        self._engine: Engine | None = None

    async def open(self) -> None:
        try:
            from callboard._native import Engine
        except ImportError as error:
            raise TargetError(
                "a pipeline runs by the engine of a node, callboard._native: wheels have it; "
                "without it, test the steps one by one"
            ) from error
        routes = [(name, stage.main) for name, stage in self._stages.items()]
        sizes = [
            (name, route.signature.streams, route.max_batch_size, route.method.concurrency or 1)
            for name, route in routes
        ]
        try:
            self._engine = Engine(self._plan, sizes)
        except ValueError as error:
            raise TargetError(str(error)) from None
        try:
            for stage in self._stages.values():
                await stage.open()
                self._open.append(stage)
        except BaseException:
            await self.close()
            raise
        if self.waits:
            asyncio.get_running_loop().add_reader(self._engine, self._take)
        else:
            self._events.register(self._engine, select.POLLIN)

    async def close(self) -> None:
        # A thread that runs code of a step has the lock until its call has ended.
        with self._lock:
            if self._engine is not None and self.waits:
                asyncio.get_running_loop().remove_reader(self._engine)
            self._engine = None
            self._taken.clear()
            for call in list(self._calls.values()):
                if call.outcome is None:
                    call.end([], Failure("unavailable", "the test client is closed"))
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        while self._open:
            await self._open.pop().close()

    def route_at(self, name: str) -> Route | None:
        return None

    async def call(self, value: Any, method: str | None, context: Context | None, *, as_client: bool = False) -> Any:
        (call,) = await self._run([value], context)
        output, error = self._outcome(call, as_client)
        try:
            if error is not None:
                raise error
            if call.context._response is not None:
                call.context._response._end(self._declared, output if self._streams else [output])
            return output
        finally:
            # A frame that has its own error is a cycle.
            del error

    async def batch(self, values: list[Any], method: str | None) -> list[Any]:
        starts = range(0, len(values), _MAX_CALLS)
        calls = [call for start in starts for call in await self._run(values[start : start + _MAX_CALLS], None)]
        found = [self._outcome(call, as_client=False) for call in calls]
        try:
            return [output if error is None else error for output, error in found]
        finally:
            # A frame that has its own errors is a cycle.
            found.clear()

    def outputs(self, value: Any, method: str | None, context: Context) -> AsyncGenerator[Any, None]:
        raise NotImplementedError("the outputs of a pipeline come together")

    def _outcome(self, call: _Call, as_client: bool) -> tuple[Any, BaseException | None]:
        """The output of a call, or what it raises."""
        assert call.outcome is not None
        outputs, failure = call.outcome
        # The errors that an ensemble kept as outputs of its members are let go as well.
        errors = list(map(let_go, call.errors))
        call.errors.clear()
        call.outcome = None
        if failure is not None:
            return None, _error(errors, failure, as_client)
        values = Outputs(map(decode, outputs))
        return (values if self._streams else values[0]), None

    # ---- The engine --------------------------------------------------------------------------------------------------

    async def _run(self, values: list[Any], context: Context | None) -> list[_Call]:
        """Makes the calls, and waits until all have ended."""
        calls = [_Call(next(self._numbers), context or Context()) for _ in values]
        try:
            for call, value in zip(calls, values, strict=True):
                self._calls[call.number] = call
                self._opened.call(call.number, encode(value), call.context.remaining())
            for call in calls:
                if self.waits:
                    await call.has_ended.wait()
                else:
                    self._wait_here(call)
            return calls
        finally:
            for call in calls:
                if self._calls.pop(call.number, None) and call.outcome is None:
                    # Nothing reads them, and their frames refer to the call.
                    call.errors.clear()
                    if self._engine is not None:
                        self._engine.cancel(call.number)

    @property
    def _opened(self) -> Engine:
        if self._engine is None:
            raise TargetError("the test client is closed: use it inside of `with`")
        return self._engine

    def _wait_here(self, call: _Call) -> None:
        """Runs code in this thread until the call has ended. Another thread may run it meanwhile."""
        with self._lock:
            while call.outcome is None:
                if not self._taken:
                    self._events.poll()
                self._take()

    def _take(self) -> None:
        self._taken.extend(self._opened.take())
        # An interrupt of a step leaves the rest to the other threads.
        while self._taken:
            event = self._taken.popleft()
            if event[0] == "run":
                self._start(*event[1:])
            elif event[0] == "left":
                if task := self._tasks.get(event[1]):
                    task.cancel()
            elif call := self._calls.get(event[1]):
                call.end(event[2], event[3])

    def _start(self, batch: int, name: str, items: list[tuple[int, bytes]]) -> None:
        running = self._run_batch(batch, name, items)
        if not self.waits:
            finish(running)
            return
        task = self._tasks[batch] = asyncio.ensure_future(running)
        # It may be cancelled before its first step.
        task.add_done_callback(lambda _: self._tasks.pop(batch, None))

    async def _run_batch(self, batch: int, name: str, items: list[tuple[int, bytes]]) -> None:
        calls = [self._calls.get(number) for number, _ in items]
        contexts = [_context_of_step(call) for call in calls]
        chosen = [context._response for context in contexts]
        stage = self._stages[name]
        method = stage.main.attribute or stage.main.name
        try:
            answers = await stage.run([item for _, item in items], method, contexts)
        except Exception as error:
            answers = [([], ItemFailure(error)) for _ in items]
        except (KeyboardInterrupt, SystemExit) as error:
            # It leaves this thread, and the calls may be those of others.
            self._answer(batch, calls, [([], ItemFailure(error)) for _ in items])
            raise
        for call, response, (_, failure) in zip(calls, chosen, answers, strict=True):
            if call is not None and response is not None and failure is None and call.context._response is not None:
                # A later step replaces what an earlier one has chosen.
                call.context._response._replace_by(response)
        self._answer(batch, calls, answers)

    def _answer(
        self, batch: int, calls: list[_Call | None], answers: list[tuple[list[bytes], ItemFailure | None]]
    ) -> None:
        told = [
            (outputs, None if failure is None else _told(call, failure.error))
            for call, (outputs, failure) in zip(calls, answers, strict=True)
        ]
        # A step may outlive the client: it has handled its cancellation.
        if self._engine is not None:
            self._engine.answer(batch, told)


def _context_of_step(call: _Call | None) -> Context:
    """The context of one item. It has a response of its own if the call has one."""
    # The caller of a call that is over has left.
    if call is None:
        return Context(_cancelled=True)
    context = copy.copy(call.context)
    context._response = None if context._response is None else Response()
    return context


def _told(call: _Call | None, error: BaseException) -> tuple[str, str, int]:
    """An error as the engine needs it: kind, message, and its number."""
    found = call_error(error)
    number = 0 if call is None else len(call.errors)
    if call is not None:
        call.errors.append(error)
    return found.kind, found.message, number


def _error(errors: list[BaseException], failure: Failure, as_client: bool) -> BaseException:
    """What the code has raised, or the error of the engine. For a client, what a node would tell it."""
    error = errors[failure.details] if isinstance(failure.details, int) else None
    if as_client:
        if error is not None:
            found = call_error(error)
            failure.details, failure.remote_traceback = found.details, found.remote_traceback
            failure.status, failure.error_type = found.status_code, found.type
            failure.retry_after = found.retry_after
        return failure
    if error is not None:
        return error
    if failure.kind == "invalid_input":
        fields = failure.details.get("fields", ()) if isinstance(failure.details, dict) else ()
        return InvalidInput(failure.message, [(field["path"], field["message"]) for field in fields])
    return to_error(failure)
