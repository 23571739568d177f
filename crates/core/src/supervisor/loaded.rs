//! Which stages may be in memory at the same time: a pure decision.
//!
//! A stage that takes a place has one from before its first replica starts until its last one has ended.
//!
//! * **Full:** the stage that has waited longest gets the next places. To make room, the least recently used stages
//!   without calls leave, but only if that is enough.
//! * **Late or cancelled:** a stage without waiting callers withdraws.

use std::collections::BTreeMap;

use crate::clock::Instant;

/// The bounds of one node; `None` is no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoadedLimits {
    /// Loaded stages.
    pub(crate) stages: Option<usize>,
    /// Their bytes, as far as they are known.
    pub(crate) bytes: Option<u64>,
}

/// The number of a place, in the order of the requests.
pub(super) type PlaceId = u64;

/// The state of one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceState {
    /// It waits for its place.
    Waiting,
    /// It may load, and stay.
    Loaded,
    /// It has to leave, if it has no call, for the stage with this place.
    Leaving(PlaceId),
}

#[derive(Clone, Copy, Debug)]
struct Place {
    bytes: u64,
    is_pinned: bool,
    state: PlaceState,
}

/// How a loaded stage is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceUse {
    /// Entries wait or run.
    pub(super) has_calls: bool,
    /// When its last batch began, or its place was given.
    pub(super) last: Option<Instant>,
}

/// The next step of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceStep {
    /// This stage may load.
    Grant(PlaceId),
    /// The first has to leave for the second.
    Evict(PlaceId, PlaceId),
}

/// A stage that would not fit if all others left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NeverFits {
    #[error("it takes {bytes} bytes, and `max_loaded_bytes` = {limit} has {pinned} for pinned stages")]
    Bytes { bytes: u64, limit: u64, pinned: u64 },
    #[error("pinned stages take all places of `max_loaded` = {limit}")]
    Stages { limit: usize },
}

/// The places of a node.
#[derive(Debug, Default)]
pub(super) struct LoadedStages {
    limits: LoadedLimits,
    places: BTreeMap<PlaceId, Place>,
    requests: PlaceId,
}

/// A number of stages and their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    stages: usize,
    bytes: u64,
}

impl Sum {
    fn plus(self, place: &Place) -> Self {
        Self { stages: self.stages + 1, bytes: self.bytes.saturating_add(place.bytes) }
    }

    fn minus(self, place: &Place) -> Self {
        Self { stages: self.stages - 1, bytes: self.bytes.saturating_sub(place.bytes) }
    }

    fn is_within(self, limits: LoadedLimits) -> bool {
        limits.stages.is_none_or(|limit| self.stages <= limit) && limits.bytes.is_none_or(|limit| self.bytes <= limit)
    }
}

