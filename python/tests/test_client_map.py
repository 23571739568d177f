"""Calls of a client for every input or row: results as they come, and as a frame where a frame came."""

from __future__ import annotations

import _thread
import asyncio
import gc
import itertools
import json
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from http_node import LIMIT, Node, Request, echo, problem, unused_port, value
from node import ENVIRONMENT, PROGRAM

from callboard import AsyncClient, CallError, Client
from callboard._envelope import decode
from callboard.client import FailedError, Stream, UnavailableError
from callboard.client.http import AsyncHttpTransport

LENGTH = """
import callboard as cb

@cb.service
class Length:
    @cb.batched(max_batch_size=16)
    def predict(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]
"""
WORDS = ["a", "bb", "ccc"]


def _length(request: Request) -> bytes:
    """The length of a text or of the text of a record, which it fails for `bb`."""
    given = decode(request.body)
    text = given if isinstance(given, str) else given["text"]
    if text == "bb":
        return problem(500, "failed")
    return value(len(text) if isinstance(given, str) else {"length": len(text), "row": given})


def test_a_map_is_the_results_in_order_with_errors_in_their_place_or_raised() -> None:
    with Node(_length) as node, Client(node.url) as client:
        results = client.map("/length", iter(WORDS), in_flight=2)
        assert isinstance(results, Stream)
        first, failed, last = results
        assert (first, type(failed), last) == (1, FailedError, 3)
        assert list(client.map("/length", ["a"], returns=float)) == [1.0]
        with pytest.raises(FailedError):
            list(client.map("/length", WORDS, errors="raise"))
        for wrong in ({"errors": "ignore"}, {"in_flight": 0}):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                client.map("/length", WORDS, **wrong)

        async def asynchronous() -> list[Any]:
            async with AsyncClient(node.url) as client:
                return [each async for each in client.map("/length", WORDS, in_flight=2)]

        assert [type(each) for each in asyncio.run(asynchronous())] == [int, FailedError, int]


def test_a_column_of_pandas_gives_a_column_with_its_index_and_name() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"text": WORDS, "number": [1.5, float("nan"), 3]}, index=["x", "y", "z"])
    with Node(_length) as node, Client(node.url) as client:
        result = client.map("/length", frame["text"])
        assert list(result.index) == ["x", "y", "z"] and result.name == "text"
        assert isinstance(result["y"], FailedError) and (result["x"], result["z"]) == (1, 3)
        whole = client.map("/length", frame["text"][["x", "z"]], errors="raise")
        assert whole.dtype == "int64" and list(whole) == [1, 3]
        assert client.map("/length", frame["text"][[]]).empty


def test_missing_values_of_a_frame_are_none_and_those_of_floats_stay() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({
        "text": pd.Series(["a", None]), "flag": pd.array([None, True], dtype="boolean"), "number": [float("nan"), 2.0],
        "at": pd.to_datetime(["2026-01-02", None]), "kind": pd.Categorical(["k", None]), "list": [[1], None],
    })  # fmt: skip
    with Node(echo) as node, Client(node.url) as client:
        first, second = client.map("/echo", frame)[list(frame.columns)].to_dict("records")
        assert str(first.pop("number")) == "nan" and second["number"] == 2.0
        sent = [decode(request.body) for request in node.requests]
        assert sent[0]["at"].startswith("2026-01-02") and sent[0]["flag"] is None
        assert all(sent[1][name] is None for name in ("text", "at", "kind", "list")) and sent[1]["flag"] is True


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_frame_gives_a_frame_of_the_same_library(library: str) -> None:
    module: Any = pytest.importorskip(library)
    make = module.table if library == "pyarrow" else module.DataFrame
    rows = lambda frame: frame.to_dict("records") if library == "pandas" else _rows(frame)  # noqa: E731
    frame = make({"text": WORDS, "number": [1, 2, 3]})
    with Node(_length) as node, Client(node.url) as client:
        result = client.map("/length", frame)
        assert type(result) is type(frame)
        first, failed, last = rows(result)
        assert (first["length"], first["row"]) == (1, {"text": "a", "number": 1}) and last["length"] == 3
        assert failed["call_error"] == "failed: told so" and not isinstance(first["call_error"], str)
        result = client.map("/length", make({"text": ["a", "ccc"]}), errors="raise")
        assert [row["length"] for row in rows(result)] == [1, 3] and "call_error" not in rows(result)[0]

        async def asynchronous() -> Any:
            async with AsyncClient(node.url) as client:
                return await client.map("/length", frame)

        assert rows(asyncio.run(asynchronous()))[2]["length"] == 3
    with Node(lambda request: value(7)) as node, Client(node.url) as client:
        assert [row["output"] for row in rows(client.map("/seven", frame))] == [7, 7, 7]


