"""What users write: decorators, errors and the context of a call.

The decorators only note what they are given, on the class or function itself. A decorated class stays a plain class,
and a decorated function a plain function.
"""

from __future__ import annotations

import dataclasses
import difflib
import http
import numbers
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, overload

from callboard._headers import Headers, checked, pairs_of

Contract = Literal["at_most_once", "idempotent", "pure"]
CONTRACTS = ("at_most_once", "idempotent", "pure")

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

# The attributes that carry what a decorator was given.
SERVICE = "__callboard_service__"
METHOD = "__callboard_method__"

_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_MAX_TIMEOUT_MS = 10**12
# The limits of a configuration file.
_MAX_DELAY_MS = 60_000
_MAX_QUEUE = 1_000_000


# ---- Errors and context ----------------------------------------------------------------------------------------------


class HTTPException(Exception):
    """Raise it in a service: the call is answered with this status. A batch may return it in the place of one item.

    * `status_code`: from 400 to 599.
    * `detail`: a text is the message of the error; any other value goes to the client as `details`, with the usual
      words of the status as the message. `None`: the usual words alone. Keys that are numbers become texts.
    * `headers`: a mapping, or pairs of name and value, in which a name may occur more than once: all are sent in this
      order. At most 16 headers with 2048 bytes in all, and none of the server's own, such as `Content-Length` or
      `Set-Cookie`. `Retry-After` is in seconds.

    Raises `ValueError` for a status or header that is wrong.
    """

    def __init__(
        self,
        status_code: int,
        detail: Any = None,
        headers: Headers | None = None,
    ) -> None:
        if not 400 <= status_code <= 599:
            raise ValueError(f"HTTPException: the status {status_code} is not from 400 to 599")
        self.status_code = status_code
        self.detail = _phrase(status_code) if detail is None else detail
        self.headers = checked(headers)
        super().__init__(status_code, self.detail)

    @property
    def message(self) -> str:
        """The text of the error, as the client gets it."""
        return self.detail if isinstance(self.detail, str) else _phrase(self.status_code)

    @property
    def retry_after(self) -> int | None:
        """`Retry-After` in seconds; None without that header."""
        seconds = next((value for name, value in self.headers if name.lower() == "retry-after"), "")
        return int(seconds) if seconds.isdecimal() else None

    @property
    def other_headers(self) -> list[tuple[str, str]]:
        """The headers but `Retry-After`, which is a time for the node."""
        return [(name, value) for name, value in self.headers if name.lower() != "retry-after"]

    def __str__(self) -> str:
        return f"{self.status_code}: {self.message}"


def _phrase(status_code: int) -> str:
    try:
        return http.HTTPStatus(status_code).phrase
    except ValueError:
        return f"status {status_code}"