impl LoadedStages {
    pub(super) fn new(limits: LoadedLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Asks for a place. A pinned stage has it at once.
    pub(super) fn request(&mut self, bytes: u64, is_pinned: bool) -> Result<PlaceId, NeverFits> {
        let state = if is_pinned { PlaceState::Loaded } else { PlaceState::Waiting };
        let place = Place { bytes, is_pinned, state };
        if !is_pinned {
            let pinned = self.sum(|place| place.is_pinned);
            let LoadedLimits { stages, bytes: max_bytes } = self.limits;
            if let Some(limit) = stages.filter(|limit| pinned.stages >= *limit) {
                return Err(NeverFits::Stages { limit });
            }
            if let Some(limit) = max_bytes.filter(|limit| pinned.bytes.saturating_add(bytes) > *limit) {
                return Err(NeverFits::Bytes { bytes, limit, pinned: pinned.bytes });
            }
        }
        self.requests += 1;
        self.places.insert(self.requests, place);
        Ok(self.requests)
    }

    /// Gives a place back, or withdraws a request.
    pub(super) fn release(&mut self, id: PlaceId) {
        self.places.remove(&id);
        for place in self.places.values_mut().filter(|place| place.state == PlaceState::Leaving(id)) {
            place.state = PlaceState::Loaded;
        }
    }

    pub(super) fn state(&self, id: PlaceId) -> Option<PlaceState> {
        self.places.get(&id).map(|place| place.state)
    }

    /// A stage that was to leave has a call again: it stays.
    pub(super) fn stay(&mut self, id: PlaceId) {
        if let Some(place) = self.places.get_mut(&id) {
            place.state = PlaceState::Loaded;
        }
    }

    /// Takes the next step towards a place for the stage that has waited longest, if there is one now.
    pub(super) fn step(&mut self, use_of: impl Fn(PlaceId) -> PlaceUse) -> Option<PlaceStep> {
        let (first, wanted) = self.places.iter().find(|(_, place)| place.state == PlaceState::Waiting)?;
        let (first, wanted) = (*first, *wanted);
        let taken = self.sum(|place| place.state != PlaceState::Waiting);
        if taken.plus(&wanted).is_within(self.limits) {
            self.set(first, PlaceState::Loaded);
            return Some(PlaceStep::Grant(first));
        }
        let leaving = |place: &&Place| matches!(place.state, PlaceState::Leaving(_));
        let mut left = self.places.values().filter(leaving).fold(taken, Sum::minus);
        if left.plus(&wanted).is_within(self.limits) {
            return None;
        }
        let may_leave = |(_, place): &(&PlaceId, &Place)| place.state == PlaceState::Loaded && !place.is_pinned;
        let unused = self.places.iter().filter(may_leave).map(|(id, place)| (use_of(*id), *id, place));
        let mut unused: Vec<_> = unused.filter(|(used, ..)| !used.has_calls).collect();
        unused.sort_by_key(|(used, id, _)| (used.last, *id));
        let least = unused.first().map(|(_, id, _)| *id)?;
        let is_enough = unused.iter().any(|(_, _, place)| {
            left = left.minus(place);
            left.plus(&wanted).is_within(self.limits)
        });
        if !is_enough {
            return None;
        }
        self.set(least, PlaceState::Leaving(first));
        Some(PlaceStep::Evict(least, first))
    }

    fn set(&mut self, id: PlaceId, state: PlaceState) {
        if let Some(place) = self.places.get_mut(&id) {
            place.state = state;
        }
    }

    fn sum(&self, counts: impl Fn(&Place) -> bool) -> Sum {
        self.places.values().filter(|place| counts(place)).fold(Sum::default(), |sum, place| sum.plus(place))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn limits(stages: usize, bytes: u64) -> LoadedLimits {
        LoadedLimits { stages: Some(stages), bytes: Some(bytes) }
    }

    /// All without calls, the higher number used earlier.
    fn unused(start: Instant) -> impl Fn(PlaceId) -> PlaceUse {
        move |id| PlaceUse { has_calls: false, last: Some(start + Duration::from_secs(100 - id)) }
    }

    fn loaded(stages: &mut LoadedStages, bytes: &[u64]) -> Vec<PlaceId> {
        let request = |bytes: &u64| {
            let id = stages.request(*bytes, false).unwrap();
            assert_eq!(stages.step(|_| unreachable!("there is room")), Some(PlaceStep::Grant(id)));
            id
        };
        bytes.iter().map(request).collect()
    }

    #[test]
    fn the_least_recently_used_stage_without_calls_leaves() {
        let start = Instant::now();
        let mut stages = LoadedStages::new(limits(3, 1000));
        let ids = loaded(&mut stages, &[1, 1, 1]);
        let waiting = stages.request(1, false).unwrap();
        let used = |id: PlaceId| PlaceUse { has_calls: id == ids[2], ..unused(start)(id) };
        assert_eq!(stages.step(used), Some(PlaceStep::Evict(ids[1], waiting)));
        assert_eq!(stages.step(used), None, "it is on its way");
        stages.release(ids[1]);
        assert_eq!(stages.step(used), Some(PlaceStep::Grant(waiting)));
        assert_eq!(stages.step(used), None);
    }

    #[test]
    fn a_stage_with_a_call_stays_and_its_place_is_asked_of_the_next() {
        let start = Instant::now();
        let mut stages = LoadedStages::new(limits(2, 1000));
        let ids = loaded(&mut stages, &[1, 1]);
        let waiting = stages.request(1, false).unwrap();
        assert_eq!(stages.step(unused(start)), Some(PlaceStep::Evict(ids[1], waiting)));
        stages.stay(ids[1]);
        let used = |id: PlaceId| PlaceUse { has_calls: id == ids[1], ..unused(start)(id) };
        assert_eq!(stages.step(used), Some(PlaceStep::Evict(ids[0], waiting)));
    }

    #[test]
    fn no_stage_leaves_if_that_is_not_enough() {
        let start = Instant::now();
        let mut stages = LoadedStages::new(limits(9, 100));
        let ids = loaded(&mut stages, &[60, 30]);
        stages.request(60, false).unwrap();
        let large_is_busy = |id: PlaceId| PlaceUse { has_calls: id == ids[0], ..unused(start)(id) };
        assert_eq!(stages.step(large_is_busy), None);
    }

    #[test]
    fn pinned_stages_have_their_places_and_a_stage_that_never_fits_is_told_so() {
        let mut stages = LoadedStages::new(limits(2, 100));
        stages.request(70, true).unwrap();
        assert_eq!(stages.request(31, false), Err(NeverFits::Bytes { bytes: 31, limit: 100, pinned: 70 }));
        let fits = stages.request(30, false).unwrap();
        assert_eq!(stages.step(|_| unreachable!()), Some(PlaceStep::Grant(fits)));
        stages.request(0, true).unwrap();
        assert_eq!(stages.request(0, false), Err(NeverFits::Stages { limit: 2 }));
    }

    proptest! {
        /// For every order of requests, uses and returns: the limits hold, pinned stages and stages with calls stay,
        /// and the first that waits is the first that loads.
        #[test]
        fn the_limits_hold_and_the_first_to_wait_is_the_first_to_load(
            max in 1usize..5, steps in prop::collection::vec((0u8..3, 0usize..8, 1u64..50, any::<u8>()), 1..200),
        ) {
            let (start, limits) = (Instant::now(), limits(max, 100));
            let mut stages = LoadedStages::new(limits);
            let (mut waiting, mut here): (Vec<PlaceId>, BTreeSet<PlaceId>) = Default::default();
            for (action, nth, bytes, calls) in steps {
                let busy = |id: PlaceId| calls >> (id % 8) & 1 == 1;
                match action {
                    0 => waiting.extend(stages.request(bytes, false)),
                    1 => {
                        if let Some(id) = here.iter().nth(nth).copied() {
                            stages.release(id);
                            here.remove(&id);
                        }
                    }
                    _ => {
                        if !waiting.is_empty() {
                            stages.release(waiting.remove(nth % waiting.len()));
                        }
                    }
                }
                let use_of = |id: PlaceId| PlaceUse { has_calls: busy(id), ..unused(start + Duration::from_secs(1000))(id % 90) };
                while let Some(step) = stages.step(use_of) {
                    match step {
                        PlaceStep::Grant(id) => {
                            prop_assert_eq!(id, waiting.remove(0));
                            here.insert(id);
                        }
                        PlaceStep::Evict(id, first) => {
                            prop_assert!(here.contains(&id) && !busy(id), "{} with calls", id);
                            prop_assert_eq!(first, waiting[0]);
                        }
                    }
                }
                let taken = stages.sum(|place| place.state != PlaceState::Waiting);
                prop_assert!(taken.is_within(limits) && taken.stages == here.len(), "{:?}", taken);
            }
        }
    }
}
