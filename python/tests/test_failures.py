"""Failed calls keep nothing of what their code held, without the collector of cycles."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import failures
import numpy as np
import pytest
from node import Node

import callboard as cb
from callboard._awaiting import finish
from callboard._envelope import decode, encode
from callboard._hooks import Health

HOWS = ("simply", "itself", "cause", "another", "group", "argument")


def count(node: Node, ident: int) -> Any:
    """What the worker holds, as its next call sees it."""
    node.batch(["count"], ident=ident)
    (outcome,), streamed = node.outcomes()
    return streamed[-1][1] if streamed else outcome


@pytest.mark.parametrize(
    "target", ["plain", "batch", "placed", "later", "later_batch", "stream", "later_stream", "unsendable"]
)
def test_a_failed_call_keeps_nothing(target: str) -> None:
    with Node(f"failures.py:{target}").ready() as node:
        for ident, how in enumerate(HOWS, 1):
            node.batch([how], ident=ident)
            (outcome,), _ = node.outcomes()
            assert "message" in outcome, outcome
        assert count(node, 10) == 0


def test_an_error_with_odd_attributes_fails_its_call_only() -> None:
    with Node("failures.py:odd").ready() as node:
        for ident, how in enumerate(failures.ODD, 1):
            node.batch([how], ident=ident)
            (outcome,), _ = node.outcomes()
            assert "message" in outcome, outcome
        assert count(node, 10) == 0


def test_a_failed_batch_keeps_nothing() -> None:
    for target in ("batch", "placed", "plain", "later"):
        with Node(f"failures.py:{target}").ready() as node:
            assert all("message" in outcome for outcome in node.call(*HOWS))
            assert count(node, 2) == 0


def test_a_failed_call_among_several_at_once_keeps_nothing() -> None:
    with Node("failures.py:Concurrent", max_batches=8).ready(8) as node:
        for ident, how in enumerate(HOWS, 1):
            node.batch([how], ident=ident)
        for _ in HOWS:
            head, _ = node.receive()
            assert "message" in head["items"][0]
        assert count(node, 10) == 0


def test_a_failed_example_keeps_nothing() -> None:
    with Node("failures.py:Warm").ready() as node:
        assert len(node.logs) == 2 and count(node, 1) == 0


@pytest.mark.parametrize(("target", "works"), [("after", 2), ("later_after", 1)])
def test_failed_work_after_an_answer_keeps_nothing(target: str, works: int) -> None:
    with Node(f"failures.py:{target}").ready() as node:
        for ident, how in enumerate(HOWS, 1):
            node.batch([how], ident=ident)
            node.outcomes()
        # A call shows what is held, and brings the log along.
        idents = itertools.count(10)
        failed = works * len(HOWS)
        assert until(lambda: count(node, next(idents)) == 0 and len(node.logs) == failed), node.logs


@pytest.mark.parametrize("when", ["before", "within", "after", "later"])
def test_a_failed_asgi_app_keeps_nothing(when: str) -> None:
    def ask(how: str) -> tuple[Any, list[tuple[int, Any]]]:
        request = {"method": "GET", "scheme": "http", "http_version": "1.1", "root_path": "/mounted", "headers": []}
        path = f"/mounted/{when}/{how}"
        node.batch([{**request, "path": path, "query": "", "client": None, "body": b""}], ident=next(idents))
        (outcome,), streamed = node.outcomes()
        return outcome, streamed

    def held() -> int:
        _, streamed = ask("count")
        return int(b"".join(part["body"] for _, part in streamed if "body" in part))

    idents = itertools.count(1)
    with Node("failures.py:@asgi-mounted").ready() as node:
        for how in HOWS:
            outcome, _ = ask(how)
            assert (outcome is None) == (when in ("after", "later")), outcome
        # The lifespan has failed, too.
        assert until(lambda: held() == 0 and len(node.logs) == len(HOWS) + 1), (held(), node.logs)


@pytest.mark.parametrize("target", ["Keyed", "KeyedLater"])
def test_a_failed_call_of_a_keyed_method_keeps_nothing(target: str) -> None:
    def call(how: str) -> Any:
        node.batch([{"key": "ann", "state": None, "input": encode(how)}], ident=next(idents))
        (outcome,), _ = node.outcomes()
        return outcome

    idents = itertools.count(1)
    with Node(f"failures.py:{target}").ready() as node:
        for how in HOWS:
            outcome = call(how)
            assert "message" in outcome, outcome
        assert decode(call("count")["output"]) == 0


@pytest.mark.parametrize("target", ["Calls", "CallsLater"])
def test_a_failed_call_of_another_route_keeps_nothing(target: str) -> None:
    with Node(f"failures.py:{target}").ready() as node:
        for ident in (1, 2):
            node.batch(["itself"], ident=ident)
            head, _ = node.receive()
            node.send({"type": "result", "id": head["id"], "error": {"message": "full", "kind": "overloaded"}})
            node.outcomes()
        assert count(node, 10) == 0


def test_a_failed_call_frees_its_tensors_on_a_gpu(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    (tmp_path / "gpu.py").write_text("""
import gc, torch, callboard as cb
gc.disable()