def _rows(frame: Any) -> Any:
    return frame.to_dicts() if hasattr(frame, "to_dicts") else frame.to_pylist()


def test_columns_of_polars_and_pyarrow_give_columns() -> None:
    pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    with Node(_length) as node, Client(node.url) as client:
        result = client.map("/length", pl.Series("text", WORDS))
        assert result.name == "text" and isinstance(result[1], CallError) and result[2] == 3
        assert client.map("/length", pl.Series(["a", "ccc"])).to_list() == [1, 3]
        assert client.map("/length", pa.array(["a", "ccc"]), errors="raise").to_pylist() == [1, 3]
        table = client.map("/length", pa.chunked_array([WORDS]))
        assert table["output"].to_pylist() == [1, None, 3]
        assert table["call_error"].to_pylist() == [None, "failed: told so", None]
    numbers: list[Any] = [1, 2.5, None]
    with Node(lambda request: value(numbers[decode(request.body)])) as node, Client(node.url) as client:
        assert client.map("/number", pl.Series([0, 1, 2])).to_list() == numbers
        assert client.map("/number", pa.array([0, 1, 2]), errors="raise").to_pylist() == numbers
        numbers[1] = "two"
        assert client.map("/number", pl.Series([0, 1, 2])).to_list() == numbers


def test_a_frame_holds_all_outputs_and_rounds_no_integer() -> None:
    pd, pl, pa = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    outputs: list[Any] = []
    large = 2**53 + 1
    with Node(lambda request: value(outputs[decode(request.body)])) as node, Client(node.url) as client:

        def mapped(column: Any, *made: Any) -> Any:
            outputs[:] = made
            return client.map("/output", column, errors="raise")

        inputs = pd.Series([0, 1]), pl.Series([0, 1]), pa.array([0, 1])
        for first, second in ([large, None], [large, 0.5], [2**63, None], [5, True], [0.5, 1]):
            of_pandas, of_polars, of_arrow = (mapped(column, first, second) for column in inputs)
            of_pandas = [None if pd.isna(each) else each for each in of_pandas]
            assert of_pandas == of_polars.to_list() == [first, second]
            of_arrow = of_arrow.to_pylist()
            assert of_arrow in (
                [first, second],
                [None if each is None else json.dumps(each) for each in (first, second)],
            )
        assert mapped(inputs[0], large, None).dtype == "Int64" and mapped(inputs[1], 0.5, 1).dtype == pl.Float64
        assert mapped(inputs[2], 1, {"a": [None]}).to_pylist() == ["1", '{"a":[null]}']
        assert mapped(inputs[2], np.ones((1, 2)), None).to_pylist() == [[[1.0, 1.0]], None]
        outputs[:] = {"id": large, "call_error": "own"}, {"id": None, "call_error": "own"}
    with Node(lambda request: value(outputs[decode(request.body)["n"]])) as node, Client(node.url) as client:
        table = client.map("/output", pd.DataFrame({"n": [0, 1]}))
        assert table["id"][0] == large and list(table["call_error"]) == ["own", "own"]
        assert table["call_error_"].isna().all()


def test_a_frame_whose_columns_cannot_be_the_names_of_a_record_is_refused() -> None:
    pd = pytest.importorskip("pandas")
    with Client("http://localhost:1") as client:
        for columns in ([1], ["a", "a"]):
            with pytest.raises(TypeError, match="different names, all of them texts"):
                client.map("/x", pd.DataFrame([[0] * len(columns)], columns=columns))


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("inputs", ["text", b"bytes", {"text": "a"}])
def test_one_input_in_the_place_of_several_is_refused(kind: Any, inputs: Any) -> None:
    for method in ("map", "stream"):
        with pytest.raises(TypeError, match=r"is one input: give a list of inputs, or use `call`"):
            getattr(kind("http://localhost:1"), method)("/x", inputs)


def test_a_frame_is_for_a_map_and_not_for_a_stream() -> None:
    with pytest.raises(TypeError, match="`map` calls a route with the rows of a frame"):
        Client("http://localhost:1").stream("/x", pytest.importorskip("pandas").DataFrame({"a": [1]}))


def test_a_map_over_an_iterable_that_raises_gives_its_error_and_leaves_the_client_well() -> None:
    def inputs() -> Iterator[int]:
        yield from range(100)
        raise LookupError("no more")

    with Node(echo) as node, Client(node.url) as client:
        results = client.map("/echo", inputs(), in_flight=8)
        came = []
        with pytest.raises(LookupError, match="no more"):
            came.extend(results)
        assert came == list(range(len(came))) and len(came) >= 92
        assert list(client.map("/echo", [1])) == [1] and client.call("/echo", 2) == 2

        async def asynchronous() -> None:
            async with AsyncClient(node.url) as client:
                with pytest.raises(LookupError, match="no more"):
                    async for _ in client.map("/echo", inputs(), in_flight=8):
                        pass
                assert [each async for each in client.map("/echo", [1])] == [1]

        asyncio.run(asynchronous())


