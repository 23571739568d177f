//! The order in which entries leave a stage's queue: priority class, then deadline, then arrival. Pure.
//!
//! An entry gains a class after each ageing time, so that a flood of a higher class delays a lower one but does not
//! starve it: after two ageing times every entry is in the first class, where only entries with an earlier deadline
//! precede it.
//!
//! The queue itself has no bound: every entry here holds a permit of a bounded queue.

use std::time::Duration;

use super::cost::Load;
use super::tree::{Arena, Id, Key, Link};
use crate::call::Priority;
use crate::clock::Instant;
use crate::deadline::Deadline;

const CLASSES: usize = Priority::ALL.len();

/// One list per class of origin and number of gained classes, each in the order of arrival: 1 + 2 + 3.
const LINES: usize = CLASSES * (CLASSES + 1) / 2;

/// The position of an entry in the order. Unique per queue by its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryKey {
    pub(crate) priority: Priority,
    pub(crate) deadline: Deadline,
    pub(crate) sequence: u64,
}

/// Waiting entries in the order in which they leave. Every operation is O(log n); ageing is so in amortised time,
/// because an entry moves at most twice.
#[derive(Debug)]
pub(crate) struct BatchQueue<T> {
    arena: Arena<Waiter<T>>,
    /// One tree per current class; the first class leaves first.
    classes: [Link; CLASSES],
    lines: [Line; LINES],
    ageing: Duration,
    load: Load,
}

#[derive(Debug)]
struct Waiter<T> {
    entry: T,
    arrival: Instant,
    /// Its class at arrival.
    origin: u8,
    /// The number of gained classes.
    gained: u8,
    earlier: Link,
    later: Link,
}

/// A linked list through the waiters, the longest wait first.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    first: Link,
    last: Link,
}

/// The entry that is next in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Head {
    class: usize,
    key: Key,
    cost: u64,
    id: Id,
}

impl Head {
    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }
}

impl<T> BatchQueue<T> {
    /// An empty queue in which an entry gains a class every `ageing`.
    pub(crate) fn new(ageing: Duration) -> Self {
        Self {
            arena: Arena::new(),
            classes: [None; CLASSES],
            lines: [Line::default(); LINES],
            ageing,
            load: Load::default(),
        }
    }

    pub(crate) fn push(&mut self, key: EntryKey, arrival: Instant, cost: u64, entry: T) {
        let origin = key.priority as u8;
        let waiter = Waiter { entry, arrival, origin, gained: 0, earlier: None, later: None };
        let id = self.arena.make((key.deadline, key.sequence), cost, waiter);
        self.enter(id);
        self.load = self.load.plus(Load::new(1, cost));
    }

    /// The next entry, in the classes of the last [`age`](Self::age).
    pub(crate) fn head(&self) -> Option<Head> {
        self.classes.iter().enumerate().find_map(|(class, root)| {
            let id = self.arena.first(*root)?;
            Some(Head { class, key: self.arena.key(id), cost: self.arena.cost(id), id })
        })
    }

    /// Takes the entry of [`head`](Self::head).
    pub(crate) fn take(&mut self, head: Head) -> T {
        self.remove_node(head.id).0
    }

    /// Removes an entry whose caller left.
    pub(crate) fn remove(&mut self, key: EntryKey) -> Option<T> {
        self.remove_with_cost(key).map(|(entry, _)| entry)
    }

    pub(crate) fn remove_with_cost(&mut self, key: EntryKey) -> Option<(T, u64)> {
        let id = self.find(key)?;
        Some(self.remove_node(id))
    }

    pub(crate) fn contains(&self, key: EntryKey) -> bool {
        self.find(key).is_some()
    }

    /// Takes any entry, with its cost.
    pub(crate) fn pop_any(&mut self) -> Option<(T, u64)> {
        let id = self.classes.iter().flatten().next().copied()?;
        Some(self.remove_node(id))
    }

    pub(crate) fn len(&self) -> usize {
        self.load.entries
    }

    /// The load of all waiting entries.
    pub(crate) fn load(&self) -> Load {
        self.load
    }

    /// The load that would leave before an entry with this key, in the current classes.
    pub(crate) fn before(&self, key: EntryKey) -> Load {
        let class = key.priority as usize;
        let above = self.classes[..class].iter().fold(Load::default(), |sum, root| sum.plus(self.arena.load(*root)));
        above.plus(self.arena.before(self.classes[class], (key.deadline, key.sequence)))
    }

    /// The arrival of the entry that waits longest.
    pub(crate) fn oldest_arrival(&self) -> Option<Instant> {
        self.lines.iter().filter_map(|line| line.first).map(|id| self.arena.value(id).arrival).min()
    }

    /// The earliest deadline of all classes.
    pub(crate) fn first_deadline(&self) -> Option<Deadline> {
        self.classes.iter().filter_map(|root| self.arena.first(*root)).map(|id| self.arena.key(id).0).min()
    }

