//! The attempts of one call of a stream on this node: a refused call is made again while its deadline allows.
//!
//! * **Full:** an attempt waits for room on the node and in its stages, as the first one does. Between attempts a call
//!   holds no permit.
//! * **Late:** the last refusal is the error of a call whose next attempt would begin after its deadline.
//! * **Cancelled:** dropping the future ends the attempt or the wait.

use std::sync::Arc;

use callboard_codec::{Data, Payload};

use crate::call::{CallOptions, Flight};
use crate::client::{AdmittedCall, CAPACITY_POLL_INTERVAL, LocalClient, panicked, run_admitted};
use crate::clock;
use crate::containment::contain;
use crate::deadline::Deadline;
use crate::error::CallError;
use crate::retry::RetryPolicy;

/// What all calls of a stream need for another attempt.
pub(super) struct Attempts {
    pub(super) client: LocalClient,
    pub(super) route: String,
    pub(super) options: CallOptions,
    pub(super) policy: RetryPolicy,
}

impl Attempts {
    pub(super) async fn run<Out: Data + Clone>(
        self: Arc<Self>,
        call: AdmittedCall,
        input: Payload,
    ) -> Result<Out, CallError> {
        if self.policy.is_never() {
            return attempt(call, input).await;
        }
        let deadline = call.flight.deadline;
        match attempt(call, input.clone()).await {
            Err(error) if RetryPolicy::applies_to(&error) => Box::pin(self.run_again(error, deadline, input)).await,
            outcome => outcome,
        }
    }

    async fn run_again<Out: Data + Clone>(
        &self,
        mut error: CallError,
        deadline: Deadline,
        input: Payload,
    ) -> Result<Out, CallError> {
        for number in 1.. {
            let wait = self.policy.wait_within(deadline, &error, number);
            let Some(wait) = wait.filter(|_| self.policy.allows_in_stream(&error, number)) else { break };
            tokio::time::sleep(wait).await;
            let Some(call) = self.admit(deadline, input.size_hint() as u64).await? else { break };
            match attempt(call, input.clone()).await {
                Err(refusal) if RetryPolicy::applies_to(&refusal) => error = refusal,
                outcome => return outcome,
            }
        }
        Err(error)
    }

    /// Admits one more attempt when the node has room; `None` if it has none until the deadline.
    async fn admit(&self, deadline: Deadline, bytes: u64) -> Result<Option<AdmittedCall>, CallError> {
        let Self { client, route, options, .. } = self;
        while !deadline.is_expired(clock::now()) {
            let route = client.hold(route, options.session())?;
            match client.shared.gateway.try_admit_at(clock::now(), route, bytes, client.outer.as_ref()) {
                Ok(admission) => {
                    let flight = Flight::patient(deadline, admission.route().default_priority());
                    let flight = Arc::new(flight.admitted(&admission, options));
                    return Ok(Some(AdmittedCall::new(admission, flight)));
                }
                Err(refusal) if refusal.may_pass() => tokio::time::sleep(CAPACITY_POLL_INTERVAL).await,
                Err(refusal) => return Err(client.shared.gateway.refuse(refusal)),
            }
        }
        Ok(None)
    }
}

async fn attempt<Out: Data + Clone>(call: AdmittedCall, input: Payload) -> Result<Out, CallError> {
    // `Out::deserialize` may run here. Its panic is the error of this call and does not end the others.
    let read =
        |call: AdmittedCall, reply| contain(|| call.read_output(reply)).unwrap_or_else(|panic| Err(panicked(&panic)));
    run_admitted(call.admitted_at(), call, input, read).await?
}
