//! When a link is looked at, whether to send a keep-alive, and what its silence means: pure decisions.

use std::time::Duration;

use tokio::time::Instant;

use crate::endpoint::Tuning;

/// How often a dialled link with calls is looked at, and the machine of a quiet node is asked for its port.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long a link stays hot after its last call: calls that follow each other find out earlier that a node is lost.
const HOT_FOR: Duration = Duration::from_secs(10);

/// The times of a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkTimes {
    /// The time between two looks while there are calls.
    look_every: Duration,
    /// The time without a new acknowledgement after which a hot link sends a keep-alive, and the time between two.
    keep_alive: Duration,
    silent_after: Duration,
    /// The time without an answer after which it is lost.
    lost_after: Duration,
    /// How long it is hot after its last call.
    hot_for: Duration,
}

impl LinkTimes {
    pub(super) fn dialled(tuning: &Tuning) -> Self {
        let Tuning { keep_alive, silent_after, idle_timeout, .. } = *tuning;
        Self { look_every: LOOK_EVERY, keep_alive, silent_after, lost_after: idle_timeout, hot_for: HOT_FOR }
    }

    pub(super) fn accepted(tuning: &Tuning) -> Self {
        // Nothing is decided about a silent caller before it is lost, and there may be many callers.
        let (look_every, silent_after) = (tuning.keep_alive, Duration::MAX);
        Self { look_every, silent_after, hot_for: Duration::ZERO, ..Self::dialled(tuning) }
    }
}

/// What has arrived on a connection, and which keep-alives have left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) datagrams: u64,
    /// The number of ACK frames. Each packet of the other side brings its last one again.
    pub(super) acks: u64,
    /// The smoothed round trip time. It changes with each acknowledgement of a packet after the last acknowledged one.
    pub(super) rtt: Duration,
    /// The keep-alives that have left this process. A full congestion window holds them back.
    pub(super) left: u64,
}

impl Heard {
    /// Whether the other side has acknowledged something new. A new path begins with another time, but without an ACK.
    fn has_new_ack(&self, before: &Self) -> bool {
        self.acks != before.acks && self.rtt != before.rtt
    }
}

/// What a look decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkLook {
    /// Send a keep-alive.
    pub(super) sends_keep_alive: bool,
    /// There are calls and nothing has arrived since the last look, or a keep-alive has no answer.
    pub(super) is_overdue: bool,
    pub(super) is_silent: bool,
    pub(super) is_lost: bool,
}

/// The silence of a link.
///
/// Any new acknowledgement answers a keep-alive, and nothing else does. A link is lost when keep-alives have had no
/// answer for long enough, counted from the first one. So the other side may pause for almost as long. While a full
/// congestion window holds keep-alives back, only QUIC's probes leave, at doubled intervals: if the other side was
/// heard within the time, after a pause or on a line that loses much, the answer comes after up to twice the time, and
/// is waited for.
#[derive(Debug)]
pub(super) struct LinkDecision {
    times: LinkTimes,
    heard: Heard,
    looked_at: Instant,
    /// The last pause before a look.
    pause: Duration,
    /// How long nothing has arrived.
    quiet: Duration,
    /// How long nothing new was acknowledged.
    unacknowledged: Duration,
    sent_at: Option<Instant>,
    /// The time since the first keep-alive without an answer.
    unanswered: Option<Duration>,
    /// The keep-alives that had left before the last one.
    left_before: u64,
    /// Whether one of those without an answer was held back.
    is_held_back: bool,
    /// Whether the other side takes keep-alives. Otherwise it sends something by itself while there are calls.
    takes_keep_alives: bool,
    hot_until: Instant,
}

impl LinkDecision {
    pub(super) fn new(times: LinkTimes, heard: Heard, now: Instant) -> Self {
        Self {
            times,
            heard,
            looked_at: now,
            pause: Duration::ZERO,
            quiet: Duration::ZERO,
            unacknowledged: Duration::ZERO,
            sent_at: None,
            unanswered: None,
            left_before: 0,
            is_held_back: false,
            takes_keep_alives: true,
            hot_until: now,
        }
    }

