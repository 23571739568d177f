"""Envelopes: every value comes back as it was, the bytes are those of the format, and false lengths are refused."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
import io
import random
import re
import struct
import typing
import uuid
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest

from callboard._conversion import convert
from callboard._envelope import Decoder, EnvelopeError, decode, encode, encode_pieces, forms_of

GOLDEN = Path(__file__).parents[2] / "crates/codec/tests/golden"
DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]

needs_golden = pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden files are in the repository only")


def pattern(length: int) -> bytes:
    return bytes(n % 256 for n in range(length))


def same(left: Any, right: Any) -> bool:
    """Equal in type and value, with arrays inside."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


def segments_of(envelope: bytes) -> int:
    return int(struct.unpack_from("<I", envelope, 12)[0])


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -7,
        2**64 - 1,
        -(2**63),
        0.5,
        "ß",
        b"\x00\xff",
        pattern(5000),
        [1, [2, "a"], {}],
        (1, (2, b"a"), [np.float32(1.5)]),
        {"b": 1, "a": [None]},
        np.float32(1.5),
        np.bool_(True),
        np.complex128(1 - 2j),
        np.array(["zero", "ß", "", "\U0001f600"]).reshape(2, 2),
        np.array([f"text {n}" for n in range(500)]),
        np.array(3.5),
        np.zeros((2, 0, 3), np.int16),
        np.array([], dtype=np.str_),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_round_trip(value: Any) -> None:
    assert same(decode(encode(value)), value)
    # The same inside of every container, beside another segment.
    nested = {"a": [value, (value, pattern(2000))], "b": value}
    assert same(decode(encode(nested)), nested)


@pytest.mark.parametrize("code", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (40, 50)])
def test_arrays_of_every_dtype_round_trip(code: str, shape: tuple[int, int]) -> None:
    array = (np.arange(shape[0] * shape[1]) % 100).reshape(shape).astype(code)
    assert same(decode(encode(array)), array)
    assert same(decode(encode(np.asfortranarray(array))), array)
    assert same(decode(encode(array.astype(array.dtype.newbyteorder(">")))), array)
    assert same(decode(encode(array[:, ::2])), np.ascontiguousarray(array[:, ::2]))


def test_bfloat16_round_trips() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(2000).astype(ml_dtypes.bfloat16)
    assert same(
        decode(encode({"a": array, "b": array[:3], "c": array[5]})), {"a": array, "b": array[:3], "c": array[5]}
    )


def test_large_arrays_are_neither_copied_when_written_nor_when_read() -> None:
    array = np.arange(10_000, dtype=np.float32)
    pieces = encode_pieces(array)
    assert any(np.shares_memory(np.frombuffer(piece, np.uint8), array) for piece in pieces if len(piece))
    received = np.frombuffer(b"".join(pieces), np.uint8).data
    back = decode(received)
    assert np.shares_memory(back, np.frombuffer(received, np.uint8))
    assert not back.flags.writeable and back.flags.aligned
    with pytest.raises(ValueError, match="read-only"):
        back[0] = 1


def test_leaves_of_1024_bytes_are_segments() -> None:
    assert segments_of(encode([pattern(1023), np.zeros(1023, np.uint8)])) == 0
    assert segments_of(encode([pattern(1024), np.zeros(1024, np.uint8), np.array(["a" * 1016])])) == 3


def test_the_smallest_envelopes_are_those_of_the_format() -> None:
    expected = bytes.fromhex("89434245 01000000 04000000 00000000 1c000000 00000000 9201a161")
    assert encode([1, "a"]) == expected
    header = "89434245 01000000 0a000000 01000000 43000000 00000000 03000000 00000000"
    threes = bytes.fromhex(header + "d7070000 00000000 0000").ljust(64, b"\0") + b"\x07\x07\x07"
    assert decode(threes) == b"\x07\x07\x07"


