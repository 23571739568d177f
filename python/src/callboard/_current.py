"""The call whose code runs now: for log records, calls of dependencies, and OpenTelemetry where the app has it."""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Iterator
from typing import Any

from callboard._context import Context

CURRENT: contextvars.ContextVar[Context | None] = contextvars.ContextVar("callboard_current", default=None)


class running:
    """While code of this call runs. None: code of several calls together."""

    # It is entered for every item: a generator would cost as much as the rest of an item.
    __slots__ = ("_context", "_span", "_token")

    def __init__(self, context: Context | None) -> None:
        self._context = context

    def __enter__(self) -> None:
        context = self._context
        self._token = CURRENT.set(context)
        self._span: contextlib.AbstractContextManager[None] | None = None
        # An app that has not imported it makes no spans.
        if context is not None and context.traceparent is not None and "opentelemetry.trace" in sys.modules:
            span = _span_of(context.traceparent)
            try:
                span.__enter__()
            except BaseException:
                CURRENT.reset(self._token)
                raise
            self._span = span

    def __exit__(self, *error: Any) -> None:
        try:
            if self._span is not None:
                self._span.__exit__(*error)
        finally:
            CURRENT.reset(self._token)


@contextlib.contextmanager
def _span_of(traceparent: str) -> Iterator[None]:
    """Spans that begin now are children of the caller's span."""
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = context.attach(TraceContextTextMapPropagator().extract({"traceparent": traceparent}))
    try:
        yield
    finally:
        context.detach(token)
