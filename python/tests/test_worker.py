"""The worker as a real child process that speaks the protocol."""

from __future__ import annotations

import signal
import struct
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from node import Node


def wrong_field(path: str, message: str) -> dict[str, Any]:
    details = {"fields": [{"path": path, "message": message}]}
    return {"message": f"{message} - at `{path}`", "invalid": True, "details": details}


def test_a_batch_is_answered_in_order() -> None:
    with Node("app.py:Sentiment", replica=3, settings={"device": "cuda:1", "word": "fine"}) as node:
        head, parts = node.receive()
        assert (head["type"], head["protocol"], parts) == ("ready", 1, [])
        assert "callboard" in head["worker"]
        assert node.call("ab", "", "abcd") == [
            {"name": "fine", "score": 1.0},
            {"message": "empty text", "status": 422},
            {"name": "fine", "score": 2.0},
        ]
        assert node.stop() == (0, "set up on cuda:1 3 s\ncleaned up\n", "")


def test_a_bad_item_fails_alone() -> None:
    with Node("app.py:Sentiment").ready() as node:
        first, second = node.call(7, "ab")
        assert first == wrong_field("$", "Expected `str`, got `int`")
        assert second["score"] == 1.0


def test_an_exception_fails_the_whole_batch_with_its_traceback() -> None:
    with Node("app.py:Sentiment").ready() as node:
        for error in node.call("all", "ab"):
            assert (error["message"], error["type"]) == ("RuntimeError: the model is broken", "RuntimeError")
            assert "app.py" in error["trace"] and "_runner.py" not in error["trace"]


def test_details_that_do_not_fit_into_a_head_are_sent_as_text() -> None:
    with Node("app.py:Errors").ready() as node:
        (deep,) = node.call("deep")
        assert (deep["status"], deep["message"], deep["details"][:3]) == (400, "Bad Request", "[[[")


def test_an_error_whose_text_raises_or_exits_fails_its_item_alone() -> None:
    with Node("app.py:Errors").ready() as node:
        assert node.call("silent") == [{"message": "<app.Silent: its str() raised RuntimeError>", "invalid": True}]
        (unshown,) = node.call("unshown")
        assert unshown["status"] == 409
        assert unshown["details"] == "<dict: its repr() raised SystemExit>"
        assert node.call("odd") == [{"message": "app.Odd, which cannot be told: SystemExit", "type": "app.Odd"}]
        (leaving,) = node.call("leaving")
        assert leaving["type"] == "app.Leaving"
        assert node.call("text") == ["text"]
        assert node.stop()[0] == 0


def test_many_long_errors_fit_into_one_head() -> None:
    with Node("app.py:Errors").ready() as node:
        errors = node.call(*["long"] * 1000)
        assert all(set(error) == {"message"} and error["message"].startswith("ValueError: xxx") for error in errors)


def test_a_wrong_count_names_both_counts() -> None:
    with Node("app.py:Sentiment").ready() as node:
        for error in node.call("short", "ab"):
            assert error["message"] == "ValueError: Sentiment.predict returned 1 outputs for 2 items"


def test_exceptions_fail_their_item_only() -> None:
    with Node("app.py:Errors").ready() as node:
        http, value, unsendable, large, good = node.call("http", "value", "object", "large", "good")
        assert http == {
            "message": "Service Unavailable",
            "status": 503,
            "details": {"busy": 3, "7": 1},
            "retry_after_ms": 2000,
        }
        assert value["message"] == "ValueError: a bad kind"
        assert value["trace"].startswith("Traceback") and 'raise ValueError("a bad kind")' in value["trace"]
        assert unsendable["message"].endswith("a value of type `object` cannot be sent at $.a[0]")
        assert "exceed max_bytes = 1048576" in large["message"]
        assert good == "good"


def test_a_log_record_has_the_id_of_its_call() -> None:
    with Node("app.py:Errors").ready() as node:
        node.batch(["log"], items=[{"request_id": "r-1", "unknown": 1}])
        assert node.outcomes()[0] == ["log"]
        expected = {"type": "log", "level": "warn", "target": "app", "message": "kind log", "request_id": "r-1"}
        assert node.logs == [expected]


