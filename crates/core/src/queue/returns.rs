//! Whether the callers of the last batch are worth waiting for. Pure.
//!
//! Callers that call again as soon as they have their answer come in two halves: while one half runs, the other
//! gathers, and each half runs as soon as the worker is free. Where a batch costs nearly the same at any size, this
//! takes twice the time of one batch with all of them. So a batch waits a little for the callers just answered, if
//!
//! * they have come back before, nearly all of them and soon: callers at random times do not;
//! * running the waiting entries alone costs more than the wait of all of them.
//!
//! A lone caller is never waited for: when its entry waits, no caller is missing.

use std::time::Duration;

use super::cost::{CostLine, Load};
use crate::clock::Instant;
use crate::deadline::Deadline;

/// The weight of the newest batch.
const NEWEST_WEIGHT: f64 = 0.2;

/// The share of answered callers that must have come back, as a rule.
const MOST: f64 = 0.8;

/// They must have come back within this part of a batch's duration: callers at random times come all the time.
const SOON: f64 = 0.4;

/// The wait must win this many times what it costs.
const GAIN: f64 = 2.0;

/// The batch of all takes this part more than estimated.
const CAUTION: f64 = 1.25;

/// A wait is not shorter: it ends by the runtime's timer, which counts milliseconds.
const LEAST_WAIT: Duration = Duration::from_millis(1);

/// After this many batches of one size, which do not tell the fixed cost, one waits to learn it.
const TRIAL_AFTER: u32 = 32;

/// The callers of one stage's last batch, and how those before them came back.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    last: Option<Answered>,
    /// The share that came back soon, and when the last of them did, in nanoseconds after their answers, with its mean
    /// deviation.
    share: f64,
    gap: f64,
    deviation: f64,
    /// Batches since the last wait.
    without_wait: u32,
    has_waited: bool,
}

/// The last batch that was answered.
#[derive(Clone, Copy, Debug)]
struct Answered {
    end: BatchEnd,
    /// Entries that came since, as far as they may be of its callers, and the last of them.
    back: usize,
    back_at: Instant,
}

impl Returns {
    /// A batch has been answered.
    pub(crate) fn answered(&mut self, end: BatchEnd) {
        if let Some(last) = self.last {
            let share = last.back as f64 / last.end.entries.max(1) as f64;
            self.share += NEWEST_WEIGHT * (share - self.share);
            if last.back > 0 {
                let gap = last.back_at.saturating_duration_since(last.end.at).as_secs_f64() * 1e9;
                self.deviation += NEWEST_WEIGHT * ((gap - self.gap).abs() - self.deviation);
                self.gap += NEWEST_WEIGHT * (gap - self.gap);
            }
        }
        self.without_wait = if self.has_waited { 0 } else { self.without_wait.saturating_add(1) };
        self.has_waited = false;
        self.last = Some(Answered { end, back: 0, back_at: end.at });
    }

    /// An entry came.
    pub(crate) fn arrived(&mut self, at: Instant) {
        if let Some(last) = &mut self.last
            && at >= last.end.at
            && last.back < last.end.entries
            && at <= last.end.at + last.end.took.mul_f64(SOON)
        {
            last.back += 1;
            last.back_at = at;
        }
    }

    /// Whether the next batch has waited.
    pub(crate) fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// Until when the next batch waits for returning callers; `None`: it does not.
    pub(crate) fn wait(&mut self, now: Instant, batch: NextBatch) -> Option<Instant> {
        let NextBatch { load: Load { entries: waiting, cost }, room, line, deadline } = batch;
        let Answered { end: last, back, .. } = self.last?;
        // Returned callers are among the waiting.
        let missing = (self.share * last.entries as f64 - back as f64).min(room as f64);
        if self.share < MOST || missing < 0.5 || waiting == 0 {
            return None;
        }
        let expected = Duration::from_nanos((self.gap + 2.0 * self.deviation) as u64);
        let until = last.at + expected.max(LEAST_WAIT);
        // The timer is armed already where the batch has waited.
        let rest = if self.has_waited { last.at + expected } else { until }.saturating_duration_since(now);
        // A trial tells the fixed cost, and begins where all of it may be that.
        let is_trial = self.without_wait >= TRIAL_AFTER;
        let (per_batch, gain) = if is_trial { (last.took, 1.0) } else { (line.per_batch(), GAIN) };
        let costs = rest.as_secs_f64() * waiting as f64 * gain;
        // With the time for all of them, and some for what the estimate misses.
        let cost = cost as f64 * (1.0 + missing / waiting as f64);
        let takes = line.batch(cost.ceil() as u64).mul_f64(CAUTION);
        let is_late = deadline.is_some_and(|deadline| deadline.instant() < until + takes);
        if until <= now
            || is_late
            || until > last.at + last.took.mul_f64(SOON)
            || costs > per_batch.as_secs_f64() * missing
        {
            return None;
        }
        self.has_waited = true;
        Some(until)
    }
}

