"""Values on the relay's own wire: messages of protobuf between gateways and participants, and packed in envelopes."""

from __future__ import annotations

import dataclasses
import enum
import io
import sys
import types
from typing import Any

import numpy as np
import pytest

from callboard import _models, relay
from callboard._context import Context
from callboard._envelope import PACKED, EnvelopeError, TooLargeError, decode, encode
from callboard._models import NotAllowed

pytest.importorskip("google.protobuf")
pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

from callboard.relay import payload  # noqa: E402


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: int
    inner: Point | None = None


@pytest.fixture(autouse=True)
def _none_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_models, "_allowed", set())


def through(value: Any, **options: Any) -> Any:
    """A value that was sent and read."""
    name, (read,), kwargs = payload.read_request(payload.request("f", (value,), {"k": 1}, **options))
    assert (name, kwargs) == ("f", {"k": 1})
    return read


PLAIN: list[Any] = [
    "é", "", True, False, 0, -1, 2**63 - 1, -(2**63), 0.5, None, [], (), {}, [1, ("a", [None])],
    {"a": {"b": 1.5}}, np.float32(1.5), np.int8(-3), np.bool_(True),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN)
def test_plain_values_come_back_as_they_were_sent(value: Any) -> None:
    read = through(value)
    assert type(read) is type(value) and read == value
    assert payload.read_response(payload.response(value), 1 << 20) == value


def test_a_float_has_32_bits_unless_it_goes_as_a_scalar() -> None:
    assert through(0.1) == float(np.float32(0.1)) != 0.1
    assert through([0.1], exact_floats=True) == [np.float64(0.1)]


def test_arrays_and_bytes() -> None:
    for array in (np.arange(6, dtype=np.int16).reshape(2, 3), np.zeros((0, 2)), np.array(["a", "bc"])):
        read = through(array)
        assert read.dtype == array.dtype and (read == array).all() and read.shape == array.shape
    assert through(io.BytesIO(b"\0a")).read() == b"\0a"


FRAMES: list[Any] = [
    pl.DataFrame({"x": [1, None], "n": ["a", "b"]}),
    pl.Series("y", [1.5, None]),
    pd.DataFrame({"x": [1, 2], "n": ["a", None]}),
    pd.Series([1, 2], name="y"),
]


def unpacked(envelope: Any) -> Any:
    """What a worker reads in a call of a relay."""
    return decode(envelope, is_as_sent=True, unpacks=True)


@pytest.mark.parametrize("frame", FRAMES)
def test_a_frame_comes_back_of_its_library_on_both_ways(frame: Any) -> None:
    for read in (through(frame), unpacked(encode(frame, PACKED))):
        assert type(read) is type(frame) and read.equals(frame), read
    # A gateway reads replies of others by pyarrow alone.
    reply = payload.read_response(payload.response(frame), 1 << 20)
    assert type(reply).__module__.startswith("pyarrow")


def test_the_index_of_pandas_is_dropped_in_calls_of_a_relay_alone() -> None:
    frame = pd.DataFrame({"x": [1, 2]}, index=[7, 9])
    assert list(through(frame).index) == list(unpacked(encode(frame, PACKED)).index) == [0, 1]
    assert list(decode(encode(frame), is_as_sent=True).index) == [7, 9]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (2**63, "integer beyond 64 bits"),
        ({1: "a"}, "a key of a dict is a text, not a `int`"),
        (b"bytes", "`bytes` has no form"),
        ({1}, "`set` has no form"),
        (np.array([object()]), "an array of dtype `object` cannot be sent"),
        (np.datetime64("2026-01-01"), "a number or a bool"),
        (pl.DataFrame({"x": pl.Series(["a"], dtype=pl.Enum(["a"]))}), "Enum have no form"),
        (object, "has no form"),
    ],
)
def test_other_values_are_refused_by_their_sender(value: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        payload.request("f", (value,), {})


def test_nesting_is_bounded_by_the_sender_and_the_reader() -> None:
    value: Any = []
    for _ in range(49):
        value = [value]
    assert through(value) == value
    with pytest.raises(TypeError, match="nesting"):
        payload.request("f", ([[value] * 2],), {})
    for broken in (b"\x12\x00", b"\x12\x05\x0a\xff\xff\xff\x7f", b"\x0a\x02\xff\xff"):
        with pytest.raises(ValueError):
            payload.read_request(broken)


def test_what_an_array_announces_takes_no_memory() -> None:
    lying = io.BytesIO()
    np.save(lying, np.zeros(1_000_000))
    data = lying.getvalue()[:200]
    message = payload.messages()["KaggleEvaluationResponse"]()
    message.payload.numpy_array_value = data
    with pytest.raises(TooLargeError, match="of 8000000 bytes in 200"):
        payload.read_response(message.SerializeToString(), 1 << 20)


def test_a_parquet_file_that_unpacks_to_more_than_the_limit_is_refused() -> None:
    """One text of a megabyte in each of 10,000 rows is a file of a megabyte."""
    import pyarrow.parquet

    once = pa.DictionaryArray.from_arrays(np.zeros(10_000, np.int32), pa.array(["x" * (1 << 20)]))
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"x": once}), sink, store_schema=False)
    message = payload.messages()["KaggleEvaluationResponse"]()
    message.payload.pandas_dataframe_value = sink.getvalue()
    assert len(sink.getvalue()) < 4 << 20
    with pytest.raises(TooLargeError):
        payload.read_response(message.SerializeToString(), 64 << 20)
    # One row of a list of nulls is a file of some hundred bytes.
    sink = io.BytesIO()
    pyarrow.parquet.write_table(
        pa.table({"x": pa.ListArray.from_arrays([0, 10_000_000], pa.nulls(10_000_000, pa.int64()))}), sink
    )
    message.payload.pandas_dataframe_value = sink.getvalue()
    assert len(sink.getvalue()) < 10_000
    with pytest.raises(TooLargeError):
        payload.read_response(message.SerializeToString(), 64 << 20)
    message.payload.pandas_dataframe_value = b"PAR1 and no more"
    with pytest.raises(EnvelopeError, match="a Parquet file"):
        payload.read_response(message.SerializeToString(), 64 << 20)