def test_forked_processes_do_not_use_the_socket() -> None:
    with Node("app.py:Forks").ready() as node:
        assert node.call([1, 2, 3]) == [[2, 3, 4]]
        code, _, err = node.stop()
        assert (code, sorted(err.splitlines()), node.logs) == (0, ["number 1", "number 2", "number 3"], [])


def test_a_generator_sends_its_outputs() -> None:
    with Node("app.py:Numbers").ready() as node:
        node.batch([{"count": 2}, {"count": 13}, {"count": -1}])
        (first, second, third), streamed = node.outcomes()
        assert first is None
        assert second["message"] == "ValueError: unlucky"
        assert third == wrong_field("$.count", "Expected `int` >= 0")
        assert [item for item, _ in streamed] == [0] * 2 + [1] * 13
        assert streamed[1] == (0, {"n": 1})


def test_async_streams_run_at_the_same_time_and_are_cancelled() -> None:
    with Node("app.py:Chat").ready() as node:
        node.batch(["a wait b", "c d", ""], items=[{"request_id": "r-2"}, {}, {}])
        received = [node.receive() for _ in range(3)]
        assert sorted((head["item"], values[0]) for head, values in received) == [(0, "a"), (1, "c"), (1, "d")]
        node.send({"type": "cancel", "id": 1, "item": 0})
        (first, second, third), streamed = node.outcomes()
        assert (first["type"], second, third["status"], streamed) == ("Cancelled", None, 422, [])
        assert [record["message"] for record in node.logs] == ["left r-2"]
        assert node.stop()[0] == 0


@pytest.mark.parametrize("target", ["app.py:Together", "app.py:Errors"])
def test_a_stop_may_come_with_the_start(target: str) -> None:
    with Node(target) as node:
        assert node.stop() == (0, "", "")


def test_concurrent_items_run_at_the_same_time() -> None:
    with Node("app.py:Together").ready() as node:
        assert node.call(3, 3, 3) == [3, 3, 3]


def test_several_batches_run_at_the_same_time_if_the_node_says_so() -> None:
    with Node("app.py:Together", max_batches=64).ready(max_batches=3) as node:
        for ident in (1, 2, 3):
            node.batch([3], ident=ident)
        assert sorted(node.receive()[0]["id"] for _ in range(3)) == [1, 2, 3]
        # A fourth is one too many.
        for ident in (4, 5, 6, 7):
            node.batch([5], ident=ident)
        assert "batch 7 while batch 4 runs" in node.end()[2]


def test_a_stream_waits_for_credit_and_a_cancelled_one_ends() -> None:
    with Node("app.py:Chat", max_batches=64, credit=2).ready(max_batches=64) as node:
        node.batch(["a b c d e"], ident=1)
        node.batch(["x wait"], ident=2)
        received = [node.receive()[1][0] for _ in range(3)]
        assert sorted(received) == ["a", "b", "x"]
        node.send({"type": "ping"})
        assert node.receive()[0] == {"type": "pong"}
        node.send({"type": "credit", "id": 1, "item": 0, "outputs": 3})
        assert [node.receive()[1] for _ in range(3)] == [["c"], ["d"], ["e"]]
        assert node.receive()[0] == {"type": "outcomes", "id": 1, "items": [None]}
        node.send({"type": "credit", "id": 1, "item": 0, "outputs": 3})
        node.send({"type": "cancel", "id": 2, "item": 0})
        (outcome,), _ = node.outcomes()
        assert outcome["type"] == "Cancelled"
        assert node.stop()[0] == 0


def test_sync_code_runs_in_threads_of_several_calls() -> None:
    with Node("app.py:Threads", max_batches=64).ready(max_batches=3) as node:
        for ident in (1, 2, 3):
            node.batch([3], ident=ident, items=[{"request_id": f"r-{ident}"}])
        found = [node.receive() for _ in range(3)]
        assert sorted(head["id"] for head, _ in found) == [1, 2, 3]
        threads = {values[0][2] for _, values in found if values[0][:2] == [True, False]}
        assert len(threads) == 3 and all(name.startswith("callboard-Threads") for name in threads)
        assert sorted(record["request_id"] for record in node.logs) == ["r-1", "r-2", "r-3"]
        node.batch([0])
        assert node.outcomes()[0][0]["message"] == "StopIteration: none"
        assert node.stop()[0] == 0


