"""The decorators that users write.

They only note what they are given, on the class or function itself. A decorated class stays a plain class, and a
decorated function a plain function.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

from callboard._auth import AUTH_ROUTE, Caller, Request
from callboard._elsewhere import did_you_mean
from callboard._options import (
    Task,
    affinity_of,
    aliases_of,
    check_names,
    device_of,
    devices_of,
    examples_of,
    headers_of,
    hyphened,
    max_delay_ms,
    methods_of,
    positive,
    query_of,
    replicas_of,
    route_path,
    size_of,
    task_of,
    timeout_ms,
    tool_of,
    variables_of,
)
from callboard._response import Declared, declared

Contract = Literal["at_most_once", "idempotent", "pure"]
CONTRACTS = ("at_most_once", "idempotent", "pure")
C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])
# The attributes that carry the options of a decorator.
SERVICE = "__callboard_service__"
METHOD = "__callboard_method__"
# What the routes of ASGI apps begin with. Their paths come behind it.
ASGI_ROUTE = "@asgi"
ON_START = "__callboard_on_start__"
ON_STOP = "__callboard_on_stop__"
# What `auth`, `on_start` and `on_stop` have decorated in this process, and `asgi` has made, after the names of these.
# What an app imports and does not have would silently do nothing.
NOTED: list[tuple[str, Any]] = []
_MAX_QUEUE = 1_000_000


@dataclasses.dataclass(frozen=True)
class Service:
    """The options of `service` or `function`."""

    is_function: bool
    name: str
    route: str
    replicas: int | tuple[int, int] = 1
    timeout_ms: int | None = None
    contract: str = "at_most_once"
    max_batch_size: int | None = None
    device: str | None = None
    # As a configuration file has them.
    devices: str | list[str] | None = None
    start_timeout_ms: int | None = None
    max_delay_ms: int | None = None
    queue: int | None = None
    # As a configuration file has it.
    memory_limit: str | None = None
    env: dict[str, str] | list[dict[str, str]] = dataclasses.field(default_factory=dict)
    affinity: list[int | list[int]] | None = None
    # Replicas are forked from a process that has imported the module, and with `share_setup` run `setup` as well.
    warm: bool = True
    share_setup: bool = False
    # Whether its methods run in the same replicas.
    share_replicas: bool = True
    # Whether `route` was given, and is no name of the class.
    has_own_route: bool = False
    examples: tuple[Any, ...] = ()
    # What its code reads of a request beside its input.
    headers: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    # The methods of HTTP of its `route`. None: POST.
    methods: tuple[str, ...] = ()
    # How clients of OpenAI's API call its `route`.
    openai: str | None = None
    # Other names by which they ask for it.
    aliases: tuple[str, ...] = ()
    # Whether agents may call its `route`.
    mcp: bool = False
    # What it says of its answers over HTTP.
    response: Declared | None = None
    # What it says of its objects, if there is one for each key.
    keyed: Any = None


@dataclasses.dataclass
class Method:
    """The options of `batched`, `concurrent` and `route` for one method or function."""

    batched: bool = False
    max_batch_size: int | None = None
    max_delay_ms: int | None = None
    concurrency: int = 1
    route: str | None = None
    examples: tuple[Any, ...] = ()
    # None: those of the service.
    headers: tuple[str, ...] | None = None
    query: tuple[str, ...] | None = None
    methods: tuple[str, ...] = ()
    openai: str | None = None
    # Other names by which they ask for it.
    aliases: tuple[str, ...] = ()
    mcp: bool = False
    response: Declared | None = None
    # None: as the service says.
    share_replicas: bool | None = None


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
    devices: Literal["auto"] | Sequence[str] | None = ...,
    start_timeout: str | float | None = ...,
    max_delay: str | float | None = ...,
    queue: int | None = ...,
    memory_limit: str | int | None = ...,
    env: Mapping[str, str] | Sequence[Mapping[str, str]] | None = ...,
    affinity: Sequence[int | Sequence[int]] | None = ...,
    warm: bool = ...,
    share_setup: bool = ...,
    share_replicas: bool = ...,
    examples: Sequence[Any] = ...,
    headers: Sequence[str] = ...,
    query: Sequence[str] = ...,
    methods: Sequence[str] = ...,
    openai: Task | None = ...,
    aliases: Sequence[str] = ...,
    mcp: bool = ...,
    status_code: int | None = ...,
    media_type: str | None = ...,
    response_description: str | None = ...,
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
    * `devices`: `"auto"` or a list such as `["cuda:0", "cuda:1"]`: a replica on each, or `replicas` in all, a multiple.
      Each sees its device alone, by `CUDA_VISIBLE_DEVICES`, which is set before the module is imported: `setup` gets
      `device="cuda:0"` in each of them. `"auto"` takes all devices that the node sees, or `"cpu"`.
    * `start_timeout`: the time in which a replica must be ready, such as `"300s"`. By default it may take as long as it
      gives signs of life, and the log says every few seconds what it does.
    * `memory_limit`: the most memory of a replica, such as `"4GiB"`; a number is bytes. By default a share of the
      machine's; `"none"` is no limit.
    * `affinity`: the CPU cores of each replica, such as `[[0, 1], [2, 3]]` or `[0, 1]`, from its import on. On Linux.
    * `env`: variables of its replicas beside those of the node, such as `{"OMP_NUM_THREADS": "4"}`. A list has those of
      each replica.
    * `examples`: valid inputs. Each replica runs them before it is ready, and `/docs` shows them.
    * `headers` and `query`: the headers and the query parameters of a request that the code may read in its `Context`,
      such as `headers=["x-user"]`. It sees no other, also not `authorization` or `cookie`, unless they are listed.
    * `methods`: those of HTTP that call its `route`, such as `["GET"]`; `POST` by default. See `callboard.route`.
    * `openai`: how clients of OpenAI's API call it: `"chat"`, `"complete"`, `"embed"`, `"rerank"`, `"moderate"`,
      `"transcribe"`, `"speak"` or `"image"`. The parameters are fields of the request, such as `messages` and
      `temperature`; see `docs/openai.md`.
    * `aliases`: other names by which those clients ask for it, such as `["gpt-4o-mini"]`.
    * `mcp`: `True` lets agents call it as a tool, by the Model Context Protocol: its documentation tells them what it
      does; see `docs/mcp.md`.
    * `status_code`, `media_type` and `response_description`: those of its answers, where the code chooses no other; see
      `callboard.Response`.
    * `warm`: replicas are forked from a process that has imported the module, on Linux. `False`: each imports it.
    * `share_setup`: `setup` runs once, before the replicas are forked, and they share its memory.
    * `share_replicas`: the methods of the class run in the same replicas, on one instance with one `setup`. `False`:
      each has replicas of its own. `callboard.route` has it for one method.

    Raises `TypeError` for an unknown option or anything but a class, and `ValueError` for a value out of its range.
    """
    check_names("service", options, _SERVICE_OPTIONS)

    def decorate(cls: Any) -> Any:
        if not isinstance(cls, type):
            raise TypeError(f"@service decorates a class, not {cls!r}: {_cure(cls, 'use @function for a function')}")
        setattr(cls, SERVICE, service_of(cls, False, **options))
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
    devices: Literal["auto"] | Sequence[str] | None = ...,
    start_timeout: str | float | None = ...,
    max_delay: str | float | None = ...,
    queue: int | None = ...,
    memory_limit: str | int | None = ...,
    env: Mapping[str, str] | Sequence[Mapping[str, str]] | None = ...,
    affinity: Sequence[int | Sequence[int]] | None = ...,
    warm: bool = ...,
    examples: Sequence[Any] = ...,
    headers: Sequence[str] = ...,
    query: Sequence[str] = ...,
    methods: Sequence[str] = ...,
    openai: Task | None = ...,
    aliases: Sequence[str] = ...,
    mcp: bool = ...,
    status_code: int | None = ...,
    media_type: str | None = ...,
    response_description: str | None = ...,
) -> Callable[[F], F]: ...


