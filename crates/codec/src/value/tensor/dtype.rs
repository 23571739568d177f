//! The element types of tensors and scalars: one table of names, sizes and wire codes.
//!
//! The codes are part of the wire format and are never given to another type.

use std::fmt;
use std::str::FromStr;

use crate::value::tensor::TensorError;

/// The type of the elements of a [`Tensor`](crate::Tensor) and of a [`Scalar`](crate::Scalar).
///
/// ```
/// use callboard_codec::DType;
///
/// let dtype: DType = "float32".parse()?;
/// assert_eq!(dtype, DType::F32);
/// assert_eq!((dtype.name(), dtype.size_bytes()), ("f32", 4));
/// # Ok::<(), callboard_codec::TensorError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an [`F32`](Self::F32).
    BF16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// A complex number of two [`F32`](Self::F32): real part, imaginary part.
    C64,
    /// A complex number of two [`F64`](Self::F64): real part, imaginary part.
    C128,
}

/// Type, our name, NumPy's name, size in bytes, code on the wire.
const TABLE: [(DType, &str, &str, usize, u8); 15] = [
    (DType::Bool, "bool", "bool", 1, 1),
    (DType::I8, "i8", "int8", 1, 2),
    (DType::I16, "i16", "int16", 2, 3),
    (DType::I32, "i32", "int32", 4, 4),
    (DType::I64, "i64", "int64", 8, 5),
    (DType::U8, "u8", "uint8", 1, 6),
    (DType::U16, "u16", "uint16", 2, 7),
    (DType::U32, "u32", "uint32", 4, 8),
    (DType::U64, "u64", "uint64", 8, 9),
    (DType::F16, "f16", "float16", 2, 10),
    (DType::BF16, "bf16", "bfloat16", 2, 11),
    (DType::F32, "f32", "float32", 4, 12),
    (DType::F64, "f64", "float64", 8, 13),
    (DType::C64, "c64", "complex64", 8, 14),
    (DType::C128, "c128", "complex128", 16, 15),
];

impl DType {
    /// Every element type, in declaration order.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// Bytes of one element.
    #[must_use]
    pub const fn size_bytes(self) -> usize {
        self.row().3
    }

    /// Whether an element is a pair of a real and an imaginary part.
    #[must_use]
    pub const fn is_complex(self) -> bool {
        matches!(self, Self::C64 | Self::C128)
    }

    /// The short name: `bool`, `i8` … `u64`, `f16`, `bf16`, `f32`, `f64`, `c64`, `c128`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().1
    }

    /// NumPy's name: `bool`, `int8` … `uint64`, `float16`, `bfloat16`, `float32`, `float64`,
    /// `complex64`, `complex128`.
    #[must_use]
    pub const fn numpy_name(self) -> &'static str {
        self.row().2
    }

    pub(crate) const fn code(self) -> u8 {
        self.row().4
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        TABLE.iter().find(|row| row.4 == code).map(|row| row.0)
    }

    /// The table is in declaration order, so that a lookup is an index.
    const fn row(self) -> (Self, &'static str, &'static str, usize, u8) {
        TABLE[self as usize]
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = TensorError;

    /// Takes our names and NumPy's.
    fn from_str(name: &str) -> Result<Self, TensorError> {
        let row = TABLE.iter().find(|row| row.1 == name || row.2 == name);
        row.map(|row| row.0).ok_or_else(|| TensorError::UnknownDType { name: name.chars().take(32).collect() })
    }
}

/// Runs `$body` with `$T` standing for the Rust type of a [`DType`] known only at run time.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {{
        use $crate::value::tensor::DType;
        match $dtype {
            DType::Bool => with_element!(@arm $T, bool, $body),
            DType::I8 => with_element!(@arm $T, i8, $body),
            DType::I16 => with_element!(@arm $T, i16, $body),
            DType::I32 => with_element!(@arm $T, i32, $body),
            DType::I64 => with_element!(@arm $T, i64, $body),
            DType::U8 => with_element!(@arm $T, u8, $body),
            DType::U16 => with_element!(@arm $T, u16, $body),
            DType::U32 => with_element!(@arm $T, u32, $body),
            DType::U64 => with_element!(@arm $T, u64, $body),
            DType::F16 => with_element!(@arm $T, ::half::f16, $body),
            DType::BF16 => with_element!(@arm $T, ::half::bf16, $body),
            DType::F32 => with_element!(@arm $T, f32, $body),
            DType::F64 => with_element!(@arm $T, f64, $body),
            DType::C64 => with_element!(@arm $T, ::num_complex::Complex<f32>, $body),
            DType::C128 => with_element!(@arm $T, ::num_complex::Complex<f64>, $body),
        }
    }};
    (@arm $T:ident, $rust:ty, $body:expr) => {{
        type $T = $rust;
        $body
    }};
}
pub(crate) use with_element;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_declaration_order_with_codes_of_their_own() {
        for (index, dtype) in DType::all().enumerate() {
            assert_eq!(dtype as usize, index);
            assert_eq!(DType::from_code(dtype.code()), Some(dtype));
            assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
            assert_eq!(dtype.numpy_name().parse::<DType>().unwrap(), dtype);
            assert_eq!(with_element!(dtype, T => size_of::<T>()), dtype.size_bytes());
        }
    }
}
