//! Counts and distributions of one target. Each thread has its own, without a lock; they are added up at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use callboard_core::ErrorKind;
use hdrhistogram::Histogram;

/// The number of slices of a round's measured time, for the plot over time.
pub(crate) const SLICES: usize = 30;

/// Three digits: an error of a thousandth.
const DIGITS: u8 = 3;

/// The plot over time needs only two digits, which keeps its histograms small.
const SLICE_DIGITS: u8 = 2;

/// A longer latency is counted as this one.
const LONGEST: Duration = Duration::from_secs(3600);

/// More kinds of errors than any server has. Kinds beyond it are counted as `others`.
const MAX_ERROR_KINDS: usize = 64;

/// The outcome of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// An answer.
    Answered {
        /// The status; `None` over QUIC.
        status: Option<u16>,
        /// The kind of the error; `None` for a success (over HTTP a 2xx).
        kind: Option<String>,
        /// The length of the body.
        bytes: u64,
    },
    /// The timeout of one request has passed.
    TimedOut,
    /// No answer or half of one, with the client's word for the error.
    Broken(&'static str),
}

impl Outcome {
    /// Whether the request succeeded.
    pub(crate) fn is_ok(&self) -> bool {
        matches!(self, Self::Answered { kind: None, .. })
    }

    /// Whether the target cannot be reached. Over QUIC this is a kind of error.
    pub(crate) fn is_unreachable(&self) -> bool {
        match self {
            Self::Broken(word) => matches!(*word, "connect" | "tls"),
            Self::Answered { status: None, kind: Some(kind), .. } => kind == ErrorKind::Unavailable.as_str(),
            Self::Answered { .. } | Self::TimedOut => false,
        }
    }
}

/// The times of one request, since the start of the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// The due time of the request; in a closed loop, the time at which it was sent.
    pub(crate) due: Duration,
    /// The time at which the request was sent.
    pub(crate) sent: Duration,
    /// The time at which its outcome was known.
    pub(crate) done: Duration,
}

/// Counts and distributions of one target.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Nanoseconds from due to done of successes and timeouts, and the least possible of requests never sent.
    pub latency: Histogram<u64>,
    /// Nanoseconds from sent to done, of successes.
    pub service: Histogram<u64>,
    /// Answers by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Failures by kind: the kind of the problem document, or the client's word.
    pub errors: BTreeMap<String, u64>,
    /// Successes.
    pub ok: u64,
    /// Successes within the measured time.
    pub ok_in_time: u64,
    /// All other outcomes of requests that were sent.
    pub failed: u64,
    /// Requests of an open loop that were due and could not be sent before the end.
    pub unsent: u64,
    /// Bytes of response bodies.
    pub received_bytes: u64,
    /// The measured time.
    pub measured: Duration,
    /// The figures over time.
    pub slices: Vec<Slice>,
    slice_width: Duration,
}

/// The outcomes of one part of the measured time.
#[derive(Clone, Debug)]
pub struct Slice {
    /// As [`Stats::latency`].
    pub latency: Histogram<u64>,
    /// Successes.
    pub ok: u64,
    /// All other outcomes.
    pub failed: u64,
    /// The length of the slice.
    pub width: Duration,
}

impl Stats {
    /// Empty counts, for a round of this length.
    #[must_use]
    pub fn new(measured: Duration) -> Self {
        let slice_width = measured / SLICES as u32;
        Self {
            latency: histogram(DIGITS),
            service: histogram(DIGITS),
            statuses: BTreeMap::new(),
            errors: BTreeMap::new(),
            ok: 0,
            ok_in_time: 0,
            failed: 0,
            unsent: 0,
            received_bytes: 0,
            measured,
            slices: (0..SLICES).map(|_| Slice::new(slice_width)).collect(),
            slice_width,
        }
    }

