//! Arrays of numbers: a dtype, a shape, and contiguous little-endian bytes in row-major order.
//!
//! A tensor is valid if its shape and dtype account for every byte, each bool is 0 or 1, and the bytes are aligned for
//! the dtype. [`Tensor::try_new`] checks that once, so that a view never copies and fails only for a wrong type.

mod dtype;
mod element;
pub(crate) mod nested;
mod pad;
mod stack;
mod strings;
pub(crate) mod view;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

pub use dtype::DType;
pub(crate) use dtype::with_element;
pub use element::Element;
pub(crate) use strings::END_BYTES;
pub use strings::StrTensor;
pub use view::AlignedBuffer;

#[cfg(target_endian = "big")]
compile_error!("tensors are little-endian in memory and on the wire; a big-endian host would need a swap at each view");

/// The most axes of a tensor. No known model uses more.
pub const MAX_RANK: usize = 32;

/// An n-dimensional array whose dtype is known at run time. Cloning shares; the bytes are never copied for it.
///
/// ```
/// use callboard_codec::{DType, Tensor};
/// use ndarray::array;
///
/// let tensor = Tensor::from_array(array![[1.0_f32, 2.0], [3.0, 4.0]]);
/// assert_eq!((tensor.dtype(), tensor.shape()), (DType::F32, &[2, 2][..]));
///
/// let view = tensor.view::<f32>()?; // no copy
/// assert_eq!(view[[1, 0]], 3.0);
/// assert_eq!(tensor.view::<f64>().unwrap_err().to_string(), "the tensor is of f32, not of f64");
/// # Ok::<(), callboard_codec::TensorError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor(Arc<TensorParts>);

#[derive(PartialEq, Eq)]
struct TensorParts {
    dtype: DType,
    shape: Shape,
    data: Bytes,
}

type Shape = SmallVec<[usize; 4]>;

/// The reason why bytes, a shape and a dtype do not make the requested tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The shape needs another number of bytes. Remedy: check dtype and shape at the sender.
    #[error("shape {shape:?} of {dtype} needs {needed} bytes, not {actual}")]
    WrongLength {
        /// The element type that was given.
        dtype: DType,
        /// The shape that was given.
        shape: Vec<usize>,
        /// The number of bytes that these two need.
        needed: usize,
        /// The number of given bytes.
        actual: usize,
    },
    /// The product of the axes does not fit a machine word.
    #[error("shape {shape:?} of {dtype} is larger than memory")]
    TooLarge {
        /// The element type that was given.
        dtype: DType,
        /// The shape that was given.
        shape: Vec<usize>,
    },
    /// More axes than [`MAX_RANK`].
    #[error("{rank} axes are more than {MAX_RANK}")]
    TooManyAxes {
        /// The number of given axes.
        rank: usize,
    },
    /// A bool whose byte is neither 0 nor 1.
    #[error("element {index} of a bool tensor is neither 0 nor 1")]
    NotABool {
        /// The first such element, in row-major order.
        index: usize,
    },
    /// A view or conversion requested another element type than the tensor has.
    #[error("the tensor is of {actual}, not of {requested}")]
    WrongDType {
        /// The requested type.
        requested: DType,
        /// The type of the tensor.
        actual: DType,
    },
    /// An unknown name of a dtype.
    #[error("unknown dtype {name:?}")]
    UnknownDType {
        /// The name, shortened.
        name: String,
    },
    /// One of the tensors to be joined does not match the others (the first, or most of them). The others are not at
    /// fault.
    #[error("item {index} is {actual_dtype} of shape {actual_shape:?}, others are {dtype} of shape {shape:?}")]
    Mismatch {
        /// The index of that tensor.
        index: usize,
        /// The dtype of the others.
        dtype: DType,
        /// The shape of the others; only the axes after the first count when concatenating.
        shape: Vec<usize>,
        /// The dtype of this tensor.
        actual_dtype: DType,
        /// The shape of this tensor.
        actual_shape: Vec<usize>,
    },
    /// One of the arrays of texts to be joined has another shape than the others. The others are not at fault.
    #[error("item {index} is of shape {actual_shape:?}, others are of shape {shape:?}")]
    ShapeMismatch {
        /// The index of that array.
        index: usize,
        /// The shape of the others.
        shape: Vec<usize>,
        /// The shape of this array.
        actual_shape: Vec<usize>,
    },
    /// A wrong buffer of an array of texts: an end out of order or inside a character, or bytes that are not UTF-8.
    #[error("element {index} of an array of texts is not a string")]
    NotText {
        /// The first such element, in row-major order; the number of elements when bytes follow the last one.
        index: usize,
    },
    /// A tensor to be padded to this shape, or a part of it to be cropped, is longer or has another number of axes.
    #[error("shape {actual_shape:?} does not fit {shape:?}")]
    DoesNotFit {
        /// The outer shape.
        shape: Vec<usize>,
        /// The inner shape.
        actual_shape: Vec<usize>,
    },
    /// Nothing to join: the dtype and shape of the result would be unknown.
    #[error("no tensors to join")]
    NothingToJoin,
    /// A tensor without axes cannot be taken apart along its first one.
    #[error("a tensor without axes has no first axis")]
    NoFirstAxis,
    /// The requested parts do not add up to the first axis.
    #[error("parts of {requested} rows together, from a tensor of {actual} rows")]
    WrongParts {
        /// Sum of the requested lengths.
        requested: usize,
        /// Length of the first axis.
        actual: usize,
    },
}

