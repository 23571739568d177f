"""Metrics of user code: in a process alone, from a worker, and on the page of a node."""

from __future__ import annotations

import asyncio
import os
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from node import PROGRAM, Node

import callboard as cb
from callboard import metrics
from callboard.metrics import REGISTRY

ROOT = Path(__file__).parents[2]
LIMIT = 60

APP = """
import os
import callboard as cb

tokens = cb.metric("tokens", "counter", "Tokens that were made")
loaded = cb.metric("loaded", "gauge")
seconds = cb.metric("seconds", "histogram", buckets=[0.1, 1])

@cb.service
class Count:
    def setup(self):
        loaded.set(7, part="a")

    def predict(self, crash: bool) -> int:
        tokens.inc(3, model="x")
        tokens.labels(model="y").inc()
        seconds.observe(0.5)
        if crash:
            raise SystemExit("told to end")
        return os.getpid()
"""


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(REGISTRY, "families", {})
    REGISTRY.reset()
    yield
    REGISTRY.reset()


def app(directory: Path) -> str:
    (directory / "app.py").write_text(APP)
    return str(directory / "app.py")


# ---- In one process --------------------------------------------------------------------------------------------------


def test_a_test_client_reads_what_was_counted_since_it_was_opened() -> None:
    tokens = cb.metric("tokens", "counter", "Tokens that were made")
    tokens.inc(100)

    @cb.function
    def f(n: int) -> int:
        tokens.inc(n, model="x")
        tokens.labels(model='"').labels(part=1).inc()
        cb.metric("depth", "gauge").set(n)
        cb.metric("depth", "gauge").dec(0.5)
        cb.metric("seconds", "histogram").observe(n)
        return n

    with cb.test_client(f) as client:
        client.batch([1, 2])
        assert client.metrics() == {
            'tokens_total{model="x"}': 3.0,
            'tokens_total{model="\\"",part="1"}': 2.0,
            "depth": 1.5,
            "seconds_count": 2.0,
            "seconds_sum": 3.0,
        }

    async def again() -> dict[str, float]:
        async with cb.test_client(f) as client:
            await client.call(1)
            return client.metrics()

    assert asyncio.run(again())['tokens_total{model="x"}'] == 1.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: cb.metric("a-b"), "is not the name of a metric"),
        (lambda: cb.metric("callboard_calls"), "the metrics of the node begin with callboard_"),
        (lambda: cb.metric("x" * 201), "has more than 200 bytes"),
        (lambda: cb.metric("a", "count"), "did you mean 'counter'"),
        (lambda: cb.metric("a", "counter", ["model"]), "labels are named where it counts"),
        (lambda: cb.metric("a", help="x" * 501), "has more than 500 bytes"),
        (lambda: cb.metric("a", "histogram", buckets=[2, 1]), "each must be above the one before it"),
        (lambda: cb.metric("a", "histogram", buckets=range(51)), "from 1 to 50 numbers"),
        (lambda: (cb.metric("a"), cb.metric("a", "gauge")), "a is a counter already"),
        (lambda: cb.metric("a").inc(-1), "a counter only grows"),
        (lambda: cb.metric("a").inc(float("nan")), "a: inc(nan): must be a finite number"),
        (lambda: cb.metric("a").inc(float("inf")), "a: inc(inf): must be a finite number"),
        (lambda: cb.metric("a").inc(10**400), "must be a finite number"),
        (lambda: cb.metric("a", "gauge").dec(float("inf")), "a: dec(inf): must be a finite number"),
        (lambda: cb.metric("a", "gauge").set(10**400), "must be a finite number"),
        (lambda: cb.metric("a", "histogram").observe(float("-inf")), "a: observe(-inf): must be a finite number"),
        (lambda: cb.metric("a", help="\ud800"), "help: '\\ud800' has a character that UTF-8 cannot have"),
        (lambda: cb.metric("a").inc(stage="x"), "a label cannot be called 'stage'"),
        (lambda: cb.metric("a").labels(**{"a-b": 1}), "a label cannot be called 'a-b'"),
        (lambda: cb.metric("a").inc(**{f"l{n}": n for n in range(11)}), "at most 10 labels"),
        (lambda: [cb.metric(f"m{n}") for n in range(201)], "at most 200 metrics"),
    ],
)
def test_what_a_program_gets_wrong_is_refused(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        wrong()
    assert not dict(REGISTRY.values()), "nothing is made"


def test_series_beyond_the_limit_are_not_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    users, other = cb.metric("users"), cb.metric("other")
    for n in range(1100):
        users.inc(user=n)
    users.inc(user=5)
    other.inc(model="x" * 201)
    found = dict(REGISTRY.values())
    assert len(found) == 1000 and found['users_total{user="5"}'] == 2.0
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("the metric users does not count some of its values") and "at most 1000 series" in first
    assert "a value of the label model: " in second and "has more than 200 bytes" in second


def test_numbers_of_other_types_and_texts_that_are_not_utf_8_can_be_sent_or_are_not_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Text(str):
        """As those of NumPy."""

    sent: list[Any] = []
    three: Any = np.int64(3)
    half: Any = np.float32(0.5)
    tokens = cb.metric(Text("tokens"))
    tokens.inc(three, model=Text("x"))
    tokens.inc(half, model="x")
    tokens.inc(model="\ud800")
    cb.metric("depth", "gauge").inc(half)
    cb.metric("seconds", "histogram", buckets=[1]).observe(half)
    REGISTRY.connect(lambda samples: sent.extend(msgspec.msgpack.decode(msgspec.msgpack.encode(samples))))
    REGISTRY.flush()
    assert {each["name"]: each.get("add", each.get("set")) for each in sent} == {
        "tokens": 3.5,
        "depth": 0.5,
        "seconds": None,
    }
    (record,) = caplog.records
    assert "a value of the label model: '\\ud800' has a character that UTF-8 cannot have" in record.getMessage()


def test_samples_that_cannot_be_sent_end_neither_the_thread_nor_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []

    def send(samples: list[Any]) -> None:
        if not any(each["name"] == "good" for each in samples):
            raise TypeError("not for MessagePack")
        sent.extend(samples)

    REGISTRY.connect(send)
    for _ in range(2):
        cb.metric("bad").inc()
        REGISTRY.flush()
    cb.metric("good").inc()
    REGISTRY.flush()
    assert [each["name"] for each in sent] == ["good"]
    (record,) = caplog.records
    assert record.getMessage() == "some metrics were not sent to the node"


def test_a_forked_process_begins_its_counters_again_and_keeps_its_gauges() -> None:
    cb.metric("tokens").inc(3)
    cb.metric("depth", "gauge").set(2)
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        sent: list[Any] = []
        cb.metric("tokens").inc(1)
        REGISTRY.connect(sent.extend)
        REGISTRY.flush()
        os.write(writing, repr({each["name"]: each.get("add", each.get("set")) for each in sent}).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    with os.fdopen(reading, "rb") as pipe:
        os.close(writing)
        assert pipe.read() == b"{'depth': 2.0, 'tokens': 1.0}"


# ---- A worker --------------------------------------------------------------------------------------------------------


def test_a_worker_sends_what_has_changed_also_at_its_end(tmp_path: Path) -> None:
    with Node(f"{app(tmp_path)}:Count", metrics=True).ready() as node:
        samples: list[dict[str, Any]] = []
        for ident in range(3):
            node.batch([False], ident=ident)
            while (found := node.receive()[0])["type"] != "outcomes":
                samples += found["samples"]
        node.send({"type": "stop"})
        with pytest.raises(EOFError):
            while True:
                head, _ = node.receive()
                samples += head.get("samples", [])
    of = {name: [each for each in samples if each["name"] == name] for name in ("tokens", "loaded", "seconds")}
    assert of["tokens"][0] == {
        "name": "tokens",
        "help": "Tokens that were made",
        "labels": [["model", "x"]],
        "add": of["tokens"][0]["add"],
    }
    assert sum(each["add"] for each in of["tokens"] if each["labels"] == [["model", "x"]]) == 9.0
    assert [each["set"] for each in of["loaded"]] == [7.0], "what has not changed is not sent again"
    observed = [each["observed"] for each in of["seconds"]]
    assert sum(each["counts"][1] for each in observed) == 3 and observed[0]["bounds"] == [0.1, 1.0]


def test_a_worker_sends_nothing_to_a_node_that_does_not_take_it(tmp_path: Path) -> None:
    with Node(f"{app(tmp_path)}:Count").ready() as node:
        node.batch([False])
        node.send({"type": "stop"})
        assert node.receive()[0]["type"] == "outcomes"
        with pytest.raises(EOFError):
            node.receive()


# ---- A node ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(PROGRAM is None, reason="the program `callboard` is not built")
def test_the_page_of_a_node_sums_replicas_also_those_that_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert PROGRAM is not None
    monkeypatch.setenv("PATH", str(Path(PROGRAM).parent), prepend=os.pathsep)

    def page() -> str:
        with urllib.request.urlopen(f"{node.url}/metrics", timeout=LIMIT) as answer:
            return str(answer.read().decode())

    def until(*lines: str) -> str:
        end = time.monotonic() + LIMIT
        while not all(line in (text := page()) for line in lines):
            assert time.monotonic() < end, text
            time.sleep(0.05)
        return text

    with cb.start(app(tmp_path)) as node:
        client = node.client()
        before = client.call("/count", False)
        until(
            "# HELP tokens_total Tokens that were made\n# TYPE tokens_total counter\n",
            'tokens_total{model="x",stage="count"} 3.0\n',
            'loaded{part="a",stage="count",replica="0"} 7.0\n',
            'seconds_bucket{le="1.0",stage="count"} 1\n',
        )
        with pytest.raises(cb.CallError):
            client.call("/count", True)
        assert client.call("/count", False) != before
        until('tokens_total{model="x",stage="count"} 9.0\n', 'seconds_count{stage="count"} 3\n', "loaded{")


def test_the_limits_of_a_process_are_within_those_of_a_node() -> None:
    source = (ROOT / "crates/core/src/metrics/reported/mod.rs").read_text()
    limits = {
        name: int(value.replace("_", "")) for name, value in re.findall(r"const MAX_(\w+): usize = ([\d_]+)", source)
    }
    for own, name in {"METRICS": "FAMILIES", "BUCKETS": "BOUNDS"}.items():
        limits[own] = limits[name]
    for name in ("NAME_BYTES", "HELP_BYTES", "LABELS", "METRICS", "SERIES", "BUCKETS"):
        assert getattr(metrics, f"_MAX_{name}") <= limits[name], name
