//! Copies of calls for the candidate of a shadow rollout, which runs them after their callers have their answers.
//!
//! * **Full:** a call is not copied if too many copies run, or the node is more than half full.
//! * **Late:** the timeout of the candidate's route ends a copy, which counts as a failure of the candidate.
//! * **Cancelled:** only with the node. A drain waits for copies.

use std::sync::Arc;
use std::time::Duration;

use callboard_codec::Payload;

use super::{AdmittedCall, LocalClient, run_once};
use crate::call::{CallOptions, Origin, Priority};
use crate::clock;
use crate::containment::contain;
use crate::router::{Observation, TrialPart, agrees};

/// A call that the candidate runs as well.
pub(super) struct Shadow {
    part: Arc<TrialPart>,
    input: Payload,
}

impl Shadow {
    /// The copy of a call that is about to run, if it is one of those to copy.
    pub(super) fn of(call: &AdmittedCall, input: &Payload) -> Option<Self> {
        let part = call.admission.route().shadow_trial()?;
        let is_chosen = part.trial().is_for_shadow(call.flight.session);
        is_chosen.then(|| Self { part, input: input.clone() })
    }

    /// Runs the input on the candidate, beside the node's own calls, and compares its answer with this one.
    pub(super) fn run(self, call: &AdmittedCall, answer: Payload) {
        let Self { part, input } = self;
        let (gateway, trial) = (call.admission.gateway(), part.trial());
        let is_busy = gateway.in_flight() > gateway.limits().max_in_flight / 2;
        let Some(place) = trial.shadow_place().filter(|_| !is_busy) else { return trial.skip() };
        let Some(held) = part.candidate().and_then(|candidate| Arc::clone(candidate).hold()) else { return };
        let bytes = input.size_hint().saturating_add(answer.size_hint()) as u64;
        let Ok(admission) = gateway.try_admit_at(clock::now(), held, bytes, None) else { return trial.skip() };
        let origin = call.flight.origin.as_ref().map(|origin| Arc::new(Origin::for_copy(origin)));
        let options = CallOptions::new().with_priority(Priority::Low).with_origin(origin);
        tokio::spawn(async move {
            let _place = place;
            // Made in this task, which is in no span: the caller's ends with its call.
            let flight = LocalClient::flight_of(&admission, &options);
            let copy = AdmittedCall::uncounted(admission, flight);
            let (began, trial) = (copy.admitted_at(), part.trial());
            let outcome = run_once(began, copy, input, |copy, reply| (copy, reply.payload)).await;
            let latency = clock::now().saturating_duration_since(began);
            let observation = match outcome {
                Ok((copy, own)) => {
                    match compare(&copy, answer, own, trial.policy().tolerance).await {
                        Some(agrees) => trial.compare(agrees),
                        None => trial.skip(),
                    }
                    Observation::Succeeded(latency)
                }
                // A copy has no caller and has all the time that it may have.
                Err(error) => Observation::of_error(error.kind(), error.status(), latency, Duration::ZERO),
            };
            part.observe_candidate(observation);
        });
    }
}

/// Whether two answers agree, at the expense of the copy; `None` if there is no room to compare them. Their `Serialize`
/// is users' code; it may be slow, and it may panic.
async fn compare(copy: &AdmittedCall, answer: Payload, own: Payload, tolerance: f64) -> Option<bool> {
    let budget = copy.flight.budget()?;
    let bytes = answer.size_hint();
    let compare = move || contain(|| agrees(&answer, &own, tolerance)).unwrap_or(Some(false));
    budget.run((), bytes, compare).await.ok().and_then(|((), agrees)| agrees)
}
