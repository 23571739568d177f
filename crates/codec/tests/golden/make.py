"""Makes the golden files beside it with the real thing; the tests read them, nothing else writes them.

    python -m venv /tmp/golden && /tmp/golden/bin/pip install numpy pyarrow polars pandas msgpack
    /tmp/golden/bin/python make.py

Versions of the last run are in versions.txt. The envelope is put together here, by hand and msgpack-python, from the
drawing in docs/wire.md: a second implementation that must agree byte by byte.
"""

import datetime as dt
import decimal
import io
import pathlib
import struct

import msgpack
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather

HERE = pathlib.Path(__file__).parent


def write(name, data):
    (HERE / name).write_bytes(data)


# ---- numpy ----------------------------------------------------------------------------------------------------------


def npy(array, version=None):
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asanyarray(array), version=version, allow_pickle=True)
    return out.getvalue()


NUMBERS = "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split()
six = np.arange(6).reshape(2, 3)
for code in NUMBERS:
    array = six.astype(code)
    if code.startswith("c"):
        array = array * (1 - 2j)
        array = array.astype(code)
    write(f"npy/{np.dtype(code).name}.npy", npy(array))
write("npy/big-endian.npy", npy(six.astype(">i4")))
write("npy/big-endian-complex.npy", npy((six * (1 - 2j)).astype(">c8")))
write("npy/fortran.npy", npy(np.asfortranarray(np.arange(24, dtype="i2").reshape(2, 3, 4))))
write("npy/scalar.npy", npy(np.float64(1.5)))
write("npy/empty-axis.npy", npy(np.zeros((2, 0, 3), "f4")))
write("npy/version-2.npy", npy(six.astype("f4"), (2, 0)))
write("npy/version-3.npy", npy(six.astype("f4"), (3, 0)))
write("npy/text.npy", npy(np.array([["zero", "ß", ""], ["\U0001f600", "four", "x"]])))
write("npy/bytes.npy", npy(np.array([b"ab", b"", b"xyz"])))
write("npy/refused-object.npy", npy(np.array([{"a": 1}, None], dtype=object)))
write("npy/refused-structured.npy", npy(np.zeros(2, dtype=[("a", "i4"), ("b", "f8")])))
write("npy/refused-datetime.npy", npy(np.array(["2024-01-01"], dtype="M8[D]")))
for name, save in [("stored", np.savez), ("deflated", np.savez_compressed)]:
    out = io.BytesIO()
    save(out, x=six.astype("f4"), y=np.arange(1000), name=np.array("ß"))
    write(f"npz/{name}.npz", out.getvalue())
bomb = io.BytesIO()
np.savez_compressed(bomb, x=np.zeros(4 << 20, "u1"))
write("npz/bomb.npz", bomb.getvalue())

# ---- Arrow ----------------------------------------------------------------------------------------------------------

moment = dt.datetime(2024, 2, 29, 12, 34, 56, 789012)
zoned = moment.replace(tzinfo=dt.timezone.utc)
COLUMNS = {
    "i8": pa.array([1, None, -3], pa.int8()),
    "i16": pa.array([1, None, -3], pa.int16()),
    "i32": pa.array([1, None, -3], pa.int32()),
    "i64": pa.array([1, None, -3], pa.int64()),
    "u8": pa.array([1, None, 3], pa.uint8()),
    "u16": pa.array([1, None, 3], pa.uint16()),
    "u32": pa.array([1, None, 3], pa.uint32()),
    "u64": pa.array([1, None, 2**64 - 1], pa.uint64()),
    "f16": pa.array([np.float16(0.5), None, np.float16(-2)], pa.float16()),
    "f32": pa.array([0.1, None, -2.0], pa.float32()),
    "f64": pa.array([0.1, None, -2.0], pa.float64()),
    "bool": pa.array([True, None, False]),
    "utf8": pa.array(["a", None, "ß"]),
    "large_utf8": pa.array(["a", None, "ß"], pa.large_string()),
    "utf8_view": pa.array(["a", None, "a text that does not fit into a view"], pa.string_view()),
    "binary": pa.array([b"\x00", None, b"\xff"]),
    "large_binary": pa.array([b"\x00", None, b"\xff"], pa.large_binary()),
    "fixed_binary": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "ts_s": pa.array([moment.replace(microsecond=0), None, moment.replace(microsecond=0)], pa.timestamp("s")),
    "ts_us": pa.array([moment, None, moment], pa.timestamp("us")),
    "ts_ns_zone": pa.array([zoned, None, zoned], pa.timestamp("ns", "Europe/Berlin")),
    "date32": pa.array([moment.date(), None, moment.date()], pa.date32()),
    "date64": pa.array([moment.date(), None, moment.date()], pa.date64()),
    "time64": pa.array([moment.time(), None, moment.time()], pa.time64("us")),
    "duration": pa.array([dt.timedelta(milliseconds=5), None, dt.timedelta(0)], pa.duration("ms")),
    "decimal128": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("-0.05")], pa.decimal128(10, 2)),
    "decimal256": pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("-0.05")], pa.decimal256(50, 2)),
    "dictionary": pa.array(["x", None, "x"]).dictionary_encode(),
    "list": pa.array([[1, 2], None, []], pa.list_(pa.int64())),
    "large_list": pa.array([["a"], None, [None]], pa.large_list(pa.string())),
    "fixed_list": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)),
    "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "null": pa.nulls(3),
}
table = pa.table(COLUMNS)


def stream(table, compression=None):
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(out, table.schema, options=options) as writer:
        writer.write_table(table)
    return out.getvalue()


def file(table, compression=None):
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(out, table.schema, options=options) as writer:
        writer.write_table(table)
    return out.getvalue()


