//! Converts numbers from one dtype to another, and refuses values that do not fit.
//!
//! An engine that lacks a dtype gets the same numbers in another one. An integer that does
//! not fit, or a finite float that would become infinite, is an error that names the number; rounding a float is not.

use callboard_codec::{DType, Element, Tensor};
use half::f16;

/// Why a tensor cannot be converted to another dtype.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum CastError {
    /// A number outside the range of the other dtype.
    #[error("{value} at element {index} does not fit {to}, which the engine computes {from} in")]
    OutOfRange { index: usize, value: String, from: DType, to: DType },
    /// There is no such conversion.
    #[error("no conversion from {from} to {to}")]
    Unsupported { from: DType, to: DType },
}

/// The same numbers as `to`. A tensor that already is of `to` is shared, not copied.
pub(crate) fn cast(tensor: &Tensor, to: DType) -> Result<Tensor, CastError> {
    match (tensor.dtype(), to) {
        (from, to) if from == to => Ok(tensor.clone()),
        (DType::I64, DType::I32) => convert(tensor, |x: i64| i32::try_from(x).ok()),
        (DType::I32, DType::I64) => convert(tensor, |x: i32| Some(i64::from(x))),
        (DType::Bool, DType::I32) => convert(tensor, |x: bool| Some(i32::from(x))),
        (DType::I32, DType::Bool) => convert(tensor, |x: i32| Some(x != 0)),
        (DType::F64, DType::F32) => convert(tensor, |x: f64| kept_finite(x as f32, x.is_finite())),
        (DType::F32, DType::F64) => convert(tensor, |x: f32| Some(f64::from(x))),
        (DType::F16, DType::F32) => convert(tensor, |x: f16| Some(x.to_f32())),
        // An output beyond f16 is not the caller's fault: it becomes infinite, as in an f16 engine.
        (DType::F32, DType::F16) => convert(tensor, |x: f32| Some(f16::from_f32(x))),
        (from, to) => Err(CastError::Unsupported { from, to }),
    }
}

/// The narrowed float, unless it became infinite on the way.
fn kept_finite(narrow: f32, was_finite: bool) -> Option<f32> {
    (narrow.is_finite() || !was_finite).then_some(narrow)
}

fn convert<A: Element, B: Element>(tensor: &Tensor, narrow: impl Fn(A) -> Option<B>) -> Result<Tensor, CastError> {
    let (from, to) = (A::DTYPE, B::DTYPE);
    let elements = tensor.as_slice::<A>().map_err(|_| CastError::Unsupported { from, to })?;
    let mut converted = Vec::with_capacity(elements.len());
    for (index, element) in elements.iter().enumerate() {
        let out_of_range = || CastError::OutOfRange { index, value: shown(*element), from, to };
        converted.push(narrow(*element).ok_or_else(out_of_range)?);
    }
    Tensor::from_vec(tensor.shape(), converted).map_err(|_| CastError::Unsupported { from, to })
}

fn shown<A: Element>(element: A) -> String {
    let scalar = element.to_scalar();
    scalar.as_i64().map(|x| x.to_string()).or_else(|| scalar.as_f64().map(|x| format!("{x:e}"))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use ndarray::array;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_out_of_range_is_named_with_its_position() {
        let tensor = Tensor::from_array(array![[1_i64, 2], [3, 1 << 40]]);
        assert_eq!(
            cast(&tensor, DType::I32).unwrap_err().to_string(),
            "1099511627776 at element 3 does not fit i32, which the engine computes i64 in"
        );
        let tensor = Tensor::from_array(array![1e300_f64]);
        assert_eq!(
            cast(&tensor, DType::F32).unwrap_err().to_string(),
            "1e300 at element 0 does not fit f32, which the engine computes f64 in"
        );
    }

    #[test]
    fn nan_and_infinity_are_preserved() {
        let tensor = Tensor::from_array(array![f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
        let narrow = cast(&tensor, DType::F32).unwrap();
        let narrow = narrow.as_slice::<f32>().unwrap();
        assert!(narrow[0].is_nan());
        assert_eq!(narrow[1..], [f32::INFINITY, f32::NEG_INFINITY]);
    }

    #[test]
    fn a_pair_without_a_conversion_is_refused() {
        let tensor = Tensor::from_array(array![1_u32]);
        assert_eq!(cast(&tensor, DType::F32).unwrap_err().to_string(), "no conversion from u32 to f32");
    }

    proptest! {
        #[test]
        fn integers_survive_a_round_trip(numbers in prop::collection::vec(any::<i32>(), 0..64)) {
            let wide: Vec<i64> = numbers.iter().map(|x| i64::from(*x)).collect();
            let tensor = Tensor::from_vec(&[wide.len()], wide).unwrap();
            let converted = cast(&tensor, DType::I32).unwrap();
            prop_assert_eq!(converted.as_slice::<i32>().unwrap(), &numbers[..]);
            prop_assert_eq!(cast(&converted, DType::I64).unwrap(), tensor);
        }

        #[test]
        fn bools_survive_a_round_trip(bools in prop::collection::vec(any::<bool>(), 0..64)) {
            let tensor = Tensor::from_vec(&[bools.len()], bools).unwrap();
            let converted = cast(&tensor, DType::I32).unwrap();
            prop_assert_eq!(cast(&converted, DType::Bool).unwrap(), tensor);
        }
    }
}
