//! Ties each [`DType`] to the Rust type of its elements.

use bytemuck::{CheckedBitPattern, NoUninit};
use half::{bf16, f16};
use num_complex::Complex;

use crate::value::tensor::DType;
use crate::value::{Scalar, Value};

/// A Rust type that can be an element of a [`Tensor`](crate::Tensor): `bool`, the integers of 8 to 64 bits, `f32`,
/// `f64`, `half`'s `f16` and `bf16`, and `num_complex::Complex` of `f32` and `f64`. Sealed: the list is that of
/// [`DType`].
pub trait Element: sealed::Bits + Copy + Send + Sync + 'static {
    /// The dtype of a tensor of such elements.
    const DTYPE: DType;

    /// The element as a typed scalar.
    fn to_scalar(self) -> Scalar;

    /// The element for a number or bool of a [`Value`], if it fits this type: integers must be in range, floats may be
    /// rounded but not become infinite, and only a bool is a bool.
    fn from_value(value: &Value) -> Option<Self>;
}

mod sealed {
    use super::{CheckedBitPattern, NoUninit};

    /// Types whose bytes may be written and, after a check, read as they are.
    #[expect(
        unnameable_types,
        reason = "what cannot be named cannot be implemented elsewhere: the list stays that of `DType`"
    )]
    pub trait Bits: NoUninit + CheckedBitPattern {}

    macro_rules! bits {
        ($($rust:ty),*) => {$(impl Bits for $rust {})*};
    }

    bits!(bool, i8, i16, i32, i64, u8, u16, u32, u64, half::f16, half::bf16, f32, f64);
    bits!(num_complex::Complex<f32>, num_complex::Complex<f64>);
}

impl Element for bool {
    const DTYPE: DType = DType::Bool;

    fn to_scalar(self) -> Scalar {
        Scalar::Bool(self)
    }

    fn from_value(value: &Value) -> Option<Self> {
        value.as_bool()
    }
}

macro_rules! integers {
    ($($rust:ty => $dtype:ident),*) => {$(
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;

            fn to_scalar(self) -> Scalar {
                Scalar::$dtype(self)
            }

            fn from_value(value: &Value) -> Option<Self> {
                let signed = value.as_i64().map(Self::try_from);
                let wide = || value.as_u64().map(Self::try_from).and_then(Result::ok);
                signed.and_then(Result::ok).or_else(wide)
            }
        }
    )*};
}

integers!(i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64);

macro_rules! floats {
    ($($rust:ty => $dtype:ident by $narrow:expr),*) => {$(
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;

            fn to_scalar(self) -> Scalar {
                Scalar::$dtype(self)
            }

            fn from_value(value: &Value) -> Option<Self> {
                let wide = value.as_f64()?;
                let narrow: Self = $narrow(wide);
                (narrow.is_finite() || !wide.is_finite()).then_some(narrow)
            }
        }
    )*};
}

floats!(
    f16 => F16 by f16::from_f64,
    bf16 => BF16 by bf16::from_f64,
    f32 => F32 by (|wide| wide as f32),
    f64 => F64 by (|wide| wide)
);

macro_rules! complexes {
    ($($part:ty => $dtype:ident),*) => {$(
        impl Element for Complex<$part> {
            const DTYPE: DType = DType::$dtype;

            fn to_scalar(self) -> Scalar {
                Scalar::$dtype(self)
            }

            /// A real number, or a scalar. Pairs are an axis of their own until the reader of nested lists joins them.
            fn from_value(value: &Value) -> Option<Self> {
                match value {
                    Value::Scalar(Scalar::C64(x)) => Some(Self::new(<$part>::from(x.re), <$part>::from(x.im))),
                    Value::Scalar(Scalar::C128(x)) => {
                        let part = |wide: f64| <$part as Element>::from_value(&Value::Float(wide));
                        Some(Self::new(part(x.re)?, part(x.im)?))
                    }
                    real => Some(Self::new(<$part as Element>::from_value(real)?, 0.0)),
                }
            }
        }
    )*};
}

complexes!(f32 => C64, f64 => C128);