@needs_golden
def test_the_golden_envelope_is_read_and_written() -> None:
    golden = (GOLDEN / "envelope-v1.bin").read_bytes()
    value = decode(golden)
    assert value["small"] == pattern(10) and value["bytes"] == pattern(1025)
    assert same(value["tensor"], np.frombuffer(pattern(1600), "f8").reshape(2, 100))
    assert same(value["pair"], (np.frombuffer(pattern(1616), "c16"), np.float32(0.1)))
    assert same(value["texts"], np.array([str(n) for n in range(200)]))
    assert value["tail"] == [1, None]
    # The golden file has the length of its tuple in 32 bits; ours has the shortest form.
    assert b"\xc9\x00\x00\x00\x24\x01" in golden
    ours = encode(value)
    assert len(ours) == len(golden) and ours[24 + 32 + 200 :] == golden[24 + 32 + 200 :]


@needs_golden
def test_golden_trees_are_read_and_written() -> None:
    plain = (GOLDEN / "msgpack/plain.msgpack").read_bytes()
    value = decode(wrapped(plain))
    assert encode(value).endswith(plain) or segments_of(encode(value))
    value.pop("bytes")
    assert decode(encode(value)) == value
    pytest.importorskip("pyarrow")
    value = decode(wrapped((GOLDEN / "msgpack/extensions.msgpack").read_bytes()))
    assert value["tuple"] == (1, "a") and same(value["scalar"], np.float32(0.5))
    assert same(value["tensor"], np.array([[1.5, -2.0]], "f4")) and same(value["texts"], np.array(["a", "ß"]))
    assert value["frame"].to_pydict() == {"n": [1, 2]} and value["series"].to_pylist() == ["x", None]


def wrapped(tree: bytes) -> bytes:
    """An envelope of a tree without segments."""
    return struct.pack("<4sIIIQ", b"\x89CBE", 1, len(tree), 0, 24 + len(tree)) + tree


def test_frames_and_series_round_trip() -> None:
    pa = pytest.importorskip("pyarrow")
    for rows in (2, 5000):
        table = pa.table({"n": list(range(rows)), "s": [str(n) for n in range(rows)]})
        back = decode(encode({"frame": table, "series": table.column("s")}))
        assert back["frame"].equals(table) and back["series"].equals(table.column("s"))


class Color(enum.Enum):
    RED = "red"


class Point(msgspec.Struct, tag="point", rename={"x": "X"}):
    x: int
    data: Any = None


@dataclasses.dataclass
class Label:
    name: str
    at: Any


def test_other_types_have_a_plain_form() -> None:
    when = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone.utc)
    ident = uuid.UUID(int=7)
    array = np.arange(1000)
    value = decode(encode([Label("a", Point(1)), Label("b", Point(2, array)), when, Color.RED, ident, Decimal("1.5")]))
    assert value[0] == {"name": "a", "at": {"type": "point", "X": 1, "data": None}}
    assert same(value[1]["at"], {"type": "point", "X": 2, "data": array})
    assert value[2:] == ["2024-02-29T12:00:00Z", "red", str(ident), "1.5"]
    assert decode(encode({Color.RED: 3, np.str_("a"): 4})) == {"red": 3, "a": 4}
    assert decode(encode([bytearray(b"a"), np.str_("b")])) == [b"a", "b"]


@dataclasses.dataclass
class Counts:
    by_number: dict[int, Any]
    seen: set[int] | None = None
    any: Any = None


class Row(typing.TypedDict):
    names: frozenset[str]


