//! The order in which entries leave a stage's queue: priority class, then deadline, then arrival. Pure.
//!
//! The queue itself has no bound: admission holds a place for every entry before it comes here.

use std::collections::BTreeMap;

use crate::call::Priority;
use crate::clock::Instant;
use crate::deadline::Deadline;

/// Where an entry stands in the order, and how it is found again. Unique per queue by its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryKey {
    pub(crate) priority: Priority,
    pub(crate) deadline: Deadline,
    pub(crate) sequence: u64,
}

/// Waiting entries in the order in which they will leave. Every operation is O(log n).
#[derive(Debug)]
pub(crate) struct BatchQueue<T> {
    /// One ordered map per class, the first class to leave first.
    classes: [BTreeMap<(Deadline, u64), T>; Priority::ALL.len()],
    len: usize,
    /// Arrival times by sequence number, which grows with arrival; kept only where a delay is counted from them.
    arrivals: Option<BTreeMap<u64, Instant>>,
}

impl<T> BatchQueue<T> {
    pub(crate) fn new(keeps_arrivals: bool) -> Self {
        Self { classes: Default::default(), len: 0, arrivals: keeps_arrivals.then(BTreeMap::new) }
    }

    pub(crate) fn push(&mut self, key: EntryKey, arrival: Instant, entry: T) {
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.insert(key.sequence, arrival);
        }
        let replaced = self.classes[key.priority as usize].insert((key.deadline, key.sequence), entry);
        debug_assert!(replaced.is_none(), "sequence numbers are unique");
        self.len += 1;
    }

    /// Takes the entry that is next in order.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let ((_, sequence), entry) = self.classes.iter_mut().find_map(BTreeMap::pop_first)?;
        self.left(sequence);
        Some(entry)
    }

    /// Takes an entry out of the middle: its caller has gone.
    pub(crate) fn remove(&mut self, key: EntryKey) -> Option<T> {
        let entry = self.classes[key.priority as usize].remove(&(key.deadline, key.sequence))?;
        self.left(key.sequence);
        Some(entry)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// When the entry that waits longest arrived, where arrivals are kept.
    pub(crate) fn oldest_arrival(&self) -> Option<Instant> {
        self.arrivals.as_ref()?.first_key_value().map(|(_, arrival)| *arrival)
    }

    /// The earliest deadline of all classes.
    pub(crate) fn first_deadline(&self) -> Option<Deadline> {
        self.classes.iter().filter_map(|class| class.first_key_value()).map(|((deadline, _), _)| *deadline).min()
    }

    fn left(&mut self, sequence: u64) {
        self.len -= 1;
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.remove(&sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Operation {
        Push { class: usize, slack_ms: u64 },
        Pop,
        Remove { nth: usize },
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            3 => (0usize..3, 0u64..50).prop_map(|(class, slack_ms)| Operation::Push { class, slack_ms }),
            2 => Just(Operation::Pop),
            1 => (0usize..20).prop_map(|nth| Operation::Remove { nth }),
        ]
    }

    proptest! {
        /// The queue agrees, step by step, with a plain sorted list.
        #[test]
        fn agrees_with_a_sorted_list(operations in prop::collection::vec(operation(), 0..200)) {
            let start = Instant::now();
            let mut queue = BatchQueue::new(true);
            let mut model: Vec<(EntryKey, Instant)> = Vec::new();
            for (step, operation) in operations.into_iter().enumerate() {
                match operation {
                    Operation::Push { class, slack_ms } => {
                        let arrival = start + Duration::from_millis(step as u64);
                        let key = EntryKey {
                            priority: Priority::ALL[class],
                            deadline: Deadline::after(start, Duration::from_millis(slack_ms)),
                            sequence: step as u64,
                        };
                        queue.push(key, arrival, key);
                        model.push((key, arrival));
                        model.sort_unstable();
                    }
                    Operation::Pop => {
                        let expected = (!model.is_empty()).then(|| model.remove(0).0);
                        prop_assert_eq!(queue.pop(), expected);
                    }
                    Operation::Remove { nth } if nth < model.len() => {
                        let (key, _) = model.remove(nth);
                        prop_assert_eq!(queue.remove(key), Some(key));
                        prop_assert_eq!(queue.remove(key), None);
                    }
                    Operation::Remove { .. } => {}
                }
                prop_assert_eq!(queue.len(), model.len());
                prop_assert_eq!(queue.oldest_arrival(), model.iter().map(|(_, arrival)| *arrival).min());
                prop_assert_eq!(queue.first_deadline(), model.iter().map(|(key, _)| key.deadline).min());
            }
        }
    }
}
