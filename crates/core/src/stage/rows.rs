//! Data with a first axis: it can be counted in rows, cut between rows and put together again.

#[cfg(feature = "arrow")]
use callboard_codec::DataFrame;
use callboard_codec::{Data, Map, Tensor, Value};

use crate::error::Failure;

/// Values made of rows: tensors and data frames, lists of anything, and maps whose members all have the same rows.
///
/// [`Stage::by_rows`](crate::Stage::by_rows) counts the cost of an input with it, and splits an input that is too
/// large. [`paste`](Self::paste) puts the parts of [`cut`](Self::cut) together to the same whole.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no rows",
    label = "does not implement `Rows`",
    note = "tensors, data frames, lists, and maps and `Value`s of these have rows; other types are counted by \
            `Stage::cost` and split by `Stage::splitting`"
)]
pub trait Rows: Data + Clone {
    /// The count of rows; `None` without a first axis.
    fn rows(&self) -> Option<usize>;

    /// Cuts into parts of these lengths, which add up to [`rows`](Self::rows).
    ///
    /// # Errors
    ///
    /// If there is no first axis, or the lengths do not add up.
    fn cut(&self, lengths: &[usize]) -> Result<Vec<Self>, Failure>;

    /// Puts parts together, in order. There is at least one.
    ///
    /// # Errors
    ///
    /// If the parts do not fit together.
    fn paste(parts: Vec<Self>) -> Result<Self, Failure>;
}

impl Rows for Tensor {
    fn rows(&self) -> Option<usize> {
        self.shape().first().copied()
    }

    fn cut(&self, lengths: &[usize]) -> Result<Vec<Self>, Failure> {
        self.split_rows(lengths).map_err(|error| Failure::invalid_input(error.to_string()))
    }

    fn paste(parts: Vec<Self>) -> Result<Self, Failure> {
        Ok(Self::concat(&parts.iter().collect::<Vec<_>>())?)
    }
}

#[cfg(feature = "arrow")]
impl Rows for DataFrame {
    fn rows(&self) -> Option<usize> {
        Some(self.num_rows())
    }

    fn cut(&self, lengths: &[usize]) -> Result<Vec<Self>, Failure> {
        self.split_rows(lengths).map_err(|error| Failure::invalid_input(error.to_string()))
    }

    fn paste(parts: Vec<Self>) -> Result<Self, Failure> {
        Ok(Self::concat(&parts.iter().collect::<Vec<_>>())?)
    }
}

impl<T: Data + Clone> Rows for Vec<T> {
    fn rows(&self) -> Option<usize> {
        Some(self.len())
    }

    fn cut(&self, lengths: &[usize]) -> Result<Vec<Self>, Failure> {
        check(self.len(), lengths)?;
        let mut items = self.iter();
        Ok(lengths.iter().map(|length| items.by_ref().take(*length).cloned().collect()).collect())
    }

    fn paste(parts: Vec<Self>) -> Result<Self, Failure> {
        Ok(parts.into_iter().flatten().collect())
    }
}

impl Rows for Value {
    fn rows(&self) -> Option<usize> {
        match self {
            Self::Tensor(tensor) => tensor.rows(),
            Self::List(items) => Some(items.len()),
            Self::Map(members) => {
                let mut rows = members.iter().map(|(_, member)| member.rows());
                let first = rows.next()??;
                rows.all(|rows| rows == Some(first)).then_some(first)
            }
            #[cfg(feature = "arrow")]
            Self::DataFrame(frame) => frame.rows(),
            _ => None,
        }
    }

    fn cut(&self, lengths: &[usize]) -> Result<Vec<Self>, Failure> {
        match self {
            Self::Tensor(tensor) => Ok(tensor.cut(lengths)?.into_iter().map(Self::Tensor).collect()),
            Self::List(items) => Ok(items.cut(lengths)?.into_iter().map(Self::List).collect()),
            Self::Map(members) => {
                let mut parts = vec![Map::new(); lengths.len()];
                for (name, member) in members {
                    for (part, piece) in parts.iter_mut().zip(member.cut(lengths)?) {
                        part.insert(name.to_owned(), piece);
                    }
                }
                Ok(parts.into_iter().map(Self::Map).collect())
            }
            #[cfg(feature = "arrow")]
            Self::DataFrame(frame) => Ok(frame.cut(lengths)?.into_iter().map(Self::DataFrame).collect()),
            other => {
                let message = format!("an input of kind `{}` has no rows to be split between", other.kind());
                Err(Failure::invalid_input(message))
            }
        }
    }