def test_a_key_that_is_no_text_is_kept_only_where_a_type_says_so() -> None:
    for value, key in (({7: 1}, "`int`, 7"), ({True: 1}, "`bool`, True"), ({1.5: 1}, "`float`, 1.5")):
        for place, whole in (("$.args[0]", {"args": [value]}), ("$.a", {"a": value})):
            with pytest.raises(TypeError, match=re.escape(f"a key of type {key}: keys are texts")) as raised:
                encode(whole)
            assert str(raised.value).endswith(f"at {place}")
    with pytest.raises(TypeError, match=r"a key of type `numpy.int64`, .*7\)?: keys are texts: send '7', or"):
        encode({np.int64(7): 1})
    for hint in (dict[int, int], list[dict[int, str]], "dict[int, str] | None", Counts, Mapping[float, int]):
        assert decode(encode({7: {True: 1}}, forms_of(hint))) == {"7": {"true": 1}}
    for hint in (dict, dict[str, int], dict[Any, int], int, Any, list[Color], dict[Color, int], Row, Literal["set"]):
        assert not forms_of(hint) & 1
    assert convert(decode(encode(Counts({1: {2: "a"}}, {3}))), Counts) == Counts({1: {"2": "a"}}, {3})
    # The types inside say nothing of what is around them.
    with pytest.raises(TypeError, match=r"a key of type `int`, 2: .* at \$"):
        encode({"a": Counts({1: 2}), 2: 1})


def test_a_set_is_sent_only_where_a_type_says_that_it_is_one() -> None:
    for value in ({1}, frozenset({1})):
        with pytest.raises(TypeError, match=r"a value of type `(frozen)?set` cannot be sent, .* list.* at \$\.a\[1\]"):
            encode({"a": [0, value]})
    for hint in (set, set[int], frozenset[int], list[set[int]], Counts, Row, set[int] | None, AbstractSet[int]):
        assert decode(encode([{1}], forms_of(hint))) == [[1]]
    for hint in (list[int], Any, dict[str, int], tuple[int, ...]):
        assert not forms_of(hint)


def test_models_and_structs_say_what_their_keys_and_sets_are() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("M", a=(dict[int, set[int]], ...))
    assert decode(encode([model(a={1: {2}})])) == [{"a": {"1": [2]}}]
    assert decode(encode(pydantic.RootModel[dict[int, int]]({1: 2}))) == {"1": 2}
    struct = msgspec.defstruct("S", [("a", frozenset[int])])
    assert decode(encode(struct(frozenset({1})))) == {"a": [1]}
    with pytest.raises(TypeError, match="keys are texts"):
        encode(pydantic.create_model("N", a=(Any, ...))(a={1: 2}))


def test_models_of_pydantic_have_a_plain_form() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Scores(pydantic.RootModel[dict[str, float]]):
        pass

    class Report(pydantic.BaseModel):
        scores: Scores
        color: Color = Color.RED
        at: datetime.date = datetime.date(2024, 2, 29)

    report = Report(scores=Scores({"a": 0.5}))
    assert decode(encode([report])) == [{"scores": {"a": 0.5}, "color": "red", "at": "2024-02-29"}]
    assert decode(encode(pydantic.RootModel[list[int]]([1, 2]))) == [1, 2]
    with pytest.raises(TypeError, match=r"`pydantic\..*ModelMetaclass` cannot be sent at \$\[0\]"):
        encode([Report])
    with pytest.raises(TypeError, match=r"an integer beyond 64 bits at \$\[0\]\.big"):
        encode([pydantic.create_model("Big", big=(int, ...))(big=2**64)])


def test_times_of_pandas_are_those_of_the_standard_library() -> None:
    pd = pytest.importorskip("pandas")
    when = datetime.datetime(2024, 2, 29, 12, 0, 0, 7, datetime.timezone.utc)
    rows = pd.DataFrame({"at": [when], "took": [datetime.timedelta(days=1, microseconds=5)]}).to_dict("records")
    assert type(rows[0]["at"]) is pd.Timestamp
    assert decode(encode(rows)) == decode(encode([{"at": when, "took": datetime.timedelta(days=1, microseconds=5)}]))
    for time in (pd.Timestamp("2024-01-01").replace(nanosecond=1), pd.Timedelta(1, "ns"), pd.NaT):
        with pytest.raises(TypeError, match=r"a value of type `.*` (with nanoseconds )?cannot be sent at \$\.a\[0\]"):
            encode({"a": [time]})


