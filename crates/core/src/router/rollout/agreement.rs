//! Whether two answers are the same: equal, but for small differences of floating-point numbers.

use callboard_codec::{DType, EncodeErrorKind, Payload, Tensor, Value};

/// Values in values that are compared. Deeper ones differ: no decoder gives such a value.
const MAX_DEPTH: usize = 256;

/// Whether two answers agree; `None` if the node has no room to compare them. An answer that cannot be expressed as a
/// [`Value`] agrees with none.
pub(crate) fn agrees(first: &Payload, second: &Payload, tolerance: f64) -> Option<bool> {
    let read = first.to_value().and_then(|first| Ok((first, second.to_value()?)));
    match read {
        Ok((first, second)) => Some(values(&first, &second, tolerance, MAX_DEPTH)),
        Err(error) if error.kind() == EncodeErrorKind::Unsupported => Some(false),
        Err(_) => None,
    }
}

fn values(first: &Value, second: &Value, tolerance: f64, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else { return false };
    let lists = |first: &[Value], second: &[Value]| {
        first.len() == second.len()
            && first.iter().zip(second).all(|(first, second)| values(first, second, tolerance, depth))
    };
    match (first, second) {
        (Value::Float(first), Value::Float(second)) => close(*first, *second, tolerance),
        (Value::List(first), Value::List(second)) | (Value::Tuple(first), Value::Tuple(second)) => lists(first, second),
        (Value::Map(first), Value::Map(second)) => {
            first.len() == second.len()
                && first
                    .iter()
                    .all(|(key, first)| second.get(key).is_some_and(|second| values(first, second, tolerance, depth)))
        }
        (Value::Scalar(first), Value::Scalar(second)) => {
            first.dtype() == second.dtype() && values(&first.plain(), &second.plain(), tolerance, depth)
        }
        (Value::Tensor(first), Value::Tensor(second)) => tensors(first, second, tolerance),
        (first, second) => first == second,
    }
}

fn tensors(first: &Tensor, second: &Tensor, tolerance: f64) -> bool {
    if (first.dtype(), first.shape()) != (second.dtype(), second.shape()) {
        return false;
    }
    match first.dtype() {
        DType::F16 => elements(first, second, tolerance, |bytes| half(u16::from_le_bytes(bytes), 10)),
        DType::BF16 => elements(first, second, tolerance, |bytes| half(u16::from_le_bytes(bytes), 7)),
        DType::F32 | DType::C64 => elements(first, second, tolerance, |bytes| f64::from(f32::from_le_bytes(bytes))),
        DType::F64 | DType::C128 => elements(first, second, tolerance, f64::from_le_bytes),
        _ => first.data() == second.data(),
    }
}

/// Reads from bytes, because a tensor that was received need not be aligned.
fn elements<const N: usize>(first: &Tensor, second: &Tensor, tolerance: f64, read: fn([u8; N]) -> f64) -> bool {
    let (first, _) = first.data().as_chunks::<N>();
    let (second, _) = second.data().as_chunks::<N>();
    first.iter().zip(second).all(|(first, second)| close(read(*first), read(*second), tolerance))
}

/// A float of 16 bits with this many bits of fraction.
fn half(bits: u16, fraction_bits: u32) -> f64 {
    let (exponent_bits, fraction) = (15 - fraction_bits, f64::from(bits & ((1 << fraction_bits) - 1)));
    let (exponent, top) = (i32::from(bits >> fraction_bits) & ((1 << exponent_bits) - 1), (1 << exponent_bits) - 1);
    let bias = top >> 1;
    let unit = 2_f64.powi(-(fraction_bits as i32));
    let size = match exponent {
        0 => fraction * unit * 2_f64.powi(1 - bias),
        _ if exponent == top => {
            if fraction == 0.0 {
                f64::INFINITY
            } else {
                f64::NAN
            }
        }
        _ => (1.0 + fraction * unit) * 2_f64.powi(exponent - bias),
    };
    if bits >> 15 == 1 { -size } else { size }
}