def function(fn: Any = None, /, **options: Any) -> Any:
    """Makes a plain function the route `/name`, with the options of `service` except those that begin with `share_`.

    The body of a request is the value of the parameter if there is one, and an object of the values by name if there
    are several. A file has its name in either case.

    Raises `TypeError` for an unknown option or anything but a function, and `ValueError` for a value out of its range.
    """
    check_names("function", options, _FUNCTION_OPTIONS)

    def decorate(fn: Any) -> Any:
        if isinstance(fn, type) or not callable(fn):
            raise TypeError(f"@function decorates a function, not {fn!r}: {_cure(fn, 'use @service for a class')}")
        if not hasattr(fn, "__name__") or hasattr(fn, "__func__"):
            raise TypeError(f"@function decorates a function, not {fn!r}: write a `def` that calls it")
        setattr(fn, SERVICE, service_of(fn, True, **options))
        return fn

    return decorate if fn is None else decorate(fn)


_FUNCTION_OPTIONS = (
    *("name", "route", "replicas", "timeout", "contract", "max_batch_size", "max_delay", "queue", "device"),
    "devices",
    *("start_timeout", "memory_limit", "env", "affinity", "examples", "headers", "query", "methods", "warm"),
    *("openai", "aliases", "mcp", "status_code", "media_type", "response_description"),
)
_SERVICE_OPTIONS = (*_FUNCTION_OPTIONS, "share_setup", "share_replicas")


