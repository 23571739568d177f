//! What is known of one stage on one peer: how busy it is, how long it takes, whether it works. Pure values, fed with time.
//!
//! What was heard grows old: a queue that was reported counts for half after a quarter of a second, a latency after four times itself, so that
//! a peer that was slow is tried again when it may be well, and one that stays slow spends a small part of its time on being tried. One
//! that has calls of ours and says nothing is taken to be as slow as it has been silent. A stream that has begun owes nothing: its pauses may be
//! its reader's.

use std::time::Duration;

use callboard_core::Instant;

use super::breaker::Breaker;

/// A new peer gets the benefit of the doubt, and little of it.
const UNKNOWN_LATENCY_MICROS: f64 = 1_000.0;

/// How much the newest latency counts.
const NEWEST: f64 = 0.2;

/// After how many times itself a latency that nothing confirms counts for half. Of two peers the one that was slower stays the slower, and
/// fifty times slower is tried once in six of those halves: 250 ms after 6 s, the hiccup of a moment after a second.
const LATENCY_HALVES: u32 = 4;

/// At least, and at most.
const HALVES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));

/// In which time a queue that was reported is half gone, for all we know.
const QUEUE_HALVES: Duration = Duration::from_millis(250);

/// What stands for the queue of a peer that had no room.
const FULL: usize = 64;

/// One stage of one peer.
#[derive(Debug, Default)]
pub(super) struct Standing {
    pub(super) breaker: Breaker,
    /// Our calls that it has in hand.
    ours: usize,
    /// Those of them of which nothing has been heard.
    owed: usize,
    queued: usize,
    queued_at: Option<Instant>,
    latency_micros: f64,
    latency_at: Option<Instant>,
    /// Since when it owes us an answer and has given none.
    silent_since: Option<Instant>,
}

impl Standing {
    /// A call goes there.
    pub(super) fn began(&mut self, now: Instant) {
        self.breaker.began(now);
        if self.owed == 0 {
            self.silent_since = Some(now);
        }
        self.ours += 1;
        self.owed += 1;
    }

    /// A stream of ours has begun, and goes on at the pace of its reader.
    pub(super) fn streams(&mut self, now: Instant) {
        self.owed = self.owed.saturating_sub(1);
        self.heard(now);
    }

    /// A call of ours is over, whatever became of it; `streamed` says that it was a stream that had begun.
    pub(super) fn ended(&mut self, streamed: bool) {
        self.ours = self.ours.saturating_sub(1);
        self.owed = self.owed.saturating_sub(usize::from(!streamed));
    }

    /// It answered after so long; so many wait there now, if it said so.
    pub(super) fn answered(&mut self, now: Instant, took: Duration, queued: Option<usize>) {
        self.breaker.answered();
        self.silent_since = Some(now);
        let (faded, newest) = (self.latency(now), took.as_secs_f64() * 1e6);
        // What time has taken off, the newest confirms as far as it reaches: slow again is as slow as it was, and well again is well.
        let before = match self.latency_at {
            Some(_) => faded.max(self.latency_micros.min(newest)),
            None => faded,
        };
        self.latency_micros = before + NEWEST * (newest - before);
        self.latency_at = Some(now);
        if let Some(queued) = queued {
            (self.queued, self.queued_at) = (queued, Some(now));
        }
    }

    /// Its answer was an error, after so long. One that fails at once is not quick.
    pub(super) fn failed(&mut self, now: Instant, took: Duration) {
        let usual = Duration::from_secs_f64(self.latency(now) / 1e6);
        self.answered(now, took.max(usual), None);
    }

    /// It is at work on what it has.
    pub(super) fn heard(&mut self, now: Instant) {
        self.silent_since = Some(now);
    }

    /// It had no room.
    pub(super) fn refused(&mut self, now: Instant) {
        self.breaker.answered();
        self.silent_since = Some(now);
        (self.queued, self.queued_at) = (self.queued(now).max(FULL), Some(now));
    }