/// A batch that has ended: when, with how many entries, and how long it took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchEnd {
    pub(crate) at: Instant,
    pub(crate) entries: usize,
    pub(crate) took: Duration,
}

/// The batch that would leave now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextBatch {
    pub(crate) load: Load,
    /// How many more it could have: there is a place in the queue and in the batch for them.
    pub(crate) room: usize,
    pub(crate) line: CostLine,
    pub(crate) deadline: Option<Deadline>,
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::queue::cost::CostModel;
    use crate::queue::{BatchPolicy, QueueState, Release};
    use crate::testing::Chance;

    const LARGEST: usize = 64;

    /// Batches of a run, of which the first are not counted.
    const BATCHES: u32 = 450;
    const WARM: u32 = 200;

    /// When callers call again.
    #[derive(Clone, Copy)]
    enum Callers {
        /// So many, each after its answer and a time to think, of 50 to 150 % of this.
        Closed(usize, Duration),
        /// At random, so many in a second, for ever.
        Poisson(f64),
    }

    /// How a stage waits: as it does, not at all, or for so long after each answer.
    #[derive(Clone, Copy)]
    enum Waits {
        Learned,
        Never,
        For(Duration),
    }

    /// One slot, whose batches take a fixed time and one for each entry, with a noise of 2 %.
    struct OneSlot {
        fixed: Duration,
        each: Duration,
    }

    /// What callers got: answers in a second, and the mean time to one.
    #[derive(Clone, Copy, Debug)]
    struct Served {
        rate: f64,
        latency: Duration,
    }

    impl OneSlot {
        fn run(&self, callers: Callers, waits: Waits, seed: u64) -> Served {
            let (start, mut chance) = (Instant::now(), Chance::new(seed));
            let policy = BatchPolicy { max_batch_size: NonZeroUsize::new(LARGEST).unwrap(), ..BatchPolicy::default() };
            let think = |chance: &mut Chance, mean: Duration| mean.mul_f64(0.5 + chance.share());
            let mut coming: Vec<Instant> = match callers {
                Callers::Closed(count, mean) => (0..count).map(|_| start + think(&mut chance, mean)).collect(),
                Callers::Poisson(rate) => {
                    let mut at = start;
                    let gap = |chance: &mut Chance| chance.gap(Duration::from_secs_f64(1.0 / rate));
                    std::iter::repeat_with(|| (at += gap(&mut chance), at).1).take(40_000).collect()
                }
            };
            let (mut model, mut returns, mut queue) = (CostModel::default(), Returns::default(), Vec::<Instant>::new());
            let (mut now, mut answers, mut waited, mut measured_from) = (start, 0, Duration::ZERO, start);
            let (mut batches, mut last_batch, mut last_answer) = (0, 0, None::<Instant>);
            while batches < BATCHES && !(coming.is_empty() && queue.is_empty()) {
                arrive(&mut coming, now, &mut returns, &mut queue);
                let next = coming.first().copied();
                let until = match waits {
                    Waits::Learned => {
                        let (load, room) =
                            (Load::new(queue.len(), queue.len() as u64), LARGEST.saturating_sub(queue.len()));
                        returns.wait(now, NextBatch { load, room, line: model.line(), deadline: None })
                    }
                    Waits::Never => None,
                    Waits::For(time) => last_answer.map(|answer| answer + time),
                };
                let until = until.filter(|until| *until > now && queue.len() < LARGEST);
                let state = QueueState {
                    load: Load::new(queue.len(), queue.len() as u64),
                    returns_at: until,
                    has_waited: returns.has_waited(),
                    last_batch,
                    // Turns of the runtime take no time here.
                    empty_yields: u32::MAX,
                    ..QueueState::default()
                };
                match policy.decide(now, &state) {
                    Release::Nothing => now = next.expect("somebody comes"),
                    Release::At(at) => now = next.map_or(at, |next| at.min(next)),
                    Release::Yield => unreachable!("turns are over"),
                    Release::Now(_) => {
                        let size = queue.len().min(LARGEST);
                        let took = (self.fixed + self.each * size as u32).mul_f64(0.98 + 0.04 * chance.share());
                        let batch: Vec<_> = queue.drain(..size).collect();
                        now += took;
                        arrive(&mut coming, now, &mut returns, &mut queue);
                        model.observe(size as u64, took);
                        returns.answered(BatchEnd { at: now, entries: size, took });
                        (batches, last_batch, last_answer) = (batches + 1, size, Some(now));
                        if batches == WARM {
                            measured_from = now;
                        }
                        for at in batch {
                            if batches > WARM {
                                answers += 1;
                                waited += now - at;
                            }
                            if let Callers::Closed(_, mean) = callers {
                                coming.push(now + think(&mut chance, mean));
                            }
                        }
                    }
                }
            }
            let time = now - measured_from;
            Served { rate: f64::from(answers) / time.as_secs_f64(), latency: waited / answers.max(1) }
        }

        /// The best of those that know how long to wait after each batch.
        fn oracle(&self, callers: Callers, seed: u64) -> Served {
            let waits = [0.5, 1.0, 1.5].map(|time| Waits::For(millis(time))).into_iter();
            let all = waits.chain([Waits::Never]).map(|waits| self.run(callers, waits, seed));
            all.max_by(|one, other| one.rate.total_cmp(&other.rate)).unwrap()
        }
    }

    /// What has come until now, in its order.
    fn arrive(coming: &mut Vec<Instant>, now: Instant, returns: &mut Returns, queue: &mut Vec<Instant>) {
        coming.sort();
        for at in coming.drain(..coming.partition_point(|at| *at <= now)) {
            returns.arrived(at);
            queue.push(at);
        }
    }

    fn millis(millis: f64) -> Duration {
        Duration::from_secs_f64(millis / 1e3)
    }

    #[test]
    fn callers_that_come_back_are_served_nearly_as_by_one_who_knows_when() {
        // A wait of a millisecond is much for a batch of two: the timer's precision is the bound there.
        for (fixed, each, part) in
            [(5.0, 0.01, 0.9), (5.0, 0.1, 0.9), (20.0, 0.05, 0.88), (0.0, 1.0, 0.95), (1.0, 1.0, 0.85)]
        {
            let stage = OneSlot { fixed: millis(fixed), each: millis(each) };
            for (callers, think) in
                [(2, 0.2), (3, 1.0), (8, 0.5), (16, 0.2), (32, 1.0), (64, 0.5), (100, 0.5), (128, 0.2)]
            {
                let closed = Callers::Closed(callers, millis(think));
                let (learned, oracle) = (stage.run(closed, Waits::Learned, 7), stage.oracle(closed, 7));
                let got = learned.rate / oracle.rate;
                // What does not fit into one batch comes back in between.
                let part = if callers > LARGEST { 0.85 } else { part };
                assert!(got >= part, "{fixed} + {each} ms, {callers} callers that think {think} ms: {got}");
            }
        }
    }

    #[test]
    fn nobody_waits_for_a_lone_caller_or_for_callers_at_random_times() {
        for (fixed, each) in [(5.0, 0.01), (20.0, 0.05), (0.0, 1.0), (1.0, 1.0)] {
            let stage = OneSlot { fixed: millis(fixed), each: millis(each) };
            let capacity = LARGEST as f64 / (stage.fixed + stage.each * LARGEST as u32).as_secs_f64();
            let cases = [Callers::Closed(1, millis(0.5))].into_iter();
            for callers in cases.chain([0.05, 0.2, 0.5, 0.8].map(|load| Callers::Poisson(load * capacity))) {
                let (learned, never) = (stage.run(callers, Waits::Learned, 3), stage.run(callers, Waits::Never, 3));
                let later = learned.latency.as_secs_f64() / never.latency.as_secs_f64();
                assert!(later <= 1.02, "{later}: {learned:?}, {never:?}");
            }
        }
    }

    /// Eight of sixteen callers wait, and the others have just been answered.
    fn half_back() -> (Instant, Returns, NextBatch) {
        let (start, mut model, mut returns) = (Instant::now(), CostModel::default(), Returns::default());
        let mut now = start;
        for batch in 0..40 {
            let size = 7 + batch % 3;
            let took = millis(10.0) + millis(0.1) * size as u32;
            model.observe(size, took);
            now += took;
            returns.answered(BatchEnd { at: now, entries: size as usize, took });
            if batch < 39 {
                (0..size).for_each(|_| returns.arrived(now + millis(0.5)));
            }
        }
        (now, returns, NextBatch { load: Load::new(8, 8), room: 24, line: model.line(), deadline: None })
    }

    #[test]
    fn a_batch_waits_only_if_all_make_their_deadlines_then() {
        let (now, mut returns, batch) = half_back();
        assert_eq!(returns.wait(now, batch), Some(now + millis(1.0)));
        // A batch of sixteen takes 11.6 ms, and a quarter more in doubt.
        for (left, waits) in [(14.0, false), (16.5, true)] {
            let (now, mut returns, batch) = half_back();
            let deadline = Some(Deadline::after(now, millis(left)));
            assert_eq!(returns.wait(now, NextBatch { deadline, ..batch }).is_some(), waits, "{left} ms");
        }
        // Entries may cost more than one unit each.
        let (now, mut returns, batch) = half_back();
        let deadline = Some(Deadline::after(now, millis(16.5)));
        assert_eq!(returns.wait(now, NextBatch { load: Load::new(8, 80), deadline, ..batch }), None);
    }

    #[test]
    fn a_batch_does_not_wait_for_callers_without_room() {
        let (now, mut returns, batch) = half_back();
        assert_eq!(returns.wait(now, NextBatch { room: 0, ..batch }), None);
        assert!(!returns.has_waited());
    }

    #[test]
    fn nobody_is_expected_after_the_usual_time() {
        let (now, mut returns, batch) = half_back();
        assert_eq!(returns.wait(now + millis(1.0), batch), None);
        assert!(!returns.has_waited(), "it has not waited for anybody");
    }
}
