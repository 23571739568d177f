"""Classes whose fields need a decision: NamedTuples from objects, attrs, unions and limits in fields, secrets."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import app
import msgspec
import pytest
from node import ENVIRONMENT, Node

import callboard as cb
from callboard._conversion import convert, output_hint
from callboard._envelope import decode, encode
from callboard._schema import schema
from callboard._target import TargetError, routes_of


def accepts(hint: Any, value: Any) -> Any:
    return convert(decode(encode(value)), output_hint(hint))


def refusal(hint: Any, value: Any) -> list[tuple[str, str]]:
    with pytest.raises(cb.InvalidInput) as refused:
        accepts(hint, value)
    return refused.value.fields


def plain(value: Any) -> Any:
    """A value as it is in JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))


class Point(NamedTuple):
    x: int
    y: int = 2


@dataclass
class Circle:
    radius: float


@dataclass
class Square:
    """A square."""

    side: float
    tags: list[str] = field(default_factory=list)


@dataclass
class Drawing:
    shape: Circle | Square
    at: Point
    more: dict[str, list[Circle | Square | None]] = field(default_factory=dict)


class Entry(TypedDict, total=False):
    shape: Circle | Square
    note: str


class Tagged(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    first_shape: Circle | Square
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("a count below zero")


# ---- NamedTuples -----------------------------------------------------------------------------------------------------


def test_a_named_tuple_is_made_of_an_object_or_a_list() -> None:
    assert accepts(Point, {"x": 1}) == accepts(Point, [1]) == Point(1, 2)
    assert accepts(list[Point], [{"x": 1, "y": 3}, [4]]) == [Point(1, 3), Point(4, 2)]
    assert accepts(Point | None, {"x": 1}) == Point(1) and accepts(dict[str, Point], {"a": {"x": 1}})["a"] == (1, 2)
    drawing = Drawing(Circle(1.0), Point(1))
    assert accepts(Drawing, {"shape": {"radius": 1}, "at": {"x": 1}}) == drawing
    assert accepts(Drawing, {"shape": {"radius": 1}, "at": [1, 2]}) == drawing
    assert refusal(Point, {"x": "a"}) == [("$.x", "Expected `int`, got `str`")]
    assert refusal(list[Point], [{"y": 1}]) == [("$[0].x", "Object missing required field `x`")]
    assert refusal(Point, {"x": 1, "z": 1})[0][1] == "Object contains unknown field `z`, expected `x`, `y`"
    assert refusal(Point, [1, 2, 3]) == [("$", "Expected `array` of length 1 to 2, got 3")]


def test_the_schema_of_a_named_tuple_has_both_forms_as_an_input_and_the_list_as_an_output() -> None:
    @cb.function
    def move(point: Point, by: int = 1) -> Point:
        return Point(point.x + by, point.y)

    with cb.test_client(move) as client:
        assert client.call({"point": {"x": 1}}) == (2, 2) and client.call({"point": [1, 5]}) == (2, 5)
    (route,) = routes_of(move, "move")
    described = route.describe()
    listed, named = described["input"]["properties"]["point"]["anyOf"]
    assert (listed["type"], listed["minItems"], listed["maxItems"]) == ("array", 1, 2)
    assert (named["required"], named["properties"]["y"]) == (["x"], {"type": "integer", "default": 2})
    assert described["output"]["type"] == "array"


def test_a_node_reads_named_tuples_as_the_test_client_does() -> None:
    corners = {"corners": [{"x": 1}, [2, 3]], "lid": {"x": 5}}
    expected = {"corners": [[2, 2], [4, 3]], "lid": [5, 2]}
    with cb.test_client(app.widen) as client:
        assert plain(client.call({"box": corners, "by": 2})) == expected
    with Node("app.py:widen").ready() as node:
        good, wrong = node.call({"box": corners, "by": 2}, {"box": {"corners": [{"x": "a"}]}})
        assert plain(good) == expected
        assert "$.box.corners[0].x" in str(wrong)


# ---- Unions in fields ------------------------------------------------------------------------------------------------


def test_a_field_may_be_a_union_of_classes() -> None:
    found = accepts(Drawing, {"shape": {"side": 2}, "at": [1], "more": {"a": [{"radius": 1}, None]}})
    assert found == Drawing(Square(2.0), Point(1), {"a": [Circle(1.0), None]})
    assert accepts(Entry, {"shape": {"radius": 1}}) == {"shape": Circle(1.0)}
    assert accepts(list[Entry], [{"note": "a"}]) == [{"note": "a"}]
    assert accepts(Tagged, {"firstShape": {"radius": 1}}) == Tagged(Circle(1.0))
    assert refusal(Drawing, {"shape": {}, "at": [1]}) == [
        ("$.shape.radius", "as `Circle`: Object missing required field `radius`"),
        ("$.shape.side", "as `Square`: Object missing required field `side`"),
    ]
    assert refusal(list[Tagged], [{"firstShape": {"radius": 1}, "count": -1}]) == [("$[0]", "a count below zero")]
    assert "unknown field `a`" in refusal(Tagged, {"firstShape": {"radius": 1}, "a": 1})[0][1]
    kinds = schema(output_hint(Drawing))["properties"]["shape"]["anyOf"]
    assert [each["title"] for each in kinds] == ["Circle", "Square"] and kinds[1]["description"] == "A square."


@dataclass
class Leaf:
    value: int


@dataclass
class Branch:
    left: Leaf | Branch | Twig
    name: str = ""


@dataclass
class Twig:
    left: Leaf | Branch | Twig


def test_a_union_that_contains_itself_is_read_once_for_each_level() -> None:
    value: dict[str, Any] = {"value": 1}
    for _ in range(40):
        value = {"left": value}
    assert isinstance(accepts(Branch, value), Branch)
    wrong: dict[str, Any] = {"value": "a"}
    for _ in range(40):
        wrong = {"left": wrong}
    found = refusal(Branch, wrong)
    assert len(found) <= 32 and ("$" + ".left" * 40 + ".value", "as `Leaf`: Expected `int`, got `str`") in found
    assert schema(output_hint(Branch))["properties"]["left"]["anyOf"][1] == {"title": "Branch"}


def test_an_input_that_nests_beyond_the_stack_is_refused() -> None:
    value: dict[str, Any] = {"value": 1}
    for _ in range(200):
        value = {"left": value}
    assert refusal(Branch, value) == [("$", "Expected less nesting")]

    @cb.function
    def depth(branch: Branch) -> int:
        return 1

    with cb.test_client(depth) as client, pytest.raises(cb.InvalidInput, match="Expected less nesting"):
        client.call(value)


def test_a_class_without_such_a_field_is_read_as_it_was() -> None:
    assert output_hint(Square) is Square and output_hint(Point) is Point and output_hint(list[Leaf]) == list[Leaf]


# ---- Other packages --------------------------------------------------------------------------------------------------


def test_an_attrs_class_runs_its_converters_and_validators() -> None:
    attrs = pytest.importorskip("attrs")

    @attrs.define
    class Item:
        name: str = attrs.field(converter=str.upper)
        _price: int = attrs.field(default=3, validator=attrs.validators.ge(0))
        tags: list[str] = attrs.field(factory=list)
        total: int = attrs.field(default=attrs.Factory(lambda self: self._price + 1, takes_self=True))

    # The names of a function that ends are not found later.
    Item.__annotations__.update(name=str, _price=int, tags=list[str], total=int)
    assert accepts(Item, {"name": "a", "_price": 4}) == Item("A", 4, [], 5)
    assert accepts(list[Item], [{"name": "a"}]) == [Item("A")]
    assert refusal(Item, {"name": "a", "_price": -1})[0][0] == "$"
    assert refusal(Item, {"name": "a", "tags": [1]}) == [("$.tags[0]", "Expected `str`, got `int`")]
    assert schema(output_hint(Item))["required"] == ["name"]
    assert decode(encode(Item("a")))["_price"] == 3


def test_an_attrs_class_of_a_union_is_told_by_its_fields_also_inside_another() -> None:
    attrs = pytest.importorskip("attrs")
    cat = attrs.make_class("Cat", {"kind": attrs.field(type=Literal["cat"]), "lives": attrs.field(type=int, default=9)})
    dog = attrs.make_class("Dog", {"kind": attrs.field(type=Literal["dog"]), "name": attrs.field(converter=str.strip)})
    owner = attrs.make_class("Owner", {"pets": attrs.field(type=list[cat | dog])}, frozen=True)
    found = accepts(owner, {"pets": [{"kind": "dog", "name": " rex"}, {"kind": "cat"}]})
    assert found == owner([dog("dog", "rex"), cat("cat")])
    assert refusal(owner, {"pets": [{"kind": "cat", "lives": "many"}]})[0][0] == "$.pets[0].lives"


def test_a_limit_or_default_of_pydantic_holds_in_a_field_of_a_dataclass() -> None:
    pydantic = pytest.importorskip("pydantic")

    @dataclass
    class Limited:
        a: int
        b: int = pydantic.Field(5, le=9)
        c: list[int] = pydantic.Field(default_factory=list)  # noqa: RUF009

    Limited.__annotations__.update(a=Annotated[int, pydantic.Field(ge=0)], b=int, c=list[int])
    found = accepts(Limited, {"a": 1})
    assert (found.a, found.b, found.c) == (1, 5, [])
    assert refusal(Limited, {"a": -1}) == [("$.a", "Expected `int` >= 0")]
    assert refusal(Limited, {"a": 1, "b": 10}) == [("$.b", "Expected `int` <= 9")]
    assert schema(output_hint(Limited))["properties"]["b"] == {"type": "integer", "maximum": 9, "default": 5}


def test_a_dataclass_of_pydantic_is_read_by_pydantic() -> None:
    pydantic = pytest.importorskip("pydantic")

    @pydantic.dataclasses.dataclass
    class Order:
        count: int = pydantic.Field(gt=0)

    assert accepts(Order, {"count": "1"}) == Order(count=1)
    assert refusal(list[Order], [{"count": 0}]) == [("$[0].count", "Input should be greater than 0")]
    assert schema(output_hint(Order))["properties"]["count"]["exclusiveMinimum"] == 0


def test_a_secret_is_taken_is_never_shown_and_is_not_sent() -> None:
    pydantic = pytest.importorskip("pydantic")

    @dataclass
    class Login:
        name: str
        password: pydantic.SecretStr

    Login.__annotations__.update(name=str, password=pydantic.SecretStr)

    def log_in(login: Any, token: Any) -> Any:
        return [login.password.get_secret_value(), repr(login), repr(token)] if login.name else login

    log_in.__annotations__.update(login=Login, token=pydantic.SecretStr)
    value = {"login": {"name": "a", "password": "hunter2"}, "token": "hunter3"}
    with cb.test_client(log_in) as client:
        shown, *texts = client.call(value)
        assert shown == "hunter2" and "hunter" not in str(texts)
        with pytest.raises(TypeError, match=r"SecretStr` cannot be sent at \$\.password: .*get_secret_value"):
            client.call({**value, "login": {"name": "", "password": "hunter2"}})
        with pytest.raises(cb.InvalidInput) as refused:
            client.call({**value, "token": ["hunter3"]})
        assert refused.value.fields == [("$.token", "Input should be a valid string")]
    (route,) = routes_of(log_in, "log_in")
    properties = route.describe()["input"]["properties"]
    secret = {"type": "string", "format": "password", "writeOnly": True}
    assert properties["token"] == secret == properties["login"]["properties"]["password"]


class Page(NamedTuple):
    image: cb.Image
    number: int = 1


class Book(TypedDict):
    pages: list[Page]
    cover: cb.Image | None


def test_a_file_is_a_field_of_any_class() -> None:
    found = accepts(Book, {"pages": [{"image": "aGk="}, [b"hi", 2]], "cover": "aGk="})
    assert found == {"pages": [(cb.Image(b"hi"), 1), (cb.Image(b"hi"), 2)], "cover": cb.Image(b"hi")}
    assert refusal(Book, {"pages": [{"image": 3}], "cover": None})[0][0] == "$.pages[0].image"
    assert schema(Book)["properties"]["pages"]["items"]["prefixItems"][0] == schema(cb.Image)


def test_a_frame_is_made_of_no_records_and_says_its_forms() -> None:
    pd = pytest.importorskip("pandas")
    assert len(accepts(pd.DataFrame, [])) == 0
    assert accepts(pd.DataFrame, {"a": [1, 2]})["a"].tolist() == [1, 2]
    found = schema(pd.DataFrame)
    assert found["description"] == "pandas.DataFrame"
    assert [each["type"] for each in found["anyOf"]] == ["object", "array"]


def test_a_frame_without_pyarrow_is_a_mistake_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    pd = pytest.importorskip("pandas")
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    @cb.function
    def total(frame: Any) -> float: ...

    total.__annotations__["frame"] = pd.DataFrame
    with pytest.raises(TargetError, match=r"`pandas.DataFrame` needs pyarrow: install `callboard\[arrow\]`"):
        routes_of(total, "total")


def test_hints_import_no_package_that_they_do_not_name() -> None:
    code = (
        "import json, sys, app, callboard._target as t; t.routes_of(app.widen, 'w')[0].describe(); "
        "optional = {'pydantic', 'attr', 'pandas', 'pyarrow'}; print(json.dumps([*optional & {*sys.modules}]))"
    )
    found = subprocess.check_output([sys.executable, "-c", code], env=ENVIRONMENT, text=True, cwd=app.__file__[:-7])
    assert json.loads(found) == []