def test_a_cancellation_is_seen_in_the_thread_of_its_call() -> None:
    with Node("app.py:Threads", max_batches=64).ready(max_batches=3) as node:
        node.batch([99], ident=1)
        node.batch([98], ident=2)
        node.send({"type": "cancel", "id": 2, "item": 0})
        (outcome,) = node.outcomes()[0]
        assert outcome[:2] == [False, True] if isinstance(outcome, list) else outcome["type"] == "Cancelled"
        # The other call still waits.
        node.batch([1], ident=3)
        (outcome,) = node.outcomes()[0]
        assert outcome[:2] == [True, False]
        node.send({"type": "cancel", "id": 1, "item": 0})
        (outcome,) = node.outcomes()[0]
        assert outcome[:2] == [False, True]


def test_a_stream_of_a_thread_waits_for_credit_and_ends_when_its_caller_leaves() -> None:
    with Node("app.py:ThreadWords", max_batches=64, credit=2).ready(max_batches=2) as node:
        node.batch(["a b c d e"], ident=1)
        assert [node.receive()[1][0] for _ in range(2)] == ["a", "b"]
        node.batch(["x"], ident=2)
        assert node.receive()[1] == ["x"]
        assert node.receive()[0] == {"type": "outcomes", "id": 2, "items": [None]}
        node.send({"type": "credit", "id": 1, "item": 0, "outputs": 1})
        assert node.receive()[1] == ["c"]
        node.send({"type": "cancel", "id": 1, "item": 0})
        (outcome,), _ = node.outcomes()
        assert outcome["type"] == "Cancelled"
        assert [record["message"] for record in node.logs] == ["closed x", "closed a b c d e"]
        assert node.stop()[0] == 0


def test_sync_code_sees_a_cancellation() -> None:
    with Node("app.py:Waits").ready() as node:
        node.batch([60.0, 60.0])
        node.send({"type": "cancel", "id": 9, "item": 0})
        node.send({"type": "cancel", "id": 1, "item": 1})
        node.send({"type": "cancel", "id": 1, "item": 99})
        node.send({"type": "cancel", "id": 1, "item": 0})
        first, second = node.outcomes()[0]
        assert first in (True, {"message": "cancelled: the caller has left", "type": "Cancelled"})
        assert second["type"] == "Cancelled"


def test_sync_code_sees_a_cancellation_that_comes_in_pieces() -> None:
    with Node("app.py:Waits").ready() as node:
        head = msgspec.msgpack.encode({"type": "cancel", "id": 1, "item": 0})
        frame = struct.pack("<II", len(head), 0) + head
        node.batch([60.0])
        for at in range(len(frame)):
            time.sleep(0.006)
            node.socket.sendall(frame[at : at + 1])
        assert node.outcomes()[0] == [True]
        assert node.call(0.0) == [False]


def test_a_cancelled_item_does_not_begin() -> None:
    with Node("app.py:Sleeps").ready() as node:
        node.batch([0.1, 60.0, 0.0])
        node.send({"type": "cancel", "id": 1, "item": 1})
        first, second, third = node.outcomes()[0]
        assert (first, second["type"], third) == (0.1, "Cancelled", 0.0)


def test_frames_that_come_during_a_run_are_read_after_it() -> None:
    with Node("app.py:Waits").ready() as node:
        node.batch([60.0])
        node.send({"type": "cancel", "id": 1, "item": 0})
        node.send({"type": "stop"})
        assert node.outcomes()[0][0] in (True, {"message": "cancelled: the caller has left", "type": "Cancelled"})
        assert node.end() == (0, "", "")


