"""Type hints as the schema of a route: which inputs become arguments, and what is said of others."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

import app
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

import callboard as cb
from callboard._schema import schema
from callboard._target import TargetError, routes_of

Pixels: TypeAlias = np.ndarray[tuple[int, Literal[3, 4]], np.dtype[np.float32]]
Scalar: TypeAlias = np.ndarray[tuple[()], np.dtype[np.float32]]


@dataclass
class Box:
    corners: tuple[int, int]
    mask: NDArray[np.uint8]
    names: dict[int, str]


class Options(TypedDict, total=False):
    top: int


def accepts(hint: Any, value: Any) -> Any:
    def f(x: Any) -> None: ...

    f.__annotations__["x"] = hint
    (route,) = routes_of(f, "f")
    return route.signature.arguments(value)["x"]


def test_inputs_are_converted_to_their_hints() -> None:
    box = accepts(Box, {"corners": [1, 2], "mask": [[1, 0]], "names": {"7": "a"}})
    assert (box.corners, box.names, box.mask.dtype) == ((1, 2), {7: "a"}, np.uint8)
    assert accepts(Options, {"top": 3}) == {"top": 3}
    assert accepts(list[float], np.ones(2, np.float32)) == [1.0, 1.0]
    assert accepts(float, np.float32(0.5)) == 0.5
    assert accepts(bytes, "AP8=") == b"\x00\xff"
    assert accepts(NDArray[np.float32] | None, None) is None
    assert accepts(NDArray[np.floating], [1, 2]).dtype == np.float64
    assert accepts(NDArray[np.float64], []).shape == (0,)
    assert accepts(np.ndarray, [[1], [2]]).shape == (2, 1)
    assert accepts(Pixels, [[1, 2, 3]]).shape == (1, 3)
    assert accepts(Scalar, 2.0).shape == () and schema(Scalar)["type"] == "number"
    assert accepts(NDArray[np.str_], ["a", "b"]).tolist() == ["a", "b"]


@pytest.mark.parametrize(
    "axis", [Literal["x"], Literal[None], Literal[-1], Literal[True], Literal[3] | Literal[4], str]
)
def test_an_axis_that_is_no_length_is_refused_with_the_text_of_its_hint(axis: Any) -> None:
    hint = np.ndarray[tuple[int, axis], np.dtype[np.float32]]  # type: ignore[valid-type]
    with pytest.raises(TypeError, match="an axis is an `int` or a `Literal` of lengths") as refused:
        schema(hint)
    assert f"the type `{hint}`" in str(refused.value)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, "7", "Expected `int`, got `str` - at `$`"),
        (list[int], [1, "a"], "Expected `int`, got `str` - at `$[1]`"),
        (NDArray[np.uint8], [256], "Expected an array of uint8, got int64 that does not fit - at `$`"),
        (NDArray[np.int64], [0.5], "Expected an array of int64, got float64 that does not fit - at `$`"),
        (NDArray[np.float32], [[1], [1, 2]], "Expected an array: the lists differ in length - at `$`"),
        (NDArray[np.float32], {"a": 1}, "Expected an array of numbers - at `$`"),
        (Pixels, [[1, 2]], "Expected an array of shape (n, 3 or 4), got (1, 2) - at `$`"),
        (Pixels, np.ones(3, np.float32), "Expected an array of shape (n, 3 or 4), got (3,) - at `$`"),
        (Scalar, [1.0], "Expected an array of shape (), got (1,) - at `$`"),
        (list[Pixels], [[[1, 2, 3]], [1]], "Expected an array of shape (n, 3 or 4), got (1,) - at `$[1]`"),
        (Box, {"corners": [1, 2], "mask": [], "names": []}, "Expected `object`, got `array` - at `$.names`"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_their_place(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(cb.InvalidInput) as refused:
        accepts(hint, value)
    assert str(refused.value) == message


def test_the_schema_of_an_array_has_its_shape() -> None:
    found = schema(Pixels)
    assert found["description"] == "an array of float32 of shape (n, 3 or 4)"
    assert found["items"] == {"type": "array", "minItems": 3, "maxItems": 4}
    assert found["examples"] == [[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]]
    large = schema(np.ndarray[tuple[Literal[224], Literal[224]], np.dtype[np.float32]])
    assert "examples" not in large and (large["minItems"], large["items"]["maxItems"]) == (224, 224)


def test_a_parameter_called_context_may_be_an_input() -> None:
    @cb.function
    def answer(question: str, context: str) -> str:
        return question + context

    with cb.test_client(answer) as client:
        assert client.call({"question": "a", "context": "b"}) == "ab"


@pytest.mark.parametrize(
    ("hint", "cure"),
    [
        (cb.Request, "context: cb.Context"),
        (list[cb.Request], "context: cb.Context"),
        (cb.Request | None, r"cb\.Header"),
        (cb.Caller, "`caller` is its name"),
        (type("UploadFile", (), {"__module__": "fastapi.datastructures"}), "a `cb.File`"),
        (type("Request", (), {"__module__": "starlette.requests"}), "context: cb.Context"),
    ],
)
def test_what_a_node_says_is_never_read_from_a_body(hint: Any, cure: str) -> None:
    def answer(request: Any) -> None: ...

    answer.__annotations__["request"] = hint
    with pytest.raises(TargetError, match=f"the parameter `request`: `.*` is not read from the body: .*{cure}"):
        cb.test_client(cb.function(answer))


def test_the_wrong_member_of_a_map_is_named_by_its_key() -> None:
    def place(hint: Any, value: Any) -> str:
        with pytest.raises(cb.InvalidInput) as refused:
            accepts(hint, value)
        ((found, message),) = refused.value.fields
        assert str(refused.value) == f"{message} - at `{found}`"
        return found

    wrong = {**{f"p{number}": 1.0 for number in range(10_000)}, "p 77": "free", "q": 1.0}
    maps = dict[str, list[dict[str, dict[str, float]]]]
    assert place(list[dict[str, float]], [{}, wrong]) == '$[1]["p 77"]'
    assert place(maps, {"shops": [{}, {"prices": wrong}]}) == '$["shops"][1]["prices"]["p 77"]'
    # An envelope may have a tuple.
    assert place(list[dict[str, float]], ({"a": "z"},)) == '$[0]["a"]'
    assert place(tuple[int, dict[str, Cup]], [1, {"a": {"name": "tea", "prices": 1}}]) == '$[1]["a"].prices'
    assert place(dict[str, float] | None, {"x" * 100: "free"}) == f'$["{"x" * 64}"]'
    # Where it depends on the value which hint a member has, and of many maps, it stays as it was.
    assert place(dict[str, dict[str, dict[str, dict[str, int]]]], {"a": {"b": {"c": {"d": "e"}}}}) == "$" + "[...]" * 4


def test_a_text_of_a_validator_that_looks_like_a_place_is_no_place() -> None:
    @dataclass
    class Named:
        a: dict[str, int]

        def __post_init__(self) -> None:
            raise ValueError("bad x - at `$.a[...]`")

    for value in ({"a": {}}, {"a": {"b": 1}}):
        with pytest.raises(cb.InvalidInput, match="bad x"):
            accepts(Named, value)


def test_unknown_and_missing_parameters_are_refused() -> None:
    with cb.test_client(app.add) as client:
        with pytest.raises(cb.InvalidInput, match="unknown field `c`"):
            client.call({"a": 1, "c": 2})
        with pytest.raises(cb.InvalidInput, match="missing required field `a`"):
            client.call({})


def test_models_of_pydantic_are_validated() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Query(pydantic.BaseModel):  # type: ignore[misc,name-defined]
        text: str
        top: int = pydantic.Field(default=1, ge=1)

    @cb.function
    def search(queries: list[Any]) -> Any:
        return queries[0]

    search.__annotations__["queries"] = list[Query]
    with cb.test_client(search) as client:
        assert client.call([{"text": "a"}]) == {"text": "a", "top": 1}
        with pytest.raises(cb.InvalidInput, match=r"Input should be .* to 1 - at `\$\[0\]\.top`") as refused:
            client.call([{"text": 7, "top": 0}])
        assert refused.value.fields == [
            ("$[0].text", "Input should be a valid string"),
            ("$[0].top", "Input should be greater than or equal to 1"),
        ]
    (route,) = routes_of(search, "search")
    assert route.signature.input_schema()["items"]["properties"]["top"]["minimum"] == 1


def test_a_service_takes_bytes_as_a_file_in_memory() -> None:
    @cb.function
    def first(data: io.BytesIO) -> str:
        return data.read(1).decode()

    with cb.test_client(first) as client:
        assert client.call(b"ab") == client.call("YWI=") == "a"
        with pytest.raises(cb.InvalidInput, match=r"^Invalid base64 encoded string - at `\$`$"):
            client.call("*")
    (route,) = routes_of(first, "first")
    assert route.signature.input_schema() == {"type": "string", "contentEncoding": "base64"}


def test_limits_of_pydantic_are_checked() -> None:
    pydantic = pytest.importorskip("pydantic")
    hint = list[Annotated[int, pydantic.Field(ge=0, description="a count")]]
    assert accepts(hint, [0]) == [0]
    with pytest.raises(cb.InvalidInput, match="Expected `int` >= 0"):
        accepts(hint, [-1])
    assert accepts(Annotated[str, cb.Field(max_length=2)], "ab") == "ab"


def test_a_field_may_be_called_discriminator() -> None:
    @dataclass
    class Test:
        discriminator: str

    class Left(msgspec.Struct, tag="left"):
        value: int

    class Right(msgspec.Struct, tag="right"):
        value: int

    assert schema(Test)["properties"] == {"discriminator": {"type": "string"}}
    # The word of OpenAPI beside a choice refers to definitions that are inlined here.
    assert list(schema(Left | Right)) == ["anyOf"]


def test_a_context_may_be_optional() -> None:
    @cb.function
    def where(text: str, context: cb.Context | None = None) -> str:
        return f"{text} {context and context.route}"

    @cb.function
    @cb.batched
    def all_of_them(texts: list[str], contexts: list[cb.Context] | None = None) -> list[int]:
        return [len(contexts or ()) for _ in texts]

    (route,) = routes_of(where, "where")
    assert route.signature.input_schema() == {"type": "string"}
    with cb.test_client(where) as client:
        assert client.call("at", context=cb.Context(route="/here")) == "at /here"
    with cb.test_client(all_of_them) as client:
        assert client.batch(["a", "b"]) == [2, 2]


def test_a_batch_of_arrays_is_stacked_and_divided() -> None:
    @cb.function
    @cb.batched
    def twice(items: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        stacked = np.stack(items)
        assert stacked.shape == (2, 4, 3)
        return stacked * 2

    with cb.test_client(twice) as client:
        outputs = client.batch([np.ones((4, 3), np.float32)] * 2)
    assert [(each.shape, each.dtype, each.max()) for each in outputs] == [((4, 3), np.float32, 2.0)] * 2


def test_a_default_that_one_call_changes_is_new_in_the_next_one() -> None:
    @cb.function
    def collect(item: int, found: list[int] = []) -> list[int]:  # noqa: B006 - this is the question
        found.append(item)
        return found

    with cb.test_client(collect) as client:
        assert [client.call({"item": 1}), client.call({"item": 2})] == [[1], [2]]
        assert client.call({"item": 3, "found": [0]}) == [0, 3]


class Price(TypedDict):
    euros: float


@dataclass
class Cup:
    name: str
    prices: list[Price]


@pytest.mark.parametrize(
    ("hint", "output", "wrong"),
    [
        (Cup, {"name": "tea", "prices": [{"euros": "3"}]}, "Expected `float`, got `str` - at `$.prices[0].euros`"),
        (Cup | None, {"prices": []}, "Object missing required field `name` - at `$.name`"),
        (Price, {"euros": None}, "Expected `float`, got `null` - at `$.euros`"),
    ],
)
def test_a_map_in_the_place_of_a_class_fails_with_its_fields(hint: Any, output: Any, wrong: str) -> None:
    def give(good: bool) -> Any:
        return {"name": "tea", "prices": [{"euros": 3}], "euros": 3} if good else output

    give.__annotations__["return"] = hint
    with cb.test_client(cb.function(give)) as client:
        assert client.call(True)
        with pytest.raises(TypeError) as raised:
            client.call(False)
    assert str(raised.value).endswith(f"says: {wrong}")
