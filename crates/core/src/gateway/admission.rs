//! Admission and ledger as one plain value: an admitted call enters the ledger in the same step.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slab::Slab;

use crate::clock::Instant;
use crate::deadline::Deadline;
use crate::id::{CallId, RouteIndex, RouteName};

/// The bounds of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest number of calls in flight. Default [`DEFAULT_MAX_IN_FLIGHT`](Self::DEFAULT_MAX_IN_FLIGHT). One more
    /// is refused with `Overloaded`.
    pub max_in_flight: usize,
    /// The memory budget of the node in bytes. Default
    /// [`DEFAULT_MAX_IN_FLIGHT_BYTES`](Self::DEFAULT_MAX_IN_FLIGHT_BYTES). Each call has an account, which is charged
    /// before memory is allocated for the call: received and unpacked bytes, decoded values, copies, and the encoded
    /// answer until it is sent; in process, the known size of an input. Allocations of user code are not counted. A
    /// call that does not fit is refused with `Overloaded`, before its body is read if its length is known.
    pub max_in_flight_bytes: u64,
    /// The timeout of calls that set none. Default [`DEFAULT_TIMEOUT`](crate::Deadline::DEFAULT_TIMEOUT).
    pub default_timeout: Duration,
    /// The most loaded stages, among stages that [may have no
    /// replica](crate::Stage::replicas_between) or are [pinned](crate::Stage::pinned). Default `None`: no limit. A call
    /// for one more waits, within its deadline, until the least recently used one without calls is unloaded.
    pub max_loaded: Option<usize>,
    /// The most bytes of these stages together, as far as [they are known](crate::Stage::memory). Default `None`: no
    /// limit. See [`max_loaded`](Self::max_loaded).
    pub max_loaded_bytes: Option<u64>,
    /// The longest time for a call, whatever its caller or its route sets. Default, and at most,
    /// [`MAX_TIMEOUT`](crate::Deadline::MAX_TIMEOUT). A longer timeout is shortened to it; a route may have a [smaller
    /// one](crate::RouteSpec::max_timeout). Set it if callers may ask for unreasonable timeouts.
    pub max_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_in_flight: Self::DEFAULT_MAX_IN_FLIGHT,
            max_in_flight_bytes: Self::DEFAULT_MAX_IN_FLIGHT_BYTES,
            default_timeout: Deadline::DEFAULT_TIMEOUT,
            max_loaded: None,
            max_loaded_bytes: None,
            max_timeout: Deadline::MAX_TIMEOUT,
        }
    }
}

impl Limits {
    /// Calls in flight on one node by default: far above the capacity of the stages' queues, so that it only bounds
    /// calls that wait for their body or their reader.
    pub const DEFAULT_MAX_IN_FLIGHT: usize = 16 * 1024;

    /// Payload bytes in flight on one node by default.
    pub const DEFAULT_MAX_IN_FLIGHT_BYTES: u64 = 256 * 1024 * 1024;

    /// The first limit at zero that would refuse every call.
    pub(crate) fn zero(&self) -> Option<&'static str> {
        let limits = [
            ("max_in_flight", self.max_in_flight == 0),
            ("max_in_flight_bytes", self.max_in_flight_bytes == 0),
            ("default_timeout", self.default_timeout.is_zero()),
            ("max_timeout", self.max_timeout.is_zero()),
        ];
        limits.into_iter().find(|(_, is_zero)| *is_zero).map(|(limit, _)| limit)
    }
}

/// Why a call was not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the node is draining")]
    Draining,
    #[error("{limit} calls are in flight already")]
    TooManyCalls { limit: usize },
    #[error("{limit} inner calls are in flight already for one call")]
    TooManyInnerCalls { limit: u16 },
    /// Other calls hold the bytes.
    #[error("{asked} more bytes in flight would exceed max_in_flight_bytes = {limit}")]
    TooManyBytes { asked: u64, limit: u64 },
    /// The call alone needs more than all bytes of the node.
    #[error("the call needs {bytes} bytes, more than max_in_flight_bytes = {limit}")]
    TooLarge { bytes: u64, limit: u64 },
    #[error("{limit} calls of route `{route}` are in flight already, which is its limit")]
    RouteFull { route: RouteName, limit: usize },
}

/// The maximum count of inner calls of one admitted call at a time, at any depth: enough for one call per item of a
/// batch, few enough to stop an endless loop.
pub(crate) const MAX_INNER_CALLS: u16 = 256;