def test_both_sides_may_write_at_the_same_time() -> None:
    with Node("app.py:Repeats").ready() as node:
        node.batch(["x"] * 1000)
        # A cancelled item that has not begun does not begin.
        assert node.receive_any()[0]["message"] == "begun"
        # More than the socket holds: this ends when the worker reads, which writes more than the socket holds.
        for item in range(1000):
            node.send({"type": "cancel", "id": 1, "item": item})
        assert node.outcomes()[0] == ["x" * 900] * 1000


def test_arrays_cross_in_both_directions() -> None:
    with Node("app.py:Scale").ready() as node:
        array = np.arange(60_000, dtype=np.float32).reshape(200, 300)
        large, small, wrong = node.call({"x": array}, {"x": [[1, 2]], "factor": 3}, {"x": np.zeros(2)})
        assert large.dtype == np.float32 and np.array_equal(large, 2 * array)
        assert small.tolist() == [[3.0, 6.0]]
        assert wrong == wrong_field("$.x", "Expected an array of float32, got float64: `astype` converts it")


def test_functions_and_further_methods_are_targets() -> None:
    for target, value, expected in [
        ("app:add", {"a": 2}, 3),
        ("app.py:twice", 2, 4),
        ("app.py:Sentiment.where", None, "cpu 0 s"),
    ]:
        with Node(target).ready() as node:
            assert node.call(value) == [expected]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("app.py:Fails", "FileNotFoundError: model.bin"),
        ("app.py:Sentimnt", "app has no 'Sentimnt': did you mean 'Sentiment'?"),
        ("missing.py:A", "there is no file missing.py"),
        ("missing.module:A", "there is no module 'missing'"),
        ("app.py:Sentiment.label", "Sentiment has no method `label` that is a route"),
    ],
)
def test_a_worker_that_cannot_start_says_why(target: str, message: str) -> None:
    with Node(target) as node:
        head, _ = node.receive()
        assert (head["type"], head["message"]) == ("failed", message)
        assert "Traceback" in head["trace"]
        assert node.end()[0] == 1


def test_a_worker_says_what_it_does_until_it_is_ready_if_it_is_asked() -> None:
    phases: list[str] = []
    with Node("app.py:SlowStart", progress=True) as node:
        while (head := node.receive()[0])["type"] == "starting":
            phases.append(head["phase"])
        assert head["type"] == "ready"
    # It is said again every second, also while the interpreter sleeps.
    assert list(dict.fromkeys(phases)) == ["importing", "setup", "warming up"]
    assert phases.count("setup") >= 2
    with Node("app.py:Sentiment") as node:
        assert node.receive()[0]["type"] == "ready"


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("text", 1, "SystemExit: the licence has expired"),
        ("number", 3, "SystemExit: 3"),
        ("nothing", 0, "SystemExit"),
        ("interrupt", 1, "KeyboardInterrupt"),
    ],
)
@pytest.mark.parametrize("target", ["app.py:Leaves", "app.py:LeavesAsync"])
def test_a_service_that_ends_its_replica_says_why(target: str, how: str, code: int, said: str) -> None:
    with Node(target) as node:
        node.ready().batch([how])
        ended, _, printed = node.end()
        assert (ended, printed.splitlines()[-1]) == (code, f"callboard.worker: {said}")


def test_the_end_of_the_socket_ends_a_busy_worker() -> None:
    with Node("app.py:Waits").ready() as node:
        node.batch([60.0])
        node.socket.close()
        assert node.end() == (0, "", "")


def test_the_end_of_the_socket_ends_a_worker_that_does_not_look() -> None:
    with Node("app.py:Sleeps").ready() as node:
        node.batch([60.0])
        assert node.receive_any()[0]["message"] == "asleep"
        node.socket.close()
        assert node.end() == (0, "", "")


