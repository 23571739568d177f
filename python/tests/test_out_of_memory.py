"""A batch that finds no memory: it is freed, and a batch that may run again runs in halves."""

from __future__ import annotations

import asyncio
import gc
import sys
import types
from typing import Any

import pytest

import callboard as cb
from callboard._out_of_memory import is_out_of_memory

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


def test_errors_that_say_that_memory_was_lacking() -> None:
    yes = [MemoryError(), OutOfMemoryError(), RuntimeError("CUDA error: out of memory")]
    no = [ValueError("out of memory"), RuntimeError("device-side assert"), KeyError("x")]
    assert list(map(is_out_of_memory, [*yes, *no])) == [True] * 3 + [False] * 3