write("arrow/all-types.arrows", stream(table))
write("arrow/all-types.arrow", file(table))
two = pa.Table.from_batches([table.to_batches()[0], table.to_batches()[0].slice(1)])
write("arrow/two-batches.arrows", stream(two))
write("arrow/no-rows.arrows", stream(table.schema.empty_table()))
numbers = pa.table({"n": np.arange(10_000), "s": [f"row {n % 7}" for n in range(10_000)]})
for codec in ["lz4", "zstd"]:
    write(f"arrow/{codec}.arrows", stream(numbers, codec))
    write(f"arrow/{codec}.arrow", file(numbers, codec))
write("arrow/refused-union.arrows", stream(pa.table({"u": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])})))

frame = pd.DataFrame({"id": [1, 2], "name": ["a", "ß"], "when": pd.to_datetime([zoned, zoned]), "kind": pd.Categorical(["x", "y"])})
write("arrow/pandas.arrows", stream(pa.Table.from_pandas(frame, preserve_index=False)))
feather = io.BytesIO()
frame.to_feather(feather)
write("arrow/pandas.feather", feather.getvalue())

frame = pl.DataFrame({"id": [1, 2], "name": ["a", "ß"], "when": [zoned, zoned], "list": [[1.5], []]}).with_columns(
    kind=pl.Series(["x", "y"], dtype=pl.Categorical)
)
for codec in ["uncompressed", "lz4", "zstd"]:
    out = io.BytesIO()
    frame.write_ipc_stream(out, compression=codec)
    write(f"arrow/polars-{codec}.arrows", out.getvalue())
out = io.BytesIO()
frame.write_ipc(out)
write("arrow/polars.arrow", out.getvalue())

# ---- msgpack --------------------------------------------------------------------------------------------------------

PLAIN = {
    "null": None,
    "bools": [True, False],
    "ints": [0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1],
    "negative": [-1, -32, -33, -128, -129, -32768, -32769, -(2**31), -(2**31) - 1, -(2**63)],
    "floats": [0.0, -0.0, 0.1, 1e300, float("inf")],
    "texts": ["", "ß", "a" * 31, "a" * 32, "a" * 256, "a" * 65536],
    "bytes": [b"", b"\xff" * 255, b"\xff" * 256],
    "list": list(range(16)),
    "map": {str(n): n for n in range(16)},
}
write("msgpack/plain.msgpack", msgpack.packb(PLAIN))


def ext_tensor(array):
    return struct.pack("<BB6x", DTYPES[array.dtype.name], array.ndim) + struct.pack(f"<{array.ndim}Q", *array.shape)


DTYPES = dict(bool=1, int8=2, int16=3, int32=4, int64=5, uint8=6, uint16=7, uint32=8, uint64=9, float16=10, float32=12, float64=13, complex64=14, complex128=15)


def ext_texts(texts, shape):
    header = struct.pack("<BB6x", 64, len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
    pieces = [text.encode() for text in texts]
    ends = np.cumsum([len(piece) for piece in pieces], dtype="<u8").tobytes()
    return header, ends + b"".join(pieces)


small = np.array([[1.5, -2.0]], "f4")
header, data = ext_texts(["a", "ß"], [2])
write(
    "msgpack/extensions.msgpack",
    msgpack.packb(
        {
            "tuple": msgpack.ExtType(1, msgpack.packb([1, "a"])),
            "scalar": msgpack.ExtType(2, struct.pack("<Bf", 12, 0.5)),
            "tensor": msgpack.ExtType(3, ext_tensor(small) + small.tobytes()),
            "texts": msgpack.ExtType(4, header + data),
            "frame": msgpack.ExtType(5, stream(pa.table({"n": [1, 2]}))),
            "series": msgpack.ExtType(6, stream(pa.table({"n": ["x", None]}))),
        }
    ),
)

# ---- envelope -------------------------------------------------------------------------------------------------------


def envelope(tree, segments):
    head = 24 + 8 * len(segments) + len(tree)
    lengths, body, end = b"", b"", head
    for segment in segments:
        padding = -end % 64
        body += bytes(padding) + segment
        end += padding + len(segment)
        lengths += struct.pack("<Q", len(segment))
    return b"\x89CBE" + struct.pack("<B3xIIQ", 1, len(tree), len(segments), end) + lengths + tree + body


def reference(kind, number, header=b""):
    return msgpack.ExtType(7, struct.pack("<B3xI", kind, number) + header)


def large(length):
    return bytes(n % 256 for n in range(length))


tensor = np.frombuffer(large(1600), "f8").reshape(2, 100)
complexes = np.frombuffer(large(1616), "c16")
header, texts = ext_texts([str(n) for n in range(200)], [200])
# ext 32 for a tuple, whose length the writer fills in afterwards.
items = msgpack.packb([reference(3, 2, ext_tensor(complexes)), msgpack.ExtType(2, struct.pack("<Bf", 12, 0.1))])
tree = msgpack.Packer()
parts = [
    tree.pack_map_header(6),
    tree.pack("small") + tree.pack(large(10)),
    tree.pack("bytes") + tree.pack(reference(0, 0)),
    tree.pack("tensor") + tree.pack(reference(3, 1, ext_tensor(tensor))),
    tree.pack("pair") + b"\xc9" + struct.pack(">Ib", len(items), 1) + items,
    tree.pack("texts") + tree.pack(reference(4, 3, header)),
    tree.pack("tail") + tree.pack([1, None]),
]
write("envelope-v1.bin", envelope(b"".join(parts), [large(1025), tensor.tobytes(), complexes.tobytes(), texts]))

versions = [f"{m.__name__} {m.__version__}" for m in (np, pd, pl, pa)] + ["msgpack " + ".".join(map(str, msgpack.version))]
(HERE / "versions.txt").write_text("\n".join(versions) + "\n")