impl Tensor {
    /// Makes a tensor of raw bytes: little-endian elements in row-major order.
    ///
    /// The bytes are kept as they are when they lie aligned for `dtype`, and copied once into an aligned buffer
    /// otherwise.
    ///
    /// # Errors
    ///
    /// When shape and dtype do not account for exactly `data`, when there are more axes than [`MAX_RANK`], or when a
    /// byte of a bool tensor is neither 0 nor 1.
    pub fn try_new(dtype: DType, shape: &[usize], data: Bytes) -> Result<Self, TensorError> {
        Self::check(dtype, shape, &data)?;
        Ok(Self::from_parts(dtype, shape, view::aligned(data, dtype.size_bytes())))
    }

    /// Whether these are the parts of a tensor.
    pub(crate) fn check(dtype: DType, shape: &[usize], data: &[u8]) -> Result<(), TensorError> {
        let needed = size_of_shape(dtype, shape)?;
        if needed != data.len() {
            return Err(TensorError::WrongLength { dtype, shape: shape.to_vec(), needed, actual: data.len() });
        }
        if dtype == DType::Bool
            && let Some(index) = data.iter().position(|byte| *byte > 1)
        {
            return Err(TensorError::NotABool { index });
        }
        Ok(())
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// The length of each axis; empty for a tensor of one number without axes.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// The elements as bytes, aligned for the dtype.
    #[must_use]
    pub fn data(&self) -> &Bytes {
        &self.0.data
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.data.len() / self.0.dtype.size_bytes()
    }

    /// Whether an axis has length 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.data.is_empty()
    }

    /// The same elements under another shape. Nothing is copied.
    ///
    /// # Errors
    ///
    /// When the new shape has another number of elements.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self, TensorError> {
        Self::try_new(self.dtype(), shape, self.data().clone())
    }

    /// For parts that the caller has checked as `try_new` does.
    fn from_parts(dtype: DType, shape: &[usize], data: Bytes) -> Self {
        Self(Arc::new(TensorParts { dtype, shape: Shape::from_slice(shape), data }))
    }
}

/// Prints dtype and shape; the elements may be millions.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}, {:?})", self.dtype(), self.shape())
    }
}

/// The bytes that `shape` needs. Every multiplication is checked: the axes may come from outside.
pub(crate) fn size_of_shape(dtype: DType, shape: &[usize]) -> Result<usize, TensorError> {
    if shape.len() > MAX_RANK {
        return Err(TensorError::TooManyAxes { rank: shape.len() });
    }
    let product = |axes: &[usize], unit: usize| {
        axes.iter().filter(|axis| **axis > 0).try_fold(unit, |size, axis| size.checked_mul(*axis))
    };
    let too_large = || TensorError::TooLarge { dtype, shape: shape.to_vec() };
    // An empty axis makes the product 0, but must not hide that the others overflow: a later reshape or stack would
    // trust them.
    let size =
        product(shape, dtype.size_bytes()).filter(|size| isize::try_from(*size).is_ok()).ok_or_else(too_large)?;
    match shape.iter().position(|axis| *axis == 0) {
        None => Ok(size),
        Some(empty) if lists_before(&shape[..empty]) <= MAX_EMPTY_LISTS => Ok(0),
        Some(_) => Err(too_large()),
    }
}

/// The number of nested lists in an array whose next axis is empty: on each level the product of the axes before it.
fn lists_before(axes: &[usize]) -> usize {
    let level = |(all, level): (usize, usize), axis: &usize| {
        let level = level.saturating_mul(*axis);
        (all.saturating_add(level), level)
    };
    axes.iter().fold((0, 1), level).0
}

/// Empty lists cost no input but take time to visit or write: `[10¹², 0]` would keep `split` busy for hours, and
/// `[2²⁰, 1, 1, 1, 0]` is 10 MB of brackets.
const MAX_EMPTY_LISTS: usize = 1 << 20;

#[cfg(test)]
mod tests;
