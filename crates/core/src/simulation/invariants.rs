//! The invariants after every event, and at the end.

use super::script::Nature;
use super::world::{ModelWorld, Outcome, Place};

pub(super) fn check(world: &mut ModelWorld) {
    let mut found = Vec::new();
    books(world, &mut found);
    queue(world, &mut found);
    work_is_conserved(world, &mut found);
    let now = world.now;
    world.violations.extend(found.into_iter().map(|what| format!("at {now} ns: {what}")));
}

/// The permits in use belong to the calls without an outcome.
fn books(world: &ModelWorld, found: &mut Vec<String>) {
    let in_flight = |call: &usize| world.calls[*call].place != Place::Outside && world.calls[*call].outcome.is_none();
    let open: Vec<usize> = (0..world.calls.len()).filter(in_flight).collect();
    let bytes: u64 = open.iter().map(|call| world.script.calls[*call].bytes).sum();
    if (world.ledger.in_flight(), world.ledger.bytes()) != (open.len(), bytes) {
        let (in_flight, held) = (world.ledger.in_flight(), world.ledger.bytes());
        found.push(format!("{in_flight} permits with {held} bytes, {} calls with {bytes}", open.len()));
    }
    let limits = &world.script.limits;
    if world.ledger.in_flight() > limits.max_in_flight || world.ledger.bytes() > limits.max_in_flight_bytes {
        found.push("more permits are in use than exist".to_owned());
    }
}

/// The queue holds the waiting calls, within its bound; only calls that were taken back may exceed it.
fn queue(world: &ModelWorld, found: &mut Vec<String>) {
    let waits = |place| world.calls.iter().enumerate().filter(move |(_, call)| call.place == place);
    let cost: u64 = waits(Place::Queue).map(|(call, _)| world.script.calls[call].cost).sum();
    let load = world.lanes.load();
    if (world.lanes.len(), load.entries, load.cost) != (waits(Place::Queue).count(), waits(Place::Queue).count(), cost)
    {
        found.push(format!("the lanes hold {load:?}, {} calls that cost {cost} wait", waits(Place::Queue).count()));
    }
    let fresh = waits(Place::Queue).filter(|(_, call)| call.starts == 0).count();
    if fresh > world.script.queue {
        found.push(format!("{fresh} entries wait, at most {} may", world.script.queue));
    }
    let suspects: usize = world.suspects.iter().map(|(_, group)| group.len()).sum();
    if suspects != waits(Place::PoisonSuspects).count() {
        found.push(format!("{suspects} suspects, {} calls among them", waits(Place::PoisonSuspects).count()));
    }
    if let Some((call, _)) = waits(Place::Queue).find(|(_, call)| call.outcome.is_some()) {
        found.push(format!("call {call} waits and has its outcome"));
    }
}

/// No worker is idle while it could take a waiting call, unless the stage wants to wait.
fn work_is_conserved(world: &ModelWorld, found: &mut Vec<String>) {
    if world.is_yielding {
        return;
    }
    let mut free = world.lives.values().filter(|life| life.batch.is_none() && !life.leaving);
    let idle = free.find(|life| {
        let may_take = world.lanes.load_for(life.index).entries > 0 && world.script.policy.max_delay.is_zero();
        may_take || !world.suspects.is_empty()
    });
    if let Some(life) = idle {
        found.push(format!("replica {} stands idle", life.index));
    }
}

/// The calls in the order in which they must leave, if sessions do not make it differ between replicas.
pub(super) fn in_order(world: &ModelWorld) -> Option<Vec<usize>> {
    if world.lanes.has_sessions() {
        return None;
    }
    let ageing = world.script.policy.ageing.as_nanos() as u64;
    let rank = |call: &usize| {
        let state = &world.calls[*call];
        let gained = (world.now - state.arrived_at) / ageing;
        ((state.key.priority as u64).saturating_sub(gained), state.key.deadline, state.key.sequence)
    };
    let mut waiting: Vec<usize> =
        (0..world.calls.len()).filter(|call| world.calls[*call].place == Place::Queue).collect();
    waiting.sort_by_key(rank);
    Some(waiting)
}

/// The stage gives up exactly if there are more crashes than allowed within the window.
pub(super) fn check_intensity(world: &mut ModelWorld, gives_up: bool) {
    let within = world.script.intensity.within.as_nanos() as u64;
    let counted = world.crashes.iter().filter(|crash| world.now - **crash < within).count();
    if gives_up != (counted > world.script.intensity.max_restarts as usize) {
        world.violations.push(format!("{counted} crashes in the window, gives up: {gives_up}"));
    }
}

pub(super) fn check_end(world: &mut ModelWorld) {
    let mut found = Vec::new();
    for (call, state) in world.calls.iter().enumerate() {
        match state.outcome {
            None => found.push(format!("call {call} has no outcome")),
            Some(Outcome::Failed) if world.script.calls[call].nature != Nature::Fails => {
                found.push(format!("call {call} failed"));
            }
            Some(Outcome::Unavailable) if world.life.state().accepts_entries() && !world.ledger.is_draining() => {
                found.push(format!("call {call} found the stage unavailable"));
            }
            Some(_) => {}
        }
    }
    if (world.ledger.in_flight(), world.ledger.bytes(), world.queued()) != (0, 0, 0) {
        found.push("something is left".to_owned());
    }
    let busy = world.lives.values().filter(|life| life.batch.is_some()).count();
    let released: u64 = world.counts.reasons.iter().sum();
    if busy > 0 || released != world.counts.batches {
        found.push(format!("{busy} replicas are busy, {released} reasons for {} batches", world.counts.batches));
    }
    for family in &world.families {
        // The promised bound for one culprit; each further one needs its own search.
        let depth = family.size.next_power_of_two().ilog2() as usize;
        let again = family.culprits * world.script.crash_retries as usize;
        if family.runs > 2 * depth * family.culprits + 1 + again {
            found.push(format!("{family:?} took too many runs"));
        }
    }
    world.violations.extend(found);
}
