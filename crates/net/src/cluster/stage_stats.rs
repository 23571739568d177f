//! The statistics of one stage on one member, and their copy for the choice of a peer, which is read without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::Instant;
use parking_lot::Mutex;

use super::load_balance::PeerLoad;
use super::peer_stats::PeerStats;

#[derive(Debug)]
pub(super) struct StageStats {
    stats: Mutex<PeerStats>,
    shown: ShownStats,
    /// The breakers that are not closed, of all stages together.
    open_breakers: Arc<AtomicUsize>,
}

/// A copy of the statistics. A reader may see a part of it before a change and a part after: it compares estimates.
#[derive(Debug)]
struct ShownStats {
    /// All times count from here, in nanoseconds; 0 is none.
    base: Instant,
    in_flight: AtomicUsize,
    unanswered: AtomicUsize,
    queued: AtomicUsize,
    queued_at: AtomicU64,
    /// The bits of a float.
    latency_micros: AtomicU64,
    latency_at: AtomicU64,
    silent_since: AtomicU64,
    open_until: AtomicU64,
}

impl StageStats {
    pub(super) fn new(open_breakers: Arc<AtomicUsize>) -> Self {
        Self { stats: Mutex::default(), shown: ShownStats::new(Instant::now()), open_breakers }
    }

    /// Counts a call until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>, now: Instant) -> InFlight {
        self.record(|stats| stats.began(now));
        InFlight { stats: Arc::clone(self), is_streaming: false }
    }

    pub(super) fn record(&self, record: impl FnOnce(&mut PeerStats)) {
        let mut stats = self.stats.lock();
        let was_closed = stats.breaker.is_closed();
        record(&mut stats);
        self.shown.show(&stats);
        match (was_closed, stats.breaker.is_closed()) {
            (true, false) => _ = self.open_breakers.fetch_add(1, Ordering::Relaxed),
            (false, true) => _ = self.open_breakers.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
    }

    /// The load of the member of this key, without a lock.
    pub(super) fn load(&self, key: u64, now: Instant) -> PeerLoad {
        let stats = self.shown.read();
        PeerLoad { in_flight: stats.in_flight(now), latency_micros: stats.latency_micros(now), key }
    }

    /// The end of the open breaker, if calls failed recently.
    pub(super) fn open_until(&self, now: Instant) -> Option<Instant> {
        self.shown.time(&self.shown.open_until).filter(|until| now < *until)
    }
}

impl Drop for StageStats {
    fn drop(&mut self) {
        if !self.stats.get_mut().breaker.is_closed() {
            self.open_breakers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl ShownStats {
    fn new(base: Instant) -> Self {
        Self {
            base,
            in_flight: AtomicUsize::new(0),
            unanswered: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            queued_at: AtomicU64::new(0),
            latency_micros: AtomicU64::new(0),
            latency_at: AtomicU64::new(0),
            silent_since: AtomicU64::new(0),
            open_until: AtomicU64::new(0),
        }
    }

    fn show(&self, stats: &PeerStats) {
        let nanos =
            |at: Option<Instant>| at.map_or(0, |at| at.saturating_duration_since(self.base).as_nanos() as u64 + 1);
        self.in_flight.store(stats.in_flight, Ordering::Relaxed);
        self.unanswered.store(stats.unanswered, Ordering::Relaxed);
        self.queued.store(stats.queued, Ordering::Relaxed);
        self.queued_at.store(nanos(stats.queued_at), Ordering::Relaxed);
        self.latency_micros.store(stats.latency_micros.to_bits(), Ordering::Relaxed);
        self.latency_at.store(nanos(stats.latency_at), Ordering::Relaxed);
        self.silent_since.store(nanos(stats.silent_since), Ordering::Relaxed);
        self.open_until.store(nanos(stats.breaker.until()), Ordering::Relaxed);
    }

    /// The statistics without the breaker.
    fn read(&self) -> PeerStats {
        PeerStats {
            in_flight: self.in_flight.load(Ordering::Relaxed),
            unanswered: self.unanswered.load(Ordering::Relaxed),
            queued: self.queued.load(Ordering::Relaxed),
            queued_at: self.time(&self.queued_at),
            latency_micros: f64::from_bits(self.latency_micros.load(Ordering::Relaxed)),
            latency_at: self.time(&self.latency_at),
            silent_since: self.time(&self.silent_since),
            ..PeerStats::default()
        }
    }

    fn time(&self, nanos: &AtomicU64) -> Option<Instant> {
        let nanos = nanos.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.base + Duration::from_nanos(nanos))
    }
}

/// A call that a member is working on.
#[derive(Debug)]
pub(super) struct InFlight {
    stats: Arc<StageStats>,
    /// Whether its stream of outputs began.
    is_streaming: bool,
}

impl InFlight {
    /// Marks it as a stream whose first output has arrived.
    pub(super) fn stream_began(&mut self) {
        self.is_streaming = true;
        self.stats.record(|stats| stats.stream_began(Instant::now()));
    }

    /// Marks progress of the stream.
    pub(super) fn progressed(&self) {
        self.stats.record(|stats| stats.progressed(Instant::now()));
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.stats.record(|stats| stats.ended(self.is_streaming));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is recorded: the copy that is read without a lock says the same.
        #[test]
        fn the_shown_statistics_are_the_recorded_ones(steps in prop::collection::vec((0_u8..7, 1_u64..2_000), 1..100)) {
            let stats = StageStats::new(Arc::default());
            let mut now = Instant::now();
            for (step, millis) in steps {
                now += Duration::from_millis(millis);
                let took = Duration::from_millis(millis);
                stats.record(|stats| match step {
                    0 => stats.began(now),
                    1 => stats.answered(now, took, Some(millis as usize)),
                    2 => stats.lost(now),
                    3 => stats.refused(now),
                    4 => stats.ended(false),
                    5 => stats.stream_began(now),
                    _ => stats.failed(now, took),
                });
                let later = now + took;
                let recorded = stats.stats.lock();
                let (in_flight, latency_micros) = (recorded.in_flight(later), recorded.latency_micros(later));
                prop_assert_eq!(stats.load(7, later), PeerLoad { in_flight, latency_micros, key: 7 });
                prop_assert_eq!(stats.open_until(later), recorded.breaker.until().filter(|until| later < *until));
                prop_assert_eq!(stats.open_breakers.load(Ordering::Relaxed), usize::from(!recorded.breaker.is_closed()));
            }
        }
    }
}
