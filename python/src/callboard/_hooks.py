"""What an app does besides its calls: it prepares its node, starts and stops with it, warms up, says if it is well."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import inspect
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from callboard._api import ON_START, ON_STOP
from callboard._awaiting import settled, wait
from callboard._context import Context, SetupContext
from callboard._envelope import decode, encode
from callboard._errors import forget
from callboard._runner import Cancelled, Failure, Runner, hook_arguments
from callboard._said import said
from callboard._target import Route, TargetError, error_parameter

if TYPE_CHECKING:
    from callboard._messages import Start

log = logging.getLogger("callboard")

# A replica is asked for its health at most this often.
HEALTH_SECONDS = 1.0


# ---- Preparation -----------------------------------------------------------------------------------------------------


class Preparation:
    """The cache directory of a class, and what `prepare` has put there.

    It is below `$XDG_CACHE_HOME/callboard`, or `~/.cache/callboard`, under a name that belongs to the class and to the
    place of its file. A mark in it says with which code `prepare` has run; a lock beside it lets one process at a time
    do so.
    """

    def __init__(self, owner: Any, cache: str | os.PathLike[str] | None = None) -> None:
        self.name = owner.__name__
        self._prepare = getattr(owner, "prepare", None)
        file = Path(getattr(sys.modules.get(owner.__module__), "__file__", None) or owner.__module__)
        place = hashlib.sha256(os.fsencode(file.absolute().parent)).hexdigest()[:8]
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        # A user without a home has none, and most services need none.
        found = Path(home) / "callboard" / f"{file.stem}-{self.name}-{place}" if home[0] != "~" else None
        self.place = Path(cache) if cache else found

    @property
    def cache(self) -> Path:
        if self.place is None:
            raise RuntimeError(f"{self.name}.prepare needs a directory, and this user has no home: set XDG_CACHE_HOME")
        return self.place

    @property
    def _mark(self) -> Path:
        return self.cache / ".prepared"

    def exists(self) -> bool:
        """Whether there is something to prepare."""
        return callable(self._prepare)

    def is_needed(self) -> bool:
        """Whether `prepare` has not run here, or was changed since."""
        if not self.exists():
            return False
        try:
            return self._mark.read_text() != self._code()
        except OSError:
            return True

    def run(self, instance: Any) -> bool:
        """Runs `prepare` of an instance if that is needed, while other processes wait. Returns whether it ran."""
        if not self.is_needed():
            return False
        with self._lock():
            if not self.is_needed():
                return False
            self.cache.mkdir(parents=True, exist_ok=True)
            result = instance.prepare(**hook_arguments(instance.prepare, {"cache": self.cache}))
            if inspect.isawaitable(result):
                wait(asyncio.run, settled(result))
            self._mark.write_text(self._code())
            return True

    def _code(self) -> str:
        try:
            source = inspect.getsource(inspect.unwrap(self._prepare))  # type: ignore[arg-type]
        except (OSError, TypeError):
            source = ""
        return hashlib.sha256(source.encode()).hexdigest()

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        self.cache.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{self.cache}.lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def setup_context(route: Route, start: Start, instance: Any) -> SetupContext:
    """The context of `setup`, once `prepare` has run."""
    settings = start.settings or {}
    device = str(settings.get("device") or route.service.device or "cpu")
    preparation = Preparation(route.owner, settings.get("cache"))
    preparation.run(instance)
    return SetupContext(start.stage, start.replica, start.generation, device, settings, preparation.place)


# ---- The start and the end of a node ---------------------------------------------------------------------------------

# An import of the modules is a part of the start.
_IMPORT_MS = 60_000
# The interpreter ends, too.
_END_MS = 1000


def not_found(word: str, function: Any, source: str) -> str:
    """What a decorated function needs that an app does not have."""
    if word == "asgi":
        where = f"`{function.__module__}` mounts an ASGI app, and {source} does not"
        return f"{where}: import the result of `asgi` by its name"
    return (
        f"@{word} `{function.__qualname__}` of the module `{function.__module__}` is not found in {source}: import the "
        "function there by its name, and have `functools.wraps` in a decorator above it"
    )


class NodeHooks:
    """The functions of modules that run once per node, in the order in which they are written."""

    def __init__(self, modules: Iterable[ModuleType]) -> None:
        values = {id(value): value for module in modules for value in vars(module).values()}
        functions = [value for value in values.values() if inspect.isfunction(value)]
        self.start = [each for each in functions if hasattr(each, ON_START)]
        self.stop = [each for each in functions if hasattr(each, ON_STOP)]
        self.wait = any(map(inspect.iscoroutinefunction, self.start + self.stop))

    def check(self, noted: Iterable[tuple[str, Any]], source: str) -> None:
        """Raises `TargetError` for a function that was decorated and is not of the modules."""
        found = {inspect.unwrap(each) for each in self.start + self.stop}
        for word, function in noted:
            if word in ("on_start", "on_stop") and inspect.unwrap(function) not in found:
                raise TargetError(not_found(word, function, source))

    async def run(self, functions: Iterable[Callable[[], Any]]) -> None:
        """Runs functions of this in their order, in a test."""
        for function in functions:
            await settled(function())

    def describe(self, target: str) -> dict[str, Any]:
        """As `callboard.describe` prints them."""
        return {
            "target": target,
            "start_timeout_ms": _IMPORT_MS + sum(getattr(each, ON_START) for each in self.start),
            "stop_timeout_ms": _END_MS + sum(getattr(each, ON_STOP) for each in self.stop),
        }


# ---- Examples --------------------------------------------------------------------------------------------------------


async def warm_up(route: Route, runner: Runner) -> None:
    """Runs each example once. A failure is a warning: `callboard check` is for finding it."""
    for number, example in enumerate(route.examples, 1):
        context = Context(route=route.public_name)

        def stop(index: int, output: Any, context: Context = context) -> None:
            # The first output of a stream is warm enough.
            context._cancelled = True

        async def stop_async(index: int, output: Any, context: Context = context) -> None:
            context._cancelled = True
            raise Cancelled

        begin = time.monotonic()
        signature = route.signature
        inputs = [decode(encode(example, signature.input_forms), is_as_sent=signature.takes_frames_as_sent)]
        if runner.signature.is_async:
            (outcome,) = await runner.run_async(inputs, [context], stop_async, lambda cancel: None)
        else:
            (outcome,) = runner.run(inputs, [context], stop)
        if isinstance(outcome, Failure) and not context._cancelled:
            log.warning("%s: example %d failed at warm-up: %s", runner.name, number, said(outcome.error))
        else:
            log.debug("%s: example %d ran in %.0f ms", runner.name, number, 1000 * (time.monotonic() - begin))
        if isinstance(outcome, Failure):
            forget(outcome.error)


# ---- Health ----------------------------------------------------------------------------------------------------------


def clean_up(instance: Any, error: BaseException | None) -> Any:
    """Runs `cleanup`, if there is one, and returns what it returns. It gets what ends the replica, if it takes that:
    `None` if the node stops it."""
    cleanup = getattr(instance, "cleanup", None)
    if cleanup is None:
        return None
    parameter = error_parameter(cleanup)
    if parameter is None:
        return cleanup()
    has_place = parameter.default is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY
    return cleanup(error) if has_place else cleanup(**{parameter.name: error})


async def cleaned_up(instance: Any, error: BaseException | None) -> bool:
    """Runs `cleanup` at the end of a replica. What it raises is logged, and hides no reason of that end."""
    try:
        await settled(clean_up(instance, error))
    except (Exception, SystemExit) as failure:
        if error is None and isinstance(failure, SystemExit):
            raise
        log.error("%s.cleanup failed: %s", type(instance).__name__, said(failure), exc_info=failure)
        forget(failure)
        return False
    return True


class Health:
    """Asks an instance whether it is well, between batches."""

    def __init__(self, instance: Any) -> None:
        self._ask = getattr(instance, "health", None)
        self._next = 0.0

    async def reason(self) -> str | None:
        """Why the replica must end; None if it is well, or was so a moment ago."""
        if not callable(self._ask) or time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + HEALTH_SECONDS
        try:
            answer = await settled(self._ask())
            is_well = answer is None or bool(answer)
        except Exception as error:
            reason = f"health() raised {type(error).__name__}: {said(error)}"
            forget(error)
            return reason
        return None if is_well else f"health() is {said(answer, repr)}"