impl Refusal {
    /// Whether there may be room later: not for a call that fits no empty node, nor on a draining node.
    pub(crate) fn may_pass(&self) -> bool {
        match *self {
            Self::Draining => false,
            Self::TooManyCalls { limit } => limit > 0,
            Self::TooManyInnerCalls { .. } | Self::TooManyBytes { .. } | Self::RouteFull { .. } => true,
            Self::TooLarge { .. } => false,
        }
    }
}

/// One call in flight.
#[derive(Debug)]
pub(crate) struct LedgerLine {
    pub(crate) id: CallId,
    pub(crate) route: RouteIndex,
    pub(crate) since: Instant,
    bytes: u64,
    /// Whether the call uses the permit of its outer call.
    is_inner: bool,
    /// The call has its outcome. Its bytes are still charged.
    is_closed: bool,
}

/// The sum of the bytes of one request that has several accounts. It tells a request that alone exceeds the node's
/// limit, which is too large, from one that others leave no room.
#[derive(Clone, Debug, Default)]
pub struct RequestBytes(Arc<AtomicU64>);

impl RequestBytes {
    pub(crate) fn sum(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The permits in use, and the calls that hold them.
#[derive(Debug)]
pub(crate) struct Ledger {
    limits: Limits,
    lines: Slab<LedgerLine>,
    /// The requests of calls that are not the only account of theirs. Few are, and a waiting call is to be small.
    requests: HashMap<usize, RequestBytes>,
    open: usize,
    bytes: u64,
    /// The peak of the bytes since the last request for it.
    #[cfg(feature = "testing")]
    peak_bytes: u64,
    admitted: u64,
    is_draining: bool,
}

impl Ledger {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            lines: Slab::new(),
            requests: HashMap::new(),
            open: 0,
            bytes: 0,
            #[cfg(feature = "testing")]
            peak_bytes: 0,
            admitted: 0,
            is_draining: false,
        }
    }

    /// Admits a call, or returns the reason of the refusal. The key closes the line again. An inner call needs no
    /// permit, not even on a draining node, because its outer call cannot end without it.
    pub(crate) fn admit(
        &mut self,
        now: Instant,
        route: RouteIndex,
        bytes: u64,
        is_inner: bool,
    ) -> Result<u32, Refusal> {
        self.check(bytes, is_inner)?;
        self.take(0, bytes)?;
        let id = CallId(self.admitted);
        self.admitted += 1;
        self.open += usize::from(!is_inner);
        let key = self.lines.insert(LedgerLine { id, route, since: now, bytes, is_inner, is_closed: false });
        Ok(u32::try_from(key).expect("fewer calls in flight than 2³²"))
    }

    /// Whether this call has no outcome yet.
    pub(crate) fn is_open(&self, key: usize) -> bool {
        !self.lines[key].is_closed
    }

    /// Counts the age of a call from now on.
    pub(crate) fn restart(&mut self, key: usize, now: Instant) {
        self.lines[key].since = now;
    }

    pub(crate) fn route_of(&self, key: usize) -> RouteIndex {
        self.lines[key].route
    }

    pub(crate) fn id_of(&self, key: usize) -> CallId {
        self.lines[key].id
    }

    /// Whether a call of this many bytes could be admitted. Changes nothing.
    pub(crate) fn check(&self, bytes: u64, is_inner: bool) -> Result<(), Refusal> {
        match () {
            () if self.is_draining && !is_inner => Err(Refusal::Draining),
            () if self.open >= self.limits.max_in_flight && !is_inner => {
                Err(Refusal::TooManyCalls { limit: self.limits.max_in_flight })
            }
            () => self.sum_with(0, bytes).map(drop),
        }
    }

    /// Counts a call among the accounts of a request. A second request changes nothing.
    pub(crate) fn join(&mut self, key: usize, request: &RequestBytes) {
        if let Entry::Vacant(entry) = self.requests.entry(key) {
            request.add(self.lines[key].bytes);
            entry.insert(request.clone());
        }
    }

    /// Charges more bytes to a call: its body was longer than announced, or was decoded.
    pub(crate) fn grow(&mut self, key: usize, bytes: u64) -> Result<(), Refusal> {
        let own = self.requests.get(&key).map_or(0, RequestBytes::sum);
        self.take(self.lines[key].bytes.max(own), bytes)?;
        self.lines[key].bytes += bytes;
        self.requests.get(&key).into_iter().for_each(|request| request.add(bytes));
        Ok(())
    }

