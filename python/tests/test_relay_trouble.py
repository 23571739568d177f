"""The evaluation relay against servers that do what no node does: each failure names who is to blame."""

from __future__ import annotations

import datetime
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from http_node import LIMIT, Cut, Node, Request, Slow, problem, response, unused_port, value

from callboard import relay
from callboard._envelope import encode
from callboard.relay.reading import ReplyReader

GOOD = [0.5, 1.5]


class Scores(relay.Gateway):
    columns: ClassVar[Any] = {"y": float}

    def batches(self) -> Iterator[relay.Batch]:
        for day in (1, 2):
            yield relay.Batch(day, ids=[f"{day}a", f"{day}b"])


def evaluate(directory: Path, url: str, **settings: Any) -> relay.Result:
    return Scores(url, **{"start_up_wait": LIMIT, "deadline": LIMIT, **settings}).run(directory)


def after_the_first(answer: bytes | None) -> Callable[[Request], bytes | None]:
    return lambda request: answer if request.number else value(GOOD)


def blame(result: relay.Result) -> tuple[int, str | None, str | None]:
    return result.batches, result.blame, result.error


def test_a_reply_beyond_the_limit_is_the_participants_fault(tmp_path: Path) -> None:
    with Node(after_the_first(value([0.5] * 1000))) as node:
        result = evaluate(tmp_path, node.url, max_reply_bytes=1000)
    assert blame(result) == (1, "participant", "InvalidReply")
    assert "exceeds max_reply_bytes = 1000" in str(result.message)


def test_a_reply_beyond_the_memory_of_the_node_is_the_participants_fault(tmp_path: Path) -> None:
    text = b'{"kind": "overloaded", "message": "no memory", "error_type": "no_memory_for_outcome"}'
    with Node(after_the_first(response(text, 429, "application/problem+json"))) as node:
        assert blame(evaluate(tmp_path, node.url)) == (1, "participant", "InvalidReply")
    with Node(after_the_first(problem(429, "overloaded"))) as node:
        assert blame(evaluate(tmp_path, node.url)) == (1, "infrastructure", "InfrastructureError")


def test_the_size_of_a_reply_is_bounded_by_default(tmp_path: Path) -> None:
    announced = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.callboard.envelope\r\ncontent-length: 100000000\r\n\r\n"
    )
    with Node(after_the_first(announced)) as node:
        result = evaluate(tmp_path, node.url)
    assert blame(result) == (1, "participant", "InvalidReply")
    assert "exceeds max_reply_bytes = 67108864" in str(result.message)


def test_a_reply_that_needs_a_package_is_not_a_batch_that_cannot_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing/ml_dtypes.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "missing"))
    # 0xC7 is an extension of the length that follows: 3 is an array, and 11 the dtype bfloat16.
    tree = bytes([0xC7, 20, 3, 11, 1, *[0] * 6, 2, *[0] * 7, *[0] * 4])
    header = b"\x89CBE\x01\0\0\0" + len(tree).to_bytes(4, "little") + bytes(4) + (24 + len(tree)).to_bytes(8, "little")
    with Node(after_the_first(response(header + tree))) as node:
        result = evaluate(tmp_path, node.url)
    assert blame(result) == (1, "gateway", "GatewayError")
    assert str(result.message).startswith("the reply cannot be read here: an array of bfloat16 needs ml_dtypes")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        # A map whose key is an array of numbers.
        (bytes([0x81, 0xC7, 24, 3, 13, 1, *[0] * 6, 1, *[0] * 7, *[0] * 8, 1]), "map keys must be hashable"),
        # An extension that is a data frame.
        (bytes([0xC7, 4, 5, 0xFF, 0xFF, 0xFF, 0xFF]), "a data frame"),
        (b"\xc1", "MessagePack"),
    ],
    ids=["key", "frame", "tree"],
)
def test_bytes_that_cannot_be_read_are_the_participants_fault(tmp_path: Path, tree: bytes, message: str) -> None:
    if message == "a data frame":
        pytest.importorskip("pyarrow")
    header = b"\x89CBE\x01\0\0\0" + len(tree).to_bytes(4, "little") + bytes(4) + (24 + len(tree)).to_bytes(8, "little")
    with Node(after_the_first(response(header + tree))) as node:
        result = evaluate(tmp_path, node.url)
    assert blame(result) == (1, "participant", "InvalidReply")
    assert message in str(result.message)


def test_a_batch_that_is_too_large_for_the_hosts_server_is_not_the_participants_fault(tmp_path: Path) -> None:
    refusal = problem(413, "invalid_input")
    with Node(after_the_first(refusal)) as node:
        result = evaluate(tmp_path, node.url)
        assert blame(result) == (1, "gateway", "GatewayError")
    assert "the batch is larger than the server takes" in str(result.message)

    class Untrusted(Scores):
        is_server_trusted = False

    with Node(after_the_first(refusal)) as node:
        result = Untrusted(node.url, start_up_wait=LIMIT, deadline=LIMIT).run(tmp_path)
        assert blame(result) == (1, "participant", "Refused")


