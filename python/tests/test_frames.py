"""Frames and series of pandas and polars: they come back with their dtypes and labels, or are refused by name."""

from __future__ import annotations

import decimal
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa
from node import Node
from test_costs import peak_of

import callboard as cb
from callboard._conversion import convert
from callboard._envelope import EnvelopeError, TooLargeError, decode, encode
from callboard._exceptions import InvalidInput


def back(value: Any) -> Any:
    """The value after both directions, as its own type."""
    return convert(decode(encode({"a": [value]}))["a"][0], type(value))


def test_a_series_of_polars_without_a_name_keeps_none() -> None:
    pl = pytest.importorskip("polars")
    testing = pytest.importorskip("polars.testing")
    for series in (pl.Series([1, None]), pl.Series("n", [1.5]), pl.Series([], dtype=pl.Enum(["a"]))):
        testing.assert_series_equal(back(series), series)
    frame = pl.DataFrame({"": [1], "b": ["x"]})
    testing.assert_frame_equal(back(frame), frame)


def test_objects_in_polars_are_refused_and_not_sent_as_their_addresses() -> None:
    pl = pytest.importorskip("polars")
    objects = pl.Series("o", [object()], dtype=pl.Object)
    for value in (objects, pl.DataFrame({"o": objects}), pl.DataFrame({"o": objects}).head(0)):
        with pytest.raises(TypeError, match=r"polars.*cannot be sent: column `o` has Python objects at \$\.f\[1\]"):
            encode({"f": [1, value]})


def test_labels_of_columns_keep_their_type() -> None:
    pd = pytest.importorskip("pandas")
    pairs = pd.MultiIndex.from_tuples([("a", 1), ("b", 2)])
    for labels in ([0, 1], ["a", "b"], pd.to_datetime(["2020-01-01", "2021-06-01"]), pairs, pd.Index([3, 4], name="n")):
        frame = pd.DataFrame([[1, 2.5], [3, 4.5]], columns=labels)
        pd.testing.assert_frame_equal(back(frame), frame)
        pd.testing.assert_frame_equal(back(frame.iloc[:0]), frame.iloc[:0])
    pd.testing.assert_frame_equal(back(pd.DataFrame()), pd.DataFrame())
    for name in (None, "n", 0, 7, ("a", "b")):
        series = pd.Series([1, 2], name=name)
        pd.testing.assert_series_equal(back(series), series)
    # They would all become texts.
    with pytest.raises(TypeError, match=r"labels of its columns have different types, .* at \$\.f"):
        encode({"f": pd.DataFrame({1: [1], "a": [2]})})


def test_arrow_dtypes_of_pandas_with_parameters_come_back() -> None:
    pd = pytest.importorskip("pandas")
    kinds: list[tuple[list[Any], Any]] = [
        ([[1, 2], None], pa.list_(pa.int64())),
        ([{"a": 1, "b": "x"}, None], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([decimal.Decimal("1.10"), None], pa.decimal128(10, 2)),
        ([1, None], pa.int64()),
        ([1, None], pa.timestamp("ms", "Europe/Berlin")),
        (["a", None], pa.string()),
    ]
    frame = pd.DataFrame(
        {
            number: pd.Series(pd.arrays.ArrowExtensionArray(pa.array(values, kind)))
            for number, (values, kind) in enumerate(kinds)
        }
    )
    frame["own"] = [decimal.Decimal("2.20"), None]
    frame = frame.rename(columns=str)
    pd.testing.assert_frame_equal(back(frame), frame)
    for name in frame:
        pd.testing.assert_series_equal(back(frame[name]), frame[name])


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.RunEndEncodedArray.from_arrays([2], ["a"]), "run_end_encoded<"),
        (pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]), "sparse_union<"),
        (pa.array([[1]], pa.list_(pa.int64())), None),
    ],
)
def test_a_type_of_arrow_that_no_reader_takes_is_refused_by_its_sender(column: Any, words: str | None) -> None:
    for table in (pa.table({"c": column}), pa.table({"c": pa.StructArray.from_arrays([column], ["inner"])})):
        if words is None:
            assert decode(encode(table)).equals(table)
            continue
        with pytest.raises(TypeError, match=rf"cannot be sent: column `c` has the type `{words}.* at \$\[0\]"):
            encode([table])


def test_categories_that_are_intervals_are_refused_by_their_sender() -> None:
    pd = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match=r"cannot be sent: column `cut` has categories of the type .*interval.* at \$"):
        encode(pd.DataFrame({"cut": pd.cut([1, 2, 3], 2)}))
    intervals = pd.Series(pd.interval_range(0, 3))
    pd.testing.assert_series_equal(back(intervals), intervals)


