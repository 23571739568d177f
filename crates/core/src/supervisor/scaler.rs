//! How many replicas a stage should have: a pure decision.
//!
//! * **More**, at most twice as many, once the queue would take longer than the stage's bound at every look for
//!   [`LATE_FOR`].
//! * **One fewer**, once the others would be busy less than [`SPARE_BELOW`] of the time and the queue was within its
//!   bound at every look for [`SPARE_FOR`]. A step down that the load takes back soon was wrong: the next one waits
//!   twice as long, so that a steady load between two numbers settles on the larger one.
//! * **None**, where the stage may have none, after its idle time without a call; **some** again for the first call.
//!
//! After a change the load may settle for [`SETTLE`], and a start that failed is repeated only after its back-off.

use std::time::Duration;

use crate::clock::Instant;
use crate::stage::Scaling;

/// How often a stage with a choice is looked at. Ten looks a second cost microseconds and leave most of the promised
/// second to the start of the replica.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A burst that drains within this time adds no replica.
const LATE_FOR: Duration = Duration::from_millis(300);

/// How long a change may take to show in the queue.
const SETTLE: Duration = Duration::from_secs(1);

/// A replica is cheap to keep for a minute, and may be expensive to start.
const SPARE_FOR: Duration = Duration::from_secs(60);

/// The longest wait before a step down, after several that were taken back.
const MAX_SPARE_FOR: Duration = Duration::from_secs(16 * 60);

/// The utilisation that the remaining replicas may reach: above it, queues grow quickly with chance arrivals.
const SPARE_BELOW: f64 = 0.7;

/// The time over which the utilisation is averaged: many batches for most stages, and short against [`SPARE_FOR`].
const AVERAGED_OVER: Duration = Duration::from_secs(5);

/// The load of a stage at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplicaLoad {
    /// The target number of replicas, all of which are up or on their way.
    pub(super) target: usize,
    /// Waiting entries.
    pub(super) queued: usize,
    /// The time that the queue needs; `None` before the first batch was measured.
    pub(super) delay: Option<Duration>,
    /// The busy share of the replicas, as a number of replicas.
    pub(super) busy: f64,
    /// When the last batch began.
    pub(super) last_batch: Option<Instant>,
}

/// Another number of replicas, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ScaleDecision {
    pub(super) replicas: usize,
    pub(super) reason: String,
}

/// The decision of one stage, with its memory of the last looks.
#[derive(Debug)]
pub(super) struct Scaler {
    scaling: Scaling,
    /// The queue delay was above its bound at every look since then.
    late_since: Option<Instant>,
    /// One replica fewer would have done at every look since then.
    spare_since: Option<Instant>,
    /// Entries waited at every look since then.
    waiting_since: Option<Instant>,
    /// The average of busy replicas, and the time of the last look.
    busy: f64,
    looked_at: Instant,
    /// The last sign of a call.
    active_at: Instant,
    /// No change before this time.
    hold_until: Instant,
    /// No start from zero before this time.
    rest_until: Instant,
    /// The last step down.
    shrunk_at: Option<Instant>,
    /// How long a step down waits.
    patience: Duration,
}

impl Scaler {
    pub(super) fn new(scaling: Scaling, now: Instant) -> Self {
        Self {
            scaling,
            late_since: None,
            spare_since: None,
            waiting_since: None,
            busy: 0.0,
            looked_at: now,
            active_at: now,
            hold_until: now,
            rest_until: now,
            shrunk_at: None,
            patience: SPARE_FOR,
        }
    }

    /// Looks at the load. `None`: the number of replicas is right, or it is too early to tell.
    pub(super) fn decide(&mut self, now: Instant, load: &ReplicaLoad) -> Option<ScaleDecision> {
        self.look(now, load);
        let decision = self.judge(now, load)?;
        if decision.replicas > load.target {
            self.grown(now);
        } else {
            self.shrunk_at = (decision.replicas > 0).then_some(now);
        }
        self.changed(now);
        Some(decision)
    }

    /// The number of replicas was changed, by this decision or another: the load may settle first.
    pub(super) fn changed(&mut self, now: Instant) {
        self.hold_until = self.hold_until.max(now + SETTLE);
        self.active_at = now;
        (self.late_since, self.spare_since) = (None, None);
    }

    /// A start failed: no other one within this time.
    pub(super) fn rest(&mut self, now: Instant, time: Duration) {
        self.rest_until = now + time;
        self.hold_until = self.hold_until.max(self.rest_until);
    }