def service_of(
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
    devices: str | Sequence[str] | None = None,
    start_timeout: str | float | None = None,
    max_delay: str | float | None = None,
    queue: int | None = None,
    memory_limit: str | int | None = None,
    env: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    affinity: Sequence[int | Sequence[int]] | None = None,
    warm: bool = True,
    share_setup: bool = False,
    share_replicas: bool = True,
    examples: Sequence[Any] = (),
    headers: Sequence[str] = (),
    query: Sequence[str] = (),
    methods: Sequence[str] = (),
    openai: Task | None = None,
    aliases: Sequence[str] = (),
    mcp: bool = False,
    status_code: int | None = None,
    media_type: str | None = None,
    response_description: str | None = None,
) -> Service:
    name = name or target.__name__
    if not route and not re.fullmatch(r"[A-Za-z0-9_.~:@-]+", name):
        raise ValueError(
            f"{name!r} cannot be the path of a route: give it one of ASCII letters, such as route='/answer'"
        )
    if contract not in CONTRACTS:
        raise ValueError(f"contract={contract!r}{did_you_mean(contract, CONTRACTS)}; there are {', '.join(CONTRACTS)}")
    return Service(
        is_function=is_function,
        name=name,
        route=route_path(route) if route else "/" + (name if is_function else hyphened(name)),
        replicas=replicas_of(replicas),
        timeout_ms=None if timeout is None else timeout_ms(timeout),
        contract=contract,
        max_batch_size=None if max_batch_size is None else positive("max_batch_size", max_batch_size),
        device=device_of(device),
        devices=devices_of(devices, device, replicas),
        start_timeout_ms=None if start_timeout is None else timeout_ms(start_timeout, "start_timeout"),
        max_delay_ms=max_delay_ms(max_delay),
        queue=None if queue is None else positive("queue", queue, _MAX_QUEUE),
        memory_limit=size_of("memory_limit", memory_limit),
        env=variables_of(env, replicas),
        affinity=affinity_of(affinity, replicas),
        warm=warm,
        share_setup=share_setup,
        share_replicas=share_replicas,
        has_own_route=bool(route),
        examples=examples_of(examples),
        headers=headers_of(headers),
        query=query_of(query),
        methods=methods_of(methods),
        openai=task_of(openai),
        aliases=aliases_of(aliases, openai),
        mcp=tool_of(mcp),
        response=declared(status_code, media_type, response_description),
    )


@overload
def batched(fn: F, /) -> F: ...


@overload
def batched(*, max_batch_size: int = ..., max_delay: str | float = ...) -> Callable[[F], F]: ...