    /// Lets every entry gain the classes for which it has waited.
    pub(crate) fn age(&mut self, now: Instant) {
        // From the last class on, so that an entry that has waited long enough gains two classes at once.
        for (origin, gained) in [(2u8, 0u8), (2, 1), (1, 0)] {
            let line = line_of(origin, gained);
            let patience = self.ageing.saturating_mul(u32::from(gained) + 1);
            while let Some(id) = self.lines[line].first {
                if now.saturating_duration_since(self.arena.value(id).arrival) < patience {
                    break;
                }
                self.leave(id);
                self.arena.value_mut(id).gained += 1;
                self.enter(id);
            }
        }
    }

    /// Inserts a node into the tree of its class and the list of its age.
    fn enter(&mut self, id: Id) {
        let (class, line) = self.place_of(id);
        self.classes[class] = self.arena.insert(self.classes[class], id);
        self.line_up(line, id);
    }

    /// Removes a node from both.
    fn leave(&mut self, id: Id) {
        let (class, line) = self.place_of(id);
        self.classes[class] = self.arena.remove(self.classes[class], id);
        let waiter = self.arena.value_mut(id);
        let (earlier, later) = (waiter.earlier.take(), waiter.later.take());
        match earlier {
            Some(earlier) => self.arena.value_mut(earlier).later = later,
            None => self.lines[line].first = later,
        }
        match later {
            Some(later) => self.arena.value_mut(later).earlier = earlier,
            None => self.lines[line].last = earlier,
        }
    }

    fn remove_node(&mut self, id: Id) -> (T, u64) {
        self.leave(id);
        let cost = self.arena.cost(id);
        self.load = self.load.minus(Load::new(1, cost));
        (self.arena.unmake(id).entry, cost)
    }

    fn find(&self, key: EntryKey) -> Option<Id> {
        // It may have gained classes, never lost one.
        let above = self.classes[..=key.priority as usize].iter().rev();
        above.copied().find_map(|root| self.arena.find(root, (key.deadline, key.sequence)))
    }

    fn place_of(&self, id: Id) -> (usize, usize) {
        let Waiter { origin, gained, .. } = *self.arena.value(id);
        (usize::from(origin - gained), line_of(origin, gained))
    }

    /// Inserts a node into its list by its sequence number. The position is nearly always the end; entries of two
    /// threads may come out of order, and a batch that could not be handed over returns to the front. So the search
    /// begins at both ends.
    fn line_up(&mut self, line: usize, id: Id) {
        let sequence = self.arena.key(id).1;
        let comes_after = |arena: &Arena<Waiter<T>>, other: Id| arena.key(other).1 < sequence;
        let (mut front, mut back) = (self.lines[line].first, self.lines[line].last);
        let (earlier, later) = loop {
            match back {
                Some(other) if !comes_after(&self.arena, other) => back = self.arena.value(other).earlier,
                found => break (found, found.map_or(self.lines[line].first, |other| self.arena.value(other).later)),
            }
            match front {
                Some(other) if comes_after(&self.arena, other) => front = self.arena.value(other).later,
                found => break (found.map_or(self.lines[line].last, |other| self.arena.value(other).earlier), found),
            }
        };
        let waiter = self.arena.value_mut(id);
        (waiter.earlier, waiter.later) = (earlier, later);
        match earlier {
            Some(earlier) => self.arena.value_mut(earlier).later = Some(id),
            None => self.lines[line].first = Some(id),
        }
        match later {
            Some(later) => self.arena.value_mut(later).earlier = Some(id),
            None => self.lines[line].last = Some(id),
        }
    }
}

