//! Arrays of texts: a shape and, for each element in row-major order, a piece of one UTF-8 buffer.
//!
//! It is not a [`Tensor`](crate::Tensor), because its elements have no fixed size and so no ndarray view. The buffer
//! starts with the ends of the texts, as little-endian `u64`; the texts follow without anything between them. All of it
//! is checked once, in [`StrTensor::try_new`].

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::account::{charge, release};
use crate::error::DecodeError;
use crate::matching::{JoinedItems, Matching};
use crate::value::Value;
use crate::value::tensor::{DType, Shape, TensorError, nested, size_of_shape};

/// An n-dimensional array of texts: NumPy's `<U…` and `StringDType`. Cloning shares.
///
/// ```
/// use callboard_codec::StrTensor;
///
/// let labels = StrTensor::from_texts(&[2, 2], ["zero", "one", "", "three"])?;
/// assert_eq!((labels.shape(), labels.get(3)), (&[2, 2][..], Some("three")));
/// # Ok::<(), callboard_codec::TensorError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct StrTensor(Arc<StrTensorParts>);

#[derive(PartialEq, Eq)]
struct StrTensorParts {
    shape: Shape,
    len: usize,
    data: Bytes,
}

/// Bytes of each text's end at the front of the buffer.
pub(crate) const END_BYTES: usize = 8;

impl StrTensor {
    /// Makes an array of texts in row-major order.
    ///
    /// # Errors
    ///
    /// When the shape has another number of elements, or more axes than [`MAX_RANK`](crate::MAX_RANK).
    pub fn from_texts<T: AsRef<str>>(shape: &[usize], texts: impl IntoIterator<Item = T>) -> Result<Self, TensorError> {
        let (mut ends, mut pieces, mut total) = (Vec::new(), Vec::new(), 0_u64);
        for text in texts {
            total += text.as_ref().len() as u64;
            ends.extend_from_slice(&total.to_le_bytes());
            pieces.extend_from_slice(text.as_ref().as_bytes());
        }
        ends.extend_from_slice(&pieces);
        Self::try_new(shape, ends.into())
    }

    /// Makes an array from its buffer: the ends of the texts as little-endian `u64`, then the texts. Nothing is copied.
    ///
    /// # Errors
    ///
    /// When the shape has another number of elements than there are ends, when an end is smaller than the previous end
    /// or inside a character, when the last end is not the end of the buffer, or when the texts are not UTF-8.
    pub fn try_new(shape: &[usize], data: Bytes) -> Result<Self, TensorError> {
        let table = size_of_shape(DType::U64, shape)?;
        let len = table / END_BYTES;
        let actual = data.len();
        let wrong = || TensorError::WrongLength { dtype: DType::U64, shape: shape.to_vec(), needed: table, actual };
        let (ends, texts) = data.split_at_checked(table).ok_or_else(wrong)?;
        let texts = std::str::from_utf8(texts)
            .map_err(|error| TensorError::NotText { index: index_of(ends, error.valid_up_to()) })?;
        let mut start = 0;
        for (index, end) in ends_of(ends).enumerate() {
            if end < start || !texts.is_char_boundary(end) {
                return Err(TensorError::NotText { index });
            }
            start = end;
        }
        if start == texts.len() {
            Ok(Self(Arc::new(StrTensorParts { shape: Shape::from_slice(shape), len, data })))
        } else {
            Err(TensorError::NotText { index: len })
        }
    }

    /// Makes an array of texts from a value: such an array, a text, or nested lists of texts.
    ///
    /// # Errors
    ///
    /// A mismatch that names the element or row at fault.
    pub fn from_value(value: &Value) -> Result<Self, DecodeError> {
        if let Value::StrTensor(tensor) = value {
            return Ok(tensor.clone());
        }
        let (shape, texts) = nested::texts(value)?;
        let made = Self::from_slices(&shape, &texts);
        release(texts.capacity() * size_of::<&str>());
        drop(texts);
        made
    }