@cb.function
def large(how: str) -> int:
    if how == "count":
        return torch.cuda.memory_allocated()
    held = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    raise ValueError(how)
""")
    with Node(f"{tmp_path}/gpu.py:large").ready() as node:
        for ident in range(1, 9):
            node.batch(["a"], ident=ident)
            node.outcomes()
        assert count(node, 9) < 64 << 20


# ---- Who has cancelled -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("own_task", "asyncio.exceptions.CancelledError"),
        ("lock", "asyncio.exceptions.CancelledError: a lock was cancelled"),
        ("locks", "asyncio.exceptions.CancelledError: a lock was cancelled"),
    ],
)
def test_a_cancellation_by_the_code_itself_is_its_failure(target: str, message: str) -> None:
    with Node(f"failures.py:{target}").ready() as node:
        (outcome,) = node.call("a")
        assert (outcome["message"], outcome["type"]) == (message, "asyncio.exceptions.CancelledError")
        assert "failures.py" in outcome["trace"]


def test_an_item_whose_caller_has_left_is_cancelled() -> None:
    with Node("failures.py:Leaves", max_batches=8).ready(8) as node:
        node.batch(["wait"])
        node.send({"type": "cancel", "id": 1, "item": 0})
        (outcome,), _ = node.outcomes()
        assert outcome == {"message": "cancelled: the caller has left", "type": "Cancelled"}


def test_code_that_ends_the_process_answers_nobody() -> None:
    with Node("failures.py:Leaves", max_batches=8).ready(8) as node:
        node.batch(["wait"], ident=1)
        node.batch(["exit", "wait"], ident=2)
        with pytest.raises(EOFError):
            node.receive()
        node.end()


# ---- In this process -------------------------------------------------------------------------------------------------


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_a_health_that_raises_keeps_nothing() -> None:
    held = len(failures.HELD)
    reason = finish(Health(failures.Health()).reason())
    assert reason is not None and reason.startswith("health() raised") and len(failures.HELD) == held


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("name", ["plain", "batch", "later", "later_batch", "stream", "Fallback"])
def test_a_failed_call_in_a_test_keeps_nothing(name: str) -> None:
    held = len(failures.HELD)
    app = getattr(failures, name)
    with cb.test_client(app) as client:
        # A test reads the traceback of an error, whose frames may refer to it by code of the service itself.
        as_client = client.client().call
        for call in (
            client.call,
            lambda how: as_client(f"/{name}", how),
            lambda how: as_client(f"/{name}", how, timeout=60),
        ):
            with contextlib.suppress(ValueError, cb.CallError):
                call("simply")
            assert len(failures.HELD) == held
        client.batch(["simply", "simply"])
    assert len(failures.HELD) == held


# ---- Of a client -----------------------------------------------------------------------------------------------------


def begun() -> tuple[Any, weakref.ref[Any]]:
    array = np.zeros(1 << 16)
    return array, weakref.ref(array)


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize(
    "kind", ["failed", "unavailable", "lost", "cut", "late", "slow", "unreachable", "nonsense", "wrong"]
)
def test_a_failed_call_of_a_client_keeps_nothing(kind: str) -> None:
    http_node = pytest.importorskip("http_node")
    waits = threading.Event()

    def answer(request: Any) -> bytes | None:
        if kind == "late":
            waits.wait(http_node.LIMIT)
        found = {"failed": http_node.problem(500, "failed"), "wrong": http_node.value("text")}
        found["unavailable"] = http_node.problem(503, "unavailable", retryable=True)
        found |= {"cut": http_node.Cut(http_node.value("text")[:-1]), "slow": http_node.Slow(http_node.value("text"))}
        found["nonsense"] = b"nonsense" * 8 + b"\r\n\r\n"
        return found.get(kind)

    timeout = 0.1 if kind in ("late", "slow") else 20
    with http_node.Node(answer) as node:
        url = node.url if kind != "unreachable" else f"http://127.0.0.1:{http_node.unused_port()}"
        options: dict[str, Any] = {"timeout": timeout, "start_up_wait": 0, "attempts": 2}
        with cb.Client(url, **options) as client:
            for call in (
                lambda array: client.call("/a", array, returns=int, idempotent=True),
                lambda array: list(client.replies("/a", array, returns=int)),
                lambda array: list(client.stream("/a", [array], returns=int, stop_at_error=True)),
            ):
                array, kept = begun()
                with pytest.raises(cb.CallError):
                    call(array)
                del array
                assert until(lambda kept=kept: kept() is None)

        async def awaited() -> None:
            async with cb.AsyncClient(url, **options) as client:
                for stream in (False, True):
                    array, kept = begun()
                    with pytest.raises(cb.CallError):
                        if stream:
                            _ = [_ async for _ in client.stream("/a", [array], returns=int, stop_at_error=True)]
                        await client.call("/a", array, returns=int, idempotent=True)
                    del array
                    while kept() is not None:
                        await asyncio.sleep(0.01)

        asyncio.run(asyncio.wait_for(awaited(), http_node.LIMIT))
        waits.set()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("kind", ["failed", "wrong"])
def test_errors_in_the_places_of_results_keep_nothing(kind: str) -> None:
    http_node = pytest.importorskip("http_node")
    answer = http_node.problem(500, "failed") if kind == "failed" else http_node.value("text")

    def called(client: cb.Client) -> weakref.ref[Any]:
        array, kept = begun()
        ((_, error),) = list(client.stream("/a", [array], returns=int, with_inputs=True))
        assert isinstance(error, cb.CallError)
        return kept

    async def awaited() -> weakref.ref[Any]:
        array, kept = begun()
        async with cb.AsyncClient(node.url) as client:
            outputs = client.stream("/a", [array], returns=int, with_inputs=True)
            ((_, error),) = [each async for each in outputs]
        assert isinstance(error, cb.CallError)
        return kept

    with http_node.Node(lambda _: answer) as node, cb.Client(node.url) as client:
        for kept in (called(client), asyncio.run(awaited())):
            assert until(lambda kept=kept: kept() is None)


@pytest.mark.parametrize("kind", ["lost", "cut"])
def test_a_failed_call_leaves_what_its_caller_handles(kind: str) -> None:
    http_node = pytest.importorskip("http_node")
    answer = http_node.Cut(http_node.frames("a")[:-9]) if kind == "cut" else None
    with http_node.Node(lambda _: answer) as node, cb.Client(node.url, start_up_wait=0) as client:
        try:
            raise ConnectionError("an earlier one")
        except ConnectionError as earlier:
            for call in (client.call, lambda route: list(client.replies(route))):
                with pytest.raises(cb.CallError) as error:
                    call("/a")
                assert "earlier" not in str(error.value) and earlier.__traceback__ is not None


def until(reached: Callable[[], bool]) -> bool:
    """What is still to be closed is closed in the next turns of a loop."""
    end = time.monotonic() + 20
    while not reached() and time.monotonic() < end:
        time.sleep(0.01)
    return reached()
