//! The memory of a value, for admission by bytes, and the share of the limits that its decoding used.

use crate::limits::DecodeLimits;
#[cfg(feature = "arrow")]
use crate::value::data_frame::COLUMN_BYTES;
use crate::value::{Map, Value};

impl Value {
    /// The bytes that this value keeps alive, its own size included. Shared buffers count in full for each holder, and
    /// the slack of allocations is left out, so it is an estimate that errs by a small factor, never by orders.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        size_of::<Self>() + self.heap_bytes()
    }

    /// `bytes` minus the size of this value; `None` if the value is larger. The walk stops as soon as that is known.
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

    /// The bytes that a clone takes. Arrays, tables and byte strings are shared.
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

    /// The share of the limits for structure that the decoding of this value used.
    pub(crate) fn structure(&self) -> Structure {
        let mut structure = Structure::default();
        structure.add(self);
        structure
    }
}

impl DecodeLimits {
    /// The limits for the remaining parts of an input after `value` was decoded from one part. A form, for example, is
    /// one input with several parts. Elements, structure and unpacked bytes are counted; the other limits hold for each
    /// part.
    ///
    /// ```
    /// use callboard_codec::{DecodeLimits, Format, Value};
    ///
    /// let limits = DecodeLimits { max_elements: 5, ..DecodeLimits::default() };
    /// let first = Value::decode(Format::Json, &"[1, [2, 3]]".into(), &limits)?;
    /// assert_eq!(limits.left_after(&first).max_elements, 1);
    /// # Ok::<(), callboard_codec::DecodeError>(())
    /// ```
    #[must_use]
    pub fn left_after(&self, value: &Value) -> Self {
        let Structure { elements, bytes, unpacked } = value.structure();
        Self {
            max_elements: self.max_elements.saturating_sub(elements),
            max_tree_bytes: self.max_tree_bytes.saturating_sub(bytes),
            max_decompressed_bytes: self.max_decompressed_bytes.saturating_sub(unpacked),
            ..self.clone()
        }
    }
}

/// The structure of a value, without its leaves.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Structure {
    /// List items and map entries, over all levels.
    pub(crate) elements: usize,
    /// Memory of the nodes that hold them.
    pub(crate) bytes: usize,
    /// Bytes of arrays and tables, which may have been compressed.
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