    /// All requests that were sent.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.ok + self.failed
    }

    /// The share of failed and unsent requests among all that were due.
    #[must_use]
    pub fn error_rate(&self) -> f64 {
        let all = self.requests() + self.unsent;
        if all == 0 { 0.0 } else { (self.failed + self.unsent) as f64 / all as f64 }
    }

    /// Successes per second of the measured time.
    #[must_use]
    pub fn requests_per_second(&self) -> f64 {
        let seconds = self.measured.as_secs_f64();
        if seconds == 0.0 { 0.0 } else { self.ok_in_time as f64 / seconds }
    }

    /// Counts one request.
    pub(crate) fn record(&mut self, times: Times, outcome: &Outcome) {
        let latency = nanos(times.done.saturating_sub(times.due));
        let (is_ok, is_felt) = match outcome {
            Outcome::Answered { status, kind, bytes } => {
                if let Some(status) = status {
                    *self.statuses.entry(*status).or_default() += 1;
                }
                self.received_bytes += bytes;
                if let Some(kind) = kind {
                    self.count_error(kind);
                }
                (kind.is_none(), kind.is_none())
            }
            Outcome::TimedOut => {
                self.count_error("timeout");
                (false, true)
            }
            Outcome::Broken(word) => {
                self.count_error(word);
                (false, false)
            }
        };
        if is_ok {
            self.ok += 1;
            self.ok_in_time += u64::from(times.done <= self.measured);
            self.service.saturating_record(nanos(times.done.saturating_sub(times.sent)));
        } else {
            self.failed += 1;
        }
        let slice = self.slice(times.done);
        if is_felt {
            slice.latency.saturating_record(latency);
        }
        slice.ok += u64::from(is_ok);
        slice.failed += u64::from(!is_ok);
        if is_felt {
            self.latency.saturating_record(latency);
        }
    }

    /// Counts `count` requests that were due and never sent, each with the least latency that it can have had.
    pub(crate) fn record_unsent(&mut self, least: Duration, count: u64) {
        self.unsent += count;
        self.latency.saturating_record_n(nanos(least), count);
    }

    /// Adds the counts of another thread in the same round.
    pub(crate) fn merge(&mut self, other: Self) {
        self.add_counts(&other);
        for (slice, other) in self.slices.iter_mut().zip(other.slices) {
            slice.latency.add(&other.latency).expect("the same bounds");
            slice.ok += other.ok;
            slice.failed += other.failed;
        }
    }

    /// Adds the counts of a later round.
    pub(crate) fn append(&mut self, other: Self) {
        self.add_counts(&other);
        self.measured += other.measured;
        self.slices.extend(other.slices);
    }

    /// Shortens the measured time of a round that ended early.
    pub(crate) fn truncate(&mut self, measured: Duration) {
        self.measured = measured;
        let whole = measured.as_nanos().div_ceil(self.slice_width.as_nanos().max(1));
        self.slices.truncate(usize::try_from(whole).unwrap_or(usize::MAX).max(1));
    }

    fn add_counts(&mut self, other: &Self) {
        self.latency.add(&other.latency).expect("the same bounds");
        self.service.add(&other.service).expect("the same bounds");
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        for (kind, count) in &other.errors {
            *self.errors.entry(kind.clone()).or_default() += count;
        }
        self.ok += other.ok;
        self.ok_in_time += other.ok_in_time;
        self.failed += other.failed;
        self.unsent += other.unsent;
        self.received_bytes += other.received_bytes;
    }

    fn count_error(&mut self, kind: &str) {
        if let Some(count) = self.errors.get_mut(kind) {
            *count += 1;
            return;
        }
        // The kinds come from the target; the table has a bound.
        let kind = if self.errors.len() < MAX_ERROR_KINDS { kind } else { "others" };
        *self.errors.entry(kind.to_owned()).or_default() += 1;
    }

    /// The slice of this moment; the last one for outcomes after the end.
    fn slice(&mut self, done: Duration) -> &mut Slice {
        let index = done.as_nanos() / self.slice_width.as_nanos().max(1);
        let last = self.slices.len() - 1;
        &mut self.slices[usize::try_from(index).unwrap_or(last).min(last)]
    }
}

impl Slice {
    fn new(width: Duration) -> Self {
        Self { latency: histogram(SLICE_DIGITS), ok: 0, failed: 0, width }
    }
}

