"""Keyed classes: what may be written, what is described, and what a call does to the state of its key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import keyed_app
import pytest
from keyed_app import Basket, Visits

import callboard as cb
from callboard._app import load_app
from callboard._envelope import decode, encode
from callboard._keyed import Objects
from callboard._target import TargetError, routes_of


def described() -> dict[str, dict[str, Any]]:
    app = load_app(keyed_app.__file__).describe()
    return {service["name"]: service for service in app["services"]}


def test_each_method_is_a_route_with_the_key_in_its_path() -> None:
    services = described()
    assert {name: service["route"] for name, service in services.items()} == {
        "Basket.add": "/basket/{key}/add",
        "Basket.show": "GET /basket/{key}",
        "Basket.about": "/basket/{key}/about",
        "Basket.take": "/basket/{key}/{item}/take",
        "Basket.count_of_calls": "/basket/{key}/count_of_calls",
        "Basket.check_out": "/basket/{key}/check_out",
        "Basket.spoil": "/basket/{key}/spoil",
        "Visits": "/visits/{key}",
        "Line": "/line/{key}",
    }
    key = {"in": "path", "name": "key", "required": True, "schema": {"type": "string"}}
    for name, service in services.items():
        assert key in service["request"], name
    assert services["Basket.add"]["input"] == {"type": "string"}
    assert services["Basket.about"]["request"][1]["in"] == "header"
    assert services["Basket.show"]["replicas_of"] == "basket-:key-add", "the methods of a class share its replicas"
    assert services["Basket.add"]["keyed"] == {
        "source": f"{keyed_app.__file__}:Basket",
        "kind": "basket",
        "save_every_ms": None,
        "idle_after_ms": 300_000,
        "max_active": 100_000,
    }
    assert services["Visits"]["keyed"]["save_every_ms"] == 1000


def test_a_key_keeps_its_state() -> None:
    with cb.test_client(Basket) as client:
        assert [client.call(item, method="add", key="ann") for item in ("tea", "jam")] == [1, 2]
        assert client.call("tea", method="add", key="bob") == 1
        assert client.call(method="show", key="ann") == ["tea", "jam"]
        assert client.call(method="about", key="a/b") == {
            "text": "the basket of a/b",
            "device": "cpu",
            "user": "nobody",
            "route": "/basket/{key}/about",
        }
        with pytest.raises(TargetError, match="needs a key"):
            client.call("tea", method="add")


def test_a_key_that_was_forgotten_begins_anew() -> None:
    with cb.test_client(Basket) as client:
        assert client.call("tea", method="add", key="ann") == 1
        with pytest.raises(cb.HTTPException, match="not now"):
            client.call(True, method="check_out", key="ann")
        assert client.call(method="show", key="ann") == ["tea"], "a method that raises changes nothing"
        assert client.call(False, method="check_out", key="ann") == ["tea"]
        assert client.call(method="show", key="ann") == []
        assert client.call("jam", method="add", key="ann") == 1
        assert client.call(False, method="check_out", key="bob") == [], "of a key that was never called"


def test_a_client_has_the_key_in_the_path() -> None:
    with cb.test_client(Basket, device="cuda:0") as test:
        client = test.client()
        assert client.call("/basket/ann/add", "tea") == 1
        assert client.call("/basket/ann") == ["tea"]
        about = client.call("/basket/a%2Fb/about", headers={"x-user": "eve"})
        assert about == {
            "text": "the basket of a/b",
            "device": "cuda:0",
            "user": "eve",
            "route": "/basket/{key}/about",
        }
        assert client.call("/basket/ann/tea/take") == "ann has no tea"
        assert client.call("/basket/ann") == []


def test_a_method_that_raises_changes_nothing() -> None:
    with cb.test_client(Basket) as client:
        client.call("tea", method="add", key="ann")
        with pytest.raises(cb.HTTPException):
            client.call("bomb", method="add", key="ann")
        with pytest.raises(cb.InvalidInput):
            client.call(5, method="add", key="ann")
        assert client.call(method="show", key="ann") == ["tea"]


def test_calls_of_a_key_are_in_order() -> None:
    async def visit() -> list[int]:
        async with cb.test_client(Visits) as client:
            return await asyncio.gather(*(client.call(key="ann") for _ in range(20)))

    assert asyncio.run(visit()) == list(range(1, 21))


# ---- A replica -------------------------------------------------------------------------------------------------------


class Replica:
    """The objects of a replica, and the state that a node would have of each key."""

    def __init__(self) -> None:
        self.objects = Objects(Basket)
        self.states: dict[str, bytes] = {}

    def call(self, method: str, value: Any, key: str = "ann") -> Any:
        (route,) = [each for each in routes_of(Basket, "app.py:Basket") if each.attribute == method]
        call = {"key": key, "state": self.states.get(key), "input": encode(value)}
        answer = self.objects.call(route, call, cb.Context())
        if answer.get("forgotten"):
            self.states.pop(key, None)
        if answer["state"] is not None:
            self.states[key] = answer["state"]
        return decode(answer["output"])


@pytest.fixture
def replica() -> Iterator[Replica]:
    yield Replica()


def test_an_object_is_kept_as_long_as_it_has_the_state_of_its_key(replica: Replica) -> None:
    replica.call("add", "tea")
    written = replica.states["ann"]
    replica.call("show", {})
    assert replica.call("count_of_calls", {}) == 2
    assert replica.states["ann"] is written, "a call that reads changes nothing"
    other = Replica()
    other.states = replica.states
    assert other.call("add", "jam") == 2, "another replica makes its own of the state"
    assert replica.call("count_of_calls", {}) == 0, "its object was older than the state"
    assert replica.call("show", {}) == ["tea", "jam"]


def test_a_key_that_was_only_asked_has_no_state_and_one_that_was_forgotten_no_object(replica: Replica) -> None:
    assert replica.call("show", {}) == []
    assert replica.call("count_of_calls", {}) == 1, "by the same object"
    assert replica.states == {}
    assert replica.call("add", "tea") == 1
    assert replica.call("count_of_calls", {}) == 2
    assert replica.call("check_out", False) == ["tea"]
    assert replica.states == {}
    assert replica.call("count_of_calls", {}) == 0, "by a new object"


def test_an_object_whose_call_was_too_late_is_not_used_again(replica: Replica) -> None:
    before = dict(replica.states)
    replica.call("add", "late")
    # The node has given the call up, and another replica has gone on from the state before.
    replica.states = before
    other = Replica()
    other.states = replica.states
    assert other.call("add", "tea") == 1
    assert replica.call("show", {}) == ["tea"]


def test_an_object_whose_call_has_failed_is_not_used_again(replica: Replica) -> None:
    replica.call("add", "tea")
    with pytest.raises(cb.HTTPException):
        replica.call("add", "bomb")
    assert replica.call("show", {}) == ["tea"]


def test_a_state_that_does_not_fit_is_neither_saved_nor_answered(replica: Replica) -> None:
    replica.call("add", "tea")
    for whole, message in [
        (False, r"Basket\.state: the new state does not fit: .*\$\.items\[1\]"),
        (True, r"Basket\.state: "),
    ]:
        with pytest.raises(TypeError, match=message):
            replica.call("spoil", whole)
        assert replica.call("show", {}) == ["tea"]


def test_a_saved_state_that_does_not_fit_is_no_fault_of_the_call(replica: Replica) -> None:
    replica.states["ann"] = encode({"items": [5], "kinds": []})
    with pytest.raises(TypeError, match=r"Basket\.state: the saved state does not fit: .*\$\.items\[0\]"):
        replica.call("show", {})


def test_a_replica_keeps_some_objects_only(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard._keyed._KEPT", 2)
    for key in ("a", "b", "c"):
        replica.call("add", "tea", key)
    assert list(replica.objects._kept) == ["b", "c"]
    assert replica.call("add", "tea", "a") == 2


# ---- Mistakes --------------------------------------------------------------------------------------------------------


def keyed(**members: Any) -> Any:
    members.setdefault("__annotations__", {"state": int})
    return cb.keyed(type("Thing", (), {"add": lambda self: None, **members}))


def needs_argument(self: Any) -> Any:
    yield 1


class Needs:
    def __init__(self, size: int) -> None: ...


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"__annotations__": {}}, "write `state: dict"),
        ({"__annotations__": {"state": Needs}}, "cannot"),
        ({"__annotations__": {"state": "Nothing"}}, "cannot be read"),
        ({"cleanup": lambda self: None}, "dropped without notice"),
        ({"add": needs_argument}, "one output"),
        ({"add": cb.batched(lambda self, items: items)}, "one call at a time"),
        ({"add": cb.route("/thing")(lambda self: None)}, "the key in its path"),
        ({"add": cb.route("/thing/{key}", examples=[1])(lambda self: None)}, "examples"),
        ({"add": cb.route("/thing/{key}", status_code=201)(lambda self: None)}, "status_code"),
    ],
)
def test_a_wrong_class_is_refused(members: dict[str, Any], message: str) -> None:
    with pytest.raises(TargetError, match=message):
        routes_of(keyed(**members), "app.py:Thing")


def test_wrong_options_are_refused() -> None:
    for options, message in [
        ({"durable": True, "save_every": "1s"}, "durable=False"),
        ({"idle_after": "soon"}, "idle_after"),
        ({"max_active": 0}, "max_active"),
    ]:
        with pytest.raises(ValueError, match=message):
            cb.keyed(**options)(type("Thing", (), {}))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean 'idle_after'"):
        cb.keyed(idle_afer="1s")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="decorates a class"):
        cb.keyed(lambda: 1)  # type: ignore[type-var]
