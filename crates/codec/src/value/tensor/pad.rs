//! Tensors of different lengths in one buffer: padding, and cropping back.

use crate::value::tensor::{AlignedBuffer, Tensor, TensorError, size_of_shape};

impl Tensor {
    /// A tensor whose elements all equal the one of `element`.
    ///
    /// # Errors
    ///
    /// [`TensorError::DoesNotFit`] when `element` has another number of elements than one.
    pub fn filled(shape: &[usize], element: &Self) -> Result<Self, TensorError> {
        check_one(element)?;
        let bytes = size_of_shape(element.dtype(), shape)?;
        let mut buffer = AlignedBuffer::with_capacity(bytes);
        push_repeated(&mut buffer, element.data(), bytes);
        Ok(Self::from_parts(element.dtype(), shape, buffer.into_bytes()))
    }

    /// Stacks n tensors of one dtype into one with a new first axis of length n. Each is first extended to `shape`, at
    /// the end of its axes, with copies of the one element of `fill`. Each is copied once.
    ///
    /// ```
    /// use callboard_codec::Tensor;
    /// use ndarray::{array, arr0};
    ///
    /// let (a, b) = (Tensor::from_array(array![1_i64, 2, 3]), Tensor::from_array(array![4_i64]));
    /// let batch = Tensor::stack_padded(&[&a, &b], &[4], &Tensor::from_array(arr0(0_i64)))?;
    /// assert_eq!(batch, Tensor::from_array(array![[1_i64, 2, 3, 0], [4, 0, 0, 0]]));
    /// let rows = batch.split()?;
    /// assert_eq!((rows[0].cropped(&[3])?, rows[1].cropped(&[1])?), (a, b));
    /// # Ok::<(), callboard_codec::TensorError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TensorError::Mismatch`] names the first item of another dtype than `fill`, [`TensorError::DoesNotFit`] an item
    /// that is longer than `shape` or has another number of axes; [`TensorError::NothingToJoin`] when there are none.
    pub fn stack_padded(items: &[&Self], shape: &[usize], fill: &Self) -> Result<Self, TensorError> {
        check_one(fill)?;
        if items.is_empty() {
            return Err(TensorError::NothingToJoin);
        }
        for (index, item) in items.iter().enumerate() {
            if item.dtype() != fill.dtype() {
                return Err(TensorError::Mismatch {
                    index,
                    dtype: fill.dtype(),
                    shape: shape.to_vec(),
                    actual_dtype: item.dtype(),
                    actual_shape: item.shape().to_vec(),
                });
            }
            check_within(item.shape(), shape)?;
        }
        if items.iter().all(|item| item.shape() == shape) {
            return Self::stack(items);
        }
        let whole: Vec<usize> = [items.len()].iter().chain(shape).copied().collect();
        let mut buffer = AlignedBuffer::with_capacity(size_of_shape(fill.dtype(), &whole)?);
        items.iter().for_each(|item| push_padded(&mut buffer, item.data(), item.shape(), shape, fill.data()));
        Ok(Self::from_parts(fill.dtype(), &whole, buffer.into_bytes()))
    }

    /// The beginning of each axis, up to the lengths of `shape`. Copies nothing if the first axis alone is cropped.
    ///
    /// # Errors
    ///
    /// [`TensorError::DoesNotFit`] when `shape` is longer than the tensor or has another number of axes.
    pub fn cropped(&self, shape: &[usize]) -> Result<Self, TensorError> {
        check_within(shape, self.shape())?;
        let bytes = size_of_shape(self.dtype(), shape)?;
        let data = match (self.shape(), shape) {
            (from, to) if from.get(1..) == to.get(1..) => self.data().slice(..bytes),
            (from, to) => {
                let mut buffer = AlignedBuffer::with_capacity(bytes);
                push_cropped(&mut buffer, self.data(), from, to);
                buffer.into_bytes()
            }
        };
        Ok(Self::from_parts(self.dtype(), shape, data))
    }
}

fn check_one(element: &Tensor) -> Result<(), TensorError> {
    if element.len() == 1 {
        Ok(())
    } else {
        Err(TensorError::DoesNotFit { shape: Vec::new(), actual_shape: element.shape().to_vec() })
    }
}

