//! The order in which entries leave a stage's queue, as seen from outside.

use std::collections::BTreeMap;

use callboard_core::{ErrorKind, Instant};

use super::journal::{Book, CallOutcome, End, Visit};
use super::script::{CallPlan, Ending, Form, Script, StagePlan};

/// An entry as its queue ranks it.
struct Waiter<'a> {
    visit: Option<&'a Visit>,
    call: u64,
    arrived_at: Instant,
    /// When it left the queue, in any way.
    gone_at: Instant,
    class: u32,
    deadline: Instant,
}

/// Entries that left the queue of a stage out of order. This order prevents starvation: after two ageing times an entry
/// is in the first class, where only entries with an earlier deadline precede it.
///
/// Only for stages whose order is visible from outside: one revision, no crash that puts entries back.
pub(super) fn overtakings(script: &Script, book: &Book, plans: &BTreeMap<u64, &CallPlan>, stage: usize) -> Vec<String> {
    let plan = &script.stages[stage];
    if plan.dangerous || script.scales(stage) || script.changes_revisions() || script.ending != Ending::Calm {
        return Vec::new();
    }
    let waiters: Vec<Waiter<'_>> = plans.values().filter_map(|call| waiter(script, book, call, stage)).collect();
    let mut found = Vec::new();
    for taken in waiters.iter().filter_map(|waiter| waiter.visit.map(|visit| (waiter, visit))) {
        let (taken, now) = (taken.0, taken.1.started_at);
        for left in &waiters {
            let waits = left.arrived_at < now && now < left.gone_at;
            if waits && rank(plan, left, now) < rank(plan, taken, now) && !has_session(plans, left.call) {
                let (taken, left, name) = (taken.call, left.call, plan.name);
                found.push(format!("stage {name} took call {taken} although call {left} was before it"));
            }
        }
    }
    found
}

fn has_session(plans: &BTreeMap<u64, &CallPlan>, call: u64) -> bool {
    plans.get(&call).is_some_and(|plan| plan.session.is_some())
}

/// Class after ageing, then deadline.
fn rank(plan: &StagePlan, waiter: &Waiter<'_>, now: Instant) -> (u32, Instant) {
    let gained = (now - waiter.arrived_at).as_nanos() / plan.ageing.as_nanos();
    (waiter.class.saturating_sub(gained.min(2) as u32), waiter.deadline)
}

/// This call as an entry of this stage's queue, if it waited there.
fn waiter<'a>(script: &Script, book: &'a Book, call: &CallPlan, stage: usize) -> Option<Waiter<'a>> {
    let record = book.calls.get(&call.id)?;
    let position = script.routes[call.route].stages.iter().position(|on_route| *on_route == stage)?;
    let of_call = |stage: usize| book.visits.iter().find(move |visit| visit.call == call.id && visit.stage == stage);
    let arrived_at = match position.checked_sub(1) {
        None => record.called_at,
        Some(before) => {
            let before = script.routes[call.route].stages[before];
            match of_call(before)?.end? {
                // An asynchronous closure returns item by item, but the batch is answered as a whole.
                (at, End::Returned) if script.stages[before].form != Form::EachAsync => at,
                _ => return None,
            }
        }
    };
    let visit = of_call(stage);
    let gone_at = match (visit, record.left_at, &record.outcome) {
        (Some(visit), ..) => visit.started_at,
        (None, Some(left_at), _) => left_at,
        // Any other call may have had its outcome without queueing.
        (None, None, Some(CallOutcome { at, what: Err((ErrorKind::DeadlineExceeded, message)) }))
            if !message.contains("takes about") =>
        {
            *at
        }
        _ => return None,
    };
    Some(Waiter { visit, call: call.id, arrived_at, gone_at, class: call.priority as u32, deadline: record.deadline? })
}
