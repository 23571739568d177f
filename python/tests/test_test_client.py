"""Wrong uses of `test_client`, and what their errors say."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import pytest

import callboard as cb
from callboard._target import TargetError


@cb.service
class Items:
    @cb.route("/items/{item_id}", methods=["GET"])
    def item(self, item_id: int, capitals: bool = False) -> str:
        return f"{item_id} {capitals}"

    @cb.route("/items/{item_id}", methods=["PUT"])
    def rename(self, item_id: int, name: str) -> str:
        return f"{item_id} {name}"


@cb.service
class Alone:
    @cb.route("/alone")
    def one(self, x: int) -> int:
        return x


@cb.function
def hello(name: str, user: Annotated[str, cb.Header("x-user")] = "?") -> str:
    return f"{name} {user}"


def test_a_call_with_a_path_headers_or_a_query_is_that_of_its_client() -> None:
    with cb.test_client(hello) as test:
        assert test.call("Bob") == "Bob ?"
        assert test.client().call("/hello", "Bob", headers={"x-user": "ada"}) == "Bob ada"
        wrong: Any = test
        with pytest.raises(TypeError, match=r"takes the input alone, and 2 values were given: client\(\).call"):
            wrong.call("/hello", "Bob")
        for name in ("headers", "query", "timeout"):
            with pytest.raises(TypeError, match=rf"call has no argument `{name}`: client\(\).call"):
                wrong.call("Bob", **{name: {}})

    async def asynchronous() -> None:
        async with cb.test_client(hello) as test:
            wrong: Any = test
            with pytest.raises(TypeError, match=r"call has no argument `query`: client\(\).call"):
                await wrong.call("Bob", query={})

    asyncio.run(asynchronous())


def test_a_call_of_a_class_without_predict_names_its_method() -> None:
    with cb.test_client(Items) as test:
        for wrong in (test.call, lambda: test.batch([1])):
            with pytest.raises(TargetError, match="Items has no `predict`: say method='item', or another of item, ren"):
                wrong()
    with cb.test_client(Alone) as test:
        assert (test.call(1), test.batch([1, 2])) == (1, [1, 2])


def test_an_argument_that_is_no_field_of_the_input_says_where_it_is() -> None:
    path = cb.Context(path="/items/7")
    with cb.test_client(Items) as test:
        assert test.call("x", method="rename", context=path) == "7 x"
        assert test.client().call("GET /items/7", query={"capitals": True}) == "7 True"
        words = "`item_id` is the path parameter `item_id`, and no field of the input: use client"
        for value, method in (({"item_id": 1}, "item"), (None, "item"), ("x", "rename"), ({"item_id": 1}, "rename")):
            with pytest.raises(cb.InvalidInput, match=words):
                test.call(value, method=method)
        with pytest.raises(cb.InvalidInput, match="`capitals` is the query parameter `capitals`"):
            test.call({"capitals": True}, method="item", context=path)
        with pytest.raises(cb.InvalidInput) as raised:
            test.call(1, method="rename", context=path)
        assert str(raised.value) == "Expected `str`, got `int` - at `$`"
        with pytest.raises(cb.CallError) as refused:
            test.client().call("PUT /items/x", "y")
        assert "client" not in str(refused.value)


@cb.auth
def who(request):  # type: ignore[no-untyped-def]
    return cb.Caller("ada")


def test_a_function_with_auth_gives_a_caller() -> None:
    @cb.auth
    def no_caller(request) -> str:  # type: ignore[no-untyped-def]
        return "ada"

    with cb.test_client(who) as test:
        assert test.call(cb.Request()) == cb.Caller("ada")
    with cb.test_client(no_caller) as test, pytest.raises(TypeError, match=r"returns a cb.Caller: Expected `object`"):
        test.call(cb.Request())


def test_what_cannot_be_tested_is_told_so() -> None:
    fastapi = pytest.importorskip("fastapi")
    module = sys.modules[__name__]
    for app, words in (
        (module, r"is a module: test a service .* by cb.test_client\(.*.Name\), or all by cb.start"),
        (fastapi.FastAPI(), "an ASGI app is tested by a client of its own"),
        ([Items, hello], "takes a class, a function or a pipeline, and this is a `list`"),
        ("app.py", "and this is a `str`"),
        (Items(), "and this is a `Items`"),
    ):
        with pytest.raises(TargetError, match=words):
            cb.test_client(app)
    several: Any = cb.test_client
    with pytest.raises(TypeError, match=r"takes one service, function or pipeline: .* cb.start\('app.py'\) runs all"):
        several(Items, who)