def test_a_server_that_ends_in_the_first_call_had_started(tmp_path: Path) -> None:
    with Node(lambda _: None) as node:
        result = evaluate(tmp_path, node.url)
    assert blame(result) == (0, "participant", "ConnectionLost")


@pytest.mark.parametrize("answer", [None, Cut(value(GOOD)[:-3])])
def test_a_server_that_ends_in_a_later_call_is_lost_and_the_batch_is_sent_once(
    tmp_path: Path, answer: bytes | None
) -> None:
    with Node(after_the_first(answer)) as node:
        result = evaluate(tmp_path, node.url)
        assert len(node.requests) == 2
    assert blame(result) == (1, "participant", "ConnectionLost")


def test_a_server_that_is_never_there_did_not_start(tmp_path: Path) -> None:
    result = evaluate(tmp_path, f"http://127.0.0.1:{unused_port()}", start_up_wait=0.2)
    assert blame(result) == (0, "participant", "NeverStarted")


def test_a_server_may_start_late(tmp_path: Path) -> None:
    port, nodes = unused_port(), []
    timer = threading.Timer(0.5, lambda: nodes.append(Node(lambda _: value(GOOD), port)))
    timer.start()
    try:
        assert blame(evaluate(tmp_path, f"http://127.0.0.1:{port}")) == (2, None, None)
    finally:
        timer.join()
        for node in nodes:
            node.close()


def silent(_: Request) -> bytes | None:
    time.sleep(LIMIT)
    return None


@pytest.mark.parametrize(
    "answer",
    [
        silent,
        lambda _: Slow(value(GOOD)),
        lambda _: Slow(b"HTTP/1.1 100 Continue\r\n\r\n" * 100),
        # The head comes at once, the body does not.
        lambda _: value(GOOD)[:-1],
    ],
    ids=["silent", "slow", "informational", "incomplete"],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_server_cannot_hold_the_gateway_beyond_the_deadline(
    tmp_path: Path, answer: Callable[[Request], bytes | None], is_first: bool
) -> None:
    limits = {"start_up_wait": 0.5, "deadline": 0.5} if is_first else {"deadline": 0.5}
    with Node(lambda request: value(GOOD) if not is_first and not request.number else answer(request)) as node:
        began = time.monotonic()
        result = evaluate(tmp_path, node.url, **limits)
        assert time.monotonic() - began < 5
    assert blame(result) == (0 if is_first else 1, "participant", "TooSlow")


def test_a_value_is_read_as_it_was_sent(tmp_path: Path) -> None:
    with Node(lambda _: value({"y": np.array(GOOD)})) as node:
        assert blame(evaluate(tmp_path, node.url)) == (2, None, None)
    text = (tmp_path / "submission.csv").read_text()
    assert text == "id,y\n1a,0.5\n1b,1.5\n2a,0.5\n2b,1.5\n"


def test_a_gateway_may_call_several_functions(tmp_path: Path) -> None:
    class Two(Scores):
        def batches(self) -> Iterator[relay.Batch]:
            for function in ("fit", "predict"):
                self.function = function  # type: ignore[misc]
                yield relay.Batch(function, ids=[f"{function}1", f"{function}2"])

    with Node(lambda _: value(GOOD)) as node:
        assert Two(node.url, start_up_wait=LIMIT, deadline=LIMIT).run(tmp_path).succeeded
        assert [request.path.rpartition("/")[2] for request in node.requests] == ["fit", "predict"]


# ---- Replies that unpack to more -----------------------------------------------------------------------------------


def null_frame(pa: Any) -> bytes:
    """A column of 2^33 nulls, which have no bytes."""
    column = pa.nulls(1 << 30)
    schema = pa.schema([("y", pa.null())])
    return stream(pa, schema, [pa.RecordBatch.from_arrays([column], schema=schema)] * 8)


def packed_frame(pa: Any) -> bytes:
    """512 MiB of zeros."""
    schema = pa.schema([("y", pa.float64())])
    batch = pa.RecordBatch.from_arrays([pa.array(np.zeros(1 << 23))], schema=schema)
    return stream(pa, schema, [batch] * 8, compression="zstd")


def categories_frame(pa: Any) -> bytes:
    """One text of 1 MiB for each id."""
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2000, np.int8)), pa.array(["x" * (1 << 20)]))
    schema = pa.schema([("y", column.type)])
    return stream(pa, schema, [pa.RecordBatch.from_arrays([column], schema=schema)])


def views_frame(pa: Any) -> bytes:
    """The same by views of texts."""
    text = b"x" * (1 << 20)
    view = struct.pack("<i4sii", len(text), text[:4], 0, 0) * 2000
    column = pa.Array.from_buffers(pa.string_view(), 2000, [None, pa.py_buffer(view), pa.py_buffer(text)])
    schema = pa.schema([("y", column.type)])
    return stream(pa, schema, [pa.RecordBatch.from_arrays([column], schema=schema)])


