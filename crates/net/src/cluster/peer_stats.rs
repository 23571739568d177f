//! Statistics of one stage on one peer: queue, latency, failures. Pure values, fed with times.
//!
//! Old values decay: a reported queue counts half after a quarter of a second, a latency after four times itself. So a
//! slow peer is tried again when it may have recovered, and a peer that stays slow gets few tries. A peer with calls in
//! flight that does not answer is rated by the time of its silence. A stream that began does not count as
//! silence: its reader may have paused.

use std::time::Duration;

use callboard_core::Instant;

use super::breaker::Breaker;

/// The assumed latency of a new peer.
const UNKNOWN_LATENCY_MICROS: f64 = 1_000.0;

/// The weight of the newest latency.
const NEWEST_WEIGHT: f64 = 0.2;

/// The half-life of a latency, as a multiple of it. A peer that is fifty times slower is tried once in six half-lives:
/// with 250 ms after 6 s, and with a momentary hiccup after a second.
const LATENCY_HALF_LIFE: u32 = 4;

/// The shortest and the longest half-life.
const HALF_LIFE_RANGE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));

/// The half-life of a reported queue.
const QUEUE_HALF_LIFE: Duration = Duration::from_millis(250);

/// The assumed queue of a peer that had no room.
const FULL: usize = 64;

/// The statistics of one stage on one peer.
#[derive(Debug, Default)]
pub(super) struct PeerStats {
    pub(super) breaker: Breaker,
    /// This node's calls in flight.
    pub(super) in_flight: usize,
    /// The calls among them without any answer.
    pub(super) unanswered: usize,
    pub(super) queued: usize,
    pub(super) queued_at: Option<Instant>,
    pub(super) latency_micros: f64,
    pub(super) latency_at: Option<Instant>,
    /// The start of its silence, while calls are unanswered.
    pub(super) silent_since: Option<Instant>,
}

impl PeerStats {
    /// Counts a call.
    pub(super) fn began(&mut self, now: Instant) {
        self.breaker.began(now);
        if self.unanswered == 0 {
            self.silent_since = Some(now);
        }
        self.in_flight += 1;
        self.unanswered += 1;
    }

    /// Records that a stream began, which continues at the pace of its reader.
    pub(super) fn stream_began(&mut self, now: Instant) {
        self.unanswered = self.unanswered.saturating_sub(1);
        self.progressed(now);
    }

    /// Records the end of a call; `was_streaming`: its stream had begun.
    pub(super) fn ended(&mut self, was_streaming: bool) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.unanswered = self.unanswered.saturating_sub(usize::from(!was_streaming));
    }

    /// Records an answer, its latency, and the reported queue.
    pub(super) fn answered(&mut self, now: Instant, took: Duration, queued: Option<usize>) {
        self.breaker.answered();
        self.silent_since = Some(now);
        let (decayed, newest) = (self.latency(now), took.as_secs_f64() * 1e6);
        // A new latency undoes the decay up to its own value: a peer that is slow again counts as slow as before.
        let before = match self.latency_at {
            Some(_) => decayed.max(self.latency_micros.min(newest)),
            None => decayed,
        };
        self.latency_micros = before + NEWEST_WEIGHT * (newest - before);
        self.latency_at = Some(now);
        if let Some(queued) = queued {
            (self.queued, self.queued_at) = (queued, Some(now));
        }
    }

    /// Records an error. A peer that fails quickly must not look fast, so its usual latency counts at least.
    pub(super) fn failed(&mut self, now: Instant, took: Duration) {
        let usual = Duration::from_secs_f64(self.latency(now) / 1e6);
        self.answered(now, took.max(usual), None);
    }

    /// Records progress of a stream.
    pub(super) fn progressed(&mut self, now: Instant) {
        self.silent_since = Some(now);
    }

    /// Records a refusal for lack of room.
    pub(super) fn refused(&mut self, now: Instant) {
        self.breaker.answered();
        self.silent_since = Some(now);
        (self.queued, self.queued_at) = (self.queued(now).max(FULL), Some(now));
    }

    /// Records a lost call.
    pub(super) fn lost(&mut self, now: Instant) {
        self.breaker.lost(now);
    }

    /// This node's calls in flight, and the queue at the peer.
    pub(super) fn in_flight(&self, now: Instant) -> usize {
        self.in_flight + self.queued(now)
    }

    fn queued(&self, now: Instant) -> usize {
        (self.queued as f64 * decay(self.queued_at, now, QUEUE_HALF_LIFE)) as usize
    }

    /// The expected latency of a call, in microseconds.
    pub(super) fn latency_micros(&self, now: Instant) -> f64 {
        let silent = match self.silent_since {
            Some(since) if self.unanswered > 0 => now.saturating_duration_since(since).as_secs_f64() * 1e6,
            _ => 0.0,
        };
        self.latency(now).max(silent).max(1.0)
    }

    fn latency(&self, now: Instant) -> f64 {
        match self.latency_at {
            None => UNKNOWN_LATENCY_MICROS,
            Some(at) => {
                let half_life = Duration::from_secs_f64(self.latency_micros / 1e6) * LATENCY_HALF_LIFE;
                self.latency_micros * decay(Some(at), now, half_life.clamp(HALF_LIFE_RANGE.0, HALF_LIFE_RANGE.1))
            }
        }
    }
}

