//! The queue of a stage as its replicas see it: a common queue, and one for the sessions of each replica. Pure.
//!
//! An entry with a session key waits for one replica, which rendezvous hashing (Thaler and Ravishankar, 1998) picks
//! among the running replicas. All other entries wait for any of them. A replica takes from its own queue and the
//! common one in the order of both together, so a busy replica delays only its own sessions.
//!
//! When a replica ends, its sessions, and only those, move to others; when one comes up, it takes a share from all.

use std::collections::BTreeMap;

use super::cost::Load;
use super::waiting::{BatchQueue, EntryKey, Head};
use crate::call::SessionKey;
use crate::clock::Instant;
use crate::deadline::Deadline;

/// The queue of sessions while no replica is up.
const NOBODY: usize = usize::MAX;

/// Waiting entries by the replica that may take them. Without sessions it is one queue.
#[derive(Debug)]
pub(crate) struct SessionQueues<T> {
    common: BatchQueue<T>,
    /// Only queues with entries.
    own: BTreeMap<usize, BatchQueue<(SessionKey, EntryKey, Instant, T)>>,
    /// The replicas that are up.
    replicas: Vec<usize>,
    ageing: std::time::Duration,
    /// The load of the sessions' queues.
    own_load: Load,
}

/// The next entry for one replica. Its order is that in which entries leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LaneHead {
    head: Head,
    /// In the queue of this replica's sessions.
    own: Option<usize>,
}

impl LaneHead {
    pub(crate) fn cost(&self) -> u64 {
        self.head.cost()
    }
}

impl<T> SessionQueues<T> {
    pub(crate) fn new(ageing: std::time::Duration) -> Self {
        Self {
            common: BatchQueue::new(ageing),
            own: BTreeMap::new(),
            replicas: Vec::new(),
            ageing,
            own_load: Load::NONE,
        }
    }

    /// Sets the replicas that are up. The sessions of other replicas move.
    pub(crate) fn set_replicas(&mut self, replicas: impl Iterator<Item = usize>) {
        self.replicas.clear();
        self.replicas.extend(replicas);
        // In order and each once: two lives of a replica may overlap for a moment.
        self.replicas.sort_unstable();
        self.replicas.dedup();
        for (_, mut lane) in std::mem::take(&mut self.own) {
            while let Some(((session, key, arrival, entry), cost)) = lane.pop_any() {
                self.own_load = self.own_load.minus(Load::new(1, cost));
                self.push(Some(session), key, arrival, cost, entry);
            }
        }
    }

    pub(crate) fn push(&mut self, session: Option<SessionKey>, key: EntryKey, arrival: Instant, cost: u64, entry: T) {
        let Some(session) = session else { return self.common.push(key, arrival, cost, entry) };
        let home = home(session, &self.replicas);
        let lane = self.own.entry(home).or_insert_with(|| BatchQueue::new(self.ageing));
        lane.push(key, arrival, cost, (session, key, arrival, entry));
        self.own_load = self.own_load.plus(Load::new(1, cost));
    }

    /// Lets the entries for this replica gain the classes for which they have waited.
    pub(crate) fn age(&mut self, replica: usize, now: Instant) {
        self.common.age(now);
        if let Some(own) = self.own.get_mut(&replica) {
            own.age(now);
        }
    }

    /// The next entry for this replica, in the classes of the last [`age`](Self::age).
    pub(crate) fn head(&self, replica: usize) -> Option<LaneHead> {
        let common = self.common.head().map(|head| LaneHead { head, own: None });
        if self.own.is_empty() {
            return common;
        }
        let own = self.own.get(&replica).and_then(BatchQueue::head);
        let own = own.map(|head| LaneHead { head, own: Some(replica) });
        [common, own].into_iter().flatten().min_by_key(|lane| lane.head)
    }

    /// Takes the entry of [`head`](Self::head).
    pub(crate) fn take(&mut self, found: LaneHead) -> T {
        let Some(replica) = found.own else { return self.common.take(found.head) };
        let lane = self.own.get_mut(&replica).expect("it was looked into just now");
        let (_, _, _, entry) = lane.take(found.head);
        if lane.len() == 0 {
            self.own.remove(&replica);
        }
        self.own_load = self.own_load.minus(Load::new(1, found.cost()));
        entry
    }

    /// Removes an entry whose caller left.
    pub(crate) fn remove(&mut self, key: EntryKey) -> Option<T> {
        if let Some(entry) = self.common.remove(key) {
            return Some(entry);
        }
        let (replica, (entry, cost)) =
            self.own.iter_mut().find_map(|(replica, lane)| Some((*replica, lane.remove_with_cost(key)?)))?;
        if self.own.get(&replica).is_some_and(|lane| lane.len() == 0) {
            self.own.remove(&replica);
        }
        self.own_load = self.own_load.minus(Load::new(1, cost));
        Some(entry.3)
    }

