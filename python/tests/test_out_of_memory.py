"""A batch that finds no memory: it is freed, and a batch that may run again runs in halves."""

from __future__ import annotations

import asyncio
import gc
import sys
import textwrap
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from node import PROGRAM, Node
from test_methods import served

import callboard as cb
from callboard._context import Context
from callboard._out_of_memory import is_out_of_memory
from callboard._runner import Runner
from callboard._target import routes_of

SIZES: list[int] = []


class OutOfMemoryError(RuntimeError):
    """As that of PyTorch."""


class Held:
    count = 0

    def __init__(self) -> None:
        Held.count += 1

    def __del__(self) -> None:
        Held.count -= 1


def run(items: list[int]) -> list[int]:
    """There is memory for two items, if no earlier try holds some, and for no item 7."""
    held = Held()
    SIZES.append(len(items))
    if Held.count > 1 or len(items) > 2 or 7 in items:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
    del held
    return [item * 2 for item in items]


class Pure:
    @cb.batched(max_batch_size=8)
    def predict(self, items: list[int]) -> list[int]:
        return run(items)


class Later:
    @cb.batched(max_batch_size=8)
    async def predict(self, items: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return run(items)


def outcomes(service: Any, items: list[int]) -> tuple[list[Any], list[int]]:
    """What the items of one batch get, and the sizes of the batches that ran."""
    gc.collect()
    SIZES.clear()
    with cb.test_client(service) as client:
        return client.batch(items), list(SIZES)


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The times at which PyTorch has freed its memory."""
    times: list[int] = []
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        is_initialized=lambda: True, empty_cache=lambda: times.append(len(SIZES))
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    return times


@pytest.mark.parametrize("code", [Pure, Later])
def test_a_batch_that_may_run_again_runs_in_halves_once_its_memory_is_free(code: type, freed: list[int]) -> None:
    found, sizes = outcomes(cb.service(contract="pure")(code), [1, 2, 3, 4, 5])
    assert (found, sizes) == ([2, 4, 6, 8, 10], [5, 3, 2, 1, 2])
    assert freed == [1, 2]


@pytest.mark.parametrize("code", [Pure, Later])
def test_an_item_that_does_not_fit_alone_fails_alone(code: type, freed: list[int]) -> None:
    found, _ = outcomes(cb.service(contract="idempotent")(code), [1, 7, 3])
    assert (found[0], found[2]) == (2, 6)
    assert "out of memory" in str(found[1])


@pytest.mark.parametrize("code", [Pure, Later])
def test_a_batch_that_may_run_once_fails_whole(code: type, freed: list[int]) -> None:
    found, sizes = outcomes(cb.service(code), [1, 2, 3])
    assert sizes == [3] and all("CUDA out of memory" in str(error) for error in found)


class Chooses:
    @cb.batched(max_batch_size=8)
    def predict(self, items: list[int], contexts: list[cb.Context]) -> list[int]:
        for context in contexts:
            context.response.headers.append("x-size", str(len(items)))
            if len(items) > 2:
                context.response.status_code = 201
        return run(items)


class ChoosesLater:
    @cb.batched(max_batch_size=8)
    async def predict(self, items: list[int], contexts: list[cb.Context]) -> list[int]:
        return Chooses().predict(items, contexts)


@pytest.mark.parametrize("code", [Chooses, ChoosesLater])
def test_of_an_answer_counts_what_the_run_has_chosen_that_succeeded(code: type, freed: list[int]) -> None:
    (route,) = routes_of(cb.service(contract="pure")(code), "code")
    runner, contexts = Runner(route, route.instance()), [Context() for _ in range(4)]
    gc.collect()
    if route.signature.is_async:
        ran = asyncio.run(runner.run_async([1, 2, 3, 4], contexts, emit=None, started=None))  # type: ignore[arg-type]
    else:
        ran = runner.run([1, 2, 3, 4], contexts, lambda index, output: None)
    assert ran == [2, 4, 6, 8]
    for context in contexts:
        assert (context.response.status_code, context.response.headers.pairs()) == (None, [("x-size", "2")])


APP = """
import callboard as cb

def run(items: list[int]) -> list[int]:
    if len(items) > 1:
        raise MemoryError("no room")
    return items

@cb.service(contract="{contract}")
class Model:
    @cb.batched(max_batch_size=2, max_delay="60s")
    def predict(self, items: list[int]) -> list[int]:
        return run(items)

    @cb.route("/second")
    @cb.batched(max_batch_size=2, max_delay="60s")
    def second(self, items: list[int]) -> list[int]:
        return run(items)
"""


@pytest.mark.parametrize("contracts", [["pure", "at_most_once"], ["at_most_once", "idempotent"], None])
def test_the_contract_of_its_stage_says_whether_a_batch_of_a_worker_may_run_again(
    tmp_path: Path, contracts: list[str] | None
) -> None:
    (tmp_path / "model.py").write_text(APP.format(contract="pure"))
    start = {} if contracts is None else {"contracts": contracts}
    with Node(f"{tmp_path}/model.py:Model", methods=["second"], **start) as node:
        assert node.receive()[0]["type"] == "ready"
        for method, contract in zip((None, "second"), contracts or ["pure", "pure"], strict=True):
            node.send({"type": "batch", "id": 1, "items": [{}, {}], "method": method}, [1, 2])
            outcomes = node.outcomes()[0]
            assert (outcomes == [1, 2]) == (contract != "at_most_once"), outcomes


@pytest.mark.skipif(PROGRAM is None, reason="the program `callboard` is not built")
def test_a_node_tells_its_workers_the_contracts_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(APP.format(contract="idempotent"))
    stage = """
        [[stage]]
        name = "{name}"
        kind = "python"
        app = "model.py:Model{method}"
        max_batch_size = 2
        max_delay = "60s"
        contract = "{contract}"
        {more}
        [[route]]
        path = "/{name}"
        stages = "{name}"
    """
    file = tmp_path / "callboard.toml"
    first = stage.format(name="first", method="", contract="at_most_once", more="")
    second = stage.format(name="second", method=".second", contract="pure", more='replicas_of = "first"')
    file.write_text(textwrap.dedent(first + second))
    with served(file) as client, ThreadPoolExecutor(2) as threads:

        def both(path: str) -> list[Any]:
            calls = [threads.submit(client.call, path, number) for number in (1, 2)]
            return [call.exception() or call.result() for call in calls]

        assert both("/second") == [1, 2]
        assert all("no room" in str(error) for error in both("/first"))


def test_errors_that_say_that_memory_was_lacking() -> None:
    yes = [MemoryError(), OutOfMemoryError(), RuntimeError("CUDA error: out of memory")]
    no = [ValueError("out of memory"), RuntimeError("device-side assert"), KeyError("x")]
    assert list(map(is_out_of_memory, [*yes, *no])) == [True] * 3 + [False] * 3
