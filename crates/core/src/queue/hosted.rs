//! The queues of the stages that the same replicas run: one for each, so that a batch has items of one stage, and one
//! order over all. Pure.
//!
//! The next stage is that of the entry that comes first by priority class, deadline and arrival, as if all of them
//! waited in one queue. So a full queue of one stage delays the others by the batches that came before, and no longer.

use std::time::Duration;

use super::sessions::SessionQueues;
use super::waiting::EntryKey;
use crate::clock::Instant;

/// The queues of one batcher. The first is that of the stage that has the replicas, and most have no other.
///
/// The queue of a stage that has ended stays, empty, until another stage needs one.
#[derive(Debug)]
pub(crate) struct HostedQueues<T> {
    queues: Vec<SessionQueues<T>>,
    replicas: Vec<usize>,
}

impl<T> HostedQueues<T> {
    /// One queue, whose entries gain a class every `ageing`.
    pub(crate) fn new(ageing: Duration) -> Self {
        Self { queues: vec![SessionQueues::new(ageing)], replicas: Vec::new() }
    }

    /// Adds a queue, and returns its index.
    pub(crate) fn add(&mut self, ageing: Duration) -> usize {
        self.queues.push(self.empty(ageing));
        self.queues.len() - 1
    }

    /// An empty queue in the place of another one.
    pub(crate) fn renew(&mut self, stage: usize, ageing: Duration) {
        self.queues[stage] = self.empty(ageing);
    }

    fn empty(&self, ageing: Duration) -> SessionQueues<T> {
        let mut queue = SessionQueues::new(ageing);
        queue.set_replicas(self.replicas.iter().copied());
        queue
    }

    /// The queue of this index.
    pub(crate) fn of(&self, stage: usize) -> &SessionQueues<T> {
        &self.queues[stage]
    }

    /// The queue of this index.
    pub(crate) fn of_mut(&mut self, stage: usize) -> &mut SessionQueues<T> {
        &mut self.queues[stage]
    }

    /// See [`SessionQueues::set_replicas`].
    pub(crate) fn set_replicas(&mut self, replicas: impl Iterator<Item = usize>) {
        self.replicas.clear();
        self.replicas.extend(replicas);
        let Self { queues, replicas } = self;
        queues.iter_mut().for_each(|queue| queue.set_replicas(replicas.iter().copied()));
    }

    /// The number of all entries.
    pub(crate) fn len(&self) -> usize {
        self.queues.iter().map(SessionQueues::len).sum()
    }

    pub(crate) fn has_sessions(&self) -> bool {
        self.queues.iter().any(SessionQueues::has_sessions)
    }

    /// Whether entries wait for this replica.
    pub(crate) fn has_entries_for(&self, replica: usize) -> bool {
        self.queues.iter().any(|queue| queue.load_for(replica).entries > 0)
    }

    /// The queue whose next entry for this replica comes first, or comes next after that of the queue `after`. Of a
    /// single queue it is not asked whether it has entries.
    pub(crate) fn next(&mut self, replica: usize, now: Instant, after: Option<usize>) -> Option<usize> {
        if self.queues.len() == 1 {
            return after.is_none().then_some(0);
        }
        self.queues.iter_mut().for_each(|queue| queue.age(replica, now));
        let after = after.and_then(|stage| self.queues[stage].head(replica));
        let heads = self.queues.iter().enumerate().filter_map(|(stage, queue)| Some((queue.head(replica)?, stage)));
        let next = heads.filter(|(head, _)| after.is_none_or(|after| *head > after)).min();
        next.map(|(_, stage)| stage)
    }

    /// Removes an entry whose caller left.
    pub(crate) fn remove(&mut self, key: EntryKey) -> Option<T> {
        self.queues.iter_mut().find_map(|queue| queue.remove(key))
    }

    /// Whether an entry waits.
    pub(crate) fn contains(&self, key: EntryKey) -> bool {
        self.queues.iter().any(|queue| queue.contains(key))
    }

    /// Takes any entry, when the stages end.
    pub(crate) fn pop_any(&mut self) -> Option<T> {
        self.queues.iter_mut().find_map(SessionQueues::pop_any)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::call::Priority;
    use crate::deadline::Deadline;
    use crate::queue::{BatchPolicy, Load, QueueState, Release};

    /// An entry with its stage.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Waiting {
        stage: usize,
        key: EntryKey,
    }

