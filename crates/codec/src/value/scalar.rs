//! One number with the width of its type, like a NumPy scalar.

use half::{bf16, f16};
use num_complex::Complex;

use crate::value::Value;
use crate::value::tensor::{DType, Element, Tensor, with_element};

/// A number with the width of its type. Plain numbers are [`Value::Int`] and [`Value::Float`]; a scalar is for senders
/// that distinguish `float32(1)` from `1.0`.
///
/// ```
/// use callboard_codec::{DType, Scalar, Value};
///
/// let scalar = Scalar::from(1.5_f32);
/// assert_eq!((scalar.dtype(), scalar.as_f64()), (DType::F32, Some(1.5)));
/// assert_ne!(Value::from(scalar), Value::Float(1.5));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each variant is the dtype of its name")]
pub enum Scalar {
    Bool(bool),
    I8(i8),
    I16(i16),
    I32(i32),
    I64(i64),
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    F16(f16),
    BF16(bf16),
    F32(f32),
    F64(f64),
    C64(Complex<f32>),
    C128(Complex<f64>),
}

impl Scalar {
    /// The type of the number.
    #[must_use]
    pub const fn dtype(self) -> DType {
        match self {
            Self::Bool(_) => DType::Bool,
            Self::I8(_) => DType::I8,
            Self::I16(_) => DType::I16,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
            Self::U8(_) => DType::U8,
            Self::U16(_) => DType::U16,
            Self::U32(_) => DType::U32,
            Self::U64(_) => DType::U64,
            Self::F16(_) => DType::F16,
            Self::BF16(_) => DType::BF16,
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::C64(_) => DType::C64,
            Self::C128(_) => DType::C128,
        }
    }

    /// The same number without its width: a bool, an integer, a float, or the tuple of a complex number's two floats.
    /// Nothing is lost but the type.
    #[must_use]
    pub fn plain(self) -> Value {
        match self {
            Self::Bool(x) => x.into(),
            Self::I8(x) => x.into(),
            Self::I16(x) => x.into(),
            Self::I32(x) => x.into(),
            Self::I64(x) => x.into(),
            Self::U8(x) => x.into(),
            Self::U16(x) => x.into(),
            Self::U32(x) => x.into(),
            Self::U64(x) => x.into(),
            Self::F16(x) => x.to_f64().into(),
            Self::BF16(x) => x.to_f64().into(),
            Self::F32(x) => f64::from(x).into(),
            Self::F64(x) => x.into(),
            Self::C64(x) => Value::Tuple(vec![x.re.into(), x.im.into()]),
            Self::C128(x) => Value::Tuple(vec![x.re.into(), x.im.into()]),
        }
    }

    /// The number as an i64, if it is an integer that fits.
    #[must_use]
    pub fn as_i64(self) -> Option<i64> {
        self.plain().as_i64()
    }

    /// The number as a u64, if it is an integer that fits.
    #[must_use]
    pub fn as_u64(self) -> Option<u64> {
        self.plain().as_u64()
    }

    /// The number as an f64, if it is a number; integers beyond 2⁵³ are rounded.
    #[must_use]
    pub fn as_f64(self) -> Option<f64> {
        self.plain().as_f64()
    }

    /// The tensor without axes that holds just this number.
    #[must_use]
    pub fn to_tensor(self) -> Tensor {
        let value = Value::Scalar(self);
        Tensor::from_value(&value, None).expect("a scalar is an element of its own dtype")
    }

    /// The number's little-endian bytes.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        self.to_tensor().data().to_vec()
    }

    /// Whether every part of it is a number that JSON can write.
    pub(crate) fn is_finite(self) -> bool {
        match self {
            Self::C64(x) => x.is_finite(),
            Self::C128(x) => x.is_finite(),
            real => real.as_f64().is_none_or(f64::is_finite),
        }
    }

    /// The number of `dtype` that these bytes are.
    pub(crate) fn from_bytes(dtype: DType, bytes: &[u8]) -> Option<Self> {
        let tensor = Tensor::try_new(dtype, &[], bytes.to_vec().into()).ok()?;
        tensor.to_scalar()
    }
}

impl Tensor {
    /// The element of a tensor with exactly one.
    #[must_use]
    pub fn to_scalar(&self) -> Option<Scalar> {
        with_element!(self.dtype(), T => match self.as_slice::<T>() {
            Ok([only]) => Some(Element::to_scalar(*only)),
            _ => None,
        })
    }
}

macro_rules! from_element {
    ($($rust:ty),*) => {$(
        impl From<$rust> for Scalar {
            fn from(element: $rust) -> Self {
                Element::to_scalar(element)
            }
        }
    )*};
}

from_element!(bool, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64, Complex<f32>, Complex<f64>);