    /// When to look again. `None`: when a call waits.
    pub(super) fn next_look(&self, now: Instant, target: usize) -> Option<Instant> {
        if target == 0 {
            None
        } else if target < self.scaling.max().get() || target > self.floor() {
            Some(now + LOOK_EVERY)
        } else if self.scaling.may_be_zero() {
            Some((self.active_at + self.scaling.idle()).max(now + LOOK_EVERY))
        } else {
            None
        }
    }

    /// The fewest replicas of a loaded stage.
    fn floor(&self) -> usize {
        self.scaling.min().max(1)
    }

    fn look(&mut self, now: Instant, load: &ReplicaLoad) {
        let since_last = now.saturating_duration_since(self.looked_at).as_secs_f64();
        self.looked_at = now;
        self.busy += (load.busy - self.busy) * (1.0 - (-since_last / AVERAGED_OVER.as_secs_f64()).exp());
        if load.queued > 0 || load.busy > 0.0 {
            self.active_at = now;
        } else if let Some(last) = load.last_batch {
            self.active_at = self.active_at.max(last);
        }
        hold(&mut self.waiting_since, load.queued > 0, now);
        let is_late = self.delay(now, load) > self.scaling.queue_delay();
        hold(&mut self.late_since, is_late, now);
        let others = load.target.saturating_sub(1) as f64;
        hold(&mut self.spare_since, !is_late && self.busy < SPARE_BELOW * others, now);
    }

    /// The queue delay: estimated, or before the first measurement how long entries have waited already.
    fn delay(&self, now: Instant, load: &ReplicaLoad) -> Duration {
        let waited = || self.waiting_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        load.delay.unwrap_or_else(waited)
    }

    fn judge(&self, now: Instant, load: &ReplicaLoad) -> Option<ScaleDecision> {
        let lasted = |since: Option<Instant>, time| since.is_some_and(|since| now >= since + time);
        if load.target == 0 {
            let wakes = load.queued > 0 && now >= self.rest_until;
            return wakes.then(|| ScaleDecision { replicas: self.floor(), reason: "a call waits".to_owned() });
        }
        let idle = self.scaling.idle();
        if self.scaling.may_be_zero() && load.queued == 0 && load.busy == 0.0 && now >= self.active_at + idle {
            return Some(ScaleDecision { replicas: 0, reason: format!("no call for {idle:?}") });
        }
        if now < self.hold_until {
            return None;
        }
        let max = self.scaling.max().get();
        if load.target < max && lasted(self.late_since, LATE_FOR) {
            let (delay, bound) = (self.delay(now, load), self.scaling.queue_delay());
            let times = delay.as_secs_f64() / bound.as_secs_f64().max(1e-9);
            let wanted = (load.target as f64 * times).ceil() as usize;
            let replicas = wanted.clamp(load.target + 1, 2 * load.target).min(max);
            let reason = format!("the queue takes {delay:.1?}, longer than {bound:?}");
            return Some(ScaleDecision { replicas, reason });
        }
        if load.target > self.floor() && lasted(self.spare_since, self.patience) {
            let share = 100.0 * self.busy / (load.target - 1) as f64;
            let (replicas, patience) = (load.target - 1, self.patience);
            let reason = format!("{replicas} would be busy {share:.0} % of the time, for {patience:?}");
            return Some(ScaleDecision { replicas, reason });
        }
        None
    }

    /// The load asks for more: if that is soon after a step down, that step was wrong.
    fn grown(&mut self, now: Instant) {
        let Some(shrunk_at) = self.shrunk_at.take() else { return };
        let was_wrong = now < shrunk_at + 2 * self.patience;
        self.patience = if was_wrong { (2 * self.patience).min(MAX_SPARE_FOR) } else { SPARE_FOR };
    }
}

