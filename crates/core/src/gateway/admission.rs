//! Admission and ledger as one plain value: what is let in is written down in the same step.

use std::time::Duration;

use slab::Slab;

use crate::clock::Instant;
use crate::deadline::{DEFAULT_TIMEOUT, MAX_TIMEOUT};
use crate::id::{FlightId, RouteIndex, RouteName};

/// Calls in flight on one node by default: far above what the stages' queues take, so that it only bounds what waits for
/// its body or its reader.
pub const DEFAULT_MAX_IN_FLIGHT: usize = 16 * 1024;

/// Payload bytes in flight on one node by default.
pub const DEFAULT_MAX_IN_FLIGHT_BYTES: u64 = 256 * 1024 * 1024;

/// The bounds of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest number of calls in flight. Default [`DEFAULT_MAX_IN_FLIGHT`]. One more is refused with `Overloaded`.
    pub max_in_flight: usize,
    /// The largest sum of payload bytes in flight. Default [`DEFAULT_MAX_IN_FLIGHT_BYTES`]. It counts what callers send: bodies,
    /// and in process what is known of an input's size; not what stages make of it. Bounds memory together with the stages' queues. A
    /// call that would exceed it is refused with `Overloaded` before its body is read.
    pub max_in_flight_bytes: u64,
    /// How long a call may take when its caller did not say. Default [`DEFAULT_TIMEOUT`](crate::DEFAULT_TIMEOUT).
    pub default_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
            max_in_flight_bytes: DEFAULT_MAX_IN_FLIGHT_BYTES,
            default_timeout: DEFAULT_TIMEOUT,
        }
    }
}

/// Why a call was not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("the node is draining")]
    Draining,
    #[error("{limit} calls are in flight already")]
    TooManyCalls { limit: usize },
    #[error("{asked} more bytes in flight would exceed the limit of {limit}")]
    TooManyBytes { asked: u64, limit: u64 },
    #[error("{limit} calls of route `{route}` are in flight already, which is its limit")]
    RouteFull { route: RouteName, limit: usize },
}

impl Refusal {
    /// Whether there may be room later: not for what would fit no empty node, nor on one that drains.
    pub(crate) fn may_pass(&self) -> bool {
        match *self {
            Self::Draining => false,
            Self::TooManyCalls { limit } => limit > 0,
            Self::TooManyBytes { asked, limit } => asked <= limit,
            Self::RouteFull { .. } => true,
        }
    }
}

/// One call in flight.
#[derive(Debug)]
pub(crate) struct LedgerLine {
    pub(crate) id: FlightId,
    pub(crate) route: RouteIndex,
    pub(crate) since: Instant,
    bytes: u64,
}

/// The permits that are out and the calls that hold them.
#[derive(Debug)]
pub(crate) struct Ledger {
    limits: Limits,
    lines: Slab<LedgerLine>,
    bytes: u64,
    admitted: u64,
    draining: bool,
}

impl Ledger {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, lines: Slab::new(), bytes: 0, admitted: 0, draining: false }
    }

    /// Lets a call in, or says why not. The key closes the line again.
    pub(crate) fn admit(&mut self, now: Instant, route: RouteIndex, bytes: u64) -> Result<(usize, FlightId), Refusal> {
        if self.draining {
            return Err(Refusal::Draining);
        }
        if self.lines.len() >= self.limits.max_in_flight {
            return Err(Refusal::TooManyCalls { limit: self.limits.max_in_flight });
        }
        self.take_bytes(bytes)?;
        let id = FlightId(self.admitted);
        self.admitted += 1;
        let key = self.lines.insert(LedgerLine { id, route, since: now, bytes });
        Ok((key, id))
    }

    /// Takes more bytes for a call that is in: its body turned out longer.
    pub(crate) fn grow(&mut self, key: usize, bytes: u64) -> Result<(), Refusal> {
        self.take_bytes(bytes)?;
        self.lines[key].bytes += bytes;
        Ok(())
    }

    /// Closes a line: the call has its outcome.
    pub(crate) fn close(&mut self, key: usize) {
        let line = self.lines.remove(key);
        self.bytes -= line.bytes;
    }

    /// Takes bytes for which there is no call yet, or that its call does not keep.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), Refusal> {
        self.take_bytes(bytes)
    }

    /// Gives [taken](Self::take) bytes back.
    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.bytes -= bytes;
    }

    pub(crate) fn max_bytes(&self) -> u64 {
        self.limits.max_in_flight_bytes
    }

    pub(crate) fn drain(&mut self) {
        self.draining = true;
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.lines.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.admitted
    }

    /// The calls in flight, in no order.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &LedgerLine> {
        self.lines.iter().map(|(_, line)| line)
    }

    /// Calls that are older than any deadline allows: each would be a defect.
    pub(crate) fn overdue(&self, now: Instant) -> impl Iterator<Item = &LedgerLine> {
        self.lines().filter(move |line| now.saturating_duration_since(line.since) > 2 * MAX_TIMEOUT)
    }

    fn take_bytes(&mut self, bytes: u64) -> Result<(), Refusal> {
        let limit = self.limits.max_in_flight_bytes;
        match self.bytes.checked_add(bytes) {
            Some(sum) if sum <= limit => {
                self.bytes = sum;
                Ok(())
            }
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
        Close { nth: usize },
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            3 => (0u64..60).prop_map(Operation::Admit),
            1 => (0usize..8, 0u64..60).prop_map(|(nth, bytes)| Operation::Grow { nth, bytes }),
            2 => (0usize..8).prop_map(|nth| Operation::Close { nth }),
        ]
    }

    proptest! {
        /// The bounds hold after every step, a refusal changes nothing, and closing everything returns both sums to zero.
        #[test]
        fn keeps_its_bounds_and_returns_to_zero(operations in prop::collection::vec(operation(), 0..100)) {
            let limits = Limits { max_in_flight: 4, max_in_flight_bytes: 100, ..Limits::default() };
            let mut ledger = Ledger::new(limits);
            let now = Instant::now();
            let mut open = Vec::new();
            for operation in operations {
                let before = (ledger.in_flight(), ledger.bytes());
                match operation {
                    Operation::Admit(bytes) => match ledger.admit(now, RouteIndex(0), bytes) {
                        Ok((key, _)) => open.push(key),
                        Err(_) => {
                            prop_assert!(before.0 == 4 || before.1 + bytes > 100);
                            prop_assert_eq!(before, (ledger.in_flight(), ledger.bytes()));
                        }
                    },
                    Operation::Grow { nth, bytes } if nth < open.len() => {
                        if ledger.grow(open[nth], bytes).is_err() {
                            prop_assert_eq!(before, (ledger.in_flight(), ledger.bytes()));
                        }
                    }
                    Operation::Close { nth } if nth < open.len() => ledger.close(open.swap_remove(nth)),
                    Operation::Grow { .. } | Operation::Close { .. } => {}
                }
                prop_assert!(ledger.in_flight() <= 4 && ledger.bytes() <= 100);
            }
            for key in open {
                ledger.close(key);
            }
            prop_assert_eq!((ledger.in_flight(), ledger.bytes()), (0, 0));
        }
    }

    #[test]
    fn a_lying_length_does_not_overflow_the_sum() {
        let mut ledger = Ledger::new(Limits::default());
        let now = Instant::now();
        assert!(ledger.admit(now, RouteIndex(0), 1).is_ok());
        let refused = ledger.admit(now, RouteIndex(0), u64::MAX);
        assert!(matches!(refused, Err(Refusal::TooManyBytes { .. })));
    }
}
