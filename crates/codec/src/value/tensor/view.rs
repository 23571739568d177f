//! Tensors to and from `ndarray`: without a copy wherever the elements lie in standard order.

use bytes::Bytes;
use ndarray::{Array, ArrayD, ArrayView, ArrayViewD, Dimension, IxDyn};

use crate::account::{ChargeError, charge};
use crate::value::tensor::{Element, Tensor, TensorError};

impl Tensor {
    /// Takes ownership of an array. A complete array in standard (row-major) order keeps its buffer; a transposed or
    /// sliced array is copied once into that order.
    #[must_use]
    pub fn from_array<T: Element, D: Dimension>(array: Array<T, D>) -> Self {
        let shape = array.shape().to_vec();
        let len = array.len();
        let elements = if array.is_standard_layout() {
            match array.into_raw_vec_and_offset() {
                (elements, Some(0) | None) if elements.len() == len => elements,
                (elements, offset) => elements[offset.unwrap_or(0)..][..len].to_vec(),
            }
        } else {
            array.iter().copied().collect()
        };
        Self::from_parts(T::DTYPE, &shape, bytes_of(elements))
    }

    /// Copies a view once into row-major order: a slice, a transposed array, a shared array.
    #[must_use]
    pub fn from_view<T: Element, D: Dimension>(view: ArrayView<'_, T, D>) -> Self {
        let shape = view.shape().to_vec();
        Self::from_parts(T::DTYPE, &shape, bytes_of(view.iter().copied().collect()))
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

    /// Copies the elements into a new array.
    ///
    /// # Errors
    ///
    /// When `T` is not the tensor's element type.
    pub fn to_array<T: Element>(&self) -> Result<ArrayD<T>, TensorError> {
        Ok(self.view()?.to_owned())
    }
}

/// Elements that own the memory a `Bytes` points to: keeps the buffer of a `Vec<T>`, and with it the alignment of `T`.
struct ElementBytes<T>(Vec<T>);

impl<T: Element> AsRef<[u8]> for ElementBytes<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

pub(super) fn bytes_of<T: Element>(elements: Vec<T>) -> Bytes {
    Bytes::from_owner(ElementBytes(elements))
}

/// The alignment that suits every dtype.
pub(crate) const ALIGNMENT: usize = 16;

/// A buffer that joins pieces and is aligned for every dtype, so that the arrays of a body in pieces are used in place.
/// The buffer is not zeroed first, which would cost a pass over it.
///
/// ```
/// use callboard_codec::{AlignedBuffer, DType, Tensor};
///
/// let mut buffer = AlignedBuffer::with_capacity(8);
/// buffer.push(&[0, 0, 128]);
/// buffer.push(&[63, 0, 0, 0, 64]);
/// let bytes = buffer.into_bytes();
/// let tensor = Tensor::try_new(DType::F32, &[2], bytes.clone())?;
/// assert_eq!(tensor.as_slice::<f32>()?, [1.0, 2.0]);
/// assert_eq!(tensor.data().as_ptr(), bytes.as_ptr()); // not copied
/// # Ok::<(), callboard_codec::TensorError>(())
/// ```
#[derive(Debug)]
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    /// Bytes before the first aligned one.
    skip: usize,
}

impl AlignedBuffer {
    /// Room for `len` bytes.
    #[must_use]
    pub fn with_capacity(len: usize) -> Self {
        Self::with_capacity_aligned_at(len, 0)
    }

    /// Room for `len` bytes. The byte at `place` is aligned: the first array may start there, after a head of any
    /// length.
    #[must_use]
    pub fn with_capacity_aligned_at(len: usize, place: usize) -> Self {
        let mut bytes: Vec<u8> = Vec::with_capacity(len + ALIGNMENT - 1);
        let skip = bytes.as_ptr().addr().wrapping_add(place).wrapping_neg() % ALIGNMENT;
        bytes.resize(skip, 0);
        Self { bytes, skip }
    }

    /// Appends a piece. The pieces should fit the room: a buffer that grows may lose its alignment, and its arrays are
    /// then copied once more.
    pub fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
    }

    /// The bytes, shared from here on.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        Bytes::from(self.bytes).slice(self.skip..)
    }
}

/// Zeroed bytes, aligned for every dtype, for a writer that fills them in any order.
#[derive(Debug)]
pub(crate) struct AlignedZeros(Vec<u128>, usize);

impl AlignedZeros {
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

impl AsRef<[u8]> for AlignedZeros {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.0)[..self.1]
    }
}

/// The same bytes at a multiple of `alignment`, at most [`ALIGNMENT`]. Aligned bytes are not copied.
pub(crate) fn aligned(data: Bytes, alignment: usize) -> Bytes {
    if data.as_ptr().addr().is_multiple_of(alignment) { data } else { gathered(&[&data]) }
}

/// Charges the copy that [`aligned`] will make, if any.
pub(crate) fn charge_aligned(data: &[u8], alignment: usize) -> Result<(), ChargeError> {
    if data.as_ptr().addr().is_multiple_of(alignment) { Ok(()) } else { charge(data.len() + COPY_BYTES) }
}

/// Overhead of a copy: room for the alignment, and the reference count.
const COPY_BYTES: usize = 64;

/// Joins pieces into one buffer, aligned for every dtype.
pub(crate) fn gathered(pieces: &[&[u8]]) -> Bytes {
    let mut buffer = AlignedBuffer::with_capacity(pieces.iter().map(|piece| piece.len()).sum());
    pieces.iter().for_each(|piece| buffer.push(piece));
    buffer.into_bytes()
}
