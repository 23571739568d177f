"""The call that a service runs for, and the replica that it is set up in."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from callboard._auth import PartOfRequest, Request, RequestHeaders
from callboard._elsewhere import CONTEXT, cure_after
from callboard._options import split_name
from callboard._response import SENT, Response, check_open


def _nothing() -> None: ...


# Reads the cancellations that arrived. The worker of this process sets it.
look: Callable[[], None] = _nothing

# A function with its arguments.
Work = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

# The place of a call that has its answer.
OVER = (-1, 0)


_METHODS = ("after", "cancelled", "remaining", "request", "response")


class Context(msgspec.Struct):
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
    headers: dict[str, str] = {}
    """The headers of the request that the route lists (`@service(headers=["x-user"])`), by their names in any case."""
    tags: dict[str, str] = {}
    """Entries that a caller in Rust has attached."""
    query: dict[str, str] = {}
    """The query parameters of the request that the route lists (`@service(query=["lang"])`)."""
    path: str | None = None
    """The path of the request, as its client wrote it; None where the route does not see it.

    A route sees the path, the method and the client of its requests where it lists headers or query parameters,
    declares methods, or has a path with parameters."""
    deadline: float | None = None
    """Seconds on the clock of `time.monotonic()`; None without a deadline."""
    method: str | None = None
    """The method of the request, such as `"PUT"`; None where the route does not see it, as with `path`, or the call has
    come by no method of HTTP. `context.request.method` is then that of the route, and an error if it has several."""
    client: str | None = None
    """The address of the client, such as `"10.0.0.7"`; None where the route does not see it, as with `path`, or the
    node does not know it."""
    _cancelled: bool = False
    # The batch and the item of it, where a node is.
    _place: tuple[int, int] | None = None
    # What the code has chosen of the answer, and its work after it.
    _response: Response | None = None
    _after: list[Work] | None = None
    # Whether several methods of HTTP call the route.
    _has_methods: bool = False

    def __post_init__(self) -> None:
        # Each item has a context, and most of them no headers.
        if self.headers and type(self.headers) is not RequestHeaders:
            self.headers = RequestHeaders.of(self.headers)

    def __repr__(self) -> str:
        shown = (name for name in self.__struct_fields__ if not name.startswith("_"))
        return f"Context({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    if not TYPE_CHECKING:  # A checker tells of a wrong name itself.

        def __getattr__(self, name: str) -> Any:
            names = (*self.__struct_fields__, *_METHODS)
            raise AttributeError(f"the context has no {name!r}{cure_after(name, CONTEXT, names)}")

    def remaining(self) -> float | None:
        """Seconds until the deadline, at least 0; None without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @property
    def request(self) -> Request:
        """The head of the request: its method, its path, the headers and query parameters that the route lists, with
        their `cookies` and `bearer`, and the address of its client. A route sees the path, the method and the client of
        its requests where it lists headers or query parameters, declares methods, or has a path with parameters. In
        any other one path and method are those of the route, and `client` is None. `method` raises `AttributeError`
        where nothing says it: of a call over QUIC, or of a test, whose route has several. A change of its values does
        not change the context."""
        of_route, path = split_name(self.route or "")
        kind = PartOfRequest if self._has_methods and self.method is None else Request
        query = {name: [text] for name, text in self.query.items()}
        method = self.method or of_route or "POST"
        return kind(method, self.path or path, query, self.headers, self.client)

    @property
    def response(self) -> Response:
        """The answer over HTTP, without its output: `context.response.status_code = 201`,
        `context.response.headers["x-model"] = "m1"`. In a stream it is chosen before the first output.
        """
        check_open(self._response is SENT)
        if self._response is None:
            self._response = Response()
        return self._response

    def after(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Calls a function in this replica when the call has its answer, whatever that is.

        An async function runs in the event loop of async code, any other one in a thread: one after the other. Its
        exceptions are logged. A node that ends waits for it until the `stop_timeout` of the stage. It calls other
        services through a `Client` only: the call that it belongs to is over. Raises `HTTPException` with status 503 if
        1,000 of them wait in the replica, and `RuntimeError` if the call has its answer.
        """
        if not callable(fn):
            raise TypeError(f"after: {fn!r} cannot be called: write context.after(fn, argument)")
        if is_over(self):
            raise RuntimeError("after: the call has its answer: work after it is named before")
        # It needs the context.
        from callboard._after import PENDING

        PENDING.note(self)
        self._after = self._after or []
        self._after.append((fn, args, kwargs))

    @property
    def cancelled(self) -> bool:
        """Whether the caller has left. Code that runs long without `await` should read this from time to time."""
        if not self._cancelled:
            look()
        return self._cancelled


def _has_over(context: Context) -> bool:
    return context._place == OVER


# Whether a call has its answer. The worker of this process sets it.
is_over: Callable[[Context], bool] = _has_over


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
    """The device: `"cuda:0"` for each replica of a stage with `devices`, as it sees no other. Else the `device` of the
    stage in the configuration file, or of the service."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The `settings` of the stage in the configuration file, with its `device` if it has one."""
    cache: Path | None = None
    """The directory that `prepare` has filled."""