    /// The time until the next look. `None`: the link is cold, and the next look follows a wake-up.
    pub(super) fn pause(&mut self, has_calls: bool, is_probe: bool, now: Instant) -> Option<Duration> {
        let is_quiet = self.unanswered.is_some() || self.quiet >= self.times.silent_after;
        self.pause = match has_calls {
            true => self.times.look_every,
            false if now < self.hot_until || is_quiet || is_probe => self.times.keep_alive.max(LOOK_EVERY),
            false => return None,
        };
        Some(self.pause)
    }

    /// A cold link was woken: nothing is known of the time before.
    pub(super) fn awake(&mut self, heard: Heard, now: Instant) {
        (self.heard, self.looked_at) = (heard, now);
        (self.quiet, self.unacknowledged) = (Duration::ZERO, Duration::ZERO);
    }

    /// `is_probe`: whether to send a keep-alive as soon as one is due, also if the link is cold.
    pub(super) fn look(&mut self, heard: Heard, has_calls: bool, is_probe: bool, now: Instant) -> LinkLook {
        // A pause of this process is no silence of the other side.
        let since = (now - self.looked_at).min(2 * self.pause);
        self.looked_at = now;
        let before = std::mem::replace(&mut self.heard, heard);
        self.quiet = if heard.datagrams == before.datagrams { self.quiet + since } else { Duration::ZERO };
        let has_new_ack = heard.has_new_ack(&before);
        self.unacknowledged = if has_new_ack { Duration::ZERO } else { self.unacknowledged + since };
        let is_answered = if self.takes_keep_alives { has_new_ack } else { self.quiet.is_zero() || !has_calls };
        self.unanswered = self.unanswered.filter(|_| !is_answered).map(|unanswered| unanswered + since);
        if has_calls {
            self.hot_until = now + self.times.hot_for;
        }
        let is_hot = has_calls || now < self.hot_until || self.unanswered.is_some();
        // By the clock: after a pause of this process a keep-alive is sent at once.
        let is_due = self.sent_at.is_none_or(|at| now - at >= self.times.keep_alive);
        let is_unanswered = self.unanswered.is_some() && self.takes_keep_alives;
        self.is_held_back = is_unanswered && (self.is_held_back || is_due && heard.left == self.left_before);
        // Something has arrived since: the line loses much, and it is not dead.
        let is_held_back = self.is_held_back && self.quiet < self.times.lost_after;
        let lost_after = self.times.lost_after * if is_held_back { 2 } else { 1 };
        let is_unanswered_for = |limit| self.unanswered.is_some_and(|unanswered| unanswered >= limit);
        LinkLook {
            sends_keep_alive: is_due
                && (is_probe || is_hot && (self.unacknowledged >= self.times.keep_alive || self.unanswered.is_some())),
            is_overdue: has_calls && !self.quiet.is_zero() || self.unanswered.is_some(),
            is_silent: self.quiet >= self.times.silent_after || is_unanswered_for(self.times.silent_after),
            is_lost: is_unanswered_for(lost_after),
        }
    }

