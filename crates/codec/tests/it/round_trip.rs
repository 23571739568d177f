//! Encoded values decode to the same value with the same bits.

use bytes::Bytes;
#[cfg(feature = "arrow")]
use callboard_codec::DataFrame;
use callboard_codec::{DType, DecodeLimits, Format, Scalar, Tensor, Value};
use ndarray::array;
use proptest::prelude::*;

use crate::common;

fn through(format: Format, value: &Value) -> Value {
    let bytes = value.encode(format).expect("every part has a form");
    Value::decode(format, &bytes, &DecodeLimits::default()).expect("encoded data can be decoded")
}

proptest! {
    #[test]
    fn msgpack_round_trips_every_value(value in common::tree(common::leaf(), true)) {
        prop_assert_eq!(through(Format::Msgpack, &value), value);
    }

    #[test]
    fn json_round_trips_every_value_that_it_can_express(value in common::tree(common::json_leaf(), false)) {
        prop_assert_eq!(through(Format::Json, &value), value);
    }

    #[test]
    fn json_reads_and_writes_as_serde_json_does(value in common::tree(common::json_leaf(), false)) {
        let ours = value.encode(Format::Json).unwrap();
        let theirs: serde_json::Value = serde_json::from_slice(&ours).unwrap();
        let text = Bytes::from(serde_json::to_vec_pretty(&theirs).unwrap());
        prop_assert_eq!(Value::decode(Format::Json, &text, &DecodeLimits::default()).unwrap(), value);
    }

    #[test]
    fn a_value_inside_a_typed_message_round_trips_through_rmp_serde(value in common::tree(common::leaf(), true)) {
        let bytes = rmp_serde::to_vec_named(&value).unwrap();
        prop_assert_eq!(&rmp_serde::from_slice::<Value>(&bytes).unwrap(), &value);
        prop_assert_eq!(Value::decode(Format::Msgpack, &bytes.into(), &DecodeLimits::default()).unwrap(), value);
    }

    #[test]
    fn the_bridge_round_trips_every_value(value in common::tree(common::leaf(), true)) {
        prop_assert_eq!(&Value::from_serialize(&value).unwrap(), &value);
        prop_assert_eq!(value.deserialize::<Value>().unwrap(), value);
    }

    #[test]
    fn a_float_keeps_every_bit_in_msgpack(bits: u64) {
        let back = through(Format::Msgpack, &Value::Float(f64::from_bits(bits)));
        prop_assert_eq!(back.as_f64().map(f64::to_bits), Some(bits));
    }

    #[test]
    fn a_finite_float_keeps_every_bit_in_json(bits: u64) {
        let float = f64::from_bits(bits);
        prop_assume!(float.is_finite());
        let back = through(Format::Json, &Value::Float(float));
        prop_assert_eq!(back.as_f64().map(f64::to_bits), Some(bits));
        let bytes = Value::Float(float).encode(Format::Json).unwrap();
        prop_assert_eq!(serde_json::from_slice::<f64>(&bytes).unwrap().to_bits(), bits);
    }
}

/// Every array that NumPy can express.
fn array() -> impl Strategy<Value = Value> {
    let numbers = common::tensor().prop_filter("NumPy has no bfloat16", |tensor| tensor.dtype() != DType::BF16);
    // NumPy pads texts with zeros, so trailing zeros are lost.
    let texts =
        common::str_tensor().prop_filter("ends in a zero", |texts| texts.iter().all(|text| !text.ends_with('\0')));
    prop_oneof![numbers.prop_map(Value::from), texts.prop_map(Value::from)]
}

proptest! {
    #[test]
    fn npy_round_trips_every_array(value in array()) {
        prop_assert_eq!(through(Format::Npy, &value), value);
    }

    #[test]
    fn npz_round_trips_every_array_under_its_name(
        arrays in proptest::collection::btree_map("[a-z.ß]{0,8}", array(), 0..5)
    ) {
        // NumPy drops `.npy` from the end of a name.
        let arrays = arrays.into_iter().filter(|(name, _)| !name.ends_with(".npy"));
        let value = Value::Map(arrays.collect());
        prop_assert_eq!(through(Format::Npz, &value), value);
    }
}