    /// Whether an entry waits.
    pub(crate) fn contains(&self, key: EntryKey) -> bool {
        self.common.contains(key) || self.own.values().any(|lane| lane.contains(key))
    }

    /// Takes any entry, when the stage ends.
    pub(crate) fn pop_any(&mut self) -> Option<T> {
        if let Some((entry, _)) = self.common.pop_any() {
            return Some(entry);
        }
        let replica = *self.own.first_key_value()?.0;
        let lane = self.own.get_mut(&replica)?;
        let popped = lane.pop_any();
        if lane.len() == 0 {
            self.own.remove(&replica);
        }
        let ((_, _, _, entry), cost) = popped?;
        self.own_load = self.own_load.minus(Load::new(1, cost));
        Some(entry)
    }

    pub(crate) fn len(&self) -> usize {
        self.common.len() + self.own_load.entries
    }

    pub(crate) fn has_sessions(&self) -> bool {
        !self.own.is_empty()
    }

    /// The load of all waiting entries.
    pub(crate) fn load(&self) -> Load {
        self.common.load().plus(self.own_load)
    }

    /// The load of the entries for this replica.
    pub(crate) fn load_for(&self, replica: usize) -> Load {
        self.common.load().plus(self.own.get(&replica).map_or(Load::NONE, BatchQueue::load))
    }

    /// The load that would leave before such an entry, and the number of replicas that may take the entry; `None` for
    /// all of them.
    pub(crate) fn before(&self, session: Option<SessionKey>, key: EntryKey) -> (Load, Option<usize>) {
        match session {
            // The replica of a session also takes from the common queue, but the others do as well, by an unknown
            // share.
            Some(session) => {
                let home = home(session, &self.replicas);
                (self.own.get(&home).map_or(Load::NONE, |lane| lane.before(key)), Some(1))
            }
            None => (self.own.values().fold(self.common.before(key), |sum, lane| sum.plus(lane.before(key))), None),
        }
    }

    /// The arrival of the entry that waits longest for this replica.
    pub(crate) fn oldest_arrival(&self, replica: usize) -> Option<Instant> {
        let own = self.own.get(&replica).and_then(BatchQueue::oldest_arrival);
        self.common.oldest_arrival().into_iter().chain(own).min()
    }

    /// The earliest deadline of the entries for this replica.
    pub(crate) fn first_deadline(&self, replica: usize) -> Option<Deadline> {
        let own = self.own.get(&replica).and_then(BatchQueue::first_deadline);
        self.common.first_deadline().into_iter().chain(own).min()
    }
}