    /// A keep-alive was sent, or would have been if the other side took any.
    pub(super) fn sent_keep_alive(&mut self, is_taken: bool, now: Instant) {
        (self.sent_at, self.takes_keep_alives, self.left_before) = (Some(now), is_taken, self.heard.left);
        self.unanswered.get_or_insert(Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// A link in virtual time, and what its looks have decided.
    #[derive(Debug)]
    struct Line {
        decision: LinkDecision,
        start: Instant,
        now: Instant,
        heard: Heard,
        takes_keep_alives: bool,
        holds_back: bool,
        looks: usize,
        sent: Vec<Duration>,
        silent_at: Option<Duration>,
        lost_at: Option<Duration>,
    }

    impl Line {
        fn new(times: LinkTimes) -> Self {
            let start = Instant::now();
            Self {
                decision: LinkDecision::new(times, Heard::default(), start),
                start,
                now: start,
                heard: Heard::default(),
                takes_keep_alives: true,
                holds_back: false,
                looks: 0,
                sent: Vec::new(),
                silent_at: None,
                lost_at: None,
            }
        }

        fn dialled() -> Self {
            Self::new(LinkTimes::dialled(&Tuning::default()))
        }

        fn look(&mut self, has_calls: bool, is_probe: bool) {
            self.looks += 1;
            let at = self.now - self.start;
            let look = self.decision.look(self.heard, has_calls, is_probe, self.now);
            if look.sends_keep_alive {
                self.sent.push(at);
                self.decision.sent_keep_alive(self.takes_keep_alives, self.now);
                self.heard.left += u64::from(!self.holds_back);
            }
            self.silent_at = self.silent_at.or_else(|| look.is_silent.then_some(at));
            self.lost_at = self.lost_at.or_else(|| look.is_lost.then_some(at));
        }

        /// A packet of the other side arrives, with its last ACK again.
        fn hear(&mut self) {
            self.heard.datagrams += 1;
            self.heard.acks += 1;
        }

        /// The other side acknowledges something new.
        fn answer(&mut self) {
            self.hear();
            self.heard.rtt += Duration::from_nanos(1);
        }

        /// Goes on until this time. The other side answers each keep-alive if `answers`. Returns whether the link is
        /// cold.
        fn until(&mut self, then: Duration, has_calls: bool, answers: bool) -> bool {
            while self.now < self.start + then {
                let Some(pause) = self.decision.pause(has_calls, false, self.now) else { return true };
                self.now += pause;
                let sent = self.sent.len();
                self.look(has_calls, false);
                if answers && self.sent.len() > sent {
                    self.answer();
                }
            }
            false
        }
    }

    #[test]
    fn a_node_that_does_not_answer_is_silent_and_then_lost() {
        let mut line = Line::dialled();
        line.until(millis(4_000), true, false);
        assert_eq!(line.sent[..3], [200, 400, 600].map(millis));
        assert_eq!(line.silent_at, Some(millis(900)));
        assert_eq!(line.lost_at, Some(millis(3_200)), "three seconds after the first keep-alive");
    }

    #[test]
    fn a_pause_of_the_other_side_is_never_a_loss_whenever_it_begins() {
        for begins in (1_000..2_000).step_by(50) {
            let mut line = Line::dialled();
            line.until(millis(begins), true, true);
            // The last datagrams of the pause are dropped, so it ends with the next keep-alive.
            line.until(millis(begins + 2_750), true, false);
            line.until(millis(begins + 6_000), true, true);
            assert!(line.lost_at.is_none() && line.silent_at.is_some(), "{begins}");
        }
    }

    #[test]
    fn a_bulk_call_survives_a_pause_in_which_no_keep_alive_leaves() {
        // The other side acknowledges what has waited in its socket, or only QUIC's next probe.
        for answers_at in [millis(3_900), millis(6_500)] {
            let mut line = Line::dialled();
            line.until(millis(1_000), true, true);
            line.holds_back = true;
            line.until(millis(3_700), true, false);
            while line.now - line.start < answers_at {
                line.hear();
                line.until(line.now - line.start + millis(200), true, false);
            }
            line.answer();
            line.holds_back = false;
            line.until(millis(12_000), true, true);
            assert!(line.lost_at.is_none() && line.silent_at.is_some(), "{line:?}");
        }
    }

    #[test]
    fn a_bulk_call_is_lost_at_once_in_silence_and_later_if_packets_arrive() {
        for (hears, lost_at) in [(false, 4_000), (true, 7_000)] {
            let mut line = Line::dialled();
            line.until(millis(1_000), true, true);
            line.holds_back = true;
            for tenth in 11..120 {
                if hears {
                    line.hear();
                }
                line.until(millis(100 * tenth), true, false);
            }
            let found = line.lost_at.expect("it is lost");
            assert!(found.abs_diff(millis(lost_at)) <= millis(300), "{found:?}");
        }
    }

    /// QUIC's probes are seconds apart after some of them are lost, and nothing else leaves.
    #[test]
    fn a_line_that_brings_packets_now_and_then_has_twice_the_time_for_an_answer() {
        for (heard_until, is_lost) in [(7_000, false), (2_000, true)] {
            let mut line = Line::dialled();
            line.until(millis(1_000), true, true);
            line.holds_back = true;
            for second in 1..6 {
                line.until(millis(1_000 * second + 400), true, false);
                if second * 1_000 < heard_until {
                    line.hear();
                }
            }
            line.answer();
            line.holds_back = false;
            line.until(millis(12_000), true, true);
            assert_eq!(line.lost_at.is_some(), is_lost, "{line:?}");
        }
    }

    #[test]
    fn a_line_that_carries_one_way_only_is_silent_and_then_lost() {
        let mut line = Line::dialled();
        for half_second in 1..=8 {
            line.until(millis(500 * half_second), true, false);
            line.hear();
        }
        assert_eq!((line.silent_at, line.lost_at), (Some(millis(1_100)), Some(millis(3_200))));
    }

    #[test]
    fn a_peer_that_takes_no_keep_alives_is_lost_with_calls_unless_it_sends_some() {
        for (sends, has_calls) in [(false, true), (true, true), (false, false)] {
            let mut line = Line { takes_keep_alives: false, ..Line::dialled() };
            line.until(millis(50), true, false);
            for tenth in 1..=80 {
                line.until(millis(100 * tenth), has_calls, false);
                if sends {
                    line.hear();
                }
            }
            let lost_at = (!sends && has_calls).then_some(millis(3_200));
            assert_eq!(line.lost_at, lost_at, "sends: {sends}, has calls: {has_calls}");
        }
    }

    #[test]
    fn probes_are_sent_no_more_often_than_keep_alives_and_none_is_forgotten() {
        let mut line = Line::dialled();
        line.decision.awake(line.heard, line.now);
        line.look(false, true);
        line.answer();
        line.look(false, true);
        assert_eq!(line.sent, [millis(0)], "too soon");
        while line.sent.len() < 2 {
            line.now += line.decision.pause(false, true, line.now).expect("it is looked at again");
            line.look(false, true);
        }
        assert_eq!(line.sent, [0, 200].map(millis));
    }

    #[test]
    fn a_pause_of_this_process_is_no_silence_of_the_other_side() {
        let mut line = Line::dialled();
        line.until(millis(1_000), true, true);
        let sent = line.sent.len();
        line.now += millis(30_000);
        line.until(line.now - line.start + millis(200), true, false);
        assert_eq!((line.silent_at, line.lost_at), (None, None));
        assert!(line.sent.len() > sent, "a keep-alive at once");
    }

    #[test]
    fn a_link_without_calls_is_not_looked_at() {
        let mut line = Line::dialled();
        assert!(line.until(millis(1), false, false));
        assert_eq!(line.looks, 0);
        line.until(millis(1_000), true, true);
        line.looks = 0;
        assert!(line.until(millis(60_000), false, true), "it gets cold");
        assert!(line.now - line.start < millis(11_500), "ten seconds after its last call");
        assert!((40..=60).contains(&line.looks), "{}", line.looks);
        assert!((line.silent_at, line.lost_at) == (None, None));
    }

    #[test]
    fn a_cold_link_that_is_probed_is_watched_until_it_answers_or_is_lost() {
        for answers in [true, false] {
            let mut line = Line::dialled();
            line.now += millis(60_000);
            line.decision.awake(line.heard, line.now);
            line.look(false, true);
            if answers {
                line.answer();
            }
            let is_cold = line.until(millis(64_000), false, answers);
            assert_eq!((is_cold, line.lost_at.is_none()), (answers, answers));
            assert!(!answers || line.looks == 2, "{}", line.looks);
        }
    }

    #[test]
    fn an_accepted_link_is_watched_only_while_it_has_calls() {
        let mut line = Line::new(LinkTimes::accepted(&Tuning::default()));
        line.until(millis(1_000), true, true);
        assert_eq!(line.looks, 5, "a node may have many callers");
        assert!(line.until(millis(2_000), false, true) && line.now - line.start <= millis(1_400));
        line.until(millis(6_000), true, false);
        assert!(line.silent_at.is_none() && line.lost_at.is_some());
    }
}