#[cfg(feature = "arrow")]
proptest! {
    #[test]
    fn arrow_round_trips_every_frame(frame in common::frame::frame()) {
        let value = Value::from(frame);
        // A file has room for one dictionary per column.
        prop_assert_eq!(&through(Format::ArrowStream, &value), &value);
        let one = Value::from(DataFrame::from(value.as_data_frame().unwrap().to_batch().unwrap()));
        prop_assert_eq!(through(Format::ArrowFile, &one), one);
    }

    #[test]
    fn a_frame_has_its_cells_in_json(frame in common::frame::frame()) {
        let value = Value::from(frame.clone());
        // Only dates outside the calendar are refused.
        let Ok(written) = value.encode(Format::Json) else { return Ok(()) };
        let columns = Value::decode(Format::Json, &written, &DecodeLimits::default()).unwrap();
        for (name, cells) in columns.as_map().unwrap() {
            prop_assert_eq!(cells.as_list().map(<[Value]>::len), Some(frame.num_rows()), "{}", name);
        }
    }
}

#[test]
fn json_uses_the_nearest_form_for_other_values() {
    let written = |value: Value| String::from_utf8(value.encode(Format::Json).unwrap().into()).unwrap();
    assert_eq!(written(Bytes::from_static(b"\x00\xff").into()), r#""AP8=""#);
    assert_eq!(written(Value::Tuple(vec![1.into(), "a".into()])), r#"[1,"a"]"#);
    assert_eq!(written(Scalar::F32(0.1).into()), "0.1");
    assert_eq!(written(Tensor::from_array(array![[1_u8, 2], [3, 4]]).into()), "[[1,2],[3,4]]");
    assert_eq!(written(Scalar::I16(7).to_tensor().into()), "7");
    assert_eq!(written(Tensor::from_vec::<f64>(&[2, 0], vec![]).unwrap().into()), "[[],[]]");
}

#[test]
fn serde_json_writes_a_value_as_we_do() {
    let parts =
        [Bytes::from_static(b"\xff").into(), Scalar::F32(0.1).into(), Tensor::from_array(array![true, false]).into()];
    let value = Value::Tuple(parts.to_vec());
    assert_eq!(serde_json::to_vec(&value).unwrap(), value.encode(Format::Json).unwrap());
}

#[test]
fn json_refuses_to_write_nan_in_a_tensor() {
    let value = Value::from(vec![Value::from(1.0), Tensor::from_array(array![[0.5_f32, f32::NAN]]).into()]);
    let error = value.encode(Format::Json).unwrap_err();
    assert_eq!(error.to_string(), "cannot encode float: JSON has no form for NaN at $[1][0][1]");
}

#[test]
fn other_implementations_read_the_written_msgpack() {
    // The bytes of msgpack-python's packb({"a": [1, -1, 300, 1.5, None, True, b"x"]}).
    let bytes = Bytes::from_static(b"\x81\xa1a\x97\x01\xff\xcd\x01,\xcb?\xf8\0\0\0\0\0\0\xc0\xc3\xc4\x01x");
    let value = Value::decode(Format::Msgpack, &bytes, &DecodeLimits::default()).unwrap();
    assert_eq!(value.encode(Format::Msgpack).unwrap(), bytes);
    assert_eq!(value.get("a").and_then(Value::as_list).map(<[Value]>::len), Some(7));
}

#[test]
fn msgpack_slices_byte_strings_out_of_the_input() {
    let bytes = Value::Bytes(Bytes::from(vec![7; 4096])).encode(Format::Msgpack).unwrap();
    let back = Value::decode(Format::Msgpack, &bytes, &DecodeLimits::default()).unwrap();
    let range = bytes.as_ptr_range();
    assert!(range.contains(&back.as_bytes().unwrap().as_ptr()));
}