def test_a_mark_of_a_caller_is_no_reason_to_unpack() -> None:
    """Anybody may send such a frame. It is what it is, but in calls of a relay."""
    for value in (pd.DataFrame({"x": [1]}), Color.RED):
        read = decode(encode(value, PACKED))
        assert isinstance(read, pa.Table) and read.column_names == ["bytes"], read


# ---- Models ----------------------------------------------------------------------------------------------------------


def test_a_class_is_imported_only_if_its_module_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (Color.RED, Point(1, Point(2))):
        packed = encode(value, PACKED)
        with pytest.raises(NotAllowed, match="allow it by"):
            unpacked(packed)
        with pytest.raises(NotAllowed):
            through(value)
    relay.allow_modules(__name__)
    for value in (Color.RED, Point(1, Point(2))):
        assert unpacked(encode(value, PACKED)) == through(value) == value
    # A module of a longer name is another one, and one below is not.
    for name in (f"{__name__}_evil", f"{__name__}.inner"):
        module = types.ModuleType(name)
        kind = enum.Enum("Kind", ["A"], module=name)
        module.Kind = kind  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
        if name.endswith("_evil"):
            with pytest.raises(NotAllowed):
                through(kind.A)
        else:
            assert through(kind.A) is kind.A
    for wrong in ("", "a b", "*", "os;", 5):
        with pytest.raises(ValueError, match="is not the name of a module"):
            relay.allow_modules(wrong)  # type: ignore[arg-type]


def test_only_a_class_of_its_kind_is_made() -> None:
    relay.allow_modules(__name__, "os")
    for library, name, text in [
        ("enum", "Point", '"x"'), ("dataclass", "Color", "{}"), ("dataclass", "Nothing", "{}"),
        ("enum", "np", '"x"'), ("pydantic", "Point", "{}"), ("dataclass", "Point.__init__", "{}"),
    ]:  # fmt: skip
        texts = zip((1, 2, 3), (__name__, name, text), strict=True)
        data = b"".join(_models._field(number, each) for number, each in texts)
        with pytest.raises(ValueError):
            _models.load(library, data)
    for broken in (b"\x0a", b"\x0a\x05ab", b"\x22\x00", b"\x08\x01", b"\x0a\xff\xff\xff\xff\xff\x01", b"\x0a\x01\xff"):
        with pytest.raises(ValueError):
            _models.load("enum", broken)


def test_models_of_pydantic_keep_their_class() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Shape", name=(str, ...), __module__=__name__)
    globals()["Shape"] = model
    relay.allow_modules(__name__)
    shape = model(name="a")
    assert through(shape) == unpacked(encode(shape, PACKED)) == shape


# ---- The worker's side -----------------------------------------------------------------------------------------------


def test_an_output_is_packed_for_a_relay_alone() -> None:
    from callboard._api import function
    from callboard._runner import Runner
    from callboard._target import routes_of

    @function
    def give(x: int) -> Any:
        return pd.Series([x])

    (route,) = routes_of(give, "give")
    runner = Runner(route, None)
    plain = b"".join(runner.encoded(give(1), Context()))
    packed = b"".join(runner.encoded(give(1), Context(tags={"callboard-relay": "1"})))
    assert plain == encode(give(1)) != packed
    assert b"PAR1" in packed and b"PAR1" not in plain
