"""Wrong uses of `callboard.test_client`, each with its cure."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from callboard._asgi import is_asgi
from callboard._compose import Step
from callboard._exceptions import InvalidInput
from callboard._target import Route, TargetError


def check_app(app: Any, others: tuple[Any, ...]) -> None:
    """Refuses what is no service, function or pipeline."""
    if others:
        raise TypeError(
            "test_client takes one service, function or pipeline: test each by itself, with "
            "context=cb.Context(caller='ada') for code that reads its caller; cb.start('app.py') runs all of them, "
            "with their @cb.auth"
        )
    if is_asgi(app) or _takes_messages(app):
        raise TargetError("an ASGI app is tested by a client of its own, such as starlette.testclient.TestClient(app)")
    if isinstance(app, ModuleType):
        name = app.__name__
        raise TargetError(
            f"{name} is a module: test a service or function of it by cb.test_client({name}.Name), or all by cb.start"
        )
    if not isinstance(app, Step) and not (callable(app) and hasattr(app, "__name__")):
        raise TargetError(f"test_client takes a class, a function or a pipeline, and this is a `{type(app).__name__}`")


def _takes_messages(app: Any) -> bool:
    """Whether this is the app of an ASGI framework."""
    try:
        return list(inspect.signature(app).parameters) == ["scope", "receive", "send"]
    except (TypeError, ValueError):
        return False


def wrong_call(more: tuple[Any, ...], options: dict[str, Any]) -> TypeError:
    """The error of a call with the arguments of a client's call: that of a test client takes the input alone."""
    cure = 'client().call("GET /items/7", headers={…}, query={…}) of this has the path, headers and query of a request'
    if more:
        return TypeError(f"call takes the input alone, and {1 + len(more)} values were given: {cure}")
    return TypeError(f"call has no argument `{next(iter(options))}`: {cure}")


def no_default(stage: str, routes: list[str]) -> TargetError:
    """The error of a call without a method, of a class with several routes and no `predict`."""
    return TargetError(f"{stage} has no `predict`: say method={routes[0]!r}, or another of {', '.join(routes)}")


def hint_at_request(route: Route, value: Any, error: InvalidInput) -> None:
    """Tells of a wrong input which of its arguments are parts of the request."""
    given = value if isinstance(value, dict) else {}
    for argument in route.signature.request:
        place = f"{argument.part.place}.{argument.key}"
        if argument.name in given or any(path == place for path, _ in error.fields):
            error.args = (
                f"{error}: `{argument.name}` is the {argument.part.words} `{argument.key}`, and no field of the input: "
                f"use client().call({route.public_name!r}, …) with its path, headers and query, or "
                "context=cb.Context(…) here",
            )
            return