    /// A call there came to nothing.
    pub(super) fn lost(&mut self, now: Instant) {
        self.breaker.lost(now);
    }

    /// Our calls that it has, and those that wait there.
    pub(super) fn in_hand(&self, now: Instant) -> usize {
        self.ours + self.queued(now)
    }

    fn queued(&self, now: Instant) -> usize {
        (self.queued as f64 * faded(self.queued_at, now, QUEUE_HALVES)) as usize
    }

    /// How long a call takes there, as far as can be told now, in microseconds.
    pub(super) fn latency_micros(&self, now: Instant) -> f64 {
        let silent = match self.silent_since {
            Some(since) if self.owed > 0 => now.saturating_duration_since(since).as_secs_f64() * 1e6,
            _ => 0.0,
        };
        self.latency(now).max(silent).max(1.0)
    }

    fn latency(&self, now: Instant) -> f64 {
        match self.latency_at {
            None => UNKNOWN_LATENCY_MICROS,
            Some(at) => {
                let halves = Duration::from_secs_f64(self.latency_micros / 1e6) * LATENCY_HALVES;
                self.latency_micros * faded(Some(at), now, halves.clamp(HALVES.0, HALVES.1))
            }
        }
    }
}

/// What is left of something that was heard at `at`.
fn faded(at: Option<Instant>, now: Instant, halves: Duration) -> f64 {
    let Some(at) = at else { return 0.0 };
    0.5_f64.powf(now.saturating_duration_since(at).as_secs_f64() / halves.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn answered(standing: &mut Standing, now: Instant, took: Duration, queued: usize) {
        standing.began(now);
        standing.answered(now, took, Some(queued));
        standing.ended(false);
    }

    #[test]
    fn latency_follows_slowly() {
        let (mut standing, now) = (Standing::default(), Instant::now());
        assert_eq!(standing.latency_micros(now), UNKNOWN_LATENCY_MICROS);
        answered(&mut standing, now, Duration::from_micros(500), 0);
        assert_eq!(standing.latency_micros(now), 900.0);
        answered(&mut standing, now, Duration::from_micros(1_500), 0);
        assert!((standing.latency_micros(now) - 1_020.0).abs() < 1e-9);
    }

    /// Of three peers the one with the least cost gets the next call, 150 of them a second. `slow` says how long the first one takes.
    fn share_of_the_first(standings: &mut [Standing; 3], start: Instant, seconds: u64, slow: Duration) -> f64 {
        let (mut pending, mut first, calls) = (Vec::new(), 0, seconds * 150);
        for call in 0..calls {
            let now = start + Duration::from_secs(seconds).mul_f64(call as f64 / calls as f64);
            pending.retain(|(who, began, ends): &(usize, Instant, Instant)| {
                let is_over = *ends <= now;
                if is_over {
                    standings[*who].answered(*ends, *ends - *began, Some(0));
                    standings[*who].ended(false);
                }
                !is_over
            });
            let cost = |who: &usize| (standings[*who].in_hand(now) + 1) as f64 * standings[*who].latency_micros(now);
            // Among equals not always the same one.
            let order = (0..3).map(|n| (n + call as usize) % 3);
            let who = order.min_by(|one, other| cost(one).total_cmp(&cost(other))).expect("there are three");
            first += u64::from(who == 0);
            standings[who].began(now);
            pending.push((who, now, now + if who == 0 { slow } else { millis(5) }));
        }
        for (who, began, ends) in pending {
            standings[who].answered(ends, ends - began, Some(0));
            standings[who].ended(false);
        }
        first as f64 / calls as f64
    }

    #[test]
    fn one_that_is_slow_gets_next_to_nothing_and_its_share_again_when_it_is_well() {
        let (mut standings, start) = (<[Standing; 3]>::default(), Instant::now());
        let healthy = share_of_the_first(&mut standings, start, 5, millis(5));
        assert!(healthy > 0.25, "{healthy}");
        let noticed = start + Duration::from_secs(5);
        share_of_the_first(&mut standings, noticed, 5, millis(250));
        let slow = share_of_the_first(&mut standings, noticed + Duration::from_secs(5), 60, millis(250));
        assert!(slow < 0.01, "{slow}");
        let well = noticed + Duration::from_secs(65);
        share_of_the_first(&mut standings, well, 10, millis(5));
        let again = share_of_the_first(&mut standings, well + Duration::from_secs(10), 5, millis(5));
        assert!(again > 0.25, "{again}");
    }

    /// One hiccup of a peer that is well costs it a second, and no more.
    #[test]
    fn a_hiccup_is_forgotten_soon() {
        let (mut standing, start) = (Standing::default(), Instant::now());
        (0..50).for_each(|_| answered(&mut standing, start, millis(5), 0));
        answered(&mut standing, start, millis(300), 0);
        assert!(standing.latency_micros(start) > 50_000.0);
        assert!(standing.latency_micros(start + Duration::from_secs(1)) < 5_000.0);
    }

    #[test]
    fn one_that_says_nothing_is_as_slow_as_it_is_silent() {
        let (mut standing, start) = (Standing::default(), Instant::now());
        answered(&mut standing, start, millis(5), 0);
        standing.began(start + millis(10));
        assert!(standing.latency_micros(start + millis(510)) >= 500_000.0);
        standing.ended(false);
        assert!(standing.latency_micros(start + millis(510)) < 5_000.0, "with nothing in hand it owes no word");
    }

    #[test]
    fn a_reader_that_pauses_does_not_make_its_peer_slow() {
        let (mut standing, start) = (Standing::default(), Instant::now());
        standing.began(start);
        standing.streams(start + millis(5));
        standing.answered(start + millis(5), millis(5), None);
        let later = start + Duration::from_secs(60);
        assert!(standing.latency_micros(later) < 5_000.0);
        assert_eq!(standing.in_hand(later), 1);
        // What is called now is waited for from now on, with the stream and after it.
        standing.began(later);
        assert!(standing.latency_micros(later) < 5_000.0);
        standing.ended(true);
        assert!(standing.latency_micros(later + millis(500)) >= 500_000.0);
        standing.ended(false);
        assert_eq!(standing.in_hand(later), 0);
    }

    #[test]
    fn what_is_heard_when_nothing_is_in_hand_begins_no_silence() {
        let (mut standing, start) = (Standing::default(), Instant::now());
        standing.began(start);
        standing.ended(false);
        standing.answered(start, millis(5), None);
        let later = start + Duration::from_secs(3600);
        standing.began(later);
        assert!(standing.latency_micros(later) < 5_000.0);
    }

    #[test]
    fn one_that_fails_at_once_does_not_look_quick() {
        let (mut standing, now) = (Standing::default(), Instant::now());
        (0..50).for_each(|_| answered(&mut standing, now, millis(5), 0));
        (0..50).for_each(|_| standing.failed(now, Duration::from_micros(100)));
        assert!(standing.latency_micros(now) > 4_900.0);
        standing.failed(now, millis(500));
        assert!(standing.latency_micros(now) > 50_000.0);
    }

    #[test]
    fn a_reported_queue_counts_and_fades() {
        let (mut standing, now) = (Standing::default(), Instant::now());
        answered(&mut standing, now, millis(5), 40);
        assert_eq!(standing.in_hand(now), 40);
        assert_eq!(standing.in_hand(now + QUEUE_HALVES), 20);
        assert_eq!(standing.in_hand(now + QUEUE_HALVES * 20), 0);
        standing.began(now);
        assert_eq!(standing.in_hand(now + QUEUE_HALVES * 20), 1);
    }

    #[test]
    fn one_that_refuses_looks_busy_for_a_moment() {
        let (mut standing, now) = (Standing::default(), Instant::now());
        standing.began(now);
        standing.refused(now);
        standing.ended(false);
        assert_eq!(standing.in_hand(now), FULL);
        assert!(standing.in_hand(now + Duration::from_secs(2)) == 0);
    }
}