def test_an_interrupt_ends_a_map_and_leaves_the_client_well() -> None:
    """As that of the cell of a notebook."""
    release = threading.Event()
    # A process that a shell began in the background ignores interrupts, and its children with it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def answer(request: Request) -> bytes | None:
        if decode(request.body) == 3:
            _thread.interrupt_main()
            release.wait(LIMIT)
        return value(1)

    with Node(answer) as node, Client(node.url) as client:
        with pytest.raises(KeyboardInterrupt):
            list(client.map("/echo", range(100), in_flight=4))
        assert client.call("/echo", 1) == 1 and list(client.map("/echo", [1, 2])) == [1, 1]
        release.set()
    signal.signal(signal.SIGINT, before)


def test_a_map_over_many_items_takes_no_memory_for_each() -> None:
    count = 20_000
    with Node(lambda request: value(1)) as node, Client(node.url) as client:
        node.requests = _Nothing()  # type: ignore[assignment]
        results = client.map("/one", (f"row {number}" for number in range(count)))
        for _ in range(1000):
            next(results)
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            assert sum(results) == count - 1000
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        # An object for each would be some 50 bytes.
        assert grown < 300_000


class _Nothing(list[Any]):
    def append(self, _: Any) -> None:
        pass


def test_calls_of_a_lost_node_are_made_again_if_they_may_be_and_else_are_errors_in_their_place() -> None:
    gone = threading.Event()

    def answer(request: Request) -> bytes | None:
        number = decode(request.body)
        if number == 5 and not gone.is_set():
            gone.set()
            return None
        return value(number)

    for is_idempotent in (True, False):
        gone.clear()
        with Node(answer) as node, Client(node.url) as client:
            results = list(client.map("/echo", range(40), in_flight=8, idempotent=is_idempotent))
        lost = [number for number, each in enumerate(results) if isinstance(each, UnavailableError)]
        assert [number for number in range(40) if results[number] != number] == lost
        assert lost == [] if is_idempotent else 5 in lost and len(lost) <= 8


@pytest.mark.skipif(PROGRAM is None, reason="the program `callboard` is not built")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_map_over_a_node_that_restarts_has_every_result(how: int, tmp_path: Path) -> None:
    """All of them if calls may run twice. Else a killed node costs those in flight."""
    count, in_flight, port = 3000, 16, unused_port()
    (tmp_path / "app.py").write_text(LENGTH)
    command = [PROGRAM, "serve", "app.py", "--http", f"127.0.0.1:{port}", "--admin", "off", "--log", "off"]
    nodes: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        nodes.append(subprocess.Popen(command, cwd=tmp_path, env={**ENVIRONMENT, "VIRTUAL_ENV": sys.prefix}))

    def inputs() -> Iterator[str]:
        for number in range(count):
            if number == count // 2:
                nodes[-1].send_signal(how)
                if how == signal.SIGKILL:
                    nodes[-1].wait()
                restarting = threading.Thread(target=lambda: (nodes[-1].wait(), start()))
                restarting.start()
            yield f"{number}"
        restarting.join()

    start()
    try:
        with Client(f"http://127.0.0.1:{port}", start_up_wait=4 * LIMIT) as client:
            assert client.call("/length", "a") == 1
            for is_idempotent in (True, False):
                given = {"in_flight": in_flight, "timeout": 4 * LIMIT, "idempotent": is_idempotent}
                results = list(client.map("/length", inputs(), **given))
                wrong = [each for number, each in enumerate(results) if each != len(f"{number}")]
                assert len(results) == count and all(isinstance(each, UnavailableError) for each in wrong)
                assert len(wrong) <= (in_flight if how == signal.SIGKILL and not is_idempotent else 0), wrong[0]
    finally:
        for each in nodes:
            each.kill()
            each.wait()