def batched(fn: Any = None, /, **options: Any) -> Any:
    """The method or function takes a list of items, and returns as many outputs in the same order, as a list.

    A caller still sends one item and gets one output. The items of a batch are those that wait while all replicas are
    busy: `max_batch_size` at most, by default that of `service`, else 32. A lone item does not wait for others,
    unless `max_delay` says how long, such as `"10ms"`.

    Arrays come as a list, one for each item: `np.stack` makes one array of equal shapes, with the batch as its first
    axis. An array may be returned in the place of a list; it is divided along its first axis.

    An exception in the place of an output fails that item; an exception that is raised fails all of them. Another
    number of outputs than items fails all of them with the kind `failed`.

    Raises `TypeError` for an unknown option, and `ValueError` for a `max_batch_size` that is not an integer from 1 or
    a `max_delay` beyond a minute.
    """
    check_names("batched", options, ("max_batch_size", "max_delay"))
    size, delay = options.get("max_batch_size"), options.get("max_delay")

    def decorate(fn: F) -> F:
        method = _method(fn)
        method.batched = True
        method.max_batch_size = None if size is None else positive("max_batch_size", size)
        method.max_delay_ms = max_delay_ms(delay)
        return fn

    return decorate if fn is None else decorate(fn)


def concurrent(*, max: int) -> Callable[[F], F]:
    """Lets a method run for up to `max` calls at the same time in one replica. Without it there is one.

    A method that is not async runs in threads, one for each call: for code that waits or leaves the interpreter lock,
    such as a client of a database. What it shares with other calls has to be safe for threads. A caller that leaves
    ends no thread: its code asks `context.cancelled`, which is that of its own call.

    Calls are not combined into batches. Raises `ValueError` if `max` is not an integer from 1. A method that is batched
    too, and one of a keyed class that is not async, are refused when the file is served.
    """

    def decorate(fn: F) -> F:
        _method(fn).concurrency = positive("max", max)
        return fn

    return decorate


def route(
    path: str,
    *,
    examples: Sequence[Any] = (),
    headers: Sequence[str] | None = None,
    query: Sequence[str] | None = None,
    methods: Sequence[str] = (),
    openai: Task | None = None,
    aliases: Sequence[str] = (),
    mcp: bool = False,
    status_code: int | None = None,
    media_type: str | None = None,
    response_description: str | None = None,
    share_replicas: bool | None = None,
) -> Callable[[F], F]:
    """Makes a further method of a class a route of its own, with its own batches.

    It runs in the same replicas as the other methods, on the same instance: a model is loaded once. A replica runs one
    batch at a time, in the order in which calls of all methods arrive. Methods that stream, and methods with another
    `max` of `concurrent`, share replicas among each other. With `share_replicas=False` the method has replicas of its
    own, each with an instance and `setup`.

    `examples`, `headers`, `query`, `openai`, `aliases`, `mcp`, `status_code`, `media_type` and `response_description`
    are as of `service`; `headers` and `query` are by default those of the service.

    A segment of the path may be a parameter: `@route("/items/{item_id}", methods=["GET"])` gives a method with the
    argument `item_id: int` the number in the path. Of several routes that a path fits, that with a literal segment is
    called. `methods` are those of HTTP that call it, `POST` by default; others may call another route of the path. With
    `GET` the other arguments are query parameters, since it has no body.

    Raises `TypeError` without a path, and `ValueError` for a path that is wrong.
    """
    if not isinstance(path, str):
        raise TypeError('route takes a path: @route("/path")')

    def decorate(fn: F) -> F:
        method = _method(fn)
        method.route, method.examples = route_path(path), examples_of(examples)
        method.headers = None if headers is None else headers_of(headers)
        method.query = None if query is None else query_of(query)
        method.methods = methods_of(methods)
        method.openai = task_of(openai)
        method.aliases = aliases_of(aliases, openai)
        method.mcp = tool_of(mcp)
        method.response = declared(status_code, media_type, response_description)
        method.share_replicas = share_replicas
        return fn

    return decorate


@overload
def auth(fn: F, /) -> F: ...


@overload
def auth(*, timeout: str | float = ..., replicas: int = ..., max: int = ...) -> Callable[[F], F]: ...


