//! The protocol's element types and ours: one table of names.

use callboard_codec::DType;

/// An element type of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datatype {
    /// Elements of one size.
    Number(DType),
    /// Elements of any length: `BYTES`.
    Bytes,
}

/// Our type, the protocol's name, and the name in a model's configuration.
const TABLE: [(Datatype, &str, &str); 14] = [
    (Datatype::Number(DType::Bool), "BOOL", "TYPE_BOOL"),
    (Datatype::Number(DType::U8), "UINT8", "TYPE_UINT8"),
    (Datatype::Number(DType::U16), "UINT16", "TYPE_UINT16"),
    (Datatype::Number(DType::U32), "UINT32", "TYPE_UINT32"),
    (Datatype::Number(DType::U64), "UINT64", "TYPE_UINT64"),
    (Datatype::Number(DType::I8), "INT8", "TYPE_INT8"),
    (Datatype::Number(DType::I16), "INT16", "TYPE_INT16"),
    (Datatype::Number(DType::I32), "INT32", "TYPE_INT32"),
    (Datatype::Number(DType::I64), "INT64", "TYPE_INT64"),
    (Datatype::Number(DType::F16), "FP16", "TYPE_FP16"),
    (Datatype::Number(DType::BF16), "BF16", "TYPE_BF16"),
    (Datatype::Number(DType::F32), "FP32", "TYPE_FP32"),
    (Datatype::Number(DType::F64), "FP64", "TYPE_FP64"),
    (Datatype::Bytes, "BYTES", "TYPE_STRING"),
];

impl Datatype {
    /// The type of these elements. Complex numbers have none.
    pub(crate) fn from_dtype(dtype: DType) -> Option<Self> {
        TABLE.iter().map(|row| row.0).find(|datatype| *datatype == Self::Number(dtype))
    }

    /// The type of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The protocol's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    pub(crate) fn config_name(self) -> &'static str {
        self.row().2
    }

    /// The bytes of one element, if all have the same size.
    #[must_use]
    pub fn size_bytes(self) -> Option<usize> {
        match self {
            Self::Number(dtype) => Some(dtype.size_bytes()),
            Self::Bytes => None,
        }
    }

    fn row(self) -> &'static (Self, &'static str, &'static str) {
        // Only `from_dtype` and `parse` make one, from the table; so the row exists.
        TABLE.iter().find(|row| row.0 == self).unwrap_or(&TABLE[TABLE.len() - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_except_complex_ones_has_a_unique_name() {
        for dtype in DType::all() {
            match Datatype::from_dtype(dtype) {
                Some(datatype) => assert_eq!(Datatype::parse(datatype.name()), Some(datatype), "{dtype}"),
                None => assert!(dtype.is_complex(), "{dtype}"),
            }
        }
        assert_eq!(Datatype::parse("BYTES"), Some(Datatype::Bytes));
        assert_eq!(Datatype::parse("fp32"), None, "names are case-sensitive");
    }
}
