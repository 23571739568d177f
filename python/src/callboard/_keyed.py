"""Keyed classes: one object for each key, whose state the node keeps.

The node has the state of a key, lets one call at a time in, and gives it the state with the input. A replica makes an
object of it, runs the method, and answers with the output and the state, if that has changed. It keeps the object for
the next call of the key, but no promise depends on that.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
import typing
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from callboard._api import SERVICE, service_of
from callboard._awaiting import settled
from callboard._context import Context, SetupContext
from callboard._envelope import decode
from callboard._options import check_names, hyphened, positive, timeout_ms
from callboard._response import ANSWERS
from callboard._said import said
from callboard._signature import Signature

if TYPE_CHECKING:
    from callboard._target import Route

C = TypeVar("C", bound=type)
# The objects that a replica keeps.
_KEPT = 1000
# A state is at most 1 MiB, so a node has memory for this many.
_MAX_ACTIVE = 100_000
# Methods that no call reaches.
_HOOKS = ("setup",)
_SERVICE_OPTIONS = (
    *("name", "route", "replicas", "timeout", "queue", "start_timeout", "device", "devices", "memory_limit", "env"),
    *("affinity", "warm", "headers", "query"),
)
_OPTIONS = ("durable", "save_every", "idle_after", "max_active", *_SERVICE_OPTIONS)


@dataclasses.dataclass(frozen=True)
class Keyed:
    """The options of `keyed`, beside those of a service."""

    # Its file, and its name there: two classes of one kind would mix their states.
    source: str
    kind: str
    # None: before the answer leaves.
    save_every_ms: int | None = None
    idle_after_ms: int = 60_000
    max_active: int = _MAX_ACTIVE


@overload
def keyed(cls: C, /) -> C: ...


@overload
def keyed(
    *,
    durable: bool = ...,
    save_every: str | float = ...,
    idle_after: str | float = ...,
    max_active: int = ...,
    name: str | None = ...,
    route: str | None = ...,
    replicas: int | tuple[int, int] = ...,
    timeout: str | float | None = ...,
    queue: int | None = ...,
    start_timeout: str | float | None = ...,
    device: str | None = ...,
    devices: Any = ...,
    memory_limit: str | int | None = ...,
    env: Any = ...,
    affinity: Any = ...,
    warm: bool = ...,
    headers: Sequence[str] = ...,
    query: Sequence[str] = ...,
) -> Callable[[C], C]: ...


def keyed(cls: Any = None, /, **options: Any) -> Any:
    """Makes a class one whose objects have a key each: one cart for each customer, wherever in the cluster.

        @cb.keyed
        class Cart:
            state: list[str]

            def add(self, item: str) -> int:
                self.state.append(item)
                return len(self.state)

    `POST /cart/ann/add` calls `add` of the cart `ann`. Each method is a route, unless its name begins with `_`;
    `predict` is `/cart/{key}`, and `callboard.route` gives a method another path with `{key}`. The calls of a key run
    one after another, those of different keys at the same time in the replicas.

    `state` is what is kept of a key: its hint may be all that a parameter may be, such as a dataclass. A new key begins
    with a copy of the class attribute `state`, else with what the type makes without arguments. `self.key` is the key.
    A method that raises changes nothing. `del self.state` removes the state of the key from the store, as if it had
    never been called. Other attributes live as long as their object, which a replica drops at any time: `setup` makes
    them, and gets by name what `setup` of a service gets, `key` and `state`.

    * `durable`: what a call has changed is saved before its answer leaves, by default. `False`: at most every
      `save_every`, `"5s"` by default, and when the key becomes idle. A node that is killed loses what it has not saved.
    * `idle_after`: how long the node keeps the state of a key in memory after its last call, `"60s"` by default.
    * `max_active`: the most keys in memory of a node, 100,000 by default.
    * `name`: with hyphens the name of the class in the store, which must stay the same; by default that of the class.

    The others are those of `service`. Where the states are: `actors.store`, by default a file beside the app.

    Raises `TypeError` for an unknown option or anything but a class, and `ValueError` for a value out of its range.
    """
    check_names("keyed", options, _OPTIONS)

    def decorate(cls: Any) -> Any:
        if not isinstance(cls, type):
            raise TypeError(f"@keyed decorates a class, not {cls!r}")
        found = service_of(cls, False, **{name: each for name, each in options.items() if name in _SERVICE_OPTIONS})
        setattr(cls, SERVICE, dataclasses.replace(found, keyed=_keyed_of(cls, found.name, options)))
        return cls

    return decorate if cls is None else decorate(cls)


def _keyed_of(cls: type, name: str, options: dict[str, Any]) -> Keyed:
    durable = options.get("durable", True)
    if durable and "save_every" in options:
        raise ValueError("save_every is for durable=False: otherwise each change is saved before its answer")
    return Keyed(
        source=f"{getattr(sys.modules.get(cls.__module__), '__file__', cls.__module__)}:{cls.__qualname__}",
        kind=hyphened(name),
        save_every_ms=None if durable else timeout_ms(options.get("save_every", "5s"), "save_every"),
        idle_after_ms=timeout_ms(options.get("idle_after", "60s"), "idle_after"),
        max_active=positive("max_active", options.get("max_active", _MAX_ACTIVE)),
    )


def methods_of(cls: Any) -> list[str]:
    """The methods that are routes. `TypeError` names one that a keyed class cannot have."""
    for hook in ("cleanup", "health", "prepare"):
        if hasattr(cls, hook):
            raise TypeError(f"{cls.__name__}.{hook}: a keyed class has none: its objects are dropped without notice")
    found = [name for name in dir(cls) if not name.startswith("_") and name not in _HOOKS]
    return [name for name in found if inspect.isfunction(inspect.getattr_static(cls, name))]


class State:
    """How the state of a class is made, read and written. `TypeError` says what is wrong with it."""

    def __init__(self, cls: Any) -> None:
        self._cls = cls
        try:
            hint = typing.get_type_hints(cls, include_extras=True).get("state")
        except NameError as error:
            raise TypeError(f"{cls.__name__}: a type hint cannot be read: {error}") from error
        if hint is None:
            raise TypeError(f"{cls.__name__}: a keyed class says what is kept of a key: write `state: dict[str, int]`")

        def state(state: Any) -> Any: ...

        state.__annotations__ = {"state": hint, "return": hint}
        self._form = Signature(state, f"{cls.__name__}.state", drop_self=False, batched=False)
        self._make = typing.get_origin(hint) or hint
        self.fresh()

    def fresh(self) -> Any:
        """The state of a new key."""
        if hasattr(self._cls, "state"):
            return copy.deepcopy(self._cls.state)
        try:
            return self._make()
        except Exception as error:
            raise TypeError(
                f"{self._cls.__name__}.state: a new key begins with `{getattr(self._make, '__name__', self._make)}()`, "
                f"which fails: {said(error)}: write a default, `state: … = …`"
            ) from error

    def fresh_bytes(self) -> bytes:
        """The bytes of the state of a new key."""
        return b"".join(self._form.encode_output(self.fresh()))

    def read(self, written: bytes) -> Any:
        """The state that these bytes are. One that does not fit its hint is no fault of the call: `TypeError`."""
        return self._named("the saved state does not fit", lambda: self._read(written))

    def write(self, state: Any, before: bytes | None) -> bytes:
        """The bytes of a state, which can be read again if they are other ones than before."""
        written: bytes = self._named("it cannot be saved", lambda: b"".join(self._form.encode_output(state)))
        if written != before:
            # A field of another type would make the key unreadable, and a caller would have an answer.
            self._named("the new state does not fit", lambda: self._read(written))
        return written

    def _read(self, written: bytes) -> Any:
        return self._form.arguments(decode(written, is_as_sent=self._form.takes_frames_as_sent))["state"]

    def _named(self, problem: str, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except (TypeError, ValueError) as error:
            raise TypeError(f"{self._cls.__name__}.state: {problem}: {error}") from error


class Objects:
    """The objects of a replica. It is the instance of a service, whose methods are `call` and `call_async`."""

    def __init__(self, cls: Any) -> None:
        self._cls = cls
        self._state = State(cls)
        self._kept: OrderedDict[str, tuple[bytes | None, Any]] = OrderedDict()
        self.context = SetupContext()

    def call(self, route: Route, call: dict[str, Any], context: Context) -> dict[str, Any]:
        """One call for a key, without an await."""
        found, arguments = self._begin(call), _arguments(route, call, context)
        if found is None:
            found = self._made(call)
            self._set_up(found, call)
        return self._ended(found, route, call, route.call(found, arguments))

    async def call_async(self, route: Route, call: dict[str, Any], context: Context) -> dict[str, Any]:
        """The same with one."""
        found, arguments = self._begin(call), _arguments(route, call, context)
        if found is None:
            found = self._made(call)
            await settled(self._set_up(found, call))
        return self._ended(found, route, call, await settled(route.call(found, arguments)))

    def _begin(self, call: dict[str, Any]) -> Any:
        """The object that has this state. It is kept again if the call succeeds.

        It may have the state of a call whose answer came too late, and another replica may have gone on from the one
        before: only the state itself tells.
        """
        state, found = self._kept.pop(call["key"], (None, None))
        return found if state == call["state"] else None

    def _made(self, call: dict[str, Any]) -> Any:
        made = self._cls()
        made.key = call["key"]
        made.state = self._state.fresh() if call["state"] is None else self._state.read(call["state"])
        return made

    def _set_up(self, made: Any, call: dict[str, Any]) -> Any:
        # The runner imports the routes, which know this module.
        from callboard._runner import setup_arguments

        setup = getattr(made, "setup", None)
        if setup is None:
            return None
        return setup(**setup_arguments(setup, self.context, key=call["key"], state=made.state))

    def _ended(self, found: Any, route: Route, call: dict[str, Any], output: Any) -> dict[str, Any]:
        signature = route.own_signature
        if isinstance(output, BaseException):
            raise output
        if isinstance(output, ANSWERS):
            raise TypeError(f"{signature.where}: a method of a keyed class returns a value, and no `Response`")
        encoded, before = b"".join(signature.encode_output(output)), call["state"]
        if "state" not in getattr(found, "__dict__", ("state",)):
            return {"state": None, "output": encoded, "forgotten": True}
        state = self._state.write(found.state, before)
        # A key that was only asked has no state of its own.
        is_same = state == (self._state.fresh_bytes() if before is None else before)
        self._kept[call["key"]] = (before if is_same else state, found)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return {"state": None if is_same else state, "output": encoded}


def _arguments(route: Route, call: dict[str, Any], context: Context) -> dict[str, Any]:
    signature = route.own_signature
    # The node has called a route of its own.
    context.route, context._has_methods = route.public_name, len(route.methods) > 1
    found = signature.arguments(decode(call["input"], is_as_sent=signature.takes_frames_as_sent))
    found.update(signature.request_arguments(context))
    if signature.context:
        found[signature.context] = context
    return found


def call_signature(signature: Signature) -> Signature:
    """The signature of a method as a replica runs it: the state comes with the input."""

    def call(call: dict[str, Any], context: Context) -> Any: ...

    async def call_async(call: dict[str, Any], context: Context) -> Any: ...

    for each in (call, call_async):
        each.__annotations__ = {"call": dict[str, Any], "context": Context}
    return Signature(call_async if signature.is_async else call, signature.where, drop_self=False, batched=False)