def test_a_table_that_a_library_cannot_read_is_an_error_of_the_value() -> None:
    pl = pytest.importorskip("polars")
    twice = decode(encode(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])))
    with pytest.raises(InvalidInput, match=r"Expected `DataFrame`, got a table that cannot be one: .* at `\$`"):
        convert(twice, pl.DataFrame)


def test_an_extension_type_whose_reader_fails_is_an_error_of_the_envelope() -> None:
    pd = pytest.importorskip("pandas")
    pa.array(pd.interval_range(0, 1))
    # The reader of pandas finds no `left` in it, and raises a `TypeError`.
    extension = {b"ARROW:extension:name": b"pandas.interval", b"ARROW:extension:metadata": b'{"closed": "left"}'}
    schema = pa.schema([pa.field("i", pa.int64(), metadata=extension)])
    with pytest.raises(EnvelopeError, match="a data frame: "):
        decode(encode(pa.Table.from_batches([], schema)))


# ---- As the library that has sent them -------------------------------------------------------------------------------


def as_sent(value: Any) -> Any:
    return decode(encode({"a": [value]}), is_as_sent=True)["a"][0]


def test_frames_and_series_come_back_as_the_library_that_has_sent_them() -> None:
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    testing = pytest.importorskip("polars.testing")
    table = pa.table({"n": [1, 2], "s": ["a", None]})
    frame, other = table.to_pandas(), pl.from_arrow(table)
    pd.testing.assert_frame_equal(as_sent(frame), frame)
    pd.testing.assert_series_equal(as_sent(frame["n"]), frame["n"])
    testing.assert_frame_equal(as_sent(other), other)
    testing.assert_series_equal(as_sent(other["s"]), other["s"])
    assert as_sent(table).equals(table) and as_sent(table["n"]).equals(table["n"])
    # A table that came from another library is pyarrow's own when it is sent again.
    for value in (frame, other):
        assert type(as_sent(decode(encode(value)))) is pa.Table
        assert isinstance(as_sent(decode(encode(value["n"]))), pa.ChunkedArray)


def test_the_index_of_pandas_comes_back() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"n": [3, 1, 2], "s": ["a", "b", "a"]}, index=pd.RangeIndex(10, 16, 2))
    days = pd.date_range("2024-01-01", periods=3, tz="Europe/Berlin", name="day")
    for value in (
        frame,
        frame[frame["n"] > 1],
        frame.sort_values("n"),
        frame.rename_axis("row"),
        frame.set_index(pd.Index([7, -7, 2**40])),
        frame.set_index(pd.Index([2**64 - 1, 0, 5], dtype="uint64")),
        frame.set_index(pd.Index([1, 2, 3], dtype="int8")),
        frame.set_index("s"),
        frame.set_index(["s", "n"]),
        frame.set_index(days),
        frame.set_index(pd.Index(["x", "y", "z"])),
        frame.set_index(pd.CategoricalIndex(["x", "y", "x"], name="c")),
        frame.astype({"n": "int64[pyarrow]"}).set_index("s"),
        frame.iloc[:0],
    ):
        pd.testing.assert_frame_equal(as_sent(value), value, check_freq=False)
        pd.testing.assert_frame_equal(back(value), value, check_freq=False)
    for value in (frame["n"], frame["n"][frame["n"] > 1], frame["s"].sort_values(), frame["n"].rename(None)):
        pd.testing.assert_series_equal(as_sent(value), value)
    # That of rows that were picked takes little.
    picked = pd.DataFrame({"x": np.arange(1_000_000.0)}).query("x % 3 == 0")
    assert len(encode(picked)) < 1.01 * 8 * len(picked)
    pd.testing.assert_frame_equal(as_sent(picked), picked)


def test_a_hint_wins_over_the_library_that_has_sent_a_frame() -> None:
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    table = pa.table({"n": [1, 2]})
    for value in (table, table.to_pandas(), pl.from_arrow(table)):
        for hint in (pa.Table, pd.DataFrame, pl.DataFrame):
            for received in (decode(encode(value)), as_sent(value)):
                found = convert(received, hint)
                assert isinstance(found, hint)
                assert pa.table({"n": found["n"].to_list() if hint is not pa.Table else found["n"]}).equals(table)
        for hint in (pd.Series, pl.Series, pa.ChunkedArray):
            assert isinstance(convert(as_sent(value["n"]), hint), hint)


