//! A route's input or output as arrays by name, as in a model's signature: for edges whose protocol describes tensors
//! and not schemas.

use crate::value::tensor::DType;

/// Arrays by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorFields {
    /// In the order of the description.
    pub fields: Vec<TensorField>,
    /// Whether items are independent samples, so that a protocol may send many of them as one array with a new first
    /// axis.
    pub stackable: bool,
}

/// One array of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorField {
    /// The key in the item's map. A single array may also stand without a map around it.
    pub name: String,
    /// The element type; `None` for an array of texts.
    pub dtype: Option<DType>,
    /// The length of each axis, `None` for one of any length. `None` as a whole: any shape.
    pub shape: Option<Vec<Option<usize>>>,
    /// Whether an item without it is refused.
    pub is_required: bool,
}
