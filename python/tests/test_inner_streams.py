"""Streams of other services, and the options of their calls: in this process, from a worker, and on a node."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import streamed
from node import HERE, PROGRAM, Node

import callboard as cb
from callboard._envelope import encode
from callboard._inner import CREDIT_BYTES
from callboard.client import DeadlineExceededError, FailedError, OverloadedError

# Longer than any stream takes to begin.
TIMEOUT = streamed.LIMIT / 4


class Here:
    """Runs a service in this process."""

    def outputs(self, service: str, order: dict[str, Any]) -> list[Any]:
        with cb.test_client(getattr(streamed, service)) as client:
            found: list[Any] = client.call(order)
            return found


class There:
    """Calls it on a node."""

    def __init__(self, url: str) -> None:
        self.url = url

    def outputs(self, service: str, order: dict[str, Any]) -> list[Any]:
        with cb.Client(self.url, timeout=streamed.LIMIT) as client:
            if service in ("Slow", "ByPath", "PlainByPath"):
                found: list[Any] = client.call(route_of(service), order)
                return found
            return list(client.replies(route_of(service), order))


def route_of(service: str) -> str:
    return "/" + re.sub("(?<=[a-z])(?=[A-Z])", "-", service).lower()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    if PROGRAM is None:
        pytest.skip("the program `callboard` is not built")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PATH", f"{Path(PROGRAM).parent}{os.pathsep}{os.environ['PATH']}")
        with cb.start(str(HERE / "streamed.py")) as node:
            yield node.url


@pytest.fixture(params=["here", "there"])
def place(request: pytest.FixtureRequest) -> Here | There:
    return Here() if request.param == "here" else There(request.getfixturevalue("url"))


RELAYS = pytest.mark.parametrize("relay", ["Relay", "PlainRelay"])

# ---- What a stream of a stream gives ---------------------------------------------------------------------------------


@RELAYS
@pytest.mark.parametrize("plain", [False, True])
def test_a_service_reads_the_stream_of_another(place: Here | There, relay: str, plain: bool) -> None:
    # More than may come at once, and none.
    for count in (100, 0):
        assert place.outputs(relay, {"count": count, "plain": plain}) == list(range(1, count + 1))


def test_a_stream_by_its_path_is_read_and_another_route_is_awaited(place: Here | There) -> None:
    assert place.outputs("ByPath", {"count": 20}) == [*range(1, 21), 1, 4]
    assert place.outputs("PlainByPath", {"count": 20}) == [*range(1, 21), 1]


@RELAYS
@pytest.mark.parametrize("plain", [False, True])
def test_a_stream_that_fails_ends_with_its_error(place: Here | There, relay: str, plain: bool) -> None:
    order = {"count": 9, "fails_at": 2, "plain": plain}
    assert place.outputs(relay, order) == [1, 2, ["failed", 409, "FailedError"]]


@RELAYS
@pytest.mark.parametrize("plain", [False, True])
def test_leaving_the_loop_cancels_the_stream(place: Here | There, relay: str, plain: bool, tmp_path: Path) -> None:
    order = {"count": 10**9, "breaks_at": 3, "path": str(tmp_path / "note"), "plain": plain}
    *words, note = place.outputs(relay, order)
    assert words == [1, 2, 3] and "paused after" in note


@RELAYS
def test_a_stream_has_the_time_of_its_call(place: Here | There, relay: str, tmp_path: Path) -> None:
    order = {"count": 2, "waits": True, "path": str(tmp_path / "note"), "options": {"timeout": TIMEOUT}}
    assert place.outputs(relay, order) == [1, 2, ["deadline_exceeded", None, "DeadlineExceededError"]]
    assert asyncio.run(streamed.until_noted(order)) == "cancelled"


def test_a_stream_that_is_not_read_pauses(place: Here | There, tmp_path: Path) -> None:
    first, note = place.outputs("Slow", {"count": 10**9, "path": str(tmp_path / "note")})
    assert first == 1 and int(note.removeprefix("paused after ")) < 100


@pytest.mark.parametrize("plain", [False, True])
def test_large_outputs_that_are_not_read_stay_bounded(url: str, plain: bool) -> None:
    size, count = 2 << 20, 40
    order = {"size": size, "count": count}
    with cb.Client(url, timeout=streamed.LIMIT) as client:
        unread, read = client.call("/plain-hoard" if plain else "/hoard", order)
    # Fewer than the sixteen outputs that may come of small ones, and all of them are read at last.
    assert 0 < unread <= CREDIT_BYTES and read == count


def test_an_output_beyond_the_credit_goes_alone(url: str) -> None:
    with cb.Client(url, timeout=streamed.LIMIT) as client:
        unread, read = client.call("/hoard", {"size": 2 * CREDIT_BYTES, "count": 3})
    assert (unread // CREDIT_BYTES, read) == (2, 3)


# ---- On a node -------------------------------------------------------------------------------------------------------


@RELAYS
def test_the_caller_that_leaves_takes_the_inner_stream_with_it(url: str, relay: str, tmp_path: Path) -> None:
    order = {"count": 2, "waits": True, "path": str(tmp_path / "note")}
    with cb.Client(url, timeout=1000) as client:
        replies = client.replies(route_of(relay), order)
        assert [next(replies), next(replies)] == [1, 2]
        replies.close()
        assert asyncio.run(streamed.until_noted(order)) == "cancelled"


@RELAYS
def test_the_deadline_of_the_caller_ends_both(url: str, relay: str, tmp_path: Path) -> None:
    order = {"count": 2, "waits": True, "path": str(tmp_path / "note")}
    with cb.Client(url, timeout=TIMEOUT) as client:
        replies = client.replies(route_of(relay), order)
        assert [next(replies), next(replies)] == [1, 2]
        with pytest.raises(DeadlineExceededError):
            next(replies)
    assert asyncio.run(streamed.until_noted(order)) == "cancelled"


def test_a_producer_that_dies_gives_its_reader_the_error(url: str) -> None:
    dead = ["worker_failed", None, "WorkerFailedError"]
    assert There(url).outputs("Relay", {"count": 9, "dies_at": 2}) == [1, 2, dead]
    assert There(url).outputs("Relay", {"count": 2}) == [1, 2]


# ---- From a worker ---------------------------------------------------------------------------------------------------


def begun(node: Node) -> dict[str, Any]:
    head, _ = node.receive()
    assert head["type"] == "call", head
    return head


def send_outputs(node: Node, call: dict[str, Any], *outputs: Any) -> None:
    for output in outputs:
        node.send({"type": "call_output", "id": call["id"], "unknown": 1}, [output])


@RELAYS
def test_a_worker_gives_credit_for_what_it_has_read(relay: str) -> None:
    with Node(f"streamed.py:{relay}", max_batches=8, credit=100).ready(8 if relay == "Relay" else 1) as node:
        node.batch([{"count": 1}], ident=7)
        call = begun(node)
        assert (call["route"], call["batch"], call["item"], call["credit"]) == ("/words", 7, 0, 16)
        assert call["credit_bytes"] == CREDIT_BYTES
        send_outputs(node, call, *range(7))
        assert [node.receive()[1] for _ in range(7)] == [[number] for number in range(7)]
        send_outputs(node, call, 7)
        answers = [node.receive() for _ in range(2)]
        size = sum(len(encode(number)) for number in range(8))
        assert ({"type": "call_credit", "id": call["id"], "outputs": 8, "bytes": size}, []) in answers
        node.send({"type": "result", "id": call["id"]})
        assert node.outcomes() == ([None], [])


@RELAYS
def test_a_worker_that_leaves_a_stream_cancels_it(relay: str, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("left")
    with Node(f"streamed.py:{relay}", max_batches=8, credit=100).ready(8 if relay == "Relay" else 1) as node:
        node.batch([{"breaks_at": 1, "path": str(tmp_path / "note")}])
        call = begun(node)
        send_outputs(node, call, 1, 2)
        assert node.receive()[1] == [1]
        found = [node.receive() for _ in range(2)]
        assert ({"type": "cancel_call", "id": call["id"]}, []) in found
        # They were on their way.
        send_outputs(node, call, 3)
        node.send({"type": "result", "id": call["id"], "error": {"message": "left", "kind": "cancelled"}})
        assert node.outcomes() == ([None], [])


@pytest.mark.parametrize("service", ["Closes", "PlainCloses"])
def test_a_stream_that_is_closed_ends_for_what_waits_for_it(service: str, tmp_path: Path) -> None:
    with Node(f"streamed.py:{service}").ready() as node:
        node.batch([{"path": str(tmp_path / "note")}])
        call = begun(node)
        send_outputs(node, call, 1)
        (tmp_path / "note").touch()
        assert node.receive()[0] == {"type": "cancel_call", "id": call["id"]}
        # No other frame wakes the worker.
        assert node.outcomes()[0] in ([[]], [[1]])


def test_a_stream_that_was_not_asked_for_ends_the_worker() -> None:
    with Node("streamed.py:Options").ready() as node:
        node.batch(["text"])
        send_outputs(node, begun(node), 1)
        code, _, err = node.end()
        assert code == 1 and "a stream for a call that takes none" in err


def test_options_are_those_of_the_call_unless_the_method_has_them() -> None:
    with Node("streamed.py:Options").ready() as node:
        node.batch(["text"])
        call = begun(node)
        assert 4000 < call["timeout_ms"] <= 5000
        node.send({"type": "result", "id": call["id"]}, [4])
        assert node.outcomes()[0] == [4]
        node.batch(["path"], ident=2)
        call, (value,) = node.receive()
        assert (call["timeout_ms"], value) == (2000, {"timeout": 3})
        node.send({"type": "result", "id": call["id"]}, [5])
        assert node.outcomes()[0] == [5]


def test_a_refused_call_is_made_again_as_often_as_it_may_be() -> None:
    refusal = {"message": "full", "kind": "overloaded", "retryable": True}
    with Node("streamed.py:Options").ready() as node:
        node.batch(["text"])
        for _ in range(2):
            node.send({"type": "result", "id": begun(node)["id"], "error": refusal})
        node.send({"type": "result", "id": begun(node)["id"]}, [4])
        assert node.outcomes()[0] == [4]
        node.batch(["text"], ident=2)
        for _ in range(3):
            node.send({"type": "result", "id": begun(node)["id"], "error": refusal})
        assert node.outcomes()[0][0]["kind"] == "overloaded"
        # It may have run.
        node.batch(["text"], ident=3)
        node.send({"type": "result", "id": begun(node)["id"], "error": {**refusal, "retryable": False}})
        assert node.outcomes()[0][0]["kind"] == "overloaded"


def test_a_refused_call_of_a_map_is_made_again() -> None:
    with Node("streamed.py:PlainOptions").ready() as node:
        node.batch([["a", "b"]])
        first, second = begun(node), begun(node)
        refusal = {"message": "full", "kind": "overloaded", "retryable": True}
        node.send({"type": "result", "id": first["id"], "error": refusal})
        node.send({"type": "result", "id": second["id"]}, [2])
        node.send({"type": "result", "id": begun(node)["id"]}, [1])
        assert node.outcomes()[0] == [[1, 2]]


@RELAYS
def test_a_refused_stream_is_begun_again_but_not_after_its_first_output(relay: str) -> None:
    refusal = {"message": "full", "kind": "overloaded", "retryable": True}
    with Node(f"streamed.py:{relay}", max_batches=8, credit=100).ready(8 if relay == "Relay" else 1) as node:
        node.batch([{"options": {"retries": 3}}])
        node.send({"type": "result", "id": begun(node)["id"], "error": refusal})
        call = begun(node)
        send_outputs(node, call, 1)
        node.send({"type": "result", "id": call["id"], "error": refusal})
        assert node.outcomes() == ([None], [(0, 1), (0, ["overloaded", None, "OverloadedError"])])


def test_the_first_call_that_fails_lets_its_code_cancel_the_others() -> None:
    with Node("streamed.py:Both").ready() as node:
        node.batch([["a", "b"]])
        first, second = begun(node), begun(node)
        node.send({"type": "result", "id": first["id"], "error": {"message": "no", "kind": "failed"}})
        assert node.receive()[0] == {"type": "cancel_call", "id": second["id"]}
        assert node.outcomes()[0][0]["message"] == "no"


# ---- In this process -------------------------------------------------------------------------------------------------


def test_wrong_options_are_named() -> None:
    words = streamed.Relay().words
    with pytest.raises(ValueError, match="timeout='soon': write \"5s\""):
        words.predict({}, timeout="soon")
    with pytest.raises(ValueError, match="retries=-1: must be an integer from 0 to 100"):
        words.with_options(retries=-1)
    with pytest.raises(TypeError, match="a call has no option 'time'"):
        words.with_options(time=1)
    with pytest.raises(AttributeError, match="did you mean 'with_options'"):
        words.options(timeout=1)
    with pytest.raises(TypeError, match=r"Words\.predict answers with a stream, and `map` gives one output"):
        words.predict.map([{}])


def test_a_call_that_comes_back_to_its_stage_fails_as_on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    @cb.service(route="/loop")
    class Loop:
        again = cb.depends("/loop")

        async def predict(self, count: int) -> list[int]:
            return await self.again(count)  # type: ignore[no-any-return]

        @cb.route("/loop/stream")
        async def stream(self, count: int) -> AsyncIterator[int]:
            yield await self.again(count)

    @cb.service(route="/twins")
    class Twins:
        other = cb.depends("/twins/other")

        async def predict(self, count: int) -> int:
            return await self.other(count)  # type: ignore[no-any-return]

        @cb.route("/twins/other")
        async def number(self, count: int) -> int:
            return count

    monkeypatch.setitem(vars(sys.modules[__name__]), "Twins", Twins)
    # Both run in the same replicas.
    with cb.test_client(Twins) as client, pytest.raises(FailedError, match="the stage `twins-other` is called from"):
        client.call(1)
    monkeypatch.setitem(vars(sys.modules[__name__]), "Loop", Loop)
    with cb.test_client(Loop) as client:
        for method in ("predict", "stream"):
            with pytest.raises(FailedError, match="the stage `loop` is called from within itself") as failed:
                client.call(1, method=method)
            assert failed.value.status_code == 508


def test_a_call_in_this_process_is_made_again_and_has_a_time() -> None:
    tried = []

    @cb.function
    async def full(seconds: float) -> int:
        tried.append(seconds)
        if len(tried) < 3:
            raise OverloadedError("full", kind="overloaded", retryable=True)
        await asyncio.sleep(seconds)
        return len(tried)

    class Outer:
        busy = cb.depends(full)

        async def predict(self, seconds: float) -> int:
            return await self.busy(seconds, retries=2, timeout="200ms")  # type: ignore[no-any-return]

    with cb.test_client(Outer) as client:
        assert client.call(0) == 3
        with pytest.raises(DeadlineExceededError):
            client.call(1000)


def test_a_stream_is_read_where_an_event_loop_runs() -> None:
    async def notebook() -> None:
        for relay in ("Relay", "PlainRelay"):
            assert Here().outputs(relay, {"count": 3}) == [1, 2, 3]
        async with cb.test_client(streamed.Relay) as client:
            assert await client.call({"count": 3}) == [1, 2, 3]
        assert [word async for word in streamed.Relay().words.predict({"count": 2})] == [1, 2]

    asyncio.run(notebook())


def test_a_cancelled_call_of_a_test_cancels_the_inner_stream(tmp_path: Path) -> None:
    async def test() -> None:
        order = {"count": 2, "waits": True, "path": str(tmp_path / "note"), "begun": str(tmp_path / "begun")}
        async with cb.test_client(streamed.Relay) as client:
            call = asyncio.ensure_future(client.call(order))
            await streamed.until_noted({"path": order["begun"]})
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await streamed.until_noted(order) == "cancelled"

    asyncio.run(test())