fn close(first: f64, second: f64, tolerance: f64) -> bool {
    let largest = first.abs().max(second.abs());
    first == second
        || (first.is_nan() && second.is_nan())
        || (largest.is_finite() && (first - second).abs() <= tolerance * largest.max(1.0))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use callboard_codec::{Account, ChargeError, Local, Scalar, charged_to};

    use super::*;

    fn same(first: Value, second: Value) -> bool {
        agrees(&Payload::new(first), &Payload::new(second), 1e-3).expect("no account refuses it")
    }

    #[test]
    fn floats_may_differ_by_the_tolerance_and_nothing_else_may() {
        let list = |x: f64, text: &str| Value::from(vec![Value::Float(x), Value::from(text)]);
        assert!(same(list(1.0, "a"), list(1.0005, "a")) && !same(list(1.0, "a"), list(1.0, "b")));
        assert!(!same(list(1.0, "a"), list(1.01, "a")) && same(list(1e6, "a"), list(1e6 + 500.0, "a")));
        assert!(same(Value::Float(f64::NAN), Value::Float(f64::NAN)));
        assert!(!same(Value::Float(f64::INFINITY), Value::Float(1e308)));
        assert!(!same(Value::Int(1), Value::Int(2)) && !same(Value::Int(1), Value::Float(1.0)));
    }

    #[test]
    fn rust_values_are_compared_through_their_dynamic_form() {
        let agree = |first: (u64, f32), second: (u64, f32)| agrees(&Payload::new(first), &Payload::new(second), 1e-3);
        assert_eq!(agree((1, 0.5), (1, 0.5001)), Some(true));
        assert_eq!(agree((1, 0.5), (2, 0.5)), Some(false));
        let local = Payload::new(Local(7));
        assert_eq!(agrees(&local, &local, 1e-3), Some(false), "it has no dynamic form");
    }

    #[test]
    fn answers_without_room_to_read_them_neither_agree_nor_differ() {
        struct Full(ChargeError);
        impl Account for Full {
            fn charge(&self, _: usize) -> Result<(), ChargeError> {
                Err(self.0)
            }
            fn refund(&self, _: usize) {}
        }
        let compare = |refusal| {
            let account: Arc<dyn Account> = Arc::new(Full(refusal));
            let answer = Payload::new(vec!["a".repeat(1 << 20)]);
            charged_to(&account, || agrees(&answer, &answer, 1e-3))
        };
        assert_eq!(compare(ChargeError::exhausted("max_in_flight_bytes", 1)), None);
        assert_eq!(compare(ChargeError::Stopped), None);
        assert_eq!(compare(ChargeError::too_large("max_in_flight_bytes", 1)), None);
    }

    #[test]
    fn lists_and_maps_agree_by_their_lengths_and_keys_as_well() {
        let list = |numbers: &[f64]| Value::from(numbers.iter().copied().map(Value::Float).collect::<Vec<_>>());
        assert!(same(list(&[1.0, 2.0]), list(&[1.0005, 2.0])) && !same(list(&[1.0, 2.0]), list(&[1.0, 2.1])));
        assert!(!same(list(&[1.0]), list(&[1.0, 2.0])) && !same(list(&[1.0, 2.0]), list(&[1.0])));
        let tuple = |numbers: &[f64]| Value::Tuple(numbers.iter().copied().map(Value::Float).collect());
        assert!(same(tuple(&[1.0]), tuple(&[1.0005])) && !same(tuple(&[1.0]), list(&[1.0])));
        let map = |entries: &[(&str, f64)]| {
            Value::Map(entries.iter().map(|(key, number)| ((*key).to_owned(), Value::Float(*number))).collect())
        };
        assert!(same(map(&[("a", 1.0), ("b", 2.0)]), map(&[("b", 2.0), ("a", 1.0005)])), "in any order");
        assert!(!same(map(&[("a", 1.0)]), map(&[("a", 1.1)])) && !same(map(&[("a", 1.0)]), map(&[("b", 1.0)])));
        assert!(!same(map(&[("a", 1.0)]), map(&[("a", 1.0), ("b", 2.0)])));
        assert!(!same(map(&[("a", 1.0), ("b", 2.0)]), map(&[("a", 1.0)])));
    }

    #[test]
    fn scalars_agree_by_element_type_and_value() {
        let scalar = |number: f32| Value::Scalar(Scalar::F32(number));
        assert!(same(scalar(1.0), scalar(1.0005)) && !same(scalar(1.0), scalar(1.1)));
        assert!(!same(scalar(1.0), Value::Scalar(Scalar::F64(1.0))) && !same(scalar(1.0), Value::Float(1.0)));
    }

    /// A value within this many others is the deepest that is compared.
    #[test]
    fn values_in_too_many_values_agree_with_none() {
        let nested = |levels: usize| (0..levels).fold(Value::Int(1), |inner, _| Value::List(vec![inner]));
        let agree = |levels| values(&nested(levels), &nested(levels), 0.0, MAX_DEPTH);
        assert!(agree(MAX_DEPTH - 1) && !agree(MAX_DEPTH));
    }

    #[test]
    fn the_tolerance_is_absolute_below_one_and_relative_above() {
        let pairs = [(1.0, 1.125), (0.0, 0.125), (-0.0625, 0.0625), (-1.0, -1.125), (2.0, 2.25), (1024.0, 1152.0)];
        for (first, second) in pairs {
            assert!(close(first, second, 0.125) && close(second, first, 0.125), "{first} {second}");
            assert!(!close(first, second, 0.1) && !close(second, first, 0.1), "{first} {second}");
        }
        assert!(!close(1.0, -1.0, 0.125) && !close(f64::NAN, 1.0, 1e9) && !close(1.0, f64::NAN, 1e9));
        assert!(close(f64::INFINITY, f64::INFINITY, 0.0) && !close(f64::INFINITY, f64::NEG_INFINITY, 1e9));
    }

    /// Each type with three elements: the second is within the tolerance of the first, the third is not.
    #[test]
    fn tensors_of_all_floats_agree_within_the_tolerance() {
        let half = |bits: u16| bits.to_le_bytes().to_vec();
        let (f32, f64) = (|number: f32| number.to_le_bytes().to_vec(), |number: f64| number.to_le_bytes().to_vec());
        for (dtype, count, elements) in [
            (DType::F16, 2, [half(0x3c00), half(0x3c01), half(0x3c20)]),
            (DType::BF16, 2, [half(0x3a00), half(0x3a80), half(0x3f80)]),
            (DType::F32, 2, [f32(1.0), f32(1.0005), f32(1.1)]),
            (DType::C64, 1, [f32(1.0), f32(1.0005), f32(1.1)]),
            (DType::F64, 2, [f64(1.0), f64(1.0005), f64(1.1)]),
            (DType::C128, 1, [f64(1.0), f64(1.0005), f64(1.1)]),
        ] {
            let tensor = |second: &[u8]| {
                let data = [&elements[0][..], second].concat();
                Value::Tensor(Tensor::try_new(dtype, &[count], data.into()).unwrap())
            };
            let [one, near, far] = elements.each_ref().map(|element| tensor(element));
            assert!(same(one.clone(), near) && !same(one, far), "{dtype}");
        }
    }

    #[test]
    fn tensors_agree_by_element_type_and_shape() {
        let tensor = |shape: &[usize], data: Vec<f32>| Value::Tensor(Tensor::from_vec(shape, data).unwrap());
        assert!(same(tensor(&[2], vec![1.0, 2.0]), tensor(&[2], vec![1.0, 2.001])));
        assert!(!same(tensor(&[2], vec![1.0, 2.0]), tensor(&[2], vec![1.0, 2.1])));
        assert!(!same(tensor(&[2, 1], vec![1.0, 2.0]), tensor(&[2], vec![1.0, 2.0])));
        let ints = |data: Vec<i64>| Value::Tensor(Tensor::from_vec(&[data.len()], data).unwrap());
        assert!(same(ints(vec![1, 2]), ints(vec![1, 2])) && !same(ints(vec![1, 2]), ints(vec![1, 3])));
    }

    #[test]
    fn floats_of_16_bits_are_read() {
        let f16 = |bits| half(bits, 10);
        assert_eq!(
            [f16(0x3c00), f16(0xc000), f16(0x3555), f16(0x0001), f16(0x8002), f16(0x7bff)],
            [1.0, -2.0, 0.333_251_953_125, 2_f64.powi(-24), -2_f64.powi(-23), 65_504.0]
        );
        assert!(f16(0x7c00) == f64::INFINITY && f16(0xfc00) == f64::NEG_INFINITY && f16(0x7e00).is_nan());
        let bf16 = |bits| half(bits, 7);
        assert_eq!([bf16(0x3f80), bf16(0xc040), bf16(0x0001)], [1.0, -3.0, 2_f64.powi(-133)]);
    }
}
