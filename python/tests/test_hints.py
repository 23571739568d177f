"""Hints that need a decision: unions, fields of pydantic as defaults, outputs, and what says how to write it right."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import functools
import io
import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import app
import numpy as np
import pytest
from node import Node
from numpy.typing import NDArray

import callboard as cb
from callboard._conversion import convert, output_hint
from callboard._envelope import decode, encode
from callboard._schema import schema
from callboard._target import TargetError


def accepts(hint: Any, value: Any) -> Any:
    return convert(decode(encode(value)), output_hint(hint))


def refusal(hint: Any, value: Any) -> list[tuple[str, str]]:
    with pytest.raises(cb.InvalidInput) as refused:
        accepts(hint, value)
    assert str(refused.value) == "; ".join(f"{text} - at `{path}`" for path, text in refused.value.fields)
    return refused.value.fields


# ---- Unions ----------------------------------------------------------------------------------------------------------


@dataclass
class Circle:
    radius: float


@dataclass
class Square:
    side: float
    name: str = ""


class Point(TypedDict):
    x: int


class Place(TypedDict):
    x: int
    y: int


@dataclass
class Cat:
    kind: Literal["cat"]


@dataclass
class Dog:
    kind: Literal["dog"]


def test_the_type_of_a_union_is_the_one_that_the_value_fits() -> None:
    assert accepts(Circle | Square, {"radius": 1}) == Circle(1.0)
    assert accepts(Circle | Square | None, {"side": 1, "name": "a"}) == Square(1.0, "a")
    assert accepts(Circle | Square | None, None) is None
    assert accepts(list[Cat | Dog], [{"kind": "dog"}, {"kind": "cat"}]) == [Dog("dog"), Cat("cat")]
    assert accepts(str | Circle, "a") == "a" and accepts(list[int] | list[str], ["a"]) == ["a"]
    # The first one that has all of its fields.
    assert accepts(Point | Place, {"x": 1, "y": 2}) == {"x": 1, "y": 2}
    assert accepts(Place | Point, {"x": 1}) == {"x": 1}
    array = accepts(NDArray[np.float32] | Circle, np.ones(2, np.float32))
    assert array.dtype == np.float32
    assert refusal(Circle | Square, {"side": "a"}) == [
        ("$.radius", "as `Circle`: Object missing required field `radius`"),
        ("$.side", "as `Square`: Expected `float`, got `str`"),
    ]
    found = schema(output_hint(Circle | Square))
    assert [list(each["properties"]) for each in found["anyOf"]] == [["radius"], ["side", "name"]]


def test_a_union_of_models_is_decided_by_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic")
    one = pydantic.create_model("One", a=(int, ...))
    two = pydantic.create_model("Two", b=(list[float], ...), kind=(str, "two"))
    assert accepts(one | two, {"a": 1}) == one(a=1) and accepts(one | two | None, None) is None
    assert accepts(list[one | two], [{"b": np.ones(2)}]) == [two(b=[1.0, 1.0])]
    assert accepts(one | Circle, {"radius": 2}) == Circle(2.0)
    assert refusal(one | two, {"c": 1}) == [("$.a", "as `One`: Field required"), ("$.b", "as `Two`: Field required")]
    assert len(schema(output_hint(one | two))["anyOf"]) == 2
    cat = pydantic.create_model("Cat", kind=(Literal["cat"], ...), lives=(int, 9))
    dog = pydantic.create_model("Dog", kind=(Literal["dog"], ...))
    pet = Annotated[cat | dog, pydantic.Field(discriminator="kind")]
    assert accepts(pet, {"kind": "cat"}) == cat(kind="cat")
    assert refusal(pet, {"kind": "cat", "lives": "x"})[0][0] == "$.lives"
    assert "discriminator" not in schema(output_hint(pet))


def test_a_union_of_models_may_have_arrays() -> None:
    pydantic = pytest.importorskip("pydantic")
    config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    one = pydantic.create_model("One", __config__=config, a=(np.ndarray, ...))
    two = pydantic.create_model("Two", b=(int, ...))
    assert accepts(one | two, {"a": np.ones(2)}).a.tolist() == [1.0, 1.0]
    assert accepts(one | np.ndarray, np.ones(2)).tolist() == [1.0, 1.0]
    assert schema(output_hint(one | two))["anyOf"][0]["properties"]["a"]["type"] == "array"


def test_a_service_takes_and_gives_unions() -> None:
    @cb.function
    def grow(shape: Circle | Square, by: float = 2.0) -> Circle | Square:
        return Circle(shape.radius * by) if isinstance(shape, Circle) else Square(shape.side * by)

    with cb.test_client(grow) as client:
        assert client.call({"shape": {"side": 2}}) == {"side": 4.0, "name": ""}
        with pytest.raises(cb.InvalidInput, match=r"as `Circle`: .* - at `\$\.shape\.radius`"):
            client.call({"shape": {}})


# ---- Defaults --------------------------------------------------------------------------------------------------------


def test_a_field_of_pydantic_as_a_default_has_its_default_and_limits() -> None:
    pydantic = pytest.importorskip("pydantic")

    @cb.function
    def f(x: int = pydantic.Field(5, ge=0, description="a count"), y: str = pydantic.Field(max_length=2)) -> list[Any]:
        return [x, y]

    with cb.test_client(f) as client:
        assert client.call({"y": "a"}) == [5, "a"]
        for value, place in [({"y": "a", "x": -3}, "x"), ({"y": "abc"}, "y"), ({}, "y")]:
            with pytest.raises(cb.InvalidInput) as refused:
                client.call(value)
            assert refused.value.fields[0][0] == f"$.{place}"
    (route,) = cb._target.routes_of(f, "f")  # type: ignore[attr-defined]
    found = route.describe()["input"]
    assert found["properties"]["x"] == {"type": "integer", "minimum": 0, "description": "a count", "default": 5}
    assert found["required"] == ["y"]


def test_a_default_that_is_no_value_is_refused_with_its_cure() -> None:
    pydantic = pytest.importorskip("pydantic")

    def ours(x: int = cb.Field(ge=0)) -> int:  # type: ignore[assignment]
        return x

    def aliased(x: int = pydantic.Field(5, alias="X")) -> int:
        return x

    for fn in (ours, aliased):
        with pytest.raises(TargetError, match=r"the parameter `x`: .*write `x: Annotated\[int, cb.Field\("):
            cb.test_client(fn)


# ---- Outputs ---------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Pair(NamedTuple):
    a: int
    b: int


@pytest.mark.parametrize(
    ("hint", "outputs"),
    [
        (int, [1, np.int64(1), np.uint8(1)]),
        (float, [1, 1.5, np.float32(1), np.float64(1), np.int8(1)]),
        (str, ["a", np.str_("a"), Colour.RED, dt.date(2020, 1, 2)]),
        (bytes, [b"a", bytearray(b"a"), io.BytesIO(b"a")]),
        (bool, [True, np.bool_(True)]),
        (None, [None]),
        (str | None, ["a", None]),
        (Annotated[int, cb.Field(ge=0)], [1]),
        (Literal["a", 1], ["a", 1]),
        (Colour, [Colour.RED, "red"]),
        (dt.date, [dt.date(2020, 1, 2), "2020-01-02"]),
        (Circle, [Circle(1.0), {"radius": 1.0}]),
        (dict[str, int], [{}, {"a": "b"}]),
        (list[int], [[1], (1,), np.ones(1)]),
        (Pair, [Pair(1, 2), [1, 2]]),
        (NDArray[np.float32], [np.ones(1, np.float32), [1.0]]),
        (cb.Image, [cb.Image(b"a"), b"a"]),
        (Any, ["a", None, 1]),
        (object, ["a", None]),
    ],
)
def test_an_output_of_its_hint_is_sent(hint: Any, outputs: list[Any]) -> None:
    for output in outputs:
        assert answer(hint, output) == decode(encode(output)) or isinstance(output, np.ndarray)


@pytest.mark.parametrize(
    ("hint", "outputs"),
    [
        (int, ["oops", None, 1.5, True, [1], {"a": 1}, np.ones(2)]),
        (float, ["1.5", None]),
        (str, [1, b"a", ["a"]]),
        (str | None, [1]),
        (Literal["a"], [2]),
        (Colour, ["green"]),
        (Circle, ["oops", None, 3]),
        (dict[str, int], ["oops", None, ["a"], ({"a": 1}, 201)]),
        (dict, [[1], ({"a": 1}, 201)]),
        (Circle | None, [({"radius": 1}, 201)]),
        (list[int], ["oops", 1, {"a": 1}]),
        (tuple, [{"a": 1}]),
        (NDArray[np.float32], ["oops", None]),
    ],
)
def test_an_output_of_another_type_than_its_hint_fails(hint: Any, outputs: list[Any]) -> None:
    for output in outputs:
        with pytest.raises(TypeError) as failed:
            answer(hint, output)
        assert f"a value of type `{type(output).__qualname__}` is not what the hint `-> " in str(failed.value)


def answer(hint: Any, output: Any) -> Any:
    def f() -> Any:
        return output

    f.__annotations__["return"] = hint
    with cb.test_client(f) as client:
        return client.call()


def test_the_items_of_batches_and_streams_are_checked_one_by_one() -> None:
    with Node("app.py:wrong_outputs").ready() as node:
        first, second, third = node.call(1, 2, 3)
        assert (first, third) == ("1", "3")
        message = "the output of wrong_outputs: a value of type `NoneType` is not what the hint `-> str` says"
        assert second == {"message": message}
    with Node("app.py:wrong_stream").ready() as node:
        node.batch([2])
        (outcome,), streamed = node.outcomes()
        assert "`-> int`" in outcome["message"] and streamed == [(0, 0)]


# ---- What is said ----------------------------------------------------------------------------------------------------


@dataclass
class Order:
    colour: Colour
    sizes: list[Literal[1, 2]]
    more: dict[str, Literal["a", "b"]]


def test_a_wrong_value_is_named_with_its_place_and_with_what_is_allowed() -> None:
    good = {"colour": "red", "sizes": [1], "more": {}}
    assert accepts(Order, good) == Order(Colour.RED, [1], {})
    missing = {key: value for key, value in good.items() if key != "sizes"}
    assert refusal(list[Order], [missing]) == [("$[0].sizes", "Object missing required field `sizes`")]
    wrong = {
        "$.colour": ({"colour": "green"}, "Invalid enum value 'green', expected one of 'red'"),
        "$.sizes[1]": ({"sizes": [1, 3]}, "Invalid enum value 3, expected one of 1, 2"),
        '$.more["x"]': ({"more": {"x": "c"}}, "Invalid enum value 'c', expected one of 'a', 'b'"),
    }
    for path, (change, text) in wrong.items():
        assert refusal(Order, {**good, **change}) == [(path, text)]
    assert refusal(Literal["a", "b"], "c") == [("$", "Invalid enum value 'c', expected one of 'a', 'b'")]


def test_an_unknown_field_is_told_which_ones_there_are() -> None:
    message = r"unknown field `c`, expected `a`, `b` - at `\$`"
    with cb.test_client(app.add) as client, pytest.raises(cb.InvalidInput, match=message):
        client.call({"a": 1, "c": 2})


def test_a_body_with_the_name_of_the_only_parameter_is_told_the_rule() -> None:
    @cb.function
    def shout(texts: str) -> str:
        return texts.upper()

    with cb.test_client(shout) as client:
        with pytest.raises(cb.InvalidInput, match="the body is the value of the one parameter `texts`, without"):
            client.call({"texts": "hello"})
        with pytest.raises(cb.InvalidInput, match=r"got `object` - at `\$`$"):
            client.call({"other": "hello"})


def test_what_cannot_be_served_says_what_to_write() -> None:
    class Holder:
        def method(self) -> int:
            return 1

    def größe() -> int:
        return 1

    for wrong in (functools.partial(int, "1"), Holder().method):
        with pytest.raises(TypeError, match="write a `def` that calls it"):
            cb.function(wrong)
    with pytest.raises(ValueError, match="'größe' cannot be the path of a route: give it one of ASCII"):
        cb.function(größe)
    assert cb.function(route="/size")(größe)() == 1


@pytest.mark.parametrize(
    ("kind", "cure"),
    [
        (pathlib.Path, "`pathlib.Path` cannot be made from an input: take a `str`"),
        (collections.deque, "`collections.deque` cannot be made from an input: take a `list`"),
        (Iterator[int], "Iterator` cannot be made from an input: take a `list`"),
        (Node, "`node.Node` cannot be made from an input: make it a dataclass or a model of pydantic"),
    ],
)
def test_a_type_that_cannot_be_made_says_what_to_take(kind: Any, cure: str) -> None:
    def f(x: Any) -> int:
        return 1

    f.__annotations__["x"] = kind
    with pytest.raises(TargetError, match=re.escape(cure) + "$"):
        cb.test_client(f)


def test_a_model_of_the_first_pydantic_is_told_from_others() -> None:
    first = pytest.importorskip("pydantic.v1")
    model = first.create_model("Old", a=(int, ...))

    def f(x: Any) -> int:
        return 1

    f.__annotations__["x"] = model
    with pytest.raises(TargetError, match="it is a model of pydantic 1, and models of pydantic 2 are needed"):
        cb.test_client(f)


def test_an_output_that_cannot_be_sent_says_what_to_give() -> None:
    with pytest.raises(TypeError, match=r"`generator` cannot be sent at \$\.a: .*`yield`"):
        encode({"a": (number for number in range(3))})
    pydantic = pytest.importorskip("pydantic")
    with pytest.raises(TypeError, match=r"SecretStr` cannot be sent at \$: .*get_secret_value"):
        encode(pydantic.SecretStr("a"))


# ---- Further types ---------------------------------------------------------------------------------------------------


def test_an_object_of_attrs_is_sent_by_its_fields() -> None:
    attrs = pytest.importorskip("attrs")
    kind = attrs.make_class("Kind", ["a", "b"])
    assert decode(encode([kind(1, np.ones(2))]))[0]["a"] == 1
    with pytest.raises(TypeError, match=r"\$\.b"):
        encode(kind(1, 1 << 70))


def test_records_become_a_frame() -> None:
    pd = pytest.importorskip("pandas")
    pl = pytest.importorskip("polars")
    records = [{"a": 1, "b": "x"}, {"a": 2}]
    assert accepts(pd.DataFrame, records)["a"].tolist() == [1, 2]
    assert accepts(pl.DataFrame, records)["b"].to_list() == ["x", None]
    sparse = [{f"name {number}": 1} for number in range(2000)]
    assert "with the same fields" in refusal(pd.DataFrame, sparse)[0][1]


def test_a_file_is_a_field_of_a_model() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Picture", image=(cb.Image, ...), more=(list[cb.File], []))
    found = accepts(model, {"image": b"\x89PNG\r\n\x1a\n", "more": ["aGk="]})
    assert (found.image.media_type, found.more[0].data) == ("image/png", b"hi")
    assert decode(encode(found))["more"] == [b"hi"]
    assert schema(model)["properties"]["image"] == {"title": "Image", **schema(cb.Image)}
    assert refusal(model, {"image": 3})[0][0] == "$.image"
