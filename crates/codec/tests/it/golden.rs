//! Files made by NumPy, pyarrow, polars, pandas and msgpack-python (`golden/make.py`) decode correctly.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use callboard_codec::{
    DType, DecodeError, DecodeErrorKind, DecodeLimits, Format, Map, Scalar, StrTensor, Tensor, Value,
};
use ndarray::{Array, array};
use num_complex::Complex;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn file(name: &str) -> Bytes {
    std::fs::read(path(name)).expect("the golden files are in the repository").into()
}

fn read(format: Format, name: &str) -> Value {
    Value::decode(format, &file(name), &DecodeLimits::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn refused(format: Format, name: &str) -> DecodeError {
    Value::decode(format, &file(name), &DecodeLimits::default()).expect_err(name)
}

fn npy(name: &str) -> Value {
    read(Format::Npy, &format!("npy/{name}.npy"))
}

#[test]
fn npy_of_every_dtype_is_read_and_written_as_numpy_does() {
    for dtype in DType::all().filter(|dtype| *dtype != DType::BF16) {
        let value = npy(dtype.numpy_name());
        let tensor = value.as_tensor().unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (dtype, &[2, 3][..]));
        let last =
            Tensor::try_new(dtype, &[], tensor.data().slice(5 * dtype.size_bytes()..)).unwrap().to_scalar().unwrap();
        match last {
            Scalar::Bool(last) => assert!(last),
            Scalar::C64(last) => assert_eq!(last, Complex::new(5.0, -10.0)),
            Scalar::C128(last) => assert_eq!(last, Complex::new(5.0, -10.0)),
            last => assert_eq!(last.as_f64(), Some(5.0), "{dtype}"),
        }
        assert_eq!(value.encode(Format::Npy).unwrap(), file(&format!("npy/{}.npy", dtype.numpy_name())), "{dtype}");
    }
}

#[test]
fn npy_in_c_order_is_used_in_place() {
    let bytes = file("npy/float64.npy");
    let value = Value::decode(Format::Npy, &bytes, &DecodeLimits::default()).unwrap();
    assert!(bytes.as_ptr_range().contains(&value.as_tensor().unwrap().data().as_ptr()));
}

#[test]
fn npy_in_other_orders_and_versions_is_converted() {
    let six = array![[0, 1, 2], [3, 4, 5]];
    assert_eq!(npy("big-endian"), Tensor::from_array(six.clone()).into());
    assert_eq!(
        npy("big-endian-complex"),
        Tensor::from_array(six.mapv(|x| Complex::new(x as f32, 0.0) * Complex::new(1.0, -2.0))).into()
    );
    let counted = Array::from_iter(0..24_i16).into_shape_with_order((2, 3, 4)).unwrap();
    assert_eq!(npy("fortran"), Tensor::from_array(counted).into());
    for version in ["version-2", "version-3"] {
        assert_eq!(npy(version), Tensor::from_array(six.mapv(|x| x as f32)).into());
    }
    assert_eq!(npy("scalar"), Scalar::F64(1.5).to_tensor().into());
    assert_eq!(npy("empty-axis").as_tensor().unwrap().shape(), [2, 0, 3]);
}

#[test]
fn npy_of_texts_is_read_and_written_as_numpy_does() {
    let texts = StrTensor::from_texts(&[2, 3], ["zero", "ß", "", "😀", "four", "x"]).unwrap();
    assert_eq!(npy("text"), texts.clone().into());
    assert_eq!(Value::from(texts).encode(Format::Npy).unwrap(), file("npy/text.npy"));
    assert_eq!(npy("bytes"), StrTensor::from_texts(&[3], ["ab", "", "xyz"]).unwrap().into());
}

#[test]
fn unsupported_npy_types_are_refused_by_name() {
    for (name, message) in [
        ("object", "an object array: it would be a pickle, which can run anything at $.descr (byte 20)"),
        ("structured", "a structured array at $.descr (byte 20)"),
        ("datetime", "dtype \"<M8[D]\" at $.descr (byte 20)"),
    ] {
        let error = refused(Format::Npy, &format!("npy/refused-{name}.npy"));
        assert_eq!((error.kind(), error.to_string().as_str()), (DecodeErrorKind::Unsupported, message));
    }
}

#[test]
fn npz_is_a_map_of_arrays() {
    let expected = Map::from_iter([
        ("x", Value::from(Tensor::from_array(array![[0.0_f32, 1.0, 2.0], [3.0, 4.0, 5.0]]))),
        ("y", Tensor::from_vec(&[1000], (0..1000_i64).collect()).unwrap().into()),
        ("name", StrTensor::from_texts(&[], ["ß"]).unwrap().into()),
    ]);
    for name in ["stored", "deflated"] {
        assert_eq!(read(Format::Npz, &format!("npz/{name}.npz")), Value::from(expected.clone()), "{name}");
    }
    let written = Value::from(expected.clone()).encode(Format::Npz).unwrap();
    assert_eq!(Value::decode(Format::Npz, &written, &DecodeLimits::default()).unwrap(), expected.into());
}

#[test]
fn a_zip_bomb_is_refused_before_it_unpacks() {
    let limits = DecodeLimits { max_decompressed_bytes: 1 << 20, ..DecodeLimits::default() };
    let error = Value::decode(Format::Npz, &file("npz/bomb.npz"), &limits).unwrap_err();
    assert_eq!(error.limit().map(|limit| limit.name), Some("max_decompressed_bytes"));
    assert_eq!((error.path(), error.offset().is_some()), ("$.x", true));
}

#[test]
fn msgpack_python_is_read_and_written_back_byte_by_byte() {
    for name in ["plain", "extensions"] {
        let name = format!("msgpack/{name}.msgpack");
        let value = read(Format::Msgpack, &name);
        if name.contains("extensions") {
            assert_eq!(value.get("tuple"), Some(&Value::Tuple(vec![1.into(), "a".into()])));
            assert_eq!(value.get("scalar"), Some(&Scalar::F32(0.5).into()));
            assert_eq!(value.get("tensor"), Some(&Tensor::from_array(array![[1.5_f32, -2.0]]).into()));
            assert_eq!(value.get("texts"), Some(&StrTensor::from_texts(&[2], ["a", "ß"]).unwrap().into()));
            continue; // pyarrow's streams differ from ours in padding.
        }
        let ints = value.get("ints").and_then(Value::as_list).unwrap();
        assert_eq!(ints.last(), Some(&Value::UInt(u64::MAX)));
        assert_eq!(value.encode(Format::Msgpack).unwrap(), file(&name));
    }
}

#[cfg(feature = "arrow")]
mod arrow {
    use callboard_codec::DataFrame;

    use super::*;

    fn frame(name: &str) -> DataFrame {
        let format = if name.ends_with(".arrows") { Format::ArrowStream } else { Format::ArrowFile };
        read(format, &format!("arrow/{name}")).as_data_frame().expect("is a frame").clone()
    }

    /// The cells by column, as JSON shows them.
    fn cells(frame: &DataFrame) -> serde_json::Value {
        serde_json::to_value(frame).expect("has a JSON form")
    }

    #[test]
    fn every_type_of_pyarrow_is_read() {
        let frame = frame("all-types.arrows");
        assert_eq!((frame.num_rows(), frame.num_columns()), (3, 34));
        let cells = cells(&frame);
        let expected = serde_json::json!({
            "i8": [1, null, -3], "i16": [1, null, -3], "i32": [1, null, -3], "i64": [1, null, -3],
            "u8": [1, null, 3], "u16": [1, null, 3], "u32": [1, null, 3], "u64": [1, null, u64::MAX],
            "f16": [0.5, null, -2.0], "f64": [0.1, null, -2.0],
            "bool": [true, null, false],
            "utf8": ["a", null, "ß"], "large_utf8": ["a", null, "ß"],
            "utf8_view": ["a", null, "a text that does not fit into a view"],
            "binary": ["AA==", null, "/w=="], "large_binary": ["AA==", null, "/w=="], "fixed_binary": ["YWI=", null, "Y2Q="],
            "ts_s": ["2024-02-29T12:34:56", null, "2024-02-29T12:34:56"],
            "ts_us": ["2024-02-29T12:34:56.789012", null, "2024-02-29T12:34:56.789012"],
            "ts_ns_zone": ["2024-02-29T12:34:56.789012Z", null, "2024-02-29T12:34:56.789012Z"],
            "date32": ["2024-02-29", null, "2024-02-29"], "date64": ["2024-02-29", null, "2024-02-29"],
            "time64": ["12:34:56.789012", null, "12:34:56.789012"],
            "duration": [5, null, 0],
            "decimal128": ["1.25", null, "-0.05"], "decimal256": ["1.25", null, "-0.05"],
            "dictionary": ["x", null, "x"],
            "list": [[1, 2], null, []], "large_list": [["a"], null, [null]], "fixed_list": [[1, 2], null, [3, 4]],
            "struct": [{"a": 1, "b": "x"}, null, {"a": null, "b": "y"}],
            "map": [[{"key": "k", "value": 1}], null, []],
            "null": [null, null, null],
        });
        for (name, column) in expected.as_object().unwrap() {
            assert_eq!(&cells[name], column, "{name}");
        }
        assert_eq!(serde_json::to_string(&frame).unwrap().matches("\"f32\":[0.1,null,-2.0]").count(), 1);
    }

    #[test]
    fn a_file_is_the_same_as_a_stream() {
        assert_eq!(frame("all-types.arrow"), frame("all-types.arrows"));
    }

    #[cfg(feature = "arrow-compression")]
    #[test]
    fn data_that_pyarrow_compressed_is_read() {
        for codec in ["lz4", "zstd"] {
            let frame = frame(&format!("{codec}.arrow"));
            assert_eq!(frame, self::frame(&format!("{codec}.arrows")));
            assert_eq!(cells(&frame)["n"][9999], 9999);
            assert_eq!(cells(&frame)["s"][9999], format!("row {}", 9999 % 7));
        }
    }

    #[cfg(feature = "arrow-compression")]
    #[test]
    fn decoded_data_round_trips() {
        for name in ["all-types.arrows", "two-batches.arrows", "no-rows.arrows", "pandas.arrows", "polars-zstd.arrows"]
        {
            let value = Value::from(frame(name));
            for format in [Format::ArrowStream, Format::ArrowFile, Format::Msgpack, Format::Envelope] {
                let bytes = value.encode(format).unwrap_or_else(|error| panic!("{name} as {format}: {error}"));
                let back = Value::decode(format, &bytes, &DecodeLimits::default());
                assert_eq!(
                    back.unwrap_or_else(|error| panic!("{name} as {format}: {error}")),
                    value,
                    "{name} as {format}"
                );
            }
        }
        assert_eq!(frame("two-batches.arrows").batches().len(), 2);
        assert_eq!((frame("no-rows.arrows").num_rows(), frame("no-rows.arrows").num_columns()), (0, 34));
    }

    #[cfg(feature = "arrow-compression")]
    #[test]
    fn pandas_and_polars_are_read() {
        for name in ["pandas.arrows", "pandas.feather"] {
            let cells = cells(&frame(name));
            assert_eq!(cells["name"], serde_json::json!(["a", "ß"]), "{name}");
            assert_eq!(cells["kind"], serde_json::json!(["x", "y"]), "{name}");
        }
        for name in ["polars-uncompressed.arrows", "polars-lz4.arrows", "polars-zstd.arrows", "polars.arrow"] {
            let cells = cells(&frame(name));
            assert_eq!(cells["id"], serde_json::json!([1, 2]), "{name}");
            assert_eq!(cells["list"], serde_json::json!([[1.5], []]), "{name}");
            assert_eq!(cells["kind"], serde_json::json!(["x", "y"]), "{name}");
            assert_eq!(cells["when"][0], "2024-02-29T12:34:56.789012Z", "{name}");
        }
    }

    #[test]
    fn frames_inside_msgpack_are_read() {
        let value = read(Format::Msgpack, "msgpack/extensions.msgpack");
        assert_eq!(cells(value.get("frame").unwrap().as_data_frame().unwrap())["n"], serde_json::json!([1, 2]));
        assert_eq!(value.get("series").unwrap().as_series().unwrap().name(), "n");
    }

    #[cfg(feature = "arrow-compression")]
    #[test]
    fn a_buffer_that_announces_a_terabyte_is_refused_before_it_is_read() {
        for (name, magic) in [("lz4", b"\x04\x22\x4d\x18"), ("zstd", b"\x28\xb5\x2f\xfd")] {
            let mut bytes = file(&format!("arrow/{name}.arrows")).to_vec();
            let packed = bytes.windows(4).position(|window| window == magic).unwrap();
            for (size, kind) in [(1_i64 << 40, DecodeErrorKind::LimitExceeded), (-2, DecodeErrorKind::Malformed)] {
                bytes[packed - 8..packed].copy_from_slice(&size.to_le_bytes());
                let error = Value::decode(Format::ArrowStream, &bytes.clone().into(), &DecodeLimits::default());
                let error = error.expect_err(name);
                assert_eq!((error.kind(), error.offset().is_some()), (kind, true), "{name}: {error}");
            }
        }
    }

    #[cfg(feature = "arrow-compression")]
    #[test]
    fn the_memory_of_unpacking_counts_towards_the_limit() {
        let mut bytes = file("arrow/lz4.arrows").to_vec();
        let limits = DecodeLimits { max_decompressed_bytes: 2 << 20, ..DecodeLimits::default() };
        assert!(Value::decode(Format::ArrowStream, &bytes.clone().into(), &limits).is_ok());
        let frame = bytes.windows(4).position(|window| window == b"\x04\x22\x4d\x18").unwrap();
        bytes[frame + 5] = 0x70; // Blocks of 4 MiB.
        let error = Value::decode(Format::ArrowStream, &bytes.into(), &limits).unwrap_err();
        assert_eq!(error.limit().map(|limit| limit.name), Some("max_decompressed_bytes"));
    }

    #[cfg(not(feature = "arrow-compression"))]
    #[test]
    fn compressed_buffers_are_unsupported_by_the_name_of_the_feature() {
        let error = refused(Format::ArrowStream, "arrow/lz4.arrows");
        assert_eq!(error.kind(), DecodeErrorKind::Unsupported);
        assert!(error.to_string().contains("arrow-compression"), "{error}");
    }

    #[test]
    fn unions_are_refused_by_name() {
        let error = refused(Format::ArrowStream, "arrow/refused-union.arrows");
        assert_eq!((error.kind(), error.path()), (DecodeErrorKind::Unsupported, "$.u"));
    }

    #[cfg(feature = "arrow-compression")]
    #[test]
    fn the_announced_size_of_compressed_buffers_counts_towards_the_limit_first() {
        for name in ["lz4.arrows", "zstd.arrows", "lz4.arrow", "zstd.arrow"] {
            let format = if name.ends_with('s') { Format::ArrowStream } else { Format::ArrowFile };
            let limits = DecodeLimits { max_decompressed_bytes: 100_000, ..DecodeLimits::default() };
            let error = Value::decode(format, &file(&format!("arrow/{name}")), &limits).expect_err(name);
            assert_eq!(error.limit().map(|limit| limit.name), Some("max_decompressed_bytes"), "{name}");
        }
    }
}