def test_an_index_that_is_data_is_sent_as_columns_or_refused() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"n": [1, 2, 3], "s": ["a", "b", "a"]})
    # Unnamed integers tell where rows once were: only pandas sees them.
    assert decode(encode(frame[frame["n"] > 1])).to_pydict() == {"n": [2, 3], "s": ["b", "a"]}
    assert decode(encode(frame.iloc[:0])).num_rows == 0
    assert decode(encode(frame.set_index("s"))).to_pydict() == {"n": [1, 2, 3], "s": ["a", "b", "a"]}
    grouped = frame.groupby("s")["n"].sum()
    for value in (grouped, pd.Series([1.0], index=pd.to_datetime(["2024-01-01"]))):
        with pytest.raises(
            TypeError, match=r"the index of a `pandas\..*` cannot be sent: use reset_index.* at \$\[0\]"
        ):
            encode([value])
    assert decode(encode(grouped.reset_index())).to_pydict() == {"s": ["a", "b"], "n": [4, 2]}


@pytest.mark.parametrize("columns", [{"a": [1, "x"]}, {"a": [object()]}])
def test_a_frame_that_arrow_refuses_is_refused_with_its_place(columns: dict[str, Any]) -> None:
    pd = pytest.importorskip("pandas")
    for frame in (pd.DataFrame(columns), pd.DataFrame([[1, 2]], columns=["a", "a"])):
        with pytest.raises(TypeError, match=r"a value of type `pandas\..*DataFrame` cannot be sent: .* at \$\.f"):
            encode({"f": frame})


class Lengths(np.ndarray[Any, Any]):
    """An array whose subclass says something of its numbers, such as their unit."""


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.ma.array([1, 2], mask=[True, False]), "MaskedArray"),
        (np.ma.array([1, 2]), "MaskedArray"),
        (np.ma.masked, "MaskedConstant"),
        (np.ma.array(["a", "b"], mask=[True, False]), "MaskedArray"),
        (np.asmatrix([[1, 2], [3, 4]]), "numpy.matrix"),
        (np.arange(3).view(Lengths), "test_envelope.Lengths"),
        (np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]), "numpy.rec"),
        (np.zeros(2, [("a", "i4"), ("b", "f4")]), "dtype `[('a', '<i4'), ('b', '<f4')]`"),
        (np.array([1, None]), "dtype `object`"),
        (np.array(["2024-01-01"], "M8[D]"), "dtype `datetime64[D]`"),
        (np.array([b"ab"]), "dtype `|S2`"),
    ],
)
def test_an_array_that_would_lose_its_meaning_is_refused(array: Any, kind: str) -> None:
    for value, place in ((array, "$"), ({"a": [1, array]}, "$.a[1]")):
        with pytest.raises(TypeError) as refused:
            encode(value)
        assert kind in str(refused.value) and str(refused.value).rpartition(" at ")[2] == place
        assert "cannot be sent" in str(refused.value)


def test_an_array_of_a_file_is_sent(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6.0).reshape(2, 3))
    array = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert same(decode(encode(array)), np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, object()]}, "a value of type `object` cannot be sent at $.a[1]"),
        ([1, {"b": 2**64}], "an integer beyond 64 bits at $[1].b"),
        ({"a": {(1,): 2}}, "a key of type `tuple`: keys are texts at $.a"),
        ({"a": {"1": 1, 1: 2}}, "a key of type `int`, 1: keys are texts"),
        ([np.array([None])], "an array of dtype `object` cannot be sent at $[0]"),
        ([np.datetime64("2024-01-01")], "cannot be sent at $[0]"),
        (["\ud800"], "a text that has no UTF-8: surrogates not allowed at $[0]"),
        ({"a": {"\ud800": 1}}, "a text that has no UTF-8: surrogates not allowed at $.a"),
        ([Label("a", Point(1, [2**64]))], "an integer beyond 64 bits at $[0].at.data[0]"),
        ({"a": ([1], Label("\ud800", 1))}, "a text that has no UTF-8: surrogates not allowed at $.a[1].name"),
        ({"a": Label}, "a value of type `type` cannot be sent at $.a"),
        (
            {"a": Path("cat.png")},
            "cannot be sent at $.a: give a `cb.File.open(path)` for the file, or a `str(path)` for its name",
        ),
        ([io.StringIO("a")], "cannot be sent at $[0]: give its `read()`, or a `cb.File.open(path)`"),
        ([range(3), 1j], "a value of type `range` cannot be sent at $[0]"),
        ([1j], "a value of type `complex` cannot be sent at $[0]"),
        ([pytest], "a value of type `module` cannot be sent at $[0]"),
        ({"a": [1, np.array(["x", "\ud800"])]}, "a text that has no UTF-8: surrogates not allowed at $.a[1]"),
    ],
)
def test_a_value_without_a_form_is_refused_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(TypeError) as refused:
        encode(value)
    assert message in str(refused.value)


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 1 has no StringDType")
def test_an_array_with_missing_texts_is_refused() -> None:
    message = r"an array of dtype `StringDType\(na_object=None\)` with missing texts cannot be sent at \$\.a"
    with pytest.raises(TypeError, match=message):
        encode({"a": np.array(["x", None], np.dtypes.StringDType(na_object=None))})