def test_sigint_is_ignored() -> None:
    with Node("app.py:Errors").ready() as node:
        node.child.send_signal(signal.SIGINT)
        assert node.call("good") == ["good"]
        assert node.stop() == (0, "", "")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (struct.pack("<II", 5 << 20, 0), "a head of 5242880 bytes exceeds 4194304"),
        (struct.pack("<II", 1, 70_000), "a frame of 70000 parts exceeds 65536"),
        (struct.pack("<IIQ", 1, 1, 1 << 40), "a frame of 1099511627776 bytes exceeds max_bytes = 1048576"),
        (struct.pack("<II", 1, 0) + b"\xc0", "Expected `object`, got `None`"),
        (struct.pack("<II", 9, 0) + b"\x81\xa4type\xa2no", "Invalid value 'no'"),
        (struct.pack("<II", 22, 0) + b"\x82\xa4type\xa5start\xa8protocol\x01", "a second `start`"),
        (struct.pack("<II", 3, 0) + b"\x81", "the socket ended inside a frame"),
    ],
)
def test_a_frame_that_is_none_ends_the_worker(frame: bytes, message: str) -> None:
    with Node("app.py:Errors").ready() as node:
        node.socket.sendall(frame)
        node.socket.shutdown(1)
        code, _, err = node.end()
        assert code == 1 and message in err


def test_a_malformed_part_fails_its_item_only() -> None:
    with Node("app.py:Errors").ready() as node:
        encoded = msgspec.msgpack.encode({"type": "batch", "id": 4, "items": [{}]})
        node.socket.sendall(struct.pack("<IIQ", len(encoded), 1, 3) + encoded + b"abc")
        assert node.outcomes()[0] == [
            {"message": "3 bytes are shorter than the header of an envelope", "invalid": True}
        ]
        assert node.call("good") == ["good"]


def test_a_call_is_fast() -> None:
    with Node("app.py:Errors").ready() as node:
        begin = time.monotonic()
        for _ in range(200):
            assert node.call("good") == ["good"]
        assert time.monotonic() - begin < 2


def test_headers_of_an_exception_are_sent_beside_it() -> None:
    with Node("app.py:Errors").ready() as node:
        (error,) = node.call("headers")
        assert error == {
            "message": "Unauthorized",
            "status": 401,
            "retry_after_ms": 2000,
            "headers": [["WWW-Authenticate", "Basic"], ["x-a", "b"]],
        }
        (error,) = node.call("repeated")
        assert error["headers"] == [["WWW-Authenticate", "Basic"], ["www-authenticate", "Bearer"]]


def test_the_context_has_all_that_the_node_knows() -> None:
    known = {"request_id": "r", "route": "/about", "caller": "lab", "traceparent": "00-1-2-01", "session": 2**64 - 1}
    more = {"headers": {"x-tenant": "a"}, "tags": {"colour": "red"}, "query": {"q": "7"}, "path": "/about"}
    with Node("app.py:about").ready() as node:
        node.batch(["this"], items=[{**known, **more, "remaining_ms": 60_000}])
        ((found,), _) = node.outcomes()
        assert found == {**known, **more, "cancelled": False, "in_time": True}
        (record,) = node.logs
        assert (record["level"], record["target"], record["request_id"]) == ("info", "app", "r")
        assert record["message"] == "asked for this"


def test_a_result_keeps_its_keys_and_sets_where_its_hint_says_so(tmp_path: Path) -> None:
    (tmp_path / "forms.py").write_text(
        "import callboard as cb\n\n\n"
        "@cb.function\ndef said(n: int) -> dict[int, set[str]]:\n    return {n: {'a'}}\n\n\n"
        "@cb.function\ndef unsaid(n: int):\n    return {n: 1}\n\n\n"
        "@cb.function\ndef streamed(n: int):\n    yield {n: 1}\n\n\n"
        "@cb.function\ndef taken(counts: dict[int, float]) -> float:\n    return counts[7]\n"
    )
    target = str(tmp_path / "forms.py")
    with Node(f"{target}:said").ready() as node:
        assert node.call(7) == [{"7": ["a"]}]
    for name in ("unsaid", "streamed"):
        with Node(f"{target}:{name}").ready() as node:
            (found,) = node.call(7)
            assert "a key of type `int`, 7: keys are texts: send '7', or give the result a hint" in found["message"]
    with Node(f"{target}:taken").ready() as node:
        assert node.call({"7": 0.5}) == [0.5]
