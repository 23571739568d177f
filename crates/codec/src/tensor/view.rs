//! Tensors to and from `ndarray`: without a copy wherever the elements lie in standard order.

use bytes::Bytes;
use ndarray::{Array, ArrayD, ArrayViewD, Dimension, IxDyn};

use crate::tensor::{Element, Tensor, TensorError};

impl Tensor {
    /// Takes an array over. Its buffer becomes the tensor's when it is in standard (row-major) order and complete; a
    /// transposed or sliced array is copied once into that order.
    #[must_use]
    pub fn from_array<T: Element, D: Dimension>(array: Array<T, D>) -> Self {
        let shape = array.shape().to_vec();
        let len = array.len();
        let elements = match array.is_standard_layout() {
            true => match array.into_raw_vec_and_offset() {
                (elements, Some(0) | None) if elements.len() == len => elements,
                (elements, offset) => elements[offset.unwrap_or(0)..][..len].to_vec(),
            },
            false => array.iter().copied().collect(),
        };
        Self::from_parts(T::DTYPE, &shape, bytes_of(elements))
    }

    /// Takes elements over, in row-major order. Nothing is copied.
    ///
    /// # Errors
    ///
    /// When the shape has another number of elements, or more axes than [`MAX_RANK`](crate::MAX_RANK).
    pub fn from_vec<T: Element>(shape: &[usize], elements: Vec<T>) -> Result<Self, TensorError> {
        Self::try_new(T::DTYPE, shape, bytes_of(elements))
    }

    /// Looks at the elements as an array, without a copy.
    ///
    /// # Errors
    ///
    /// When `T` is not the tensor's element type.
    pub fn view<T: Element>(&self) -> Result<ArrayViewD<'_, T>, TensorError> {
        let view = ArrayViewD::from_shape(IxDyn(self.shape()), self.as_slice()?);
        Ok(view.expect("shape and length agree since construction"))
    }

    /// Looks at the elements in row-major order, without a copy.
    ///
    /// # Errors
    ///
    /// When `T` is not the tensor's element type.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        if T::DTYPE != self.dtype() {
            return Err(TensorError::WrongDType { requested: T::DTYPE, actual: self.dtype() });
        }
        if self.is_empty() {
            return Ok(&[]); // An empty buffer may lie anywhere, aligned or not.
        }
        Ok(bytemuck::checked::try_cast_slice(self.data()).expect("aligned, whole and valid since construction"))
    }

    /// Copies the elements into an array of their own.
    ///
    /// # Errors
    ///
    /// When `T` is not the tensor's element type.
    pub fn to_array<T: Element>(&self) -> Result<ArrayD<T>, TensorError> {
        Ok(self.view()?.to_owned())
    }
}

/// Elements that own the memory a `Bytes` points to: keeps the buffer of a `Vec<T>`, and with it the alignment of `T`.
struct Owner<T>(Vec<T>);

impl<T: Element> AsRef<[u8]> for Owner<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

pub(super) fn bytes_of<T: Element>(elements: Vec<T>) -> Bytes {
    Bytes::from_owner(Owner(elements))
}

/// A buffer of `len` zeroed bytes that is aligned for every dtype, filled by `fill`.
pub(crate) fn aligned_buffer(len: usize, fill: impl FnOnce(&mut [u8])) -> Bytes {
    let mut words = Words::zeroed(len);
    fill(words.bytes_mut());
    words.into_bytes()
}

/// Bytes that are aligned for every dtype.
#[derive(Debug)]
pub(crate) struct Words(Vec<u128>, usize);

impl Words {
    /// Zeroed memory of this size comes fresh from the system, so the zeroing costs no pass over it.
    pub(crate) fn zeroed(len: usize) -> Self {
        Self(vec![0_u128; len.div_ceil(size_of::<u128>())], len)
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.0)[..self.1]
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Words {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.0)[..self.1]
    }
}

/// The same bytes at an address that is a multiple of `alignment`; copied only when they are not there already.
pub(crate) fn aligned(data: Bytes, alignment: usize) -> Bytes {
    match data.as_ptr().addr().is_multiple_of(alignment) {
        true => data,
        false => aligned_buffer(data.len(), |buffer| buffer.copy_from_slice(&data)),
    }
}