fn check_within(inner: &[usize], outer: &[usize]) -> Result<(), TensorError> {
    if inner.len() == outer.len() && inner.iter().zip(outer).all(|(inner, outer)| inner <= outer) {
        Ok(())
    } else {
        Err(TensorError::DoesNotFit { shape: outer.to_vec(), actual_shape: inner.to_vec() })
    }
}

/// Appends `data` of shape `from`, extended to `to`. The rank bounds the recursion.
fn push_padded(buffer: &mut AlignedBuffer, data: &[u8], from: &[usize], to: &[usize], fill: &[u8]) {
    let ([length, from @ ..], [padded, to @ ..]) = (from, to) else {
        return buffer.push(data);
    };
    if from == to {
        buffer.push(data);
    } else {
        let row = data.len() / (*length).max(1);
        (0..*length).for_each(|index| push_padded(buffer, &data[index * row..][..row], from, to, fill));
    }
    push_repeated(buffer, fill, (padded - length) * to.iter().product::<usize>() * fill.len());
}

/// Appends the part `to` of `data` of shape `from`.
fn push_cropped(buffer: &mut AlignedBuffer, data: &[u8], from: &[usize], to: &[usize]) {
    let ([length, from @ ..], [cropped, to @ ..]) = (from, to) else {
        return buffer.push(data);
    };
    let row = data.len() / (*length).max(1);
    if from == to {
        buffer.push(&data[..cropped * row]);
    } else {
        (0..*cropped).for_each(|index| push_cropped(buffer, &data[index * row..][..row], from, to));
    }
}

fn push_repeated(buffer: &mut AlignedBuffer, element: &[u8], bytes: usize) {
    (0..bytes / element.len()).for_each(|_| buffer.push(element));
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, IxDyn, arr0};
    use proptest::prelude::*;

    use super::*;

    fn shape() -> impl Strategy<Value = Vec<usize>> {
        prop::collection::vec(0_usize..4, 3)
    }

    proptest! {
        /// Each element of the stack is the item's where the item has one, and the fill elsewhere; cropping gives the
        /// items back.
        #[test]
        fn padded_items_are_what_an_index_says_and_come_back(shapes in prop::collection::vec(shape(), 1..5)) {
            let longest: Vec<usize> =
                (0..3).map(|axis| shapes.iter().map(|shape| shape[axis]).max().unwrap_or(0)).collect();
            let arrays: Vec<ArrayD<i32>> = shapes
                .iter()
                .map(|shape| ArrayD::from_shape_fn(IxDyn(shape), |at| (at[0] * 100 + at[1] * 10 + at[2]) as i32))
                .collect();
            let items: Vec<Tensor> = arrays.iter().cloned().map(Tensor::from_array).collect();
            let fill = Tensor::from_array(arr0(-1_i32));
            let batch = Tensor::stack_padded(&items.iter().collect::<Vec<_>>(), &longest, &fill).unwrap();
            for ((at, element), index) in batch.view::<i32>().unwrap().indexed_iter().zip(0_usize..) {
                let expected = arrays[at[0]].get(IxDyn(&[at[1], at[2], at[3]])).copied().unwrap_or(-1);
                prop_assert_eq!(*element, expected, "{}", index);
            }
            for (row, item) in batch.split().unwrap().iter().zip(&items) {
                prop_assert_eq!(&row.cropped(item.shape()).unwrap(), item);
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let (pair, number) = (Tensor::from_array(ndarray::array![1_i32, 2]), Tensor::from_array(arr0(0_i32)));
        let error = |result: Result<Tensor, TensorError>| result.unwrap_err().to_string();
        assert_eq!(error(Tensor::stack_padded(&[&pair], &[1], &number)), "shape [2] does not fit [1]");
        assert_eq!(error(Tensor::stack_padded(&[&pair], &[2, 2], &number)), "shape [2] does not fit [2, 2]");
        assert_eq!(error(pair.cropped(&[3])), "shape [3] does not fit [2]");
        assert_eq!(error(Tensor::filled(&[3], &pair)), "shape [2] does not fit []");
        let wide = Tensor::from_array(arr0(0_i64));
        let mismatch = "item 0 is i32 of shape [2], others are i64 of shape [4]";
        assert_eq!(error(Tensor::stack_padded(&[&pair], &[4], &wide)), mismatch);
        assert_eq!(Tensor::filled(&[2, 1], &number).unwrap(), Tensor::from_array(ndarray::array![[0_i32], [0]]));
    }
}
