//! Finds the items of a batch that can be joined.
//!
//! One odd item must not fail its batch, not even as the first item. So the most frequent sort of item is joined, and
//! of equally frequent sorts the earliest. Each other item is refused by itself, with its own error.

/// The joined items, and the outcome of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedItems<T, E> {
    /// The matching items, joined in their order.
    pub whole: T,
    /// For each item, in order: its place among the joined ones, or why it was refused.
    pub items: Vec<Result<usize, E>>,
}

/// Separates the items of the most frequent sort from the rest.
pub(crate) struct Matching<'a, T> {
    /// The item that the others are compared with.
    pub(crate) model: &'a T,
    pub(crate) chosen: Vec<&'a T>,
    /// For each item its place among the chosen, or `None`.
    pub(crate) places: Vec<Option<usize>>,
}

impl<'a, T> Matching<'a, T> {
    pub(crate) fn new(items: &[&'a T], same: impl Fn(&T, &T) -> bool) -> Option<Self> {
        let model = most_common(items, &same)?;
        let (mut chosen, mut places) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
        for item in items {
            let fits = same(item, model);
            places.push(fits.then_some(chosen.len()));
            if fits {
                chosen.push(*item);
            }
        }
        Some(Self { model, chosen, places })
    }

    /// The outcome of each item: its place, or the error that `refuse` makes for its index.
    pub(crate) fn outcomes<E>(&self, refuse: impl Fn(usize) -> E) -> Vec<Result<usize, E>> {
        let outcome = |(index, place): (usize, &Option<usize>)| place.ok_or_else(|| refuse(index));
        self.places.iter().enumerate().map(outcome).collect()
    }
}

/// Counts one item of each sort, so that the usual batch, of one sort, takes one pass.
fn most_common<'a, T>(items: &[&'a T], same: impl Fn(&T, &T) -> bool) -> Option<&'a T> {
    let mut sorts: Vec<(&T, usize)> = Vec::new();
    for item in items {
        match sorts.iter_mut().find(|(sort, _)| same(item, sort)) {
            Some((_, count)) => *count += 1,
            None => sorts.push((item, 1)),
        }
    }
    let most = sorts.iter().map(|(_, count)| *count).max()?;
    sorts.into_iter().find(|(_, count)| *count == most).map(|(sort, _)| sort)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_item_is_the_model_and_the_earliest_of_equals() {
        let chosen = |items: &[u8]| {
            let items: Vec<&u8> = items.iter().collect();
            Matching::new(&items, |a, b| a == b).map(|matching| (*matching.model, matching.places))
        };
        assert_eq!(chosen(&[]), None);
        assert_eq!(chosen(&[2, 1, 1]), Some((1, vec![None, Some(0), Some(1)])));
        assert_eq!(chosen(&[2, 1, 1, 2]), Some((2, vec![Some(0), None, None, Some(1)])));
    }
}
