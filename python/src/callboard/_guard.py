"""Asks the function with `@auth` about the calls of a client in a test, and answers them as a node does."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from callboard._api import SERVICE
from callboard._auth import AUTH_ROUTE, Caller, Request
from callboard._awaiting import in_time
from callboard._errors import call_error
from callboard._exceptions import HTTPException
from callboard._instance import Instance
from callboard._target import TargetError
from callboard.client.transport import Failure

# The statuses whose errors are those of the node itself.
_KINDS = {401: "unauthenticated", 403: "permission_denied"}


class Guard:
    """The function that names the callers of an app."""

    def __init__(self, function: Any) -> None:
        self._instance = Instance(function, {})
        millis = self._instance.main.service.timeout_ms
        self._seconds = None if millis is None else millis / 1000
        # Whether the function is asynchronous.
        self.waits = self._instance.waits

    async def ask(self, request: Request, timeout: float | None) -> Caller:
        """The caller of a request, which waits for `timeout` seconds. Raises the `Failure` of a refusal."""
        limit = min((each for each in (self._seconds, timeout) if each is not None), default=math.inf)
        end = time.monotonic() + limit
        try:
            asking = self._instance.call(request, None, None)
            # Code that does not wait goes on, and is late.
            caller: Caller = await in_time(asking, limit if self.waits and limit < math.inf else None, _late)
        except Failure:
            raise
        except Exception as error:
            raise _refusal(error) if time.monotonic() < end else _late() from error
        if time.monotonic() >= end:
            raise _late()
        return caller


def guard_of(modules: Iterable[ModuleType], app: Any) -> Guard | None:
    """The guard of an app of these modules: the one function with `@auth` in them. The function is not asked about
    itself. Raises `TargetError` for several of them: a node does not start with these."""
    values = (value for module in modules for value in vars(module).values() if inspect.isfunction(value))
    found = {id(value): value for value in values if getattr(getattr(value, SERVICE, None), "route", "") == AUTH_ROUTE}
    functions = list(found.values())
    if not functions or any(function is app for function in functions):
        return None
    if len(functions) > 1:
        names = ", ".join(f"`{function.__module__}:{function.__name__}`" for function in functions)
        raise TargetError(f"{names} have @auth: an app names its callers by one function")
    return Guard(functions[0])


def _late() -> Failure:
    return Failure("unavailable", "the caller cannot be checked now", status=503, was_started=False)


def _refusal(error: Exception) -> Failure:
    if not isinstance(error, HTTPException):
        return Failure("internal", "the check of the caller has failed", status=500, was_started=False)
    found = call_error(error)
    return Failure(
        _KINDS.get(error.status_code, found.kind),
        found.message,
        details=found.details,
        retry_after=found.retry_after,
        status=found.status_code,
        was_started=False,
    )
