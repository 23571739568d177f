"""Models of pydantic: they come back as they were sent, under the names that their schema has, with their arrays."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("pydantic")

import pydantic

from callboard._conversion import convert
from callboard._envelope import decode, encode
from callboard._exceptions import InvalidInput
from callboard._schema import schema


class Named(pydantic.BaseModel):
    is_good: bool = pydantic.Field(alias="isGood")


class Written(pydantic.BaseModel):
    """Its reader does not take the name that it is written under."""

    is_good: bool = pydantic.Field(serialization_alias="good")


class Scores(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    values: NDArray[np.float32]
    parts: list[np.ndarray]
    labels: list[Named]


def back(value: Any) -> Any:
    return convert(decode(encode(value)), type(value))


def test_a_field_has_the_name_of_the_schema() -> None:
    assert decode(encode([Named(isGood=True)])) == [{"isGood": True}]
    assert list(schema(Named)["properties"]) == ["isGood"]
    for model in (Named(isGood=True), Written(is_good=True)):
        assert back(model) == model


def test_arrays_stay_arrays_and_become_lists_where_lists_are_asked_for() -> None:
    scores = Scores(values=np.ones((2, 0), np.float32), parts=[np.arange(3)], labels=[Named(isGood=False)])
    found = back(scores)
    assert (found.values.dtype, found.values.shape, found.labels) == (np.float32, (2, 0), scores.labels)
    assert found.parts[0].tolist() == [0, 1, 2]
    assert schema(Scores)["properties"]["values"]["type"] == "array"
    with pytest.raises(InvalidInput, match=r"^Field required - at `\$\.labels\[0\]\.isGood`$"):
        convert({"values": np.ones(1), "parts": [], "labels": [{}]}, Scores)
    given = {"weights": np.ones(2)}
    assert convert(given, pydantic.create_model("Lists", weights=(list[float], ...))).weights == [1.0, 1.0]


def test_a_field_without_a_schema_is_refused() -> None:
    config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    with pytest.raises(TypeError, match=r"`.*Socket` has no schema: .*IsInstanceSchema.*Exception"):
        schema(pydantic.create_model("Socket", __config__=config, of=(Exception, ...)))


def test_a_decimal_says_so_in_its_schema_so_that_the_node_keeps_its_digits() -> None:
    class Bill(pydantic.BaseModel):
        amount: Decimal = pydantic.Field(gt=0)
        tip: Decimal | None = None

    kept = {"type": "string", "format": "decimal"}
    fields = schema(Bill)["properties"]
    assert fields["amount"].items() >= kept.items() and kept in fields["tip"]["anyOf"]
    assert schema(Decimal) == kept and schema(list[Decimal])["items"] == kept
    digits = "12345678901234567890.12"
    assert convert({"amount": digits, "tip": "1.10"}, Bill) == Bill(amount=Decimal(digits), tip=Decimal("1.10"))
    assert str(convert("1.10", Decimal)) == "1.10" and convert(7, Decimal) == 7
