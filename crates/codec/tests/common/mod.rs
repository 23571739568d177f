//! Strategies that make any value.

use bytes::Bytes;
use callboard_codec::{DType, Scalar, StrTensor, Tensor, Value};
use proptest::prelude::*;

#[cfg(feature = "arrow")]
pub(crate) mod frame;

/// Every leaf except NaN floats: a NaN is not equal to itself.
pub(crate) fn leaf() -> impl Strategy<Value = Value> {
    let plain = prop_oneof![
        json_leaf(),
        proptest::collection::vec(any::<u8>(), 0..64).prop_map(|bytes| Value::Bytes(Bytes::from(bytes))),
        scalar().prop_map(Value::Scalar),
        tensor().prop_map(Value::Tensor),
        str_tensor().prop_map(Value::StrTensor),
    ];
    #[cfg(feature = "arrow")]
    let plain = prop_oneof![
        10 => plain,
        1 => frame::frame().prop_map(Value::DataFrame),
        1 => frame::series().prop_map(Value::Series),
    ];
    plain
}

/// Every leaf that JSON can express.
pub(crate) fn json_leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        prop_oneof![Just(i64::MIN), Just(-33), Just(-32), Just(127), Just(128), Just(65_536)].prop_map(Value::from),
        proptest::num::f64::NORMAL.prop_map(Value::Float),
        proptest::num::f64::SUBNORMAL.prop_map(Value::Float),
        prop_oneof![Just(0.0), Just(-0.0), Just(1e300), Just(0.1), Just(1e15), Just(1e16)].prop_map(Value::Float),
        any::<String>().prop_map(Value::from),
        "[\\PC\n\"\\\\]{0,40}".prop_map(Value::from),
    ]
}

pub(crate) fn tree(leaf: impl Strategy<Value = Value> + 'static, tuples: bool) -> impl Strategy<Value = Value> {
    leaf.prop_recursive(5, 64, 20, move |inner| {
        let list = proptest::collection::vec(inner.clone(), 0..20);
        let map = proptest::collection::vec((any::<String>(), inner), 0..20);
        prop_oneof![
            (list, any::<bool>()).prop_map(move |(items, tuple)| if tuple && tuples {
                Value::Tuple(items)
            } else {
                Value::List(items)
            }),
            map.prop_map(|entries| Value::Map(entries.into_iter().collect())),
        ]
    })
}

pub(crate) fn tensor() -> impl Strategy<Value = Tensor> {
    let parts =
        (proptest::sample::select(DType::all().collect::<Vec<_>>()), proptest::collection::vec(0_usize..4, 0..4));
    parts.prop_flat_map(|(dtype, shape)| {
        let len = shape.iter().product::<usize>() * dtype.size_bytes();
        // Low bytes make bools, and floats other than NaN.
        let bytes = proptest::collection::vec(0_u8..2, len);
        bytes.prop_map(move |bytes| {
            Tensor::try_new(dtype, &shape, bytes.into()).expect("as many bytes as the shape needs")
        })
    })
}

pub(crate) fn str_tensor() -> impl Strategy<Value = StrTensor> {
    proptest::collection::vec(0_usize..4, 0..3).prop_flat_map(|shape| {
        let texts = proptest::collection::vec(any::<String>(), shape.iter().product::<usize>());
        texts.prop_map(move |texts| StrTensor::from_texts(&shape, texts).expect("as many texts as the shape needs"))
    })
}

pub(crate) fn scalar() -> impl Strategy<Value = Scalar> {
    prop_oneof![
        any::<bool>().prop_map(Scalar::from),
        any::<i8>().prop_map(Scalar::from),
        any::<i16>().prop_map(Scalar::from),
        any::<i32>().prop_map(Scalar::from),
        any::<i64>().prop_map(Scalar::from),
        any::<u8>().prop_map(Scalar::from),
        any::<u16>().prop_map(Scalar::from),
        any::<u32>().prop_map(Scalar::from),
        any::<u64>().prop_map(Scalar::from),
        proptest::num::f32::NORMAL.prop_map(Scalar::from),
        proptest::num::f64::NORMAL.prop_map(Scalar::from),
        (proptest::num::f32::NORMAL, proptest::num::f32::ANY).prop_map(|(re, im)| {
            let im = if im.is_nan() { 0.0 } else { im };
            Scalar::C64(num_complex::Complex::new(re, im))
        }),
        (proptest::num::f64::NORMAL, proptest::num::f64::SUBNORMAL)
            .prop_map(|(re, im)| Scalar::C128(num_complex::Complex::new(re, im))),
        proptest::num::f32::NORMAL.prop_map(|value| Scalar::F16(half::f16::from_f32(value % 1000.0))),
        proptest::num::f32::NORMAL.prop_map(|value| Scalar::BF16(half::bf16::from_f32(value % 1000.0))),
    ]
}
