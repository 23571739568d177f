"""The OpenTelemetry context of a call, where the package is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from callboard._context import Context
from callboard._runner import Runner
from callboard._target import routes_of

trace = pytest.importorskip("opentelemetry.trace")

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def here() -> str:
    span = trace.get_current_span().get_span_context()
    return f"{span.trace_id:032x}-{span.span_id:016x}"


def plain(x: int) -> str:
    return here()


def streaming(x: int) -> Iterator[str]:
    yield here()


async def awaited(x: int) -> str:
    await asyncio.sleep(0)
    return here()


@pytest.mark.parametrize("function", [plain, streaming, awaited])
def test_code_runs_below_the_span_of_its_call(function: Any) -> None:
    (route,) = routes_of(function, "f")
    runner = Runner(route, None)
    contexts = [Context(traceparent=f"00-{TRACE}-{SPAN}-01"), Context()]
    found = []

    async def emit(_: int, output: Any) -> None:
        found.append(output)

    if runner.signature.is_async:
        found += asyncio.run(runner.run_async([1, 2], contexts, emit, lambda _: None))
    else:
        found += runner.run([1, 2], contexts, lambda _, output: found.append(output))
    assert [each for each in found if each] == [f"{TRACE}-{SPAN}", f"{0:032x}-{0:016x}"]
    assert here() == f"{0:032x}-{0:016x}"
