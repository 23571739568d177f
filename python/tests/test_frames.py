"""Frames and series of pandas and polars: they come back with their dtypes and labels, or are refused by name."""

from __future__ import annotations

import decimal
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from callboard._api import InvalidInput
from callboard._envelope import EnvelopeError, decode, encode
from callboard._signature import convert


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


def test_a_frame_is_no_map_of_another_type() -> None:
    for value in (pa.table({"a": [1]}), pa.chunked_array([[1]])):
        with pytest.raises(InvalidInput, match=r"Expected `object`, got `(Table|ChunkedArray)`"):
            convert(value, dict[str, int])
