"""The Python code that every peer serves: only what is around it differs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

MAX_BATCH = 32
BATCH_SECONDS = 0.005


def echo(item: dict[str, Any]) -> dict[str, Any]:
    return item


def square(items: list[dict[str, float]]) -> list[dict[str, float]]:
    values = np.array([item["x"] for item in items])
    return [{"y": value} for value in np.square(values).tolist()]


def slow_square(items: list[dict[str, float]]) -> list[dict[str, float]]:
    """A model that takes 5 ms, however many items a batch has."""
    time.sleep(BATCH_SECONDS)
    return square(items)


def negative(array: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return -array


def count(item: dict[str, int]) -> Iterator[dict[str, int]]:
    for number in range(item["count"]):
        yield {"number": number}


def started() -> None:
    """A worker says that it lives, and under which process id: faults are sent to these processes."""
    if directory := os.environ.get("PEERS_DIRECTORY"):
        (Path(directory) / f"worker-{os.getpid()}").touch()


def work(item: dict[str, float]) -> dict[str, float]:
    """Takes as long as the item says, and notes that it ran."""
    note("began")
    time.sleep(item["ms"] / 1000)
    note("ended")
    return item


def note(word: str) -> None:
    """A line of the ledger that tells what work was done. Lines of several processes do not mix."""
    if directory := os.environ.get("PEERS_DIRECTORY"):
        ledger = os.open(Path(directory) / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(ledger, f"{word} {time.time():.6f} {os.getpid()}\n".encode())
        os.close(ledger)
