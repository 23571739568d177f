//! The script of a seed: the knobs, the calls, and the external events.

use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use crate::call::Priority;
use crate::contract::Contract;
use crate::gateway::Limits;
use crate::queue::BatchPolicy;
use crate::restart::RestartIntensity;
use crate::testing::Chance;

const MILLISECOND: u64 = 1_000_000;

/// One run, generated before it begins. Times are nanoseconds from its start.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) seed: u64,
    pub(super) limits: Limits,
    pub(super) policy: BatchPolicy,
    pub(super) queue: usize,
    pub(super) replicas: usize,
    pub(super) contract: Contract,
    pub(super) crash_retries: u32,
    pub(super) intensity: RestartIntensity,
    /// The time after which a call in user code counts as hung.
    pub(super) timeout: u64,
    pub(super) per_batch: u64,
    pub(super) per_unit: u64,
    pub(super) calls: Vec<ScriptedCall>,
    /// The times and target counts of scaling.
    pub(super) scales: Vec<(u64, usize)>,
    /// The times at which replicas die, independent of their batches.
    pub(super) deaths: Vec<(u64, usize)>,
    pub(super) drains_at: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct ScriptedCall {
    pub(super) at: u64,
    pub(super) bytes: u64,
    pub(super) cost: u64,
    pub(super) priority: Priority,
    pub(super) timeout: u64,
    pub(super) leaves_after: Option<u64>,
    pub(super) session: Option<u64>,
    pub(super) nature: Nature,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nature {
    Good,
    Fails,
    Kills,
    Hangs,
}

impl Script {
    pub(super) fn from_seed(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let span = chance.within(50..600) * MILLISECOND;
        let kills = chance.one_in(2);
        let policy = BatchPolicy {
            max_batch_size: NonZeroUsize::new(chance.pick(&[1, 2, 4, 8, 32])).unwrap_or(NonZeroUsize::MIN),
            max_delay: Duration::from_millis(if chance.one_in(3) { chance.within(1..20) } else { 0 }),
            max_cost: if chance.one_in(3) { NonZeroU64::new(chance.within(4..30)) } else { None },
            ageing: Duration::from_millis(chance.pick(&[5, 30, 5_000])),
        };
        let mut script = Self {
            seed,
            limits: Limits {
                max_in_flight: chance.pick(&[16, 64, 1_000]),
                max_in_flight_bytes: chance.pick(&[4_000, 1 << 20]),
                ..Limits::default()
            },
            policy,
            queue: chance.pick(&[2, 20, 1_000]),
            replicas: chance.within(1..5) as usize,
            contract: chance.pick(&[Contract::AtMostOnce, Contract::Idempotent, Contract::Pure]),
            crash_retries: chance.pick(&[0, 1, 3]),
            intensity: RestartIntensity {
                max_restarts: chance.pick(&[0, 2, 1_000]),
                within: Duration::from_millis(chance.within(50..1_000)),
            },
            timeout: chance.within(30..200) * MILLISECOND,
            per_batch: chance.within(0..5) * MILLISECOND,
            per_unit: chance.within(10_000..MILLISECOND),
            calls: Vec::new(),
            scales: Vec::new(),
            deaths: Vec::new(),
            drains_at: None,
        };
        script.write_calls(&mut chance, span, kills);
        for _ in 0..chance.pick(&[0, 0, 2, 5]) {
            script.scales.push((chance.within(0..span), chance.within(1..6) as usize));
        }
        for _ in 0..chance.pick(&[0, 0, 1, 6]) {
            script.deaths.push((chance.within(0..span), chance.within(0..5) as usize));
        }
        script.drains_at = chance.one_in(4).then(|| chance.within(span / 2..span + 1));
        script
    }

    /// Independent arrivals, with bursts of related ones among them.
    fn write_calls(&mut self, chance: &mut Chance, span: u64, kills: bool) {
        let mean = chance.pick(&[1.0, 4.0, 12.0]) * MILLISECOND as f64;
        let mut at = 0;
        while at < span && self.calls.len() < 300 {
            at += (-(1.0 - chance.share()).ln() * mean) as u64;
            let together = if chance.one_in(30) { chance.within(5..50) } else { 1 };
            for _ in 0..together {
                let nature = match chance.within(0..100) {
                    0..4 => Nature::Fails,
                    4..7 if kills => Nature::Kills,
                    7..9 => Nature::Hangs,
                    _ => Nature::Good,
                };
                let timeout = chance.pick(&[5, 40, 300, 2_000]);
                self.calls.push(ScriptedCall {
                    at,
                    bytes: chance.within(1..200),
                    cost: chance.within(1..5),
                    priority: chance.pick(&[Priority::High, Priority::Normal, Priority::Low]),
                    timeout: chance.within(1..timeout * MILLISECOND),
                    leaves_after: if chance.one_in(8) { Some(chance.within(0..40 * MILLISECOND)) } else { None },
                    session: chance.one_in(6).then(|| chance.within(0..6)),
                    nature,
                });
            }
        }
    }
}