    fn paste(parts: Vec<Self>) -> Result<Self, Failure> {
        match parts.first() {
            Some(Self::Tensor(_)) => Ok(Self::Tensor(Tensor::paste(all(parts, |part| match part {
                Self::Tensor(tensor) => Some(tensor),
                _ => None,
            })?)?)),
            Some(Self::List(_)) => Ok(Self::List(Vec::paste(all(parts, |part| match part {
                Self::List(items) => Some(items),
                _ => None,
            })?)?)),
            #[cfg(feature = "arrow")]
            Some(Self::DataFrame(_)) => Ok(Self::DataFrame(DataFrame::paste(all(parts, |part| match part {
                Self::DataFrame(frame) => Some(frame),
                _ => None,
            })?)?)),
            Some(Self::Map(first)) => {
                let mut whole = Map::new();
                for name in first.keys() {
                    let pieces = all(parts.iter().collect(), |part| part.get(name).cloned())?;
                    whole.insert(name, Self::paste(pieces)?);
                }
                Ok(Self::Map(whole))
            }
            _ => Err(Failure::new("the outputs of the parts have no rows to be put together")),
        }
    }
}

/// All parts as the type of the first part.
fn all<P, T>(parts: Vec<P>, take: impl Fn(P) -> Option<T>) -> Result<Vec<T>, Failure> {
    let taken: Option<Vec<T>> = parts.into_iter().map(take).collect();
    taken.ok_or_else(|| Failure::new("the parts of one input gave outputs of different kinds"))
}

fn check(rows: usize, lengths: &[usize]) -> Result<(), Failure> {
    let sum: usize = lengths.iter().sum();
    if sum == rows {
        Ok(())
    } else {
        Err(Failure::invalid_input(format!("{rows} rows do not fall into parts of {sum}")))
    }
}

/// Lengths of at most `most` that add up to `rows`. No length is 0, unless `rows` is 0.
pub(super) fn lengths(rows: usize, most: u64) -> Vec<usize> {
    let most = usize::try_from(most).unwrap_or(usize::MAX).max(1);
    let whole = rows / most;
    let rest = rows % most;
    let mut lengths = vec![most; whole];
    if rest > 0 || whole == 0 {
        lengths.push(rest);
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Cutting and pasting gives the whole again, with no part above the limit and none empty.
        #[test]
        fn split_rows_join_to_the_same_value(rows in 0usize..200, most in 1u64..50) {
            let lengths = lengths(rows, most);
            prop_assert!(lengths.iter().all(|length| *length as u64 <= most));
            prop_assert!(rows == 0 || !lengths.contains(&0));
            prop_assert!(!lengths.is_empty());

            let list: Vec<i64> = (0..rows as i64).collect();
            prop_assert_eq!(&Vec::paste(list.cut(&lengths).unwrap()).unwrap(), &list);
            let tensor = Tensor::from_array(ndarray_of(rows));
            prop_assert_eq!(&Tensor::paste(tensor.cut(&lengths).unwrap()).unwrap(), &tensor);
            let map: Map =
                [("a", Value::from(tensor)), ("b", Value::List(list.into_iter().map(Value::Int).collect()))]
                    .into_iter()
                    .collect();
            let map = Value::from(map);
            prop_assert_eq!(map.rows(), Some(rows));
            prop_assert_eq!(&Value::paste(map.cut(&lengths).unwrap()).unwrap(), &map);
        }
    }

    fn ndarray_of(rows: usize) -> ndarray::Array2<i64> {
        ndarray::Array2::from_shape_fn((rows, 3), |(row, column)| (row * 3 + column) as i64)
    }

    #[test]
    fn a_map_of_different_lengths_has_no_rows() {
        let members = [("a", Value::List(vec![])), ("b", Value::List(vec![Value::Null]))];
        let map = Value::from(members.into_iter().collect::<Map>());
        assert_eq!(map.rows(), None);
        assert_eq!(Value::from("text").rows(), None);
    }
}