def auth(fn: Any = None, /, *, timeout: str | float = "5s", replicas: int = 1, max: int = 64) -> Any:
    """The function says who sends a request over HTTP, before its body is read: `@auth` or `@auth(timeout="2s")`.

    It takes a `Request` and returns a `Caller`, or refuses by `raise cb.HTTPException(401, "…")`; the client gets the
    status, message and headers of that. It is asked for every request but those of health and of the pages `/`, `/docs`
    and `/openapi.json`. Where the node has API keys, a request with a valid key is not asked about. Calls over QUIC
    show certificates instead.

    It runs in `replicas` processes of its own, one call at a time; an `async` function has up to `max` calls at a time
    in each. A request whose call does not end within `timeout`, or finds no room, is answered with 503, and one whose
    call raises anything but an `HTTPException` with 500 and nothing more.

    Raises `TypeError` for anything but a function with one argument, and `ValueError` for a value out of its range.
    """

    def decorate(fn: Any) -> Any:
        if not inspect.isfunction(fn) or len(inspect.signature(fn).parameters) != 1:
            raise TypeError(f"@auth decorates `def who(request: cb.Request) -> cb.Caller` or the like, not {fn!r}")
        (parameter,) = inspect.signature(fn).parameters
        fn.__annotations__ = {parameter: Request, "return": Caller, **fn.__annotations__}
        found = service_of(fn, True, route="/auth", timeout=timeout, replicas=replicas)
        setattr(fn, SERVICE, dataclasses.replace(found, route=AUTH_ROUTE))
        if inspect.iscoroutinefunction(fn):
            _method(fn).concurrency = positive("max", max)
        NOTED.append(("auth", fn))
        return fn

    return decorate if fn is None else decorate(fn)


@overload
def on_start(fn: F, /) -> F: ...


@overload
def on_start(*, timeout: str | float = ...) -> Callable[[F], F]: ...


def on_start(fn: Any = None, /, *, timeout: str | float = "10m") -> Any:
    """The function runs once per node, before its services start: `@on_start` or `@on_start(timeout="30s")`.

    It takes no arguments and may be `async`. A failure ends the start of the node. It runs in a process of its own,
    with the variables of the node, in the directory of the file: services see the files and the like that it makes, and
    none of its objects. Several functions of a file run in the order in which they are written, each within its
    `timeout`. If the process dies, the node starts it again, and the functions run again.

    Raises `TypeError` for anything but such a function, and `ValueError` for a wrong `timeout`.
    """
    return _node_hook("on_start", ON_START, fn, timeout)


@overload
def on_stop(fn: F, /) -> F: ...


@overload
def on_stop(*, timeout: str | float = ...) -> Callable[[F], F]: ...


def on_stop(fn: Any = None, /, *, timeout: str | float = "5s") -> Any:
    """The function runs once per node, at its end after all calls and services: `@on_stop` or `@on_stop(timeout="9s")`.

    It runs in the process of the functions with `on_start`, in the same event loop, and sees what those have left in
    the module. A function that takes longer than its `timeout` is cancelled; one that blocks ends the process, without
    the functions behind it. None runs if the start of the node has failed or was interrupted, or if it is killed.

    Raises `TypeError` for anything but a function without arguments, and `ValueError` for a wrong `timeout`.
    """
    return _node_hook("on_stop", ON_STOP, fn, timeout)


def _node_hook(name: str, attribute: str, fn: Any, timeout: str | float) -> Any:
    millis = timeout_ms(timeout)

    def decorate(fn: Any) -> Any:
        if not inspect.isfunction(fn):
            raise TypeError(f"@{name} decorates a function, not {fn!r}")
        needed = [each.name for each in inspect.signature(fn).parameters.values() if each.default is each.empty]
        if needed:
            raise TypeError(f"@{name}: `{fn.__name__}` has the parameter `{needed[0]}`, and gets no arguments")
        setattr(fn, attribute, millis)
        NOTED.append((name, fn))
        return fn

    return decorate if fn is None else decorate(fn)


def _cure(decorated: Any, cure: str) -> str:
    return f"write route={decorated!r}" if isinstance(decorated, str) else cure


def _method(fn: Any) -> Method:
    if not hasattr(fn, METHOD):
        setattr(fn, METHOD, Method())
    method: Method = getattr(fn, METHOD)
    return method