def stream(pa: Any, schema: Any, batches: list[Any], **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def frame_reply(stream: bytes) -> bytes:
    """The envelope of a frame as its only segment."""
    tree = b"\xd7\x07" + struct.pack("<B3xI", 5, 0)
    begin = struct.pack("<Q", len(stream)) + tree
    begin += bytes(-(24 + len(begin)) % 64)
    head = b"\x89CBE\x01\0\0\0" + struct.pack("<IIQ", len(tree), 1, 24 + len(begin) + len(stream))
    return response(head + begin + stream)


class Labels(relay.Gateway):
    columns: ClassVar[Any] = {"y": str}
    is_server_trusted = False

    def batches(self) -> Iterator[relay.Batch]:
        yield relay.Batch(1, ids=range(2000))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (null_frame, "rows without bytes: at most 1048576"),
        (packed_frame, "bytes or more exceed 67108864"),
        (categories_frame, "the texts of 'y' exceed max_reply_bytes = 67108864"),
        (views_frame, "the texts of 'y' exceed max_reply_bytes = 67108864"),
    ],
)
def test_a_reply_that_unpacks_to_more_is_refused_before_it_does(
    tmp_path: Path, make: Callable[[Any], bytes], message: str
) -> None:
    pa = pytest.importorskip("pyarrow")
    reply = frame_reply(make(pa))
    with Node(lambda _: reply) as node:
        result = Labels(node.url, start_up_wait=LIMIT, deadline=LIMIT).run(tmp_path)
    assert blame(result) == (0, "participant", "InvalidReply") and message in str(result.message)
    assert (tmp_path / "result.json").is_file()


def test_rows_are_counted_before_they_are_read(tmp_path: Path) -> None:
    # A million of values of 32 bytes each in the gateway.
    with Node(lambda _: value(np.zeros(8 << 20, np.int8))) as node:
        began = time.monotonic()
        result = evaluate(tmp_path, node.url)
    assert blame(result) == (0, "participant", "InvalidReply")
    assert result.message == "expected 2 rows, got 8388608 in 'y'" and time.monotonic() - began < LIMIT


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is that of Linux")
def test_a_reply_that_needs_too_much_memory_ends_its_reader_and_not_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callboard.relay.reading._MEMORY", 256 << 20)
    monkeypatch.setattr("callboard.relay.reading._MEMORY_FOR_A_BYTE", 0)
    # Lists without items take many times their byte.
    tree = b"\xdd" + struct.pack(">I", 4 << 20) + b"\x90" * (4 << 20)
    header = b"\x89CBE\x01\0\0\0" + struct.pack("<IIQ", len(tree), 0, 24 + len(tree))
    with Node(lambda _: response(header + tree)) as node:
        result = evaluate(tmp_path, node.url)
    assert blame(result) == (0, "participant", "InvalidReply") and "more memory to be read" in str(result.message)


def test_a_reply_that_is_not_read_in_time_is_the_participants_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.relay.reading._LEAST_SECONDS", 0.0)
    with ReplyReader("id", {"y": float}, 1 << 20) as reader:
        assert reader.rows(encode([1.0]), ["a"], LIMIT) == {"id": ["a"], "y": [1.0]}
        os.kill(reader._process.pid, signal.SIGSTOP)
        with pytest.raises(relay.InvalidReply, match="was not read by its deadline"):
            reader.rows(encode([1.0]), ["a"], 0.1)


def test_a_reader_that_ends_is_the_participants_fault_and_one_that_never_starts_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ReplyReader("id", {"y": float}, 1 << 20) as reader:
        reader.rows(encode([1.0]), ["a"], LIMIT)
        reader._process.kill()
        with pytest.raises(relay.InvalidReply, match="bytes of memory to be read"):
            reader.rows(encode([1.0]), ["a"], LIMIT)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        ReplyReader("id", {"y": float}, 1 << 20) as reader,
        pytest.raises(relay.InfrastructureError, match="the process that reads replies does not start"),
    ):
        reader.rows(encode([1.0]), ["a"], LIMIT)


def test_ids_of_any_type_are_compared_in_the_reader() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "odd"

    pa = pytest.importorskip("pyarrow")
    with ReplyReader("id", {"y": float}, 1 << 20) as reader:
        days = [datetime.date(2024, 1, 2), datetime.date(2024, 1, 3)]
        frame = pa.table({"id": days, "y": [1.0, 2.0]})
        assert reader.rows(encode(frame), days, LIMIT) == {"id": days, "y": [1.0, 2.0]}
        ids = [Odd(), 2**70]
        assert reader.rows(encode([1.0, 2.0]), ids, LIMIT) == {"id": ids, "y": [1.0, 2.0]}
        with pytest.raises(relay.InvalidReply, match=r"2 wrong ids in 'id': row 0: 1 instead of odd; row 1: 2 instead"):
            reader.rows(encode({"id": [1, 2], "y": [1.0, 2.0]}), ids, LIMIT)