    /// As [`from_texts`](Self::from_texts), with one charged allocation.
    fn from_slices(shape: &[usize], texts: &[&str]) -> Result<Self, DecodeError> {
        let len = texts.len() * END_BYTES + texts.iter().map(|text| text.len()).sum::<usize>();
        charge(len)?;
        let mut data = Vec::with_capacity(len);
        let mut end = 0_u64;
        for text in texts {
            end += text.len() as u64;
            data.extend_from_slice(&end.to_le_bytes());
        }
        texts.iter().for_each(|text| data.extend_from_slice(text.as_bytes()));
        Self::try_new(shape, data.into()).map_err(|error| DecodeError::mismatch(error.to_string()))
    }

    /// The length of each axis.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// The number of texts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether an axis has length 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer: ends, then texts.
    #[must_use]
    pub fn data(&self) -> &Bytes {
        &self.0.data
    }

    /// The text at an index, in row-major order.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&str> {
        (index < self.len()).then(|| {
            let end = |index: usize| end_at(&self.0.data[index * END_BYTES..]);
            self.piece(if index == 0 { 0 } else { end(index - 1) }, end(index))
        })
    }

    /// The texts in row-major order.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index).expect("an index below the length"))
    }

    /// Stacks n arrays of one shape into one with a new first axis of length n.
    ///
    /// # Errors
    ///
    /// [`TensorError::ShapeMismatch`] names the first item whose shape differs; [`TensorError::NothingToJoin`] when
    /// there are none.
    pub fn stack(items: &[&Self]) -> Result<Self, TensorError> {
        let first = *items.first().ok_or(TensorError::NothingToJoin)?;
        if let Some((index, item)) = items.iter().enumerate().find(|(_, item)| item.shape() != first.shape()) {
            return Err(shape_mismatch(index, first, item));
        }
        let shape: Shape = std::iter::once(items.len()).chain(first.shape().iter().copied()).collect();
        Self::from_texts(&shape, items.iter().flat_map(|item| item.iter()))
    }

    /// As [`stack`](Self::stack), for the items whose shape most items have. Each other item is refused by itself.
    ///
    /// # Errors
    ///
    /// [`TensorError::NothingToJoin`] when there are no items.
    pub fn stack_matching(items: &[&Self]) -> Result<JoinedItems<Self, TensorError>, TensorError> {
        let same = |a: &Self, b: &Self| a.shape() == b.shape();
        let matching = Matching::new(items, same).ok_or(TensorError::NothingToJoin)?;
        let outcomes = matching.outcomes(|index| shape_mismatch(index, matching.model, items[index]));
        Ok(JoinedItems { whole: Self::stack(&matching.chosen)?, items: outcomes })
    }

    /// Splits along the first axis: n arrays without it. The inverse of [`stack`](Self::stack).
    ///
    /// # Errors
    ///
    /// [`TensorError::NoFirstAxis`] for an array without axes.
    pub fn split(&self) -> Result<Vec<Self>, TensorError> {
        let (rows, row_shape) = self.shape().split_first().ok_or(TensorError::NoFirstAxis)?;
        let row = self.len().checked_div(*rows).unwrap_or(0);
        let texts = |index: usize| (index * row..(index + 1) * row).filter_map(|index| self.get(index));
        (0..*rows).map(|index| Self::from_texts(row_shape, texts(index))).collect()
    }

    fn piece(&self, start: usize, end: usize) -> &str {
        let texts = &self.0.data[self.0.len * END_BYTES..];
        std::str::from_utf8(&texts[start..end]).expect("whole characters since construction")
    }
}

fn shape_mismatch(index: usize, model: &StrTensor, item: &StrTensor) -> TensorError {
    TensorError::ShapeMismatch { index, shape: model.shape().to_vec(), actual_shape: item.shape().to_vec() }
}

fn end_at(bytes: &[u8]) -> usize {
    let end = bytes.first_chunk().map_or(u64::MAX, |end| u64::from_le_bytes(*end));
    usize::try_from(end).unwrap_or(usize::MAX)
}

fn ends_of(table: &[u8]) -> impl Iterator<Item = usize> {
    table.chunks_exact(END_BYTES).map(end_at)
}

/// The text in which a byte of the texts lies.
fn index_of(table: &[u8], at: usize) -> usize {
    ends_of(table).position(|end| at < end).unwrap_or(table.len() / END_BYTES)
}

/// Prints the shape; the texts may be millions.
impl fmt::Debug for StrTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StrTensor({:?})", self.shape())
    }
}
