//! Which items of a batch go together, when not all of them do: what the batcher asks before it joins them.
//!
//! One odd item must not fail its batch, not even as the first of it. So what most items are decides, and of several as
//! frequent the earliest; each of the others is refused by itself, with the error that says why.

/// Items that were joined, and what became of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedItems<T, E> {
    /// Those that go together, in their order.
    pub whole: T,
    /// For each item, in order: its place among those that were joined, or why it is not there.
    pub items: Vec<Result<usize, E>>,
}

/// Sorts items into those that are the same as most, and the rest. `None` when there are none.
pub(crate) struct Matching<'a, T> {
    /// The one that the others are held against.
    pub(crate) model: &'a T,
    pub(crate) chosen: Vec<&'a T>,
    /// For each item its place among the chosen, or nothing.
    pub(crate) places: Vec<Option<usize>>,
}

impl<'a, T> Matching<'a, T> {
    pub(crate) fn of(items: &[&'a T], same: impl Fn(&T, &T) -> bool) -> Option<Self> {
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

    /// The outcome of each item: its place, or what `refuse` says of the item at an index.
    pub(crate) fn outcomes<E>(&self, refuse: impl Fn(usize) -> E) -> Vec<Result<usize, E>> {
        let outcome = |(index, place): (usize, &Option<usize>)| place.ok_or_else(|| refuse(index));
        self.places.iter().enumerate().map(outcome).collect()
    }
}

/// One of each sort is kept with its count, so that the usual batch, of one sort, is passed over once.
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
    fn most_decide_and_of_several_the_earliest() {
        let chosen = |items: &[u8]| {
            let items: Vec<&u8> = items.iter().collect();
            Matching::of(&items, |a, b| a == b).map(|matching| (*matching.model, matching.places))
        };
        assert_eq!(chosen(&[]), None);
        assert_eq!(chosen(&[2, 1, 1]), Some((1, vec![None, Some(0), Some(1)])));
        assert_eq!(chosen(&[2, 1, 1, 2]), Some((2, vec![Some(0), None, None, Some(1)])));
    }
}