@pytest.mark.parametrize("wait", [0, 0.3])
def test_a_map_over_a_port_where_nothing_listens_connects_a_few_times(
    wait: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[float] = []
    once = AsyncHttpTransport._call_once
    monkeypatch.setattr(
        AsyncHttpTransport, "_call_once", lambda *args: attempts.append(time.monotonic()) or once(*args)
    )
    with Client(f"http://127.0.0.1:{unused_port()}", start_up_wait=wait) as client:
        results = list(client.map("/echo", range(500), in_flight=8))
    assert len(results) == 500 and all(isinstance(each, UnavailableError) for each in results)
    assert all(f"after {wait:g} s" in str(each) for each in results)
    # Those of the first window while they wait, and one a second.
    assert len(attempts) <= 8 * 10 + attempts[-1] - attempts[0]


def test_a_map_goes_on_with_a_node_that_came_back() -> None:
    port = unused_port()
    with Client(f"http://127.0.0.1:{port}", start_up_wait=0.1) as client:
        results = client.map("/echo", range(10**9), in_flight=4)
        # Those of the first window may still be waiting for the node.
        assert all(isinstance(next(results), UnavailableError) for _ in range(8))
        with Node(echo, port):
            found = next(each for each in results if not isinstance(each, UnavailableError))
            assert [found + 1, found + 2] == [next(results), next(results)]
            results.close()


def _streamed(kind: Any, client: Any, inputs: Any, **options: Any) -> Iterator[Any]:
    """The results of a stream of either client. The asynchronous one has an event loop for all of them."""
    if kind is Client:
        yield from client.stream("/length", inputs, **options)
        return
    loop = asyncio.new_event_loop()
    results = client.stream("/length", inputs, **options)
    try:
        while True:
            try:
                yield loop.run_until_complete(anext(results))
            except StopAsyncIteration:
                return
    finally:
        loop.run_until_complete(results.aclose())
        loop.run_until_complete(client.aclose())
        loop.close()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("pause", [0.0, 1.1])
def test_a_stream_after_one_whose_node_was_away_has_no_error(kind: Any, pause: float) -> None:
    """Its inputs are requests of their own, all of them at the same time."""
    port, inputs = unused_port(), ["a" * (300 << 10)] * 64
    client = kind(f"http://127.0.0.1:{port}", start_up_wait=0.3)
    assert all(isinstance(each, UnavailableError) for each in _streamed(kind, client, inputs))
    with Node(_length, port):
        # With and without a look of the old stream being due.
        time.sleep(pause)
        assert list(_streamed(kind, client, inputs)) == [300 << 10] * 64


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_calls_of_a_stream_wait_while_one_looks_whether_the_node_is_back(kind: Any) -> None:
    port = unused_port()
    client = kind(f"http://127.0.0.1:{port}", start_up_wait=0.1)
    results = _streamed(kind, client, itertools.repeat("a" * (300 << 10)), look_ahead=16)
    # Those of the first window may still be waiting for the node.
    assert all(isinstance(next(results), UnavailableError) for _ in range(32))
    with Node(_length, port):
        found = next(each for each in results if not isinstance(each, UnavailableError))
        assert [found, *(next(results) for _ in range(32))] == [300 << 10] * 33
        results.close()


def test_another_call_of_a_stream_looks_for_the_node_when_the_one_that_did_is_lost() -> None:
    port = unused_port()
    # So long do the others wait for it at most.
    with Client(f"http://127.0.0.1:{port}", start_up_wait=0.1, connect_timeout=LIMIT) as client:
        results = client.stream("/length", itertools.repeat("a" * (300 << 10)), look_ahead=16, timeout=5)
        assert all(isinstance(next(results), UnavailableError) for _ in range(32))
        with Node(lambda request: _length(request) if request.number else None, port):
            found = next(each for each in results if not isinstance(each, UnavailableError))
            assert [found, *(next(results) for _ in range(32))] == [300 << 10] * 33
            results.close()


@pytest.mark.parametrize("has_tqdm", [False, True])
def test_progress_counts_errors(
    has_tqdm: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if has_tqdm:
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    half = Node(lambda each: echo(each) if each.number % 2 else problem(500, "failed"))
    with half as node, Client(node.url) as client:
        list(client.map("/echo", range(4), in_flight=1, progress=True))
    shown = capsys.readouterr().err
    assert shown.rstrip().endswith("errors=2]" if has_tqdm else ", 2 errors"), shown


def test_progress_is_a_line_without_tqdm() -> None:
    code = """
import sys
sys.modules["tqdm"] = sys.modules["tqdm.auto"] = None
from callboard import Client
print(list(Client(sys.argv[1]).map("/echo", [1, 2, 3], progress=True)))
print(list(Client(sys.argv[1]).map("/echo", [1, 2, 3])))
"""
    with Node(echo) as node:
        command = [sys.executable, "-c", code, node.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True, env=ENVIRONMENT)
        assert done.stdout == "[1, 2, 3]\n[1, 2, 3]\n"
        assert done.stderr.startswith("/echo: 3/3 calls, ") and done.stderr.count("\n") == 1