/// The weight of a value from the time `at`.
fn decay(at: Option<Instant>, now: Instant, half_life: Duration) -> f64 {
    let Some(at) = at else { return 0.0 };
    0.5_f64.powf(now.saturating_duration_since(at).as_secs_f64() / half_life.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn answered(stats: &mut PeerStats, now: Instant, took: Duration, queued: usize) {
        stats.began(now);
        stats.answered(now, took, Some(queued));
        stats.ended(false);
    }

    #[test]
    fn latency_follows_slowly() {
        let (mut stats, now) = (PeerStats::default(), Instant::now());
        assert_eq!(stats.latency_micros(now), UNKNOWN_LATENCY_MICROS);
        answered(&mut stats, now, Duration::from_micros(500), 0);
        assert_eq!(stats.latency_micros(now), 900.0);
        answered(&mut stats, now, Duration::from_micros(1_500), 0);
        assert!((stats.latency_micros(now) - 1_020.0).abs() < 1e-9);
    }

    /// Sends 150 calls a second to the cheapest of three peers; the first takes `slow`. Returns its share of the calls.
    fn share_of_the_first(all_stats: &mut [PeerStats; 3], start: Instant, seconds: u64, slow: Duration) -> f64 {
        let (mut pending, mut first, calls) = (Vec::new(), 0, seconds * 150);
        for call in 0..calls {
            let now = start + Duration::from_secs(seconds).mul_f64(call as f64 / calls as f64);
            pending.retain(|(peer, began, ends): &(usize, Instant, Instant)| {
                let is_over = *ends <= now;
                if is_over {
                    all_stats[*peer].answered(*ends, *ends - *began, Some(0));
                    all_stats[*peer].ended(false);
                }
                !is_over
            });
            let cost =
                |peer: &usize| (all_stats[*peer].in_flight(now) + 1) as f64 * all_stats[*peer].latency_micros(now);
            // Rotated, so that equal peers take turns.
            let order = (0..3).map(|n| (n + call as usize) % 3);
            let peer = order.min_by(|one, other| cost(one).total_cmp(&cost(other))).expect("there are three");
            first += u64::from(peer == 0);
            all_stats[peer].began(now);
            pending.push((peer, now, now + if peer == 0 { slow } else { millis(5) }));
        }
        for (peer, began, ends) in pending {
            all_stats[peer].answered(ends, ends - began, Some(0));
            all_stats[peer].ended(false);
        }
        first as f64 / calls as f64
    }

    #[test]
    fn a_slow_peer_gets_few_calls_and_its_share_again_when_it_recovers() {
        let (mut all_stats, start) = (<[PeerStats; 3]>::default(), Instant::now());
        let healthy = share_of_the_first(&mut all_stats, start, 5, millis(5));
        assert!(healthy > 0.25, "{healthy}");
        let noticed = start + Duration::from_secs(5);
        share_of_the_first(&mut all_stats, noticed, 5, millis(250));
        let slow = share_of_the_first(&mut all_stats, noticed + Duration::from_secs(5), 60, millis(250));
        assert!(slow < 0.01, "{slow}");
        let well = noticed + Duration::from_secs(65);
        share_of_the_first(&mut all_stats, well, 10, millis(5));
        let again = share_of_the_first(&mut all_stats, well + Duration::from_secs(10), 5, millis(5));
        assert!(again > 0.25, "{again}");
    }

    /// One hiccup of a healthy peer counts for a second.
    #[test]
    fn a_single_slow_call_decays_quickly() {
        let (mut stats, start) = (PeerStats::default(), Instant::now());
        (0..50).for_each(|_| answered(&mut stats, start, millis(5), 0));
        answered(&mut stats, start, millis(300), 0);
        assert!(stats.latency_micros(start) > 50_000.0);
        assert!(stats.latency_micros(start + Duration::from_secs(1)) < 5_000.0);
    }

    #[test]
    fn a_silent_peer_is_as_slow_as_its_silence_is_long() {
        let (mut stats, start) = (PeerStats::default(), Instant::now());
        answered(&mut stats, start, millis(5), 0);
        stats.began(start + millis(10));
        assert!(stats.latency_micros(start + millis(510)) >= 500_000.0);
        stats.ended(false);
        assert!(stats.latency_micros(start + millis(510)) < 5_000.0, "silence needs calls in flight");
    }

    #[test]
    fn progress_ends_a_silence() {
        let (mut stats, start) = (PeerStats::default(), Instant::now());
        stats.began(start);
        stats.progressed(start + millis(400));
        assert!((99_000.0..101_000.0).contains(&stats.latency_micros(start + millis(500))));
    }

    #[test]
    fn a_latency_counts_half_after_four_times_itself() {
        let (mut stats, start) = (PeerStats::default(), Instant::now());
        (0..50).for_each(|_| answered(&mut stats, start, millis(500), 0));
        assert!((249_000.0..251_000.0).contains(&stats.latency_micros(start + millis(2_000))));
    }

    #[test]
    fn a_reader_that_pauses_does_not_make_its_peer_slow() {
        let (mut stats, start) = (PeerStats::default(), Instant::now());
        stats.began(start);
        stats.stream_began(start + millis(5));
        stats.answered(start + millis(5), millis(5), None);
        let later = start + Duration::from_secs(60);
        assert!(stats.latency_micros(later) < 5_000.0);
        assert_eq!(stats.in_flight(later), 1);
        // The silence of a new call counts from its start, with the stream and after it.
        stats.began(later);
        assert!(stats.latency_micros(later) < 5_000.0);
        stats.ended(true);
        assert!(stats.latency_micros(later + millis(500)) >= 500_000.0);
        stats.ended(false);
        assert_eq!(stats.in_flight(later), 0);
    }

    #[test]
    fn an_answer_without_calls_in_flight_starts_no_silence() {
        let (mut stats, start) = (PeerStats::default(), Instant::now());
        stats.began(start);
        stats.ended(false);
        stats.answered(start, millis(5), None);
        let later = start + Duration::from_secs(3600);
        stats.began(later);
        assert!(stats.latency_micros(later) < 5_000.0);
    }

    #[test]
    fn a_peer_that_fails_quickly_does_not_look_fast() {
        let (mut stats, now) = (PeerStats::default(), Instant::now());
        (0..50).for_each(|_| answered(&mut stats, now, millis(5), 0));
        (0..50).for_each(|_| stats.failed(now, Duration::from_micros(100)));
        assert!((4_900.0..5_100.0).contains(&stats.latency_micros(now)));
        stats.failed(now, millis(500));
        assert!(stats.latency_micros(now) > 50_000.0);
    }

    #[test]
    fn a_reported_queue_counts_and_decays() {
        let (mut stats, now) = (PeerStats::default(), Instant::now());
        answered(&mut stats, now, millis(5), 40);
        assert_eq!(stats.in_flight(now), 40);
        assert_eq!(stats.in_flight(now + QUEUE_HALF_LIFE), 20);
        assert_eq!(stats.in_flight(now + QUEUE_HALF_LIFE * 20), 0);
        stats.began(now);
        assert_eq!(stats.in_flight(now + QUEUE_HALF_LIFE * 20), 1);
    }

    #[test]
    fn a_refusal_makes_a_peer_look_busy_for_a_moment() {
        let (mut stats, now) = (PeerStats::default(), Instant::now());
        stats.began(now);
        stats.refused(now);
        stats.ended(false);
        assert_eq!(stats.in_flight(now), FULL);
        assert!(stats.in_flight(now + Duration::from_secs(2)) == 0);
    }
}