/// Keeps the first moment of a condition that still holds.
fn hold(since: &mut Option<Instant>, holds: bool, now: Instant) {
    *since = if holds { since.or(Some(now)) } else { None };
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::splitmix64::splitmix64;

    const BOUND: Duration = Duration::from_millis(100);

    fn load(target: usize, queued: usize, delay_ms: u64, busy: f64) -> ReplicaLoad {
        ReplicaLoad { target, queued, delay: Some(Duration::from_millis(delay_ms)), busy, last_batch: None }
    }

    /// Looks ten times a second at the same load; the changes with their times in seconds.
    fn watch(
        scaler: &mut Scaler,
        start: Instant,
        seconds: u64,
        mut at: impl FnMut(f64, usize) -> ReplicaLoad,
        mut target: usize,
    ) -> Vec<(f64, usize)> {
        let mut changes = Vec::new();
        for look in 0..10 * seconds {
            let now = start + LOOK_EVERY * look as u32;
            let second = look as f64 / 10.0;
            if let Some(decision) = scaler.decide(now, &at(second, target)) {
                target = decision.replicas;
                changes.push((second, target));
            }
        }
        changes
    }

    #[test]
    fn a_late_queue_gets_another_replica_within_a_second() {
        let start = Instant::now();
        let mut scaler = Scaler::new(Scaling::between(1, 4), start);
        // The queue is late from the tenth second on, and in time with two replicas.
        let at = |second: f64, target: usize| {
            load(target, 8, if second >= 10.0 { 150 / target as u64 } else { 50 }, target as f64)
        };
        let changes = watch(&mut scaler, start, 60, at, 1);
        assert_eq!(changes.len(), 1, "{changes:?}");
        assert!(changes[0].1 == 2 && changes[0].0 > 10.0 && changes[0].0 < 10.6, "{changes:?}");
    }

    #[test]
    fn a_burst_adds_no_replica_and_a_flood_doubles_them() {
        let start = Instant::now();
        let mut scaler = Scaler::new(Scaling::between(1, 7), start);
        let bursts = |second: f64, target: usize| load(target, 8, if second % 1.0 < 0.25 { 900 } else { 0 }, 0.9);
        assert_eq!(watch(&mut scaler, start, 30, bursts, 1), []);
        let start = start + Duration::from_secs(30);
        let replicas: Vec<usize> = watch(&mut scaler, start, 30, |_, target| load(target, 99, 9_000, target as f64), 1)
            .into_iter()
            .map(|(_, replicas)| replicas)
            .collect();
        assert_eq!(replicas, [2, 4, 7]);
    }

    #[test]
    fn a_queue_before_the_first_measurement_counts_by_its_age() {
        let start = Instant::now();
        let mut scaler = Scaler::new(Scaling::between(1, 2), start);
        let at = |_: f64, target: usize| ReplicaLoad { target, queued: 1, delay: None, busy: 1.0, last_batch: None };
        let changes = watch(&mut scaler, start, 2, at, 1);
        assert!(changes.len() == 1 && changes[0].0 < 1.2, "{changes:?}");
    }

    #[test]
    fn spare_replicas_leave_one_by_one_after_a_minute_each() {
        let start = Instant::now();
        let mut scaler = Scaler::new(Scaling::between(1, 8), start);
        let changes = watch(&mut scaler, start, 600, |_, target| load(target, 0, 0, 1.5), 5);
        let times: Vec<(u64, usize)> = changes.iter().map(|(at, replicas)| (*at as u64, *replicas)).collect();
        assert_eq!(times, [(60, 4), (120, 3)], "two replicas would be busy 75 % of the time");
    }

    #[test]
    fn the_last_replica_leaves_after_the_idle_time_and_a_call_brings_it_back() {
        let start = Instant::now();
        let scaling = Scaling::between(0, 1).with_idle(Duration::from_secs(30));
        let mut scaler = Scaler::new(scaling, start);
        let look = |scaler: &mut Scaler, ms: u64, load: ReplicaLoad| {
            let now = start + Duration::from_millis(ms);
            scaler.decide(now, &load).map(|decision| decision.replicas)
        };
        let called = ReplicaLoad { last_batch: Some(start + Duration::from_secs(20)), ..load(1, 0, 0, 0.0) };
        assert_eq!(look(&mut scaler, 30_000, called), None);
        assert_eq!(scaler.next_look(start + Duration::from_secs(30), 1), Some(start + Duration::from_secs(50)));
        assert_eq!(look(&mut scaler, 50_000, called), Some(0));
        assert_eq!(scaler.next_look(start + Duration::from_secs(50), 0), None, "nothing to look at");
        assert_eq!(look(&mut scaler, 50_001, load(0, 0, 0, 0.0)), None);
        assert_eq!(look(&mut scaler, 50_002, load(0, 1, 0, 0.0)), Some(1), "at once, whatever was before");
    }

    #[test]
    fn a_failed_start_is_repeated_after_its_back_off() {
        let start = Instant::now();
        let mut scaler = Scaler::new(Scaling::between(0, 1), start);
        scaler.rest(start, Duration::from_secs(2));
        assert_eq!(scaler.decide(start + Duration::from_secs(1), &load(0, 1, 0, 0.0)), None);
        assert!(scaler.decide(start + Duration::from_secs(2), &load(0, 1, 0, 0.0)).is_some());
    }

    /// A queue with replicas that each take `service` for an entry, and arrivals at random or in step, in steps of a
    /// millisecond. Returns the changes in the order of time.
    fn simulate(
        seed: u64,
        scaling: Scaling,
        service_ms: u64,
        arrivals_per_second: f64,
        in_step: bool,
        seconds: u64,
    ) -> Vec<(f64, usize)> {
        let start = Instant::now();
        let mut scaler = Scaler::new(scaling, start);
        let (mut target, mut queued, mut due) = (scaling.min(), 0_u64, 0.0);
        let mut busy_until: Vec<u64> = Vec::new();
        let (mut changes, mut last_batch) = (Vec::new(), None);
        for ms in 0..1000 * seconds {
            due += arrivals_per_second / 1000.0;
            let arrived = if in_step {
                let whole = due.floor();
                due -= whole;
                whole as u64
            } else {
                due = 0.0;
                let chance = (splitmix64(seed.wrapping_add(ms)) >> 11) as f64 / (1_u64 << 53) as f64;
                u64::from(chance * 1000.0 < arrivals_per_second)
            };
            queued += arrived;
            busy_until.retain(|until| *until > ms);
            while queued > 0 && busy_until.len() < target {
                queued -= 1;
                busy_until.push(ms + service_ms);
                last_batch = Some(start + Duration::from_millis(ms));
            }
            if ms % 100 == 0 {
                let delay = Duration::from_millis(queued * service_ms / target.max(1) as u64);
                let load = ReplicaLoad {
                    target,
                    queued: queued as usize,
                    delay: Some(delay),
                    busy: busy_until.len() as f64,
                    last_batch,
                };
                if let Some(decision) = scaler.decide(start + Duration::from_millis(ms), &load) {
                    target = decision.replicas;
                    changes.push((ms as f64 / 1000.0, target));
                }
            }
        }
        changes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn the_bounds_hold_for_any_load(
            min in 0usize..4, more in 1usize..5, looks in prop::collection::vec((0usize..50, 0u64..2_000, 0.0f64..8.0, 1u64..20_000), 1..200),
        ) {
            let (mut now, scaling) = (Instant::now(), Scaling::between(min, min + more));
            let mut scaler = Scaler::new(scaling, now);
            let mut target = min;
            for (queued, delay, busy, pause) in looks {
                now += Duration::from_millis(pause);
                if let Some(decision) = scaler.decide(now, &load(target, queued, delay, busy.min(target as f64))) {
                    prop_assert_ne!(decision.replicas, target);
                    prop_assert!((min..=min + more).contains(&decision.replicas), "{:?}", decision);
                    target = decision.replicas;
                }
            }
        }

        /// A steady load, in step or at random: no replica leaves within a minute of the last change, and of those that
        /// leave hardly any is missed within the next minute. Each that is missed doubles the wait for the next: half
        /// an hour has four at most, and one more if a longer calm has let the wait begin anew.
        #[test]
        fn a_steady_load_does_not_flap(
            seed: u64, service_ms in 1u64..800, utilisation in 0.05f64..3.5, in_step: bool,
        ) {
            let scaling = Scaling::between(1, 8).with_queue_delay(BOUND);
            let rate = utilisation * 1000.0 / service_ms as f64;
            prop_assume!(rate < 900.0);
            let changes = simulate(seed, scaling, service_ms, rate, in_step, 1800);
            let pairs = || changes.windows(2).map(|pair| (pair[0], pair[1]));
            let (up, down) = (|from: usize, to: usize| to > from, |from: usize, to: usize| to < from);
            for ((then, from), (now, to)) in pairs() {
                prop_assert!(up(from, to) || now - then >= 60.0, "a step down too soon: {:?}", changes);
            }
            let missed = changes.windows(3).filter(|three| {
                down(three[0].1, three[1].1) && up(three[1].1, three[2].1) && three[2].0 - three[1].0 < 60.0
            });
            prop_assert!(missed.count() <= 5, "{:?}", changes);
        }
    }
}
