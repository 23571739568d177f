//! How many nodes like this one its load needs, for what adds and removes nodes: a pure decision on figures that are
//! there.
//!
//! The part of the node that needs most decides:
//!
//! * **Bounds.** Of calls, bytes and queues: a node refuses calls when one is full, so it should be at most
//!   [`FULL`] full.
//! * **Replicas.** Those that a stage may have at most should be busy at most [`FULL`] of the time: above it, queues
//!   grow quickly with chance arrivals.
//! * **Queues.** That of a stage should take no longer than its
//!   [`queue_delay`](crate::stage::Scaling::queue_delay), with all replicas that it may have.
//!
//! The figure is that of a moment. What scales by it averages it over a minute, and adds up that of all nodes.

use std::time::Duration;

use serde::Serialize;

use crate::client::NodeState;
use crate::id::StageName;
use crate::metrics::NodeLoad;
use crate::pool::Pool;

/// How full a bound or how busy a replica should be at most.
const FULL: f64 = 0.7;

/// The nodes that the load of one node needs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct NodesWanted {
    /// The number of nodes: 0 without load, 1 for a node that is as busy as it should be at most.
    pub nodes: f64,
    /// What needs them.
    pub reason: String,
}

/// The load of one stage.
#[derive(Debug)]
struct StageNeed<'a> {
    name: &'a StageName,
    /// The busy share of its replicas, as a number of replicas.
    busy: f64,
    /// The replicas that it has, and the most that it may have.
    replicas: usize,
    max: usize,
    /// The time that its queue needs, and the longest that it should.
    delay: Duration,
    bound: Duration,
}

impl<'a> StageNeed<'a> {
    fn of(name: &'a StageName, pool: &Pool) -> Self {
        let (scaling, replicas) = (pool.settings().scaling(), pool.replicas.target());
        Self {
            name,
            busy: pool.busy(),
            replicas,
            max: scaling.max().get().max(replicas),
            delay: pool.queue_delay().unwrap_or_default(),
            bound: scaling.queue_delay(),
        }
    }

    /// By its replicas.
    fn by_replicas(&self) -> f64 {
        self.busy / (FULL * self.max as f64)
    }

    /// By its queue, which all its replicas would work off together.
    fn by_queue(&self) -> f64 {
        let share = self.replicas.max(1) as f64 / self.max.max(1) as f64;
        self.delay.as_secs_f64() / self.bound.as_secs_f64().max(1e-3) * share
    }
}

impl NodeState {
    pub(crate) fn nodes_wanted(&self) -> NodesWanted {
        let table = self.router.table();
        // Replicas are counted once, with the stage that has them.
        let own = table.stages().filter(|stage| stage.pool.host.is_none());
        let stages: Vec<StageNeed<'_>> = own.map(|stage| StageNeed::of(stage.name(), &stage.pool)).collect();
        decide(&self.load(), &stages)
    }
}

fn decide(load: &NodeLoad, stages: &[StageNeed<'_>]) -> NodesWanted {
    let mut most = NodesWanted { nodes: load.saturation / FULL, reason: String::new() };
    most.reason = match most.nodes {
        0.0 => "there is no call".to_owned(),
        _ => format!("a bound of calls, bytes or a queue is {:.0} % full", 100.0 * load.saturation),
    };
    for stage in stages {
        let StageNeed { name, busy, max, delay, bound, .. } = stage;
        let by_replicas = || format!("stage `{name}` is busy with {busy:.1} of at most {max} replicas");
        let by_queue = || format!("the queue of stage `{name}` takes {delay:.1?}, of at most {bound:?}");
        for (nodes, reason) in
            [(stage.by_replicas(), &by_replicas as &dyn Fn() -> String), (stage.by_queue(), &by_queue)]
        {
            if nodes > most.nodes {
                most = NodesWanted { nodes, reason: reason() };
            }
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(saturation: f64, stages: &[(f64, usize, usize, u64)]) -> NodesWanted {
        let name = StageName::new("digits");
        let stages: Vec<StageNeed<'_>> = stages
            .iter()
            .map(|(busy, replicas, max, delay_ms)| StageNeed {
                name: &name,
                busy: *busy,
                replicas: *replicas,
                max: *max,
                delay: Duration::from_millis(*delay_ms),
                bound: Duration::from_millis(100),
            })
            .collect();
        decide(&NodeLoad { saturation, ..NodeLoad::default() }, &stages)
    }

    #[test]
    fn a_node_without_load_is_not_needed_and_a_busy_one_is() {
        let none = wanted(0.0, &[(0.0, 1, 1, 0)]);
        assert_eq!((none.nodes, none.reason.as_str()), (0.0, "there is no call"));
        let busy = wanted(0.1, &[(1.4, 2, 2, 0)]);
        assert!((busy.nodes - 1.0).abs() < 1e-9, "{busy:?}");
        assert_eq!(busy.reason, "stage `digits` is busy with 1.4 of at most 2 replicas");
    }

    #[test]
    fn the_part_that_needs_most_decides() {
        let full = wanted(0.7, &[(0.5, 1, 1, 10)]);
        assert!((full.nodes - 1.0).abs() < 1e-9, "{full:?}");
        assert_eq!(full.reason, "a bound of calls, bytes or a queue is 70 % full");
        let late = wanted(0.7, &[(0.5, 1, 1, 10), (4.0, 4, 4, 300)]);
        assert!((late.nodes - 3.0).abs() < 1e-9, "{late:?}");
        assert_eq!(late.reason, "the queue of stage `digits` takes 300.0ms, of at most 100ms");
    }

    /// A stage that may still grow needs no other node yet.
    #[test]
    fn replicas_that_a_stage_may_still_get_count() {
        let growing = wanted(0.0, &[(1.0, 1, 4, 300)]);
        assert!((growing.nodes - 0.75).abs() < 1e-9, "{growing:?}");
    }
}
