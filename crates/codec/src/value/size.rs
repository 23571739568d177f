//! How much memory a value holds on to: what admission by bytes counts.

use crate::value::Value;

impl Value {
    /// The bytes that this value keeps alive, its own size included. Shared buffers count in full for each holder, and the
    /// slack of allocations is left out, so it is an estimate that errs by a small factor, never by orders.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        size_of::<Self>() + self.heap_bytes()
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Self::Null | Self::Bool(_) | Self::Int(_) | Self::UInt(_) | Self::Float(_) | Self::Scalar(_) => 0,
            Self::Str(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::List(items) | Self::Tuple(items) => items.iter().map(Self::resident_bytes).sum(),
            Self::Map(map) => {
                map.iter().map(|(key, value)| size_of::<String>() + key.len() + value.resident_bytes()).sum()
            }
            Self::Tensor(tensor) => tensor.data().len() + size_of_val(tensor.shape()),
            Self::StrTensor(tensor) => tensor.data().len() + size_of_val(tensor.shape()),
            #[cfg(feature = "arrow")]
            Self::DataFrame(frame) => frame.resident_bytes(),
            #[cfg(feature = "arrow")]
            Self::Series(series) => series.resident_bytes(),
        }
    }
}