fn line_of(origin: u8, gained: u8) -> usize {
    let origin = usize::from(origin);
    origin * (origin + 1) / 2 + usize::from(gained)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AGEING: Duration = Duration::from_millis(20);

    impl<T> BatchQueue<T> {
        /// Takes the entry that is next in order.
        pub(crate) fn pop(&mut self, now: Instant) -> Option<T> {
            self.age(now);
            let head = self.head()?;
            Some(self.take(head))
        }
    }

    #[derive(Clone, Debug)]
    enum Operation {
        Push {
            class: usize,
            slack_ms: u64,
            cost: u64,
        },
        /// An entry returns: its sequence number is older than the others'.
        PushBack,
        Pop,
        Remove {
            nth: usize,
        },
        Wait {
            ms: u64,
        },
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            6 => (0usize..3, 0u64..50, 0u64..9).prop_map(|(class, slack_ms, cost)| Operation::Push { class, slack_ms, cost }),
            1 => Just(Operation::PushBack),
            4 => Just(Operation::Pop),
            2 => (0usize..20).prop_map(|nth| Operation::Remove { nth }),
            2 => (0u64..15).prop_map(|ms| Operation::Wait { ms }),
        ]
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Modelled {
        key: EntryKey,
        arrival: Instant,
        cost: u64,
    }

    impl Modelled {
        fn place(&self, now: Instant) -> (usize, Deadline, u64) {
            let gained = now.duration_since(self.arrival).as_millis() / AGEING.as_millis();
            let class = (self.key.priority as usize).saturating_sub(gained as usize);
            (class, self.key.deadline, self.key.sequence)
        }
    }

    proptest! {
        /// The queue agrees, step by step, with a plain list that is sorted anew.
        #[test]
        fn agrees_with_a_sorted_list(operations in prop::collection::vec(operation(), 0..200)) {
            let start = Instant::now();
            let mut now = start;
            let mut queue = BatchQueue::new(AGEING);
            let mut model: Vec<Modelled> = Vec::new();
            let mut popped: Option<Modelled> = None;
            for (step, operation) in operations.into_iter().enumerate() {
                match operation {
                    Operation::Push { class, slack_ms, cost } => {
                        let key = EntryKey {
                            priority: Priority::ALL[class],
                            deadline: Deadline::after(now, Duration::from_millis(slack_ms)),
                            sequence: step as u64,
                        };
                        let entry = Modelled { key, arrival: now, cost };
                        queue.push(key, now, cost, entry);
                        model.push(entry);
                    }
                    Operation::PushBack => if let Some(entry) = popped.take() {
                        queue.push(entry.key, entry.arrival, entry.cost, entry);
                        model.push(entry);
                    }
                    Operation::Pop => {
                        model.sort_by_key(|entry| entry.place(now));
                        let expected = (!model.is_empty()).then(|| model.remove(0));
                        popped = queue.pop(now);
                        prop_assert_eq!(popped, expected);
                    }
                    Operation::Remove { nth } if nth < model.len() => {
                        let entry = model.remove(nth);
                        prop_assert_eq!(queue.remove(entry.key), Some(entry));
                        prop_assert_eq!(queue.remove(entry.key), None);
                    }
                    Operation::Remove { .. } => {}
                    Operation::Wait { ms } => now += Duration::from_millis(ms),
                }
                // First, because this call makes the entries age.
                queue.age(now);
                let head = queue.head().map(|head| head.cost());
                prop_assert_eq!(head, model.iter().min_by_key(|entry| entry.place(now)).map(|entry| entry.cost));
                let load = Load::new(model.len(), model.iter().map(|entry| entry.cost).sum());
                prop_assert_eq!(queue.load(), load);
                prop_assert_eq!(queue.oldest_arrival(), model.iter().map(|entry| entry.arrival).min());
                prop_assert_eq!(queue.first_deadline(), model.iter().map(|entry| entry.key.deadline).min());
                for priority in Priority::ALL {
                    let key = EntryKey {
                        priority, deadline: Deadline::after(now, Duration::from_millis(25)), sequence: u64::MAX,
                    };
                    let place = (priority as usize, key.deadline, key.sequence);
                    let before = model.iter().filter(|entry| entry.place(now) < place);
                    let before = before.fold(Load::default(), |sum, entry| sum.plus(Load::new(1, entry.cost)));
                    prop_assert_eq!(queue.before(key), before);
                }
            }
        }

        /// Despite a stream of higher classes: once an entry has waited two ageing times, only entries with an earlier
        /// deadline precede it.
        #[test]
        fn nothing_starves_beyond_the_ageing_bound(
            class in 0usize..3, flood in prop::collection::vec((0usize..3, 10u64..1000), 1..20),
        ) {
            let start = Instant::now();
            let mut queue = BatchQueue::new(AGEING);
            let key = |class: usize, deadline, sequence| EntryKey { priority: Priority::ALL[class], deadline, sequence };
            let patient = Deadline::after(start, Duration::from_millis(500));
            queue.push(key(class, patient, 0), start, 1, (0, patient));
            let mut now = start;
            // One arrival and one departure every millisecond: the queue always has other entries.
            for sequence in 1.. {
                let (class, slack) = flood[sequence as usize % flood.len()];
                let deadline = Deadline::after(now, Duration::from_millis(slack));
                queue.push(key(class, deadline, sequence), now, 1, (sequence, deadline));
                let (who, due) = queue.pop(now).unwrap();
                if who == 0 {
                    break;
                }
                if now >= start + 2 * AGEING {
                    prop_assert!(due <= patient, "{sequence}");
                }
                // Entries with an earlier deadline arrive before its own, so this bounds the wait.
                prop_assert!(now < patient.instant());
                now += Duration::from_millis(1);
            }
        }
    }

    #[test]
    fn an_entry_is_not_before_itself() {
        let now = Instant::now();
        let mut queue = BatchQueue::new(AGEING);
        let key = |sequence| EntryKey { priority: Priority::Normal, deadline: Deadline::after(now, AGEING), sequence };
        (0..3).for_each(|sequence| queue.push(key(sequence), now, 1, ()));
        assert_eq!(queue.before(key(1)), Load::new(1, 1));
    }

    #[test]
    fn a_large_queue_stays_shallow() {
        let now = Instant::now();
        let mut queue = BatchQueue::new(AGEING);
        // In order, which would turn an unbalanced tree into a list.
        for sequence in 0..100_000 {
            let deadline = Deadline::after(now, Duration::from_micros(sequence));
            queue.push(EntryKey { priority: Priority::Normal, deadline, sequence }, now, 1, sequence);
        }
        let order: Vec<u64> = std::iter::from_fn(|| queue.pop(now)).collect();
        assert!(order.iter().copied().eq(0..100_000));
    }
}
