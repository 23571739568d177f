//! How much memory a value holds on to: what admission by bytes counts, and what decoding it took of its limits.

#[cfg(feature = "arrow")]
use crate::data_frame::COLUMN_BYTES;
use crate::value::{Map, Value};

impl Value {
    /// The bytes that this value keeps alive, its own size included. Shared buffers count in full for each holder, and
    /// the slack of allocations is left out, so it is an estimate that errs by a small factor, never by orders.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        size_of::<Self>() + self.heap_bytes()
    }

    /// What is left of `bytes` beside this; nothing where it is larger, which is known without a look at all of it.
    pub(crate) fn left_of(&self, bytes: usize) -> Option<usize> {
        let left = bytes.checked_sub(size_of::<Self>())?;
        match self {
            Self::List(items) | Self::Tuple(items) => items.iter().try_fold(left, |left, item| item.left_of(left)),
            Self::Map(map) => map
                .iter()
                .try_fold(left, |left, (key, value)| value.left_of(left.checked_sub(size_of::<String>() + key.len())?)),
            leaf => left.checked_sub(leaf.heap_bytes()),
        }
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

    /// The bytes that a clone of this takes: arrays, tables and byte strings are shared.
    pub(crate) fn copied_bytes(&self) -> usize {
        match self {
            Self::Str(text) => text.len(),
            Self::List(items) | Self::Tuple(items) => {
                size_of_val(items.as_slice()) + items.iter().map(Self::copied_bytes).sum::<usize>()
            }
            Self::Map(map) => {
                let entries = map.iter().map(|(key, value)| key.len() + value.copied_bytes());
                Map::room_bytes(map.len()) + entries.sum::<usize>()
            }
            _ => 0,
        }
    }

    /// What decoding this took of the limits for structure.
    pub(crate) fn structure(&self) -> Structure {
        let mut structure = Structure::default();
        structure.add(self);
        structure
    }
}

/// What a value is made of beside its leaves.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Structure {
    /// List items and map entries, over all levels.
    pub(crate) elements: usize,
    /// Memory of the nodes that hold them.
    pub(crate) bytes: usize,
    /// Bytes of arrays and tables, which may have come packed.
    pub(crate) unpacked: usize,
}

impl Structure {
    fn add(&mut self, value: &Value) {
        match value {
            Value::List(items) | Value::Tuple(items) => {
                self.elements += items.len();
                self.bytes += size_of_val(items.as_slice());
                items.iter().for_each(|item| self.add(item));
            }
            Value::Map(map) => {
                self.elements += map.len();
                self.bytes += map.len() * size_of::<(String, Value)>();
                map.iter().for_each(|(_, value)| self.add(value));
            }
            #[cfg(feature = "arrow")]
            Value::DataFrame(frame) => {
                self.bytes += frame.num_columns() * frame.batches().len().max(1) * COLUMN_BYTES;
                self.unpacked += value.heap_bytes();
            }
            #[cfg(feature = "arrow")]
            Value::Series(_) => self.unpacked += value.heap_bytes(),
            Value::Tensor(_) | Value::StrTensor(_) => self.unpacked += value.heap_bytes(),
            _ => {}
        }
    }
}
