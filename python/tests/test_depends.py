"""Calls of other routes: in this process, and from a worker by its node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import composed
import pytest
from node import Node

import callboard as cb
from callboard._app import load_app
from callboard._errors import error_map
from callboard._inner import CREDIT_BYTES
from callboard._target import TargetError

# ---- In this process -------------------------------------------------------------------------------------------------


def test_a_dependency_runs_in_this_process() -> None:
    with cb.test_client(composed.Search) as client:
        assert client.call("four") == {"label": {"name": "four", "score": 9.0}, "size": 4}
        assert client.call("many")["scores"][:3] == [0.0, 2.0, 4.0]
    with cb.test_client(composed.Plain) as client:
        assert client.call(["a", "b"]) == ["A!", "B!", 1]
        assert client.call(["caught"]) == ["failed", 422, "no text"]
    with cb.test_client(composed.Nested) as client:
        assert client.call("a") == ["A!", 1]


def test_a_plain_instance_calls_its_dependencies() -> None:
    assert composed.Plain().predict(["a"]) == ["A!", 1]
    assert asyncio.run(composed.Search().predict("ab"))["size"] == 2


def test_a_failed_call_raises_what_it_would_behind_a_node() -> None:
    with cb.test_client(composed.Search) as client:
        with pytest.raises(cb.CallError) as failed:
            client.call("bad")
        assert (failed.value.kind, failed.value.status_code, failed.value.retry_after) == ("failed", 429, 3)


def test_a_test_puts_a_stand_in_in_the_place_of_a_dependency() -> None:
    service = composed.Plain()
    service.size = type("Size", (), {"predict": lambda _, text: 42})()
    assert service.predict(["a"]) == ["A!", 42]


def test_mistakes_in_a_call_name_what_there_is() -> None:
    embed = composed.Search().embed
    with pytest.raises(AttributeError, match="Embedder has no route 'predit': did you mean 'predict'"):
        embed.predit("a")
    for arguments, names in [(("a", 1, 2), {}), ((), {"txt": 1}), (("a",), {"text": 1})]:
        with pytest.raises(TypeError, match=r"Embedder.predict takes text, extra"):
            embed(*arguments, **names)
    with pytest.raises(TypeError, match="`text` is missing"):
        embed()
    with pytest.raises(TypeError, match="/size takes one value"):
        composed.Plain().size("a", "b")


def test_a_route_that_only_a_node_knows_says_so() -> None:
    class Lonely:
        other = cb.depends("/elsewhere")

    with pytest.raises(Exception, match="/elsewhere is no route of this file, and only a node knows others"):
        Lonely().other(1)


def test_a_limit_around_a_call_is_a_timeout_as_on_a_node() -> None:
    with cb.test_client(composed.Hurried) as client:
        assert client.call(0.0) == "done"
        assert client.call(60.0) == "TimeoutError"


def test_an_error_has_the_form_that_it_has_on_a_node() -> None:
    @cb.service
    class Outer:
        inner = cb.depends(composed.fails)

        def predict(self, how: str) -> list[Any]:
            try:
                self.inner(how)
            except cb.CallError as error:
                return [
                    error.kind,
                    error.status_code,
                    error.type,
                    error.message,
                    error.details,
                    bool(error.remote_traceback),
                ]
            return []

    with cb.test_client(Outer) as client:
        assert client.call("key") == ["failed", None, "KeyError", "KeyError: 'key'", None, True]
        assert client.call("http") == ["failed", 409, None, "Conflict", {"a": [1]}, False]
        assert client.call("cancelled")[:3] == ["failed", None, "asyncio.exceptions.CancelledError"]


# ---- Where an event loop runs ----------------------------------------------------------------------------------------


def test_a_client_works_where_an_event_loop_runs() -> None:
    async def notebook() -> None:
        with cb.test_client(composed.Search) as client:
            assert client.call("ab")["size"] == 2
            assert client.client().call("/search", "ab")["size"] == 2
        with cb.test_client(composed.Plain) as client:
            assert client.call(["a"]) == ["A!", 1]

    asyncio.run(notebook())


def test_an_asynchronous_test_awaits_its_client() -> None:
    async def test() -> None:
        async with cb.test_client(composed.Search) as client:
            one, two = await asyncio.gather(client.call("a"), client.call("ab"))
            assert (one["size"], two["size"]) == (1, 2)
            assert [found["size"] for found in await client.batch(["a", "abc"])] == [1, 3]
            assert (await client.client().call("/search", "ab"))["size"] == 2
            with pytest.raises(cb.CallError, match="/other"):
                await client.client().call("/other", 1)
        async with cb.test_client(composed.Loop) as client:
            # Its code runs in the loop of the test.
            assert await client.call("a") == id(asyncio.get_running_loop())

    asyncio.run(test())


# ---- In a worker -----------------------------------------------------------------------------------------------------


def calls(node: Node, count: int) -> dict[str, tuple[dict[str, Any], Any]]:
    """The next calls of the worker, by route and input."""
    found = {}
    for _ in range(count):
        head, (value,) = node.receive()
        assert head["type"] == "call", head
        found[f"{head['route']} {value}"] = (head, value)
    return found


def answer(node: Node, head: dict[str, Any], value: Any) -> None:
    node.send({"type": "result", "id": head["id"], "unknown": 1}, [value])


def test_asynchronous_code_awaits_the_results_of_its_node() -> None:
    with Node("composed.py:Search") as node:
        head, _ = node.receive()
        assert head["calls"] is True
        node.batch(["ab", "c"], ident=7)
        found = calls(node, 4)
        assert found["/size ab"][0] == {
            "type": "call",
            "id": found["/size ab"][0]["id"],
            "batch": 7,
            "item": 0,
            "route": "/size",
            "credit": 16,
            "credit_bytes": CREDIT_BYTES,
        }
        assert found["/embedder {'text': 'c', 'extra': 1}"][0]["item"] == 1
        for head, value in reversed(found.values()):
            label = {"name": "n", "score": 0.5}
            answer(node, head, len(value) if head["route"] == "/size" else label)
        assert [output["size"] for output in node.outcomes()[0]] == [2, 1]


def test_the_error_of_a_call_is_passed_on() -> None:
    with Node("composed.py:Search").ready() as node:
        node.batch(["a"])
        for head, _ in calls(node, 2).values():
            error = {"message": "full", "kind": "overloaded", "retry_after_ms": 500, "stage": "inner", "status": 503}
            node.send({"type": "result", "id": head["id"], "error": error})
        (failed,), _ = node.outcomes()
        assert {key: failed[key] for key in error} == error


def test_an_output_of_another_type_is_not_blamed_on_the_caller() -> None:
    with Node("composed.py:Search").ready() as node:
        node.batch(["a"])
        for head, _ in calls(node, 2).values():
            answer(node, head, {"name": "n", "score": "high"} if head["route"] == "/embedder" else 1)
        (failed,), _ = node.outcomes()
        assert failed["kind"] == "internal" and "invalid" not in failed
        assert "route `/embedder` gives a value that cannot be read as `Label`: Expected `float`" in failed["message"]
        assert failed["details"] == {"fields": [{"path": "$.score", "message": "Expected `float`, got `str`"}]}


def test_synchronous_code_waits_for_the_results_of_its_node() -> None:
    with Node("composed.py:Plain").ready() as node:
        node.batch([["a", "b"]])
        found = calls(node, 2)
        for key in ("/shout b", "/shout a"):
            answer(node, found[key][0], key[-1] * 2)
        head, _ = calls(node, 1)["/size a"]
        answer(node, head, 3)
        assert node.outcomes()[0] == [["aa", "bb", 3]]


def test_threads_of_the_app_call_at_the_same_time() -> None:
    with Node("composed.py:Plain").ready() as node:
        node.batch([["threads"]], ident=3)
        found = calls(node, 8)
        assert all("item" not in head and head["batch"] == 3 for head, _ in found.values())
        for head, value in reversed(found.values()):
            answer(node, head, value)
        assert node.outcomes()[0] == [[str(number) for number in range(8)]]


def test_code_of_several_items_calls_for_the_whole_batch() -> None:
    with Node("composed.py:Batches").ready() as node:
        node.batch(["a", "b"])
        for _ in range(2):
            ((head, value),) = calls(node, 1).values()
            assert "item" not in head
            answer(node, head, value * 2)
        assert node.outcomes()[0] == ["aa", "bb"]
        node.batch(["c"], ident=2)
        ((head, _),) = calls(node, 1).values()
        assert head["item"] == 0


def test_a_cancelled_item_gives_up_its_calls() -> None:
    with Node("composed.py:Search").ready() as node:
        node.batch(["a"])
        opened = {head["id"] for head, _ in calls(node, 2).values()}
        node.send({"type": "cancel", "id": 1, "item": 0})
        given_up = {node.receive()[0]["id"] for _ in range(2)}
        assert given_up == opened
        assert node.outcomes()[0][0]["type"] == "Cancelled"
        # It may have been on its way.
        node.send({"type": "result", "id": opened.pop()}, ["late"])
        node.batch(["a"], ident=2)
        assert {head["batch"] for head, _ in calls(node, 2).values()} == {2}


def test_a_map_has_a_bounded_number_of_open_calls() -> None:
    with Node("composed.py:Plain").ready() as node:
        node.batch([["x"] * 100])
        heads = [node.receive()[0] for _ in range(64)]
        answer(node, heads[0], "y")
        assert node.receive()[0]["id"] == heads[-1]["id"] + 1


def test_a_worker_reads_results_while_it_writes_calls() -> None:
    with Node("composed.py:Plain").ready() as node:
        node.batch([[f"{number}" + "x" * 300_000 for number in range(3)]])
        for _ in range(3):
            ((head, value),) = calls(node, 1).values()
            # The worker writes its next call, which is not read before this result has gone.
            answer(node, head, value)
        head, _ = node.receive()
        answer(node, head, 7)
        assert [len(each) for each in node.outcomes()[0][0][:3]] == [300_001] * 3


def test_setup_is_told_that_it_cannot_call() -> None:
    with Node("composed.py:Early") as node:
        head, _ = node.receive()
        assert head["type"] == "failed"
        assert "/size cannot be called now: other services may not be ready in `setup`" in head["message"]


def test_the_error_of_a_call_is_passed_on_without_a_traceback_of_its_own() -> None:
    for headers in ({"a": "b"}, [("a", "b"), ("a", "c")]):
        error = cb.CallError("no", kind="invalid_input", status_code=422, headers=headers)
        try:
            raise error
        except cb.CallError:
            pairs = list(headers.items() if isinstance(headers, dict) else headers)
            assert error_map(error) == {"message": "no", "kind": "invalid_input", "status": 422, "headers": pairs}


def test_a_call_of_a_step_says_what_the_step_needs(tmp_path: Path) -> None:
    code = """
import callboard as cb

@cb.function
def step(x: int) -> int: ...

@cb.service
class Other:
    step = cb.depends("/step")
    def predict(self, x: int) -> int: ...

app = cb.pipeline(step, step)
"""
    (tmp_path / "steps.py").write_text(code)
    with pytest.raises(TargetError, match=r"Other.step: `/step` is a step of a pipeline.*@function\(route='/step'\)"):
        load_app(str(tmp_path / "steps.py"))