    /// Gives back bytes that were charged to a call, at most the charged bytes that are left.
    pub(crate) fn shrink(&mut self, key: usize, bytes: u64) {
        let line = &mut self.lines[key];
        let bytes = bytes.min(line.bytes);
        line.bytes -= bytes;
        self.bytes -= bytes;
        self.requests.get(&key).into_iter().for_each(|request| request.remove(bytes));
    }

    /// Closes a call: it has its outcome, and its permit is free. Its bytes stay charged until it is
    /// [removed](Self::remove).
    ///
    /// Returns whether it used the permit of its outer call.
    pub(crate) fn close(&mut self, key: usize) -> bool {
        let line = &mut self.lines[key];
        line.is_closed = true;
        self.open -= usize::from(!line.is_inner);
        line.is_inner
    }

    /// Gives back the remaining bytes of a closed call: no more work runs for it.
    pub(crate) fn remove(&mut self, key: usize) {
        let line = self.lines.remove(key);
        debug_assert!(line.is_closed);
        self.bytes -= line.bytes;
        self.requests.remove(&key).into_iter().for_each(|request| request.remove(line.bytes));
    }

    /// Takes bytes for an account that holds `own` bytes.
    pub(crate) fn take(&mut self, own: u64, bytes: u64) -> Result<(), Refusal> {
        self.bytes = self.sum_with(own, bytes)?;
        #[cfg(feature = "testing")]
        {
            self.peak_bytes = self.peak_bytes.max(self.bytes);
        }
        Ok(())
    }

    /// Takes bytes for work that can wait: a quarter of all bytes must stay free for the outcomes of calls in flight.
    pub(crate) fn take_patiently(&mut self, bytes: u64) -> Result<(), Refusal> {
        let limit = self.limits.max_in_flight_bytes;
        if self.bytes == 0 || self.bytes.saturating_add(bytes) <= limit - limit / 4 {
            self.take(0, bytes)
        } else {
            Err(Refusal::TooManyBytes { asked: bytes, limit })
        }
    }

    /// Gives [taken](Self::take) bytes back.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.bytes -= bytes;
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn max_bytes(&self) -> u64 {
        self.limits.max_in_flight_bytes
    }

    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.open
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[cfg(feature = "testing")]
    pub(crate) fn take_peak_bytes(&mut self) -> u64 {
        std::mem::replace(&mut self.peak_bytes, self.bytes)
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.admitted
    }

