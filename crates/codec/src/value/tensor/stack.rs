//! Joins tensors along the first axis and splits them again, for the batcher.
//!
//! Joining copies each item once, into one aligned buffer. Taking apart copies nothing: each part is a slice that
//! shares the buffer. If an item does not match, `stack` and `concat` fail and name it; `stack_matching` and
//! `concat_matching` join the other items.

use crate::matching::{JoinedItems, Matching};
use crate::value::tensor::{Shape, Tensor, TensorError, size_of_shape, view};

impl Tensor {
    /// Stacks n tensors of one dtype and shape into one with a new first axis of length n.
    ///
    /// ```
    /// use callboard_codec::Tensor;
    /// use ndarray::array;
    ///
    /// let (a, b) = (Tensor::from_array(array![1_i64, 2]), Tensor::from_array(array![3_i64, 4]));
    /// let batch = Tensor::stack(&[&a, &b])?;
    /// assert_eq!(batch, Tensor::from_array(array![[1_i64, 2], [3, 4]]));
    /// assert_eq!(batch.split()?, [a, b]);
    /// # Ok::<(), callboard_codec::TensorError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TensorError::Mismatch`] names the first item whose dtype or shape differs; [`TensorError::NothingToJoin`] when
    /// there are none.
    pub fn stack(items: &[&Self]) -> Result<Self, TensorError> {
        let first = *items.first().ok_or(TensorError::NothingToJoin)?;
        check(items, |item| item.shape() == first.shape())?;
        let shape: Shape = std::iter::once(items.len()).chain(first.shape().iter().copied()).collect();
        join(items, &shape)
    }

    /// As [`stack`](Self::stack), for the items whose dtype and shape most items have. Each other item is refused by
    /// itself.
    ///
    /// ```
    /// use callboard_codec::Tensor;
    /// use ndarray::array;
    ///
    /// let (a, odd, b) = (array![1_i64, 2], array![3_i64], array![4_i64, 5]);
    /// let items = [a, odd, b].map(Tensor::from_array);
    /// let joined = Tensor::stack_matching(&items.each_ref())?;
    /// assert_eq!(joined.whole, Tensor::from_array(array![[1_i64, 2], [4, 5]]));
    /// assert_eq!((&joined.items[0], &joined.items[2]), (&Ok(0), &Ok(1)));
    /// let refused = joined.items[1].as_ref().unwrap_err();
    /// assert_eq!(refused.to_string(), "item 1 is i64 of shape [1], others are i64 of shape [2]");
    /// # Ok::<(), callboard_codec::TensorError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TensorError::NothingToJoin`] when there are no items.
    pub fn stack_matching(items: &[&Self]) -> Result<JoinedItems<Self, TensorError>, TensorError> {
        let same = |a: &Self, b: &Self| a.dtype() == b.dtype() && a.shape() == b.shape();
        let matching = Matching::new(items, same).ok_or(TensorError::NothingToJoin)?;
        let outcomes = matching.outcomes(|index| mismatch(index, matching.model, items[index]));
        Ok(JoinedItems { whole: Self::stack(&matching.chosen)?, items: outcomes })
    }

    /// As [`concat`](Self::concat), for the items that match most others. Each other item is refused by itself.
    ///
    /// # Errors
    ///
    /// [`TensorError::NothingToJoin`] when there are no items, [`TensorError::NoFirstAxis`] when most have no axes.
    pub fn concat_matching(items: &[&Self]) -> Result<JoinedItems<Self, TensorError>, TensorError> {
        let same = |a: &Self, b: &Self| a.dtype() == b.dtype() && a.shape().get(1..) == b.shape().get(1..);
        let matching = Matching::new(items, same).ok_or(TensorError::NothingToJoin)?;
        let outcomes = matching.outcomes(|index| mismatch(index, matching.model, items[index]));
        Ok(JoinedItems { whole: Self::concat(&matching.chosen)?, items: outcomes })
    }