fn histogram(digits: u8) -> Histogram<u64> {
    // A resolution of a tenth of a microsecond: the clock itself is less precise.
    Histogram::new_with_bounds(100, nanos(LONGEST), digits).expect("bounds that hold")
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ok() -> Outcome {
        Outcome::Answered { status: Some(200), kind: None, bytes: 7 }
    }

    fn times(due: u64, sent: u64, done: u64) -> Times {
        Times { due: Duration::from_millis(due), sent: Duration::from_millis(sent), done: Duration::from_millis(done) }
    }

    fn millis(histogram: &Histogram<u64>, quantile: f64) -> u64 {
        histogram.value_at_quantile(quantile) / 1_000_000
    }

    #[test]
    fn latency_counts_from_the_due_time_and_service_from_the_send_time() {
        let mut stats = Stats::new(SECOND);
        stats.record(times(100, 300, 350), &ok());
        assert_eq!((millis(&stats.latency, 1.0), millis(&stats.service, 1.0)), (250, 50));
    }

    #[test]
    fn a_quick_refusal_does_not_lower_the_latency_and_a_timeout_counts_in_it() {
        let mut stats = Stats::new(SECOND);
        stats.record(times(0, 0, 100), &ok());
        let refusal = Outcome::Answered { status: Some(429), kind: Some("overloaded".to_owned()), bytes: 0 };
        stats.record(times(0, 0, 1), &refusal);
        stats.record(times(0, 0, 1), &Outcome::Broken("closed"));
        stats.record(times(0, 0, 900), &Outcome::TimedOut);
        assert_eq!((stats.latency.len(), millis(&stats.latency, 0.5), millis(&stats.latency, 1.0)), (2, 100, 900));
        assert_eq!((stats.ok, stats.failed, stats.error_rate()), (1, 3, 0.75));
        let errors: Vec<_> = stats.errors.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
        assert_eq!(errors, [("closed", 1), ("overloaded", 1), ("timeout", 1)]);
        assert_eq!(stats.statuses, BTreeMap::from([(200, 1), (429, 1)]));
    }

    #[test]
    fn unsent_requests_count_in_latency_and_error_rate() {
        let mut stats = Stats::new(SECOND);
        stats.record(times(0, 0, 1), &ok());
        stats.record_unsent(Duration::from_millis(500), 3);
        assert_eq!((stats.unsent, stats.error_rate(), millis(&stats.latency, 0.5)), (3, 0.75, 500));
        assert_eq!(stats.requests_per_second(), 1.0);
    }

    #[test]
    fn an_answer_after_the_end_counts_for_latency_and_not_for_throughput() {
        let mut stats = Stats::new(SECOND);
        stats.record(times(900, 900, 1500), &ok());
        assert_eq!((stats.ok, stats.requests_per_second(), millis(&stats.latency, 1.0)), (1, 0.0, 600));
    }

    #[test]
    fn a_round_that_ended_early_has_its_real_length() {
        let mut stats = Stats::new(SECOND);
        stats.record(times(0, 0, 40), &ok());
        stats.truncate(Duration::from_millis(50));
        assert_eq!((stats.requests_per_second(), stats.slices.len()), (20.0, 2));
    }

    #[test]
    fn the_kinds_of_errors_are_bounded() {
        let mut stats = Stats::new(SECOND);
        for number in 0..1000 {
            let outcome = Outcome::Answered { status: Some(500), kind: Some(number.to_string()), bytes: 0 };
            stats.record(times(0, 0, 1), &outcome);
        }
        assert_eq!((stats.errors.len(), stats.errors["others"]), (MAX_ERROR_KINDS + 1, 936));
    }

    fn outcome() -> impl Strategy<Value = Outcome> {
        let answered = (proptest::option::of(100_u16..600), proptest::option::of("[a-z]{1,3}"), 0_u64..9);
        prop_oneof![
            answered.prop_map(|(status, kind, bytes)| Outcome::Answered { status, kind, bytes }),
            Just(Outcome::TimedOut),
            Just(Outcome::Broken("closed")),
        ]
    }

    proptest! {
        // `Stats` has megabytes of histograms, and each case makes several.
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn several_threads_count_the_same_as_one(
            requests in proptest::collection::vec((0_u64..2000, 0_u64..2000, outcome(), 0_usize..3), 0..60),
        ) {
            let mut one = Stats::new(SECOND);
            let mut threads = [(); 3].map(|()| Stats::new(SECOND));
            for (due, took, outcome, thread) in &requests {
                let times = times(*due, *due, due + took);
                one.record(times, outcome);
                threads[*thread].record(times, outcome);
            }
            let [mut together, second, third] = threads;
            together.merge(second);
            together.merge(third);
            prop_assert_eq!(&together.latency, &one.latency);
            prop_assert_eq!(&together.service, &one.service);
            prop_assert_eq!(&together.statuses, &one.statuses);
            prop_assert_eq!(&together.errors, &one.errors);
            prop_assert_eq!(together.ok + together.failed, requests.len() as u64);
            let of_slices = |stats: &Stats| stats.slices.iter().map(|slice| (slice.ok, slice.failed)).collect::<Vec<_>>();
            prop_assert_eq!(of_slices(&together), of_slices(&one));
            prop_assert_eq!(of_slices(&one).iter().map(|(ok, failed)| ok + failed).sum::<u64>(), requests.len() as u64);
        }
    }
}