    /// The calls in flight, in no order.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &LedgerLine> {
        self.lines.iter().map(|(_, line)| line).filter(|line| !line.is_closed)
    }

    /// Calls that are older than any deadline allows: each is a defect.
    pub(crate) fn overdue(&self, now: Instant) -> impl Iterator<Item = &LedgerLine> {
        self.lines().filter(move |line| now.saturating_duration_since(line.since) > 2 * Deadline::MAX_TIMEOUT)
    }

    /// The sum of all bytes with these. `own` bytes of it belong to the same account: if the account alone exceeds the
    /// limit, it does not fit later either.
    fn sum_with(&self, own: u64, bytes: u64) -> Result<u64, Refusal> {
        let limit = self.limits.max_in_flight_bytes;
        let alone = own.saturating_add(bytes);
        match self.bytes.checked_add(bytes) {
            Some(sum) if sum <= limit => Ok(sum),
            _ if alone > limit => Err(Refusal::TooLarge { bytes: alone, limit }),
            _ => Err(Refusal::TooManyBytes { asked: bytes, limit }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Operation {
        Admit(u64),
        Grow { nth: usize, bytes: u64 },
        Shrink { nth: usize, bytes: u64 },
        Close { nth: usize },
        Remove { nth: usize },
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            3 => (0u64..60).prop_map(Operation::Admit),
            1 => (0usize..8, 0u64..60).prop_map(|(nth, bytes)| Operation::Grow { nth, bytes }),
            1 => (0usize..8, 0u64..60).prop_map(|(nth, bytes)| Operation::Shrink { nth, bytes }),
            2 => (0usize..8).prop_map(|nth| Operation::Close { nth }),
            2 => (0usize..8).prop_map(|nth| Operation::Remove { nth }),
        ]
    }

    proptest! {
        /// The bounds hold after every step, a refusal changes nothing, and closing every call returns both sums to
        /// zero.
        #[test]
        fn keeps_its_bounds_and_returns_to_zero(operations in prop::collection::vec(operation(), 0..100)) {
            let limits = Limits { max_in_flight: 4, max_in_flight_bytes: 100, ..Limits::default() };
            let mut ledger = Ledger::new(limits);
            let now = Instant::now();
            let (mut open, mut closed) = (Vec::new(), Vec::new());
            for operation in operations {
                let before = (ledger.in_flight(), ledger.bytes());
                match operation {
                    Operation::Admit(bytes) => {
                        let checked = ledger.check(bytes, false);
                        let admitted = ledger.admit(now, RouteIndex(0), bytes, false);
                        prop_assert_eq!(&checked, &admitted.as_ref().map(|_| ()).map_err(Refusal::clone));
                        match admitted {
                            Ok(key) => {
                                open.push(key as usize);
                                prop_assert_eq!(ledger.bytes(), before.1 + bytes);
                            }
                            Err(_) => {
                                prop_assert!(before.0 == 4 || before.1 + bytes > 100);
                                prop_assert_eq!(before, (ledger.in_flight(), ledger.bytes()));
                            }
                        }
                    }
                    Operation::Grow { nth, bytes } if nth < open.len() => {
                        let grown = ledger.grow(open[nth], bytes).is_ok();
                        prop_assert_eq!(grown, before.1 + bytes <= 100);
                        prop_assert_eq!(ledger.bytes(), before.1 + if grown { bytes } else { 0 });
                    }
                    Operation::Shrink { nth, bytes } if nth < open.len() => {
                        let charged = ledger.lines[open[nth]].bytes;
                        ledger.shrink(open[nth], bytes);
                        prop_assert_eq!(ledger.bytes(), before.1 - bytes.min(charged));
                    }
                    Operation::Close { nth } if nth < open.len() => {
                        let key = open.swap_remove(nth);
                        ledger.close(key);
                        closed.push(key);
                    }
                    Operation::Remove { nth } if nth < closed.len() => ledger.remove(closed.swap_remove(nth)),
                    _ => {}
                }
                prop_assert!(ledger.in_flight() <= 4 && ledger.bytes() <= 100);
            }
            prop_assert_eq!(ledger.in_flight(), open.len());
            for key in &open {
                ledger.close(*key);
            }
            open.into_iter().chain(closed).for_each(|key| ledger.remove(key));
            prop_assert_eq!((ledger.in_flight(), ledger.bytes()), (0, 0));
        }
    }

    fn ledger(max_in_flight: usize, max_in_flight_bytes: u64) -> Ledger {
        Ledger::new(Limits { max_in_flight, max_in_flight_bytes, ..Limits::default() })
    }

    #[test]
    fn a_caller_may_wait_unless_there_will_never_be_room() {
        assert!(Refusal::TooManyBytes { asked: 10, limit: 10 }.may_pass());
        assert!(!Refusal::TooLarge { bytes: 11, limit: 10 }.may_pass());
        assert_eq!([0, 1].map(|limit| Refusal::TooManyCalls { limit }.may_pass()), [false, true]);
        assert!(Refusal::TooManyInnerCalls { limit: 1 }.may_pass() && !Refusal::Draining.may_pass());
    }

    #[test]
    fn only_an_account_that_alone_exceeds_the_limit_is_too_large() {
        let (mut ledger, now) = (ledger(2, 100), Instant::now());
        assert_eq!(ledger.check(101, false), Err(Refusal::TooLarge { bytes: 101, limit: 100 }));
        let call = ledger.admit(now, RouteIndex(0), 60, false).unwrap() as usize;
        assert_eq!(ledger.grow(call, 41), Err(Refusal::TooLarge { bytes: 101, limit: 100 }));
        assert_eq!(ledger.take(20, 81), Err(Refusal::TooLarge { bytes: 101, limit: 100 }));
        assert_eq!(ledger.take(0, 20), Ok(()));
        assert_eq!(ledger.grow(call, 40), Err(Refusal::TooManyBytes { asked: 40, limit: 100 }));
        assert_eq!(ledger.grow(call, 21), Err(Refusal::TooManyBytes { asked: 21, limit: 100 }));
        let request = RequestBytes::default();
        request.add(20);
        for _ in 0..2 {
            ledger.join(call, &request);
        }
        assert_eq!(ledger.grow(call, 21), Err(Refusal::TooLarge { bytes: 101, limit: 100 }), "both are its own");
        assert_eq!(ledger.take(20, 80), Err(Refusal::TooManyBytes { asked: 80, limit: 100 }));
        assert_eq!((ledger.grow(call, 20), ledger.bytes(), request.sum()), (Ok(()), 100, 100));
        ledger.shrink(call, 30);
        assert_eq!((ledger.bytes(), request.sum()), (70, 70));
        ledger.close(call);
        ledger.remove(call);
        assert_eq!((ledger.bytes(), request.sum()), (20, 20));
    }

    #[test]
    fn an_inner_call_needs_room_for_its_bytes_only() {
        let (mut ledger, now) = (ledger(1, 100), Instant::now());
        let outer = ledger.admit(now, RouteIndex(7), 10, false).unwrap() as usize;
        assert!(!ledger.is_draining());
        ledger.drain();
        assert!(ledger.is_draining());
        assert_eq!(ledger.check(10, false), Err(Refusal::Draining));
        let inner = ledger.admit(now, RouteIndex(8), 10, true).unwrap() as usize;
        assert_eq!(ledger.check(81, true), Err(Refusal::TooManyBytes { asked: 81, limit: 100 }));
        assert_eq!((ledger.in_flight(), ledger.admitted(), ledger.id_of(inner)), (1, 2, CallId(1)));
        assert_eq!([outer, inner].map(|key| ledger.route_of(key)), [RouteIndex(7), RouteIndex(8)]);
        assert!(ledger.close(inner) && ledger.is_open(outer) && !ledger.is_open(inner));
        assert_eq!((ledger.in_flight(), ledger.bytes()), (1, 20));
        assert_eq!(ledger.lines().map(|line| line.id).collect::<Vec<_>>(), [CallId(0)]);
        assert!(!ledger.close(outer));
    }

    #[test]
    fn work_that_can_wait_leaves_a_quarter_of_the_bytes_free() {
        let mut ledger = ledger(1, 100);
        assert_eq!(ledger.limits().max_in_flight_bytes, ledger.max_bytes());
        assert!(ledger.take_patiently(76).is_ok(), "nothing else is charged");
        assert!(ledger.take(0, 24).is_ok() && ledger.take(0, 1).is_err());
        ledger.give_back(90);
        assert_eq!(ledger.bytes(), 10);
        assert!(ledger.take_patiently(66).is_err());
        assert!(ledger.take_patiently(65).is_ok());
        assert_eq!(ledger.bytes(), 75);
        assert!(ledger.take_patiently(1).is_err() && ledger.take(0, 25).is_ok());
        ledger.give_back(100);
        assert!(ledger.take_patiently(101).is_err());
    }

    #[cfg(feature = "testing")]
    #[test]
    fn the_peak_is_the_most_bytes_since_it_was_taken() {
        let mut ledger = ledger(1, 100);
        ledger.take(0, 60).unwrap();
        ledger.give_back(40);
        assert_eq!([ledger.take_peak_bytes(), ledger.take_peak_bytes()], [60, 20]);
    }

    #[test]
    fn a_call_is_overdue_after_twice_the_longest_timeout() {
        let (mut ledger, start) = (ledger(4, 100), Instant::now());
        let old = ledger.admit(start, RouteIndex(0), 0, false).unwrap() as usize;
        let over = 2 * Deadline::MAX_TIMEOUT;
        let overdue = |ledger: &Ledger, after| ledger.overdue(start + after).count();
        assert_eq!(overdue(&ledger, over), 0);
        assert_eq!(overdue(&ledger, over + Duration::from_nanos(1)), 1);
        ledger.restart(old, start + Deadline::MAX_TIMEOUT);
        assert_eq!(overdue(&ledger, over + Duration::from_nanos(1)), 0);
        assert_eq!(overdue(&ledger, over + 2 * Deadline::MAX_TIMEOUT), 1);
    }

    #[test]
    fn a_false_length_does_not_overflow_the_sum() {
        let mut ledger = Ledger::new(Limits::default());
        let now = Instant::now();
        assert!(ledger.admit(now, RouteIndex(0), 1, false).is_ok());
        let refused = ledger.admit(now, RouteIndex(0), u64::MAX, false);
        assert!(matches!(refused, Err(Refusal::TooLarge { .. })));
    }
}