    /// Splits along the first axis: n tensors without it. The inverse of [`stack`](Self::stack).
    ///
    /// # Errors
    ///
    /// [`TensorError::NoFirstAxis`] for a tensor without axes.
    pub fn split(&self) -> Result<Vec<Self>, TensorError> {
        Ok(self.rows()?.collect())
    }

    /// The same as an iterator: each row is an allocation, which may be larger than its elements.
    pub(crate) fn rows(&self) -> Result<impl ExactSizeIterator<Item = Self> + '_, TensorError> {
        let (rows, row_shape) = self.shape().split_first().ok_or(TensorError::NoFirstAxis)?;
        let row_bytes = size_of_shape(self.dtype(), row_shape)?;
        let row = move |index| self.data().slice(index * row_bytes..(index + 1) * row_bytes);
        Ok((0..*rows).map(move |index| Self::from_parts(self.dtype(), row_shape, row(index))))
    }

    /// Joins tensors along their first axis; the other axes must agree.
    ///
    /// # Errors
    ///
    /// As [`stack`](Self::stack), and [`TensorError::NoFirstAxis`] when the first has no axes.
    pub fn concat(items: &[&Self]) -> Result<Self, TensorError> {
        let first = *items.first().ok_or(TensorError::NothingToJoin)?;
        let (_, row_shape) = first.shape().split_first().ok_or(TensorError::NoFirstAxis)?;
        check(items, |item| item.shape().get(1..) == Some(row_shape) && !item.shape().is_empty())?;
        let rows = items.iter().map(|item| item.shape()[0]).sum();
        let shape: Shape = std::iter::once(rows).chain(row_shape.iter().copied()).collect();
        join(items, &shape)
    }

    /// Cuts the first axis into parts of the given lengths. The inverse of [`concat`](Self::concat).
    ///
    /// # Errors
    ///
    /// [`TensorError::WrongParts`] when the lengths do not add up to the axis, [`TensorError::NoFirstAxis`] without
    /// axes.
    pub fn split_rows(&self, rows: &[usize]) -> Result<Vec<Self>, TensorError> {
        let (actual, row_shape) = self.shape().split_first().ok_or(TensorError::NoFirstAxis)?;
        let requested = rows.iter().fold(0_usize, |sum, rows| sum.saturating_add(*rows));
        if requested != *actual {
            return Err(TensorError::WrongParts { requested, actual: *actual });
        }
        let row_bytes = size_of_shape(self.dtype(), row_shape)?;
        let mut start = 0;
        let part = |rows: &usize| {
            let end = start + rows * row_bytes;
            let data = self.data().slice(start..end);
            start = end;
            let shape: Shape = std::iter::once(*rows).chain(row_shape.iter().copied()).collect();
            Self::from_parts(self.dtype(), &shape, data)
        };
        Ok(rows.iter().map(part).collect())
    }
}

fn check(items: &[&Tensor], fits: impl Fn(&Tensor) -> bool) -> Result<(), TensorError> {
    let first = items[0];
    let bad = items.iter().enumerate().find(|(_, item)| item.dtype() != first.dtype() || !fits(item));
    match bad {
        None => Ok(()),
        Some((index, item)) => Err(mismatch(index, first, item)),
    }
}

fn mismatch(index: usize, model: &Tensor, item: &Tensor) -> TensorError {
    TensorError::Mismatch {
        index,
        dtype: model.dtype(),
        shape: model.shape().to_vec(),
        actual_dtype: item.dtype(),
        actual_shape: item.shape().to_vec(),
    }
}

/// One copy per item; a single item keeps its buffer.
fn join(items: &[&Tensor], shape: &[usize]) -> Result<Tensor, TensorError> {
    let dtype = items[0].dtype();
    size_of_shape(dtype, shape)?;
    let data = match items {
        [only] => only.data().clone(),
        _ => view::gathered(&items.iter().map(|item| &item.data()[..]).collect::<Vec<_>>()),
    };
    Ok(Tensor::from_parts(dtype, shape, data))
}