class InvalidInput(ValueError):
    """Raise it for an input that is wrong although it fits the type hints: status 422.

    A service raises it by itself for an input that does not fit the hints. `fields` are pairs of a place in the input,
    such as `"$.items[2].price"`, and what is wrong there; clients get them as `details["fields"]`.
    """

    def __init__(self, message: str = "", fields: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.fields = list(fields)


class CallError(Exception):
    """A call of a client, or of another service, has failed.

    A client raises a class for each `kind`, from `callboard.client`. A service that does not catch the error of a call
    it has made fails with the same error.
    """

    message: str
    """What went wrong, in one sentence."""
    kind: str
    """One of the words in `docs/errors.md`, such as `"invalid_input"`, `"overloaded"` or `"failed"`."""
    status_code: int | None
    """The HTTP status, or that of the kind where there was no answer: 503 for a lost connection."""
    type: str | None
    """The class of the exception that the service raised, such as `"KeyError"`, or a type of `docs/errors.md`."""
    details: Any
    """More about the error as plain data, such as `{"fields": [{"path": "$.a", "message": "…"}]}`; often None."""
    retry_after: float | None
    """Seconds after which the call may be made again; None if the node did not say."""
    headers: list[tuple[str, str]]
    """The headers that a called service gave its `HTTPException`; empty for the errors of a client."""
    remote_traceback: str | None
    """The traceback of the service, if its code raised."""
    stage: str | None
    """The stage that failed."""
    request_id: str | None
    """The name of the call in the log of the node."""
    retryable: bool
    """Whether the same call may be made again: it does no harm, and may succeed."""
    was_started: bool
    """Whether code of the service may have run."""

    def __init__(
        self,
        message: str,
        *,
        kind: str = "failed",
        status_code: int | None = None,
        type: str | None = None,
        details: Any = None,
        retry_after: float | None = None,
        headers: Headers | None = None,
        remote_traceback: str | None = None,
        stage: str | None = None,
        request_id: str | None = None,
        retryable: bool = False,
        was_started: bool = True,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.status_code = status_code
        self.type = type
        self.details = details
        self.retry_after = retry_after
        self.headers = pairs_of(headers)
        self.remote_traceback = remote_traceback
        self.stage = stage
        self.request_id = request_id
        self.retryable = retryable
        self.was_started = was_started

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def _nothing() -> None: ...


# Reads the cancellations that have come. The worker of this process sets it.
look: Callable[[], None] = _nothing


@dataclasses.dataclass
class Context:
    """The call that a service runs for, as a parameter with this hint receives it.

    A batched method receives a list of them, one for each item.
    """

    request_id: str | None = None
    """The name of the call in logs and errors."""
    route: str | None = None
    """The path of the route, such as `"/sentiment"`."""
    caller: str | None = None
    """The name of the caller's API key; None where no key is asked for."""
    traceparent: str | None = None
    """The caller's place in a trace, as the header of W3C Trace Context."""
    session: int | None = None
    """A number that all calls of one session have. They reach the same replica while it lives."""
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    """The headers that the route lists in the configuration file, by their lower-case names."""
    tags: dict[str, str] = dataclasses.field(default_factory=dict)
    """What a caller in the node's own process has attached."""
    deadline: float | None = None
    """Seconds on the clock of `time.monotonic()`; None without a deadline."""
    _cancelled: bool = dataclasses.field(default=False, repr=False)
    # The batch and the item of it, where a node is.
    _place: tuple[int, int] | None = dataclasses.field(default=None, repr=False)

    def remaining(self) -> float | None:
        """Seconds until the deadline, at least 0; None without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """Whether the caller has left. Code that runs long without `await` should read this from time to time."""
        if not self._cancelled:
            look()
        return self._cancelled


@dataclasses.dataclass
class SetupContext:
    """The replica that `setup` runs in, as its parameter `context` receives it."""

    stage: str = ""
    """The name of the stage."""
    replica: int = 0
    """The number of the replica, from 0."""
    generation: int = 0
    """The count of earlier starts of this replica: 0 the first time."""
    device: str = "cpu"
    """The `device` of the stage in the configuration file, or of the service."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The `settings` of the stage in the configuration file, with its `device` if it has one."""
    cache: Path | None = None
    """The directory that `prepare` has filled."""


# ---- Services and functions ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Service:
    """What `service` or `function` was given."""

    is_function: bool
    name: str
    route: str
    replicas: int | tuple[int, int] = 1
    timeout_ms: int | None = None
    contract: str = "at_most_once"
    max_batch_size: int | None = None
    device: str | None = None
    start_timeout_ms: int | None = None
    max_delay_ms: int | None = None
    queue: int | None = None
    # As a configuration file has it.
    memory_limit: str | None = None
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    # Replicas are forked from a process that has imported the module, and with `share_setup` run `setup` as well.
    warm: bool = True
    share_setup: bool = False
    # Whether `route` was given, and is no name of the class.
    has_own_route: bool = False
    examples: tuple[Any, ...] = ()


@dataclasses.dataclass
class Method:
    """What `batched`, `concurrent` and `route` were given for one method or function."""

    batched: bool = False
    max_batch_size: int | None = None
    max_delay_ms: int | None = None
    concurrency: int = 1
    route: str | None = None
    examples: tuple[Any, ...] = ()


@overload
def service(cls: C, /) -> C: ...
@overload
def service(
    *,
    name: str | None = ...,
    route: str | None = ...,
    replicas: int | tuple[int, int] = ...,
    timeout: str | float | None = ...,
    contract: Contract = ...,
    max_batch_size: int | None = ...,
    device: str | None = ...,
    start_timeout: str | float | None = ...,
    max_delay: str | float | None = ...,
    queue: int | None = ...,
    memory_limit: str | int | None = ...,
    env: Mapping[str, str] | None = ...,
    warm: bool = ...,
    share_setup: bool = ...,
    examples: Sequence[Any] = ...,
) -> Callable[[C], C]: ...


def service(cls: Any = None, /, **options: Any) -> Any:
    """Makes a class a service: `@service` or `@service(replicas=2, timeout="5s", contract="idempotent")`.

    * `name` and `route`: by default the name of the class in lower case with hyphens, and the same after a `/`.
    * `replicas`: the processes that run it, 1 by default. `(0, 4)`: from none to four, as the load asks for; the first
      call starts one.
    * `timeout`: the longest time of one batch, in seconds or a text such as `"200ms"`. A replica that takes longer is
      ended, and its calls fail with status 504.
    * `contract`: `"at_most_once"` (the default), `"idempotent"` or `"pure"`. With the latter two the items of a replica
      that has died are run again on another one.
    * `max_batch_size`: the most items of a batch, for a method with `@batched`; 32 by default.
    * `max_delay`: how long a batch that is not full may wait for more items, `0` by default; `@batched` takes it, too.
    * `queue`: the most calls that wait; 1024 by default.
    * `device`: the text that `setup` gets as `device`, such as `"cuda:0"`; `"cpu"` by default.
    * `start_timeout`: the time in which a replica must be ready, such as `"300s"`. By default it may take as long as it
      gives signs of life, and the log says every few seconds what it does.
    * `memory_limit`: the most memory of a replica, such as `"4GiB"`; a number is bytes. By default a share of the
      machine's; `"none"` is no limit.
    * `env`: variables of its replicas beside those of the node, such as `{"OMP_NUM_THREADS": "4"}`.
    * `examples`: valid inputs. Each replica runs them before it is ready, and `/docs` shows them.
    * `warm`: replicas are forked from a process that has imported the module, on Linux. `False`: each imports it.
    * `share_setup`: `setup` runs once for each route, before the replicas are forked, and they share its memory.

    Raises `TypeError` for an unknown option or anything but a class, and `ValueError` for a value out of its range.
    """
    _check_names("service", options, _SERVICE_OPTIONS)

    def decorate(cls: Any) -> Any:
        if not isinstance(cls, type):
            raise TypeError(f"@service decorates a class, not {cls!r}: use @function for a function")
        setattr(cls, SERVICE, _service(cls, False, **options))
        return cls

    return decorate if cls is None else decorate(cls)


@overload
def function(fn: F, /) -> F: ...
@overload
def function(
    *,
    name: str | None = ...,
    route: str | None = ...,
    replicas: int | tuple[int, int] = ...,
    timeout: str | float | None = ...,
    contract: Contract = ...,
    max_batch_size: int | None = ...,
    device: str | None = ...,
    start_timeout: str | float | None = ...,
    max_delay: str | float | None = ...,
    queue: int | None = ...,
    memory_limit: str | int | None = ...,
    env: Mapping[str, str] | None = ...,
    warm: bool = ...,
    examples: Sequence[Any] = ...,
) -> Callable[[F], F]: ...


def function(fn: Any = None, /, **options: Any) -> Any:
    """Makes a plain function the route `/name`, with the options of `service` except `share_setup`.

    The body of a request is the value of the parameter if there is one, and an object of the values by name if there
    are several. A file has its name in either case.

    Raises `TypeError` for an unknown option or anything but a function, and `ValueError` for a value out of its range.
    """
    _check_names("function", options, _FUNCTION_OPTIONS)

    def decorate(fn: Any) -> Any:
        if isinstance(fn, type) or not callable(fn):
            raise TypeError(f"@function decorates a function, not {fn!r}: use @service for a class")
        if not hasattr(fn, "__name__") or hasattr(fn, "__func__"):
            raise TypeError(f"@function decorates a function, not {fn!r}: write a `def` that calls it")
        setattr(fn, SERVICE, _service(fn, True, **options))
        return fn

    return decorate if fn is None else decorate(fn)


_FUNCTION_OPTIONS = (
    *("name", "route", "replicas", "timeout", "contract", "max_batch_size", "max_delay", "queue", "device"),
    *("start_timeout", "memory_limit", "env", "examples", "warm"),
)
_SERVICE_OPTIONS = (*_FUNCTION_OPTIONS, "share_setup")


def _service(
    target: Any,
    is_function: bool,
    *,
    name: str | None = None,
    route: str | None = None,
    replicas: int | tuple[int, int] = 1,
    timeout: str | float | None = None,
    contract: str = "at_most_once",
    max_batch_size: int | None = None,
    device: str | None = None,
    start_timeout: str | float | None = None,
    max_delay: str | float | None = None,
    queue: int | None = None,
    memory_limit: str | int | None = None,
    env: Mapping[str, str] | None = None,
    warm: bool = True,
    share_setup: bool = False,
    examples: Sequence[Any] = (),
) -> Service:
    name = name or target.__name__
    if not route and not re.fullmatch(r"[A-Za-z0-9_.~:@-]+", name):
        raise ValueError(
            f"{name!r} cannot be the path of a route: give it one of ASCII letters, such as route='/answer'"
        )
    if contract not in CONTRACTS:
        raise ValueError(f"contract={contract!r}{_nearest(contract, CONTRACTS)}; there are {', '.join(CONTRACTS)}")
    return Service(
        is_function=is_function,
        name=name,
        route=_route(route) if route else "/" + (name if is_function else hyphened(name)),
        replicas=_replicas(replicas),
        timeout_ms=None if timeout is None else timeout_ms(timeout),
        contract=contract,
        max_batch_size=None if max_batch_size is None else _positive("max_batch_size", max_batch_size),
        device=_device(device),
        start_timeout_ms=None if start_timeout is None else timeout_ms(start_timeout, "start_timeout"),
        max_delay_ms=_max_delay_ms(max_delay),
        queue=None if queue is None else _positive("queue", queue, _MAX_QUEUE),
        memory_limit=_size("memory_limit", memory_limit),
        env=_variables(env),
        warm=warm,
        share_setup=share_setup,
        has_own_route=bool(route),
        examples=_examples(examples),
    )


# ---- Methods ---------------------------------------------------------------------------------------------------------


@overload
def batched(fn: F, /) -> F: ...
@overload
def batched(*, max_batch_size: int = ..., max_delay: str | float = ...) -> Callable[[F], F]: ...


def batched(fn: Any = None, /, **options: Any) -> Any:
    """The method or function takes a list of items, and returns as many outputs in the same order, as a list.

    A caller still sends one item and gets one output. The items of a batch are those that wait while all replicas are
    busy: `max_batch_size` at most, by default that of `service`, else 32. An item does not wait for others, unless
    `max_delay` says how long, such as `"10ms"`.

    Arrays come as a list, one for each item: `np.stack` makes one array of equal shapes, with the batch as its first
    axis. An array may be returned in the place of a list; it is divided along its first axis.

    An exception in the place of an output fails that item; an exception that is raised fails all of them. Another
    number of outputs than items fails all of them with the kind `failed`.

    Raises `TypeError` for an unknown option, and `ValueError` for a `max_batch_size` that is not an integer from 1 or
    a `max_delay` beyond a minute.
    """
    _check_names("batched", options, ("max_batch_size", "max_delay"))
    size, delay = options.get("max_batch_size"), options.get("max_delay")

    def decorate(fn: F) -> F:
        method = _method(fn)
        method.batched = True
        method.max_batch_size = None if size is None else _positive("max_batch_size", size)
        method.max_delay_ms = _max_delay_ms(delay)
        return fn

    return decorate if fn is None else decorate(fn)


def concurrent(*, max: int) -> Callable[[F], F]:
    """Lets an async method run for up to `max` calls at the same time in one replica. Without it there is one.

    Raises `ValueError` if `max` is not an integer from 1. A method that is not async, or batched, is refused when the
    file is served.
    """

    def decorate(fn: F) -> F:
        _method(fn).concurrency = _positive("max", max)
        return fn

    return decorate


def route(path: str, *, examples: Sequence[Any] = ()) -> Callable[[F], F]:
    """Makes a further method of a class a route of its own, with its own queue, batches and replicas.

    The route shares no object with the others: each of its replicas has an instance of the class with its own `setup`.
    `examples` are as of `service`.

    Raises `TypeError` without a path, and `ValueError` for a path that is wrong.
    """
    if not isinstance(path, str):
        raise TypeError('route takes a path: @route("/path")')

    def decorate(fn: F) -> F:
        method = _method(fn)
        method.route, method.examples = _route(path), _examples(examples)
        return fn

    return decorate


def _method(fn: Any) -> Method:
    if not hasattr(fn, METHOD):
        setattr(fn, METHOD, Method())
    method: Method = getattr(fn, METHOD)
    return method


# ---- Words and numbers -----------------------------------------------------------------------------------------------


def timeout_ms(timeout: str | float, name: str = "timeout") -> int:
    """Milliseconds of `"5s"`, `"200ms"`, `"1m"` or a number of seconds. Errors call it by its name."""
    form = f'{name}={timeout!r}: write "5s", "200ms" or a number of seconds'
    if isinstance(timeout, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h)\s*", timeout)
        if not match:
            raise ValueError(form)
        millis: Any = float(match[1]) * _UNITS[match[2]]
    elif isinstance(timeout, numbers.Real) and not isinstance(timeout, bool):
        millis = timeout * 1000
    else:
        raise TypeError(form)
    if not 1 <= millis <= _MAX_TIMEOUT_MS:
        raise ValueError(f"{name}={timeout!r}: must be from a millisecond to 10^9 seconds")
    return int(millis)


def hyphened(name: str) -> str:
    """`ImageSearch` and `image_search` as `image-search`; `HTTPEcho` as `http-echo`."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
    return name.replace("_", "-").lower()


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant."""
    by_fold = {each.lower().replace("_", ""): each for each in names}
    found = difflib.get_close_matches(name.lower().replace("_", ""), by_fold, n=1)
    return by_fold[found[0]] if found else None


def _nearest(name: str, names: Iterable[str]) -> str:
    found = nearest_name(name, names)
    return f": did you mean {found!r}?" if found else ""


def _check_names(decorator: str, options: Iterable[str], names: tuple[str, ...]) -> None:
    for option in options:
        if option not in names:
            _unknown_option(decorator, option, names)


def _unknown_option(decorator: str, option: str, names: tuple[str, ...]) -> NoReturn:
    message = f"{decorator} has no option {option!r}{_nearest(option, names)}"
    raise TypeError(f"{message} There are {', '.join(names)}" if message.endswith("?") else f"{message}: {names}")


def _examples(examples: Any) -> tuple[Any, ...]:
    if not isinstance(examples, (list, tuple)):
        raise TypeError(f"examples={examples!r}: must be a list of inputs")
    return tuple(examples)


def _replicas(value: Any) -> int | tuple[int, int]:
    if not isinstance(value, tuple):
        return _positive("replicas", value)
    if len(value) != 2 or any(not isinstance(bound, int) or isinstance(bound, bool) for bound in value):
        raise ValueError(f"replicas={value!r}: must be an integer from 1, or two, such as (0, 4)")
    least, most = value
    if not 0 <= least <= most or most < 1:
        raise ValueError(f"replicas={value!r}: the first must be from 0, the second from 1 and not below the first")
    return least, most


def _positive(name: str, value: Any, most: int | None = None) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most is not None and value > most):
        raise ValueError(f"{name}={value!r}: must be an integer from 1" + ("" if most is None else f" to {most}"))
    return value


def _max_delay_ms(delay: Any) -> int | None:
    if delay is None or (delay == 0 and not isinstance(delay, bool)):
        return None
    millis = timeout_ms(delay, "max_delay")
    if millis > _MAX_DELAY_MS:
        raise ValueError(f"max_delay={delay!r}: must be at most {_MAX_DELAY_MS // 1000} seconds")
    return millis


def _size(name: str, size: str | int | None) -> str | None:
    if isinstance(size, str) and re.fullmatch(r"none|[1-9]\d{0,11}(B|KiB|MiB|GiB)", size):
        return size
    if size is not None and not isinstance(size, int):
        raise ValueError(f'{name}={size!r}: write "512MiB", "4GiB", "none" or a number of bytes')
    return None if size is None else f"{_positive(name, size)}B"


def _device(device: Any) -> str | None:
    if device is not None and not (isinstance(device, str) and device):
        raise TypeError(f'device={device!r}: write a text such as "cuda:0"')
    return device


def _variables(env: Any) -> dict[str, str]:
    pairs = [] if env is None else list(env.items()) if isinstance(env, Mapping) else [(None, None)]
    for name, value in pairs:
        if not (isinstance(name, str) and name and "=" not in name and isinstance(value, str)) or "\0" in name + value:
            raise TypeError(f'env={env!r}: write names and texts such as {{"OMP_NUM_THREADS": "4"}}')
    return dict(pairs)


def _route(route: str) -> str:
    if not isinstance(route, str):
        raise TypeError(f"route={route!r}: write a path such as '/classify'")
    path = route if route.startswith("/") else "/" + route
    if path.endswith("/") or not path.isprintable() or any(char in " ?#" for char in path):
        raise ValueError(f"route {route!r}: write a path such as '/classify'")
    return path