def test_a_frame_whose_library_is_not_there_or_not_known_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    table = pa.table({"n": [1, 2]})
    sent = {"pandas": encode(table.to_pandas()), "polars": encode(pl.from_arrow(table))}
    foreign = table.replace_schema_metadata({b"callboard": b'{"library": "another"}'})
    from callboard._envelope.arrow import arrow_stream

    for name, envelope in sent.items():
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            assert type(decode(envelope, is_as_sent=True)) is pa.Table
    assert type(as_sent(foreign)) is pa.Table
    # Rows of which pandas would make objects, each with the same long text.
    words = pa.array(["x" * 100] * 3).dictionary_encode()
    nested = pa.table({"l": pa.ListArray.from_arrays([0, 3], words)})
    marked = nested.replace_schema_metadata({b"callboard": b'{"library": "pandas"}'})
    monkeypatch.setattr("callboard._envelope.arrow.unmarked", lambda table: table)
    assert type(as_sent(marked)) is pa.Table and arrow_stream(marked) is not None
    for unread in (b"[", b"[1]", b"[" * 5000):
        assert type(as_sent(table.replace_schema_metadata({b"callboard": unread}))) is pa.Table
    for bad in (b'{"library": "pandas", "index": "!", "dtype": "int64"}', b'{"library": "pandas", "index": 1}'):
        with pytest.raises(EnvelopeError):
            as_sent(table.replace_schema_metadata({b"callboard": bad}))
    assert pd is not None


@pytest.mark.parametrize(
    ("column", "row_bytes"),
    [
        (pa.array([True] * 100_000), 8),
        (pa.array([True, None] * 50_000), 8),
        (pa.array([b"a"] * 100_000), 64),
        (pa.array([[True, None]] * 50_000), 72),
        (pa.array([{"a": 1}] * 50_000), 128),
    ],
    ids=["bits", "nulls", "bytes", "lists", "maps"],
)
def test_what_pandas_takes_is_charged_before_it_is_made(column: Any, row_bytes: int) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": pd.Series(column.to_pylist(), dtype=object)})
    envelope, least = encode(frame), row_bytes * 100_000
    assert decode(envelope, 3 * least, is_as_sent=True).shape == frame.shape
    with pytest.raises(TooLargeError, match=f"exceed {least // 2}"):
        decode(envelope, least // 2, is_as_sent=True)
    # A table costs nothing beyond its bytes.
    assert decode(envelope, least // 2).num_rows == len(frame)


def test_the_index_of_pandas_is_charged_before_it_is_unpacked() -> None:
    pd = pytest.importorskip("pandas")
    rows = 1 << 20
    frame = pd.DataFrame({"a": np.ones(rows, np.bool_)}, index=np.arange(rows) * 2)
    envelope = encode(frame)
    assert len(envelope) < rows // 4
    most = 33 * rows
    assert peak_of(lambda: decode(envelope, most, is_as_sent=True)) < most
    assert decode(envelope, most, is_as_sent=True).index[-1] == 2 * rows - 2
    with pytest.raises(TooLargeError):
        decode(envelope, most - 2 * rows, is_as_sent=True)
    for dtype in ("<U1000", "S1000", "object"):
        table = decode(envelope)
        mark = json.dumps(json.loads(table.schema.metadata[b"callboard"]) | {"dtype": dtype})
        with pytest.raises(InvalidInput, match="an index of dtype"):
            convert(table.replace_schema_metadata({b"callboard": mark.encode()}), pd.DataFrame)


def test_a_service_gets_and_gives_frames_of_the_library_that_has_sent_them(tmp_path: Path) -> None:
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    (tmp_path / "frames.py").write_text(
        "import callboard as cb\nimport pyarrow as pa\n\n\n"
        "@cb.function\ndef kind(frame, other=None):\n    return [type(frame).__module__.split('.')[0], frame]\n\n\n"
        "@cb.function\ndef table(frame: pa.Table):\n    return [type(frame).__module__.split('.')[0], frame]\n"
    )
    frame = pd.DataFrame({"n": [1, 2]}, index=[5, 3])
    with Node(f"{tmp_path}/frames.py:kind").ready() as node:
        for value, library in (
            (frame, "pandas"),
            (pl.DataFrame({"n": [1]}), "polars"),
            (pa.table({"n": [1]}), "pyarrow"),
        ):
            (found,) = node.call({"frame": value})
            assert found[0] == library
    with Node(f"{tmp_path}/frames.py:table").ready() as node:
        assert node.call(frame)[0][0] == "pyarrow"

    @cb.function
    def same(frame: Any) -> Any:
        assert type(frame) is pd.DataFrame
        return frame

    with cb.test_client(same) as client:
        pd.testing.assert_frame_equal(client.call(frame), frame)


def test_a_frame_is_no_map_of_another_type() -> None:
    for value in (pa.table({"a": [1]}), pa.chunked_array([[1]])):
        with pytest.raises(InvalidInput, match=r"Expected `object`, got `(pyarrow\.lib\.)?(Table|ChunkedArray)`"):
            convert(value, dict[str, int])
