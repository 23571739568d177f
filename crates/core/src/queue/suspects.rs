//! Entries whose worker ended with them: the groups in which they run again, until the entry that ends its worker is
//! alone. Pure.
//!
//! A panic has one batch. A child process that ends may have been ended by any batch that it had, so the batches of its
//! life are suspects together: they run again as one group, in a replica that gets no other calls, and are halved
//! alike. The queue waits meanwhile, so this lasts for a time only, which doubles with each end.

use std::collections::VecDeque;
use std::time::Duration;

/// How long a group has a replica for itself after a first end. Most calls are over by then.
const ISOLATED_FOR: Duration = Duration::from_secs(1);

/// How often this time may double, up to the default timeout of a call.
const MAX_DOUBLINGS: u8 = 5;

/// One life of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LifeId {
    pub(crate) replica: usize,
    pub(crate) generation: u64,
}

/// What is known of a batch that runs again after its worker ended. It is small because each batch has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Suspicion {
    /// How often its only entry was alone when a worker ended; 0 for several entries.
    pub(crate) lone_crashes: u16,
    /// How often a worker ended that other batches may have ended.
    pub(crate) shared_crashes: u8,
    /// It is its whole group: while it is isolated, nothing else is to blame for the end of its replica.
    pub(crate) is_only: bool,
}

impl Suspicion {
    /// How long its group has a replica for itself.
    pub(crate) fn isolated_for(&self) -> Duration {
        match self.shared_crashes {
            0 => Duration::ZERO,
            crashes => ISOLATED_FOR * (1 << (crashes - 1).min(MAX_DOUBLINGS)),
        }
    }

    /// Whether its only entry has ended more workers than a stage retries, so that it is at fault.
    pub(crate) fn exceeds(&self, retries: u32) -> bool {
        u32::from(self.lone_crashes) > retries.min(u32::from(u16::MAX) - 1)
    }
}

/// Batches that run at the same time.
#[derive(Debug)]
pub(crate) struct SuspectGroup<E> {
    pub(crate) batches: Vec<Vec<E>>,
    lone_crashes: u16,
    shared_crashes: u8,
    /// A replica was held for it, which has not become free.
    pub(crate) has_waited: bool,
    /// It waits no longer for a replica of its own.
    joins_others: bool,
    /// The life whose end they are suspected of together.
    life: Option<LifeId>,
}

impl<E> SuspectGroup<E> {
    fn len(&self) -> usize {
        self.batches.iter().map(Vec::len).sum()
    }

    pub(crate) fn suspicion(&self) -> Suspicion {
        let Self { lone_crashes, shared_crashes, joins_others, .. } = *self;
        Suspicion { lone_crashes, shared_crashes, is_only: self.batches.len() == 1 && !joins_others }
    }

    /// Whether it has a replica of its own. Calls there whose callers have left may still run.
    pub(crate) fn needs_replica(&self) -> bool {
        self.shared_crashes > 0 && !self.joins_others
    }

    /// Lets it run beside others: then its end says nothing about it.
    pub(crate) fn join_others(&mut self) {
        self.joins_others = true;
    }
}

/// The groups that wait, in order.
#[derive(Debug)]
pub(crate) struct Suspects<E>(VecDeque<SuspectGroup<E>>);

