"""The evaluation relay against servers that do what no node does: each failure names who is to blame."""

from __future__ import annotations

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
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
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