def test_nesting_has_a_limit_on_both_sides() -> None:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    cycle: dict[str, Any] = {}
    cycle["a"] = [cycle]
    for deep, place in ((value, r"\$(\[0\])+.*…"), ([1, (cycle,)], r"\$\[1\]\[0\](\.a\[0\])+")):
        with pytest.raises(TypeError, match=f"nesting beyond 512 levels.* at {place}") as refused:
            encode(deep)
        assert len(str(refused.value)) < 400
    with pytest.raises(EnvelopeError, match="nested too deeply"):
        decode(wrapped(b"\x91" * 200_000 + b"\xc0"))


def test_false_lengths_are_refused() -> None:
    good = encode({"a": np.arange(1000), "b": pattern(2000), "c": np.array(["x" * 2000])})
    decode(good)

    def refused(at: int, byte: int) -> str:
        changed = bytearray(good)
        changed[at] = byte
        with pytest.raises(EnvelopeError) as error:
            decode(bytes(changed))
        return str(error.value)

    assert "do not begin" in refused(0, 0)
    assert "version 2" in refused(4, 2)
    assert "flags 1" in refused(5, 1)
    for at in (11, 15, 23, 24, 24 + 4, 24 + 7):
        refused(at, 0x7F)
    tree_end = 24 + 3 * 8 + struct.unpack_from("<I", good, 8)[0]
    assert "padding" in refused(tree_end, 1)
    for wrong in (good[:-1], good + b"\0", good[:20], b""):
        with pytest.raises(EnvelopeError):
            decode(wrong)


@pytest.mark.parametrize(
    "tree",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\xc7\x02\x03\x0c\x01",
        b"\xc7\x08\x03\x0c\x01" + bytes(6),
        b"\xc7\x10\x03\x0c\x01" + bytes(6) + b"\xff" * 8,
        b"\xc7\x10\x04\x40\x01" + bytes(6) + b"\xff" * 8,
        b"\xc7\x08\x03\x0c\xff" + bytes(6),
        b"\xd5\x02\x0c\x00",
        b"\xd4\x01\x00",
        b"\xd7\x07" + bytes(8),
        b"\xd5\x09\x00\x00",
        b"\xc7\x09\x03\x01\x00" + bytes(6) + b"\x02",
        b"\xc7\x09\x03\x63\x00" + bytes(7),
    ],
)
def test_malformed_trees_are_refused(tree: bytes) -> None:
    with pytest.raises(EnvelopeError):
        decode(wrapped(tree))


def test_a_changed_byte_is_an_error_or_a_value() -> None:
    good = encode({"a": np.arange(200), "b": (1, np.float32(2)), "c": np.array(["x", "yz"]), "d": pattern(2000)})
    random.seed(7)
    decoder = Decoder()
    for _ in range(5000):
        changed = bytearray(good)
        changed[random.randrange(len(good))] = random.randrange(256)
        with contextlib.suppress(EnvelopeError, TypeError):
            decoder.decode(bytes(changed))
    assert same(decoder.decode(good)["b"], (1, np.float32(2)))