impl<E> Default for Suspects<E> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<E> Suspects<E> {
    /// Splits a batch that ended its worker in two. With repeated halving, one poison entry among n is alone after at
    /// most 2·⌈log₂ n⌉ + 1 runs, the first included. A single entry stays single. The batches of one `life` that were
    /// alone as often are added to the same two groups, as long as these wait.
    pub(crate) fn add(&mut self, mut entries: Vec<E>, suspicion: Suspicion, life: Option<LifeId>) {
        let second = entries.split_off(entries.len() / 2);
        let Suspicion { lone_crashes, shared_crashes, .. } = suspicion;
        for half in [entries, second].into_iter().filter(|half| !half.is_empty()) {
            let is_of_life = |group: &&mut SuspectGroup<E>| {
                life.is_some() && group.life == life && group.lone_crashes == lone_crashes
            };
            let mut groups: Vec<_> = self.0.iter_mut().filter(is_of_life).collect();
            match groups.len() {
                0 | 1 => {
                    let (batches, has_waited, joins_others) = (vec![half], false, false);
                    let group = SuspectGroup { batches, lone_crashes, shared_crashes, has_waited, joins_others, life };
                    self.0.push_back(group);
                }
                _ => {
                    if let Some(smallest) = groups.iter_mut().min_by_key(|group| group.len()) {
                        smallest.batches.push(half);
                        smallest.shared_crashes = smallest.shared_crashes.max(shared_crashes);
                    }
                }
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn pop(&mut self) -> Option<SuspectGroup<E>> {
        self.0.pop_front()
    }

    /// Puts a group back that found no replica.
    pub(crate) fn put_back(&mut self, group: SuspectGroup<E>) {
        self.0.push_front(group);
    }

    /// Removes the first entry that matches.
    pub(crate) fn remove(&mut self, matches: impl Fn(&E) -> bool) -> Option<E> {
        let find = |batch: &mut Vec<E>| Some(batch.remove(batch.iter().position(&matches)?));
        let entry = self.0.iter_mut().flat_map(|group| &mut group.batches).find_map(find)?;
        self.0.iter_mut().for_each(|group| group.batches.retain(|batch| !batch.is_empty()));
        self.0.retain(|group| !group.batches.is_empty());
        Some(entry)
    }

    /// Takes all entries, when the stage ends.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = E> + use<E> {
        std::mem::take(&mut self.0).into_iter().flat_map(|group| group.batches).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shared() -> Suspicion {
        Suspicion { shared_crashes: 1, ..Suspicion::default() }
    }

    fn life(generation: u64) -> Option<LifeId> {
        Some(LifeId { replica: 0, generation })
    }

    #[test]
    fn the_batches_of_a_panic_are_halved_by_themselves() {
        let mut suspects = Suspects::default();
        for batch in [vec![1, 2, 3], vec![4]] {
            suspects.add(batch, Suspicion::default(), None);
        }
        let mut groups = std::iter::from_fn(|| suspects.pop().map(|group| group.batches));
        assert_eq!(groups.by_ref().collect::<Vec<_>>(), [vec![vec![1]], vec![vec![2, 3]], vec![vec![4]]]);
    }

    #[test]
    fn the_batches_of_a_life_are_two_groups_and_only_a_whole_group_is_alone() {
        let mut suspects = Suspects::default();
        for batch in [vec![1], vec![2], vec![3, 4], vec![5]] {
            suspects.add(batch, shared(), life(1));
        }
        suspects.add(vec![6], shared(), life(2));
        assert_eq!(suspects.remove(|entry| *entry == 5), Some(5));
        let groups: Vec<_> = std::iter::from_fn(|| suspects.pop()).collect();
        let batches: Vec<_> = groups.iter().map(|group| group.batches.clone()).collect();
        assert_eq!(batches, [vec![vec![1], vec![3]], vec![vec![2], vec![4]], vec![vec![6]]]);
        assert_eq!(groups.iter().map(|group| group.suspicion().is_only).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(suspects.remove(|_| true), None);
    }

    #[test]
    fn a_batch_beside_another_keeps_its_own_count_of_lone_crashes() {
        let mut suspects = Suspects::default();
        for (entry, lone_crashes) in [(1, 1), (2, 1), (3, 0), (4, 0), (5, 0)] {
            suspects.add(vec![entry], Suspicion { lone_crashes, ..shared() }, life(1));
        }
        let groups = std::iter::from_fn(|| suspects.pop());
        let counted: Vec<_> = groups.map(|group| (group.suspicion().lone_crashes, group.batches)).collect();
        assert_eq!(counted, [(1, vec![vec![1]]), (1, vec![vec![2]]), (0, vec![vec![3], vec![5]]), (0, vec![vec![4]])]);
    }

    #[test]
    fn a_group_has_a_replica_for_itself_for_longer_after_each_end() {
        let isolated_for = |shared_crashes| Suspicion { shared_crashes, ..shared() }.isolated_for().as_secs();
        assert_eq!([0, 1, 2, 6, 7, u8::MAX].map(isolated_for), [0, 1, 2, 32, 32, 32]);
    }

    proptest! {
        /// Whatever shares a life with one poison entry: only that entry is called poison, after few ends.
        #[test]
        fn one_poison_entry_is_found_among_the_batches_of_a_life(
            sizes in prop::collection::vec(1usize..4, 1..40), at in any::<prop::sample::Index>(), retries in 0u32..3,
        ) {
            let mut next = 0..;
            let batches: Vec<Vec<u32>> = sizes.iter().map(|size| next.by_ref().take(*size).collect()).collect();
            let total: usize = sizes.iter().sum();
            let poison = at.index(total) as u32;
            let (mut suspects, mut ends, mut generation, mut done) = (Suspects::default(), 1, 1, Vec::new());
            batches.into_iter().for_each(|batch| suspects.add(batch, shared(), life(1)));
            while let Some(group) = suspects.pop() {
                let suspicion = group.suspicion();
                prop_assert!(group.needs_replica());
                if !group.batches.iter().flatten().any(|entry| *entry == poison) {
                    done.extend(group.batches.into_iter().flatten());
                    continue;
                }
                (ends, generation) = (ends + 1, generation + 1);
                for batch in group.batches {
                    let is_alone = batch.len() == 1 && suspicion.is_only;
                    let lone_crashes = suspicion.lone_crashes + u16::from(is_alone);
                    if is_alone && (Suspicion { lone_crashes, ..suspicion }).exceeds(retries) {
                        prop_assert_eq!(batch, vec![poison]);
                        continue;
                    }
                    suspects.add(batch, Suspicion { lone_crashes, ..shared() }, life(generation));
                }
            }
            prop_assert_eq!(done.len(), total - 1);
            prop_assert!(ends <= 2 * total.ilog2() + 4 + retries, "{} ends for {}", ends, total);
        }
    }
}