/// The replica with the highest score for a session.
fn home(session: SessionKey, replicas: &[usize]) -> usize {
    replicas.iter().copied().max_by_key(|replica| (session.affinity(*replica), *replica)).unwrap_or(NOBODY)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::call::Priority;
    use proptest::prelude::*;

    fn session(name: u64) -> SessionKey {
        SessionKey::new(&format!("session {name}"))
    }

    #[derive(Clone, Debug)]
    enum Operation {
        Push { class: usize, slack_ms: u64, session: Option<u64> },
        Take { replica: usize },
        Remove { nth: usize },
        Up { replica: usize },
        Down { replica: usize },
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            6 => (0usize..3, 0u64..50, prop::option::of(0u64..8))
                .prop_map(|(class, slack_ms, session)| Operation::Push { class, slack_ms, session }),
            4 => (0usize..4).prop_map(|replica| Operation::Take { replica }),
            1 => (0usize..20).prop_map(|nth| Operation::Remove { nth }),
            1 => (0usize..4).prop_map(|replica| Operation::Up { replica }),
            1 => (0usize..4).prop_map(|replica| Operation::Down { replica }),
        ]
    }

    proptest! {
        /// Each replica gets the first entry of its own sessions and of those without one, for any change of replicas.
        #[test]
        fn agrees_with_a_sorted_list(operations in prop::collection::vec(operation(), 0..200)) {
            let now = Instant::now();
            let mut lanes = SessionQueues::new(Duration::from_secs(5));
            let mut replicas: Vec<usize> = Vec::new();
            let mut model: Vec<(EntryKey, Option<SessionKey>)> = Vec::new();
            for (step, operation) in operations.into_iter().enumerate() {
                match operation {
                    Operation::Push { class, slack_ms, session: name } => {
                        let key = EntryKey {
                            priority: Priority::ALL[class],
                            deadline: Deadline::after(now, Duration::from_millis(slack_ms)),
                            sequence: step as u64,
                        };
                        let session = name.map(session);
                        lanes.push(session, key, now, 2, key);
                        model.push((key, session));
                    }
                    Operation::Take { replica } => {
                        model.sort_unstable_by_key(|(key, _)| *key);
                        let may = |session: Option<SessionKey>| session.is_none_or(|session| home(session, &replicas) == replica);
                        let first = model.iter().position(|(_, session)| may(*session));
                        let expected = first.map(|position| model.remove(position).0);
                        lanes.age(replica, now);
                        let head = lanes.head(replica);
                        prop_assert_eq!(head.map(|head| lanes.take(head)), expected);
                    }
                    Operation::Remove { nth } => if nth < model.len() {
                        let (key, _) = model.remove(nth);
                        prop_assert_eq!(lanes.remove(key), Some(key));
                        prop_assert_eq!(lanes.remove(key), None);
                    }
                    Operation::Up { replica } => {
                        replicas.push(replica);
                        lanes.set_replicas(replicas.iter().copied());
                    }
                    Operation::Down { replica } => {
                        replicas.retain(|up| *up != replica);
                        lanes.set_replicas(replicas.iter().copied());
                    }
                }
                prop_assert_eq!(lanes.load(), Load::new(model.len(), 2 * model.len() as u64));
                prop_assert_eq!(lanes.len(), model.len());
                for replica in 0..4 {
                    let may = |session: Option<SessionKey>| session.is_none_or(|session| home(session, &replicas) == replica);
                    let count = model.iter().filter(|(_, session)| may(*session)).count();
                    prop_assert_eq!(lanes.load_for(replica).entries, count);
                }
            }
            let mut left = 0;
            while lanes.pop_any().is_some() {
                left += 1;
            }
            prop_assert_eq!((left, lanes.len(), lanes.has_sessions()), (model.len(), 0, false));
        }
    }

    fn key(now: Instant, priority: Priority, slack_ms: u64, sequence: u64) -> EntryKey {
        EntryKey { priority, deadline: Deadline::after(now, Duration::from_millis(slack_ms)), sequence }
    }

    /// A queue for two replicas, a session of the first, and one of the second.
    fn two_replicas<T>(ageing: Duration) -> (SessionQueues<T>, SessionKey, SessionKey) {
        let mut queue = SessionQueues::new(ageing);
        queue.set_replicas([0, 1].into_iter());
        let of = |replica| (0..).map(session).find(|session| home(*session, &[0, 1]) == replica).unwrap();
        (queue, of(0), of(1))
    }

    #[test]
    fn entries_of_a_session_gain_classes_as_all_others() {
        let ageing = Duration::from_millis(20);
        let (start, (mut queue, session, _)) = (Instant::now(), two_replicas(ageing));
        queue.push(Some(session), key(start, Priority::Low, 10, 0), start, 1, "patient");
        let later = start + 2 * ageing;
        queue.push(None, key(later, Priority::High, 10, 1), later, 1, "urgent");
        queue.age(0, later);
        let head = queue.head(0).unwrap();
        assert_eq!(queue.take(head), "patient");
    }

    #[test]
    fn a_replica_sees_the_common_entries_and_those_of_its_sessions() {
        let (start, (mut queue, first, second)) = (Instant::now(), two_replicas(Duration::from_secs(5)));
        let at = |ms| start + Duration::from_millis(ms);
        queue.push(Some(first), key(start, Priority::Normal, 30, 0), at(1), 2, ());
        assert!(queue.has_sessions());
        queue.push(None, key(start, Priority::Normal, 40, 1), at(2), 3, ());
        queue.push(Some(second), key(start, Priority::Normal, 50, 2), at(0), 4, ());
        assert_eq!([0, 1].map(|replica| queue.oldest_arrival(replica)), [Some(at(1)), Some(at(0))]);
        let due = [0, 1].map(|replica| queue.first_deadline(replica).map(Deadline::instant));
        assert_eq!(due, [Some(at(30)), Some(at(40))]);
        let next = key(start, Priority::Normal, 45, 3);
        assert_eq!(queue.before(Some(first), next), (Load::new(1, 2), Some(1)));
        assert_eq!(queue.before(Some(second), next), (Load::NONE, Some(1)));
        assert_eq!(queue.before(None, next), (Load::new(2, 5), None));
    }

    #[test]
    fn a_removed_replica_moves_only_its_own_sessions_and_all_have_their_share() {
        let all: Vec<usize> = (0..5).collect();
        let mut counts = [0; 5];
        for name in 0..10_000 {
            let before = home(session(name), &all);
            counts[before] += 1;
            let without: Vec<usize> = (0..5).filter(|replica| *replica != 3).collect();
            let after = home(session(name), &without);
            assert!(before == 3 || after == before, "session {name} moved from {before} to {after}");
        }
        assert!(counts.iter().all(|count| (1800..2200).contains(count)), "{counts:?}");
    }
}