    proptest! {
        /// Batches leave in the order of their first entries, have entries of one stage, no more than that stage
        /// wants and none of the same stage that comes later than one left behind.
        #[test]
        fn batches_of_one_stage_leave_in_one_order(
            entries in prop::collection::vec((0usize..3, 0usize..3, 0u64..50), 1..60),
            sizes in prop::array::uniform3(1usize..9),
        ) {
            let now = Instant::now();
            let mut queues = HostedQueues::new(Duration::from_secs(5));
            queues.add(Duration::from_secs(5));
            queues.add(Duration::from_secs(5));
            let mut model: Vec<Waiting> = Vec::new();
            for (sequence, (stage, class, slack_ms)) in entries.into_iter().enumerate() {
                let deadline = Deadline::after(now, Duration::from_millis(slack_ms));
                let key = EntryKey { priority: Priority::ALL[class], deadline, sequence: sequence as u64 };
                let entry = Waiting { stage, key };
                queues.of_mut(stage).push(None, key, now, 1, entry);
                model.push(entry);
            }
            model.sort_by_key(|entry| entry.key);
            while !model.is_empty() {
                prop_assert_eq!(queues.len(), model.len());
                let stage = queues.next(0, now, None).unwrap();
                prop_assert_eq!(stage, model[0].stage);
                let mut batch = Vec::new();
                while batch.len() < sizes[stage]
                    && let Some(head) = queues.of(stage).head(0)
                {
                    batch.push(queues.of_mut(stage).take(head));
                }
                let expected: Vec<Waiting> =
                    model.iter().filter(|entry| entry.stage == stage).take(sizes[stage]).copied().collect();
                prop_assert_eq!(&batch, &expected);
                model.retain(|entry| !batch.contains(entry));
            }
            prop_assert_eq!(queues.next(0, now, None), None);
        }

        /// However many entries of one stage wait, an entry of another leaves after those alone that came before it.
        #[test]
        fn a_flood_of_one_stage_does_not_starve_another(flood in 1usize..200, max in 1usize..33, at in 0usize..200) {
            let (now, at) = (Instant::now(), at.min(flood));
            let deadline = Deadline::after(now, Duration::from_secs(1));
            let mut queues = HostedQueues::new(Duration::from_secs(5));
            let other = queues.add(Duration::from_secs(5));
            let sequence = |place: usize| if place < at { place } else { place + 1 } as u64;
            for place in 0..flood {
                let key = EntryKey { priority: Priority::Normal, deadline, sequence: sequence(place) };
                queues.of_mut(0).push(None, key, now, 1, ());
            }
            let key = EntryKey { priority: Priority::Normal, deadline, sequence: at as u64 };
            queues.of_mut(other).push(None, key, now, 1, ());
            let mut batches = 0;
            while queues.next(0, now, None) != Some(other) {
                for _ in 0..max {
                    if let Some(head) = queues.of(0).head(0) {
                        queues.of_mut(0).take(head);
                    }
                }
                batches += 1;
            }
            prop_assert_eq!(batches, at.div_ceil(max));
        }
    }

    #[test]
    fn a_stage_that_waits_for_more_entries_lets_the_next_one_go_first() {
        let now = Instant::now();
        let mut queues = HostedQueues::new(Duration::from_secs(5));
        let patient = queues.add(Duration::from_secs(5));
        let key = |sequence| EntryKey {
            priority: Priority::Normal,
            deadline: Deadline::after(now, Duration::from_secs(1)),
            sequence,
        };
        queues.of_mut(patient).push(None, key(0), now, 1, ());
        queues.of_mut(0).push(None, key(1), now, 1, ());
        let policies = [
            BatchPolicy::default(),
            BatchPolicy {
                max_batch_size: std::num::NonZeroUsize::new(8).unwrap(),
                max_delay: Duration::from_millis(10),
                ..BatchPolicy::default()
            },
        ];
        let decide = |queues: &HostedQueues<()>, stage: usize| {
            let load: Load = queues.of(stage).load();
            let state = QueueState {
                load,
                oldest_arrival: queues.of(stage).oldest_arrival(0),
                first_deadline: queues.of(stage).first_deadline(0),
                ..QueueState::default()
            };
            policies[stage].decide(now, &state)
        };
        let first = queues.next(0, now, None).unwrap();
        assert_eq!((first, decide(&queues, first)), (patient, Release::At(now + Duration::from_millis(10))));
        let second = queues.next(0, now, Some(first)).unwrap();
        assert!(matches!(decide(&queues, second), Release::Now(_)));
        assert_eq!(queues.next(0, now, Some(second)), None);
    }
}
