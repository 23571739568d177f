//! Calls of single stages, by other nodes: the owner of the call is elsewhere, the permits and the work are here.

use std::sync::Arc;

use callboard_codec::Payload;

use super::Client;
use crate::batcher::Pool;
use crate::call::{CallOptions, Reply};
use crate::clock;
use crate::error::{CallError, ErrorKind};
use crate::gateway::Admission;
use crate::stage::Contract;

/// A stage's right to be called once by another node. Dropping it gives the permits back.
#[derive(Debug)]
pub struct StageAdmission {
    /// Holds the route that keeps the stage.
    admission: Admission,
    pool: Arc<Pool>,
}

/// A stage that other nodes may call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OfferedStage {
    /// Its name.
    pub name: String,
    /// Whether it may be run a second time.
    pub contract: Contract,
}

impl Client {
    /// The stages that other nodes may call: those that routes use, and that do not stream.
    #[must_use]
    pub fn offered_stages(&self) -> Vec<OfferedStage> {
        let mut offered: Vec<OfferedStage> = Vec::new();
        for route in self.routes() {
            for pool in route.graph().stages() {
                let name = pool.name().as_str();
                let open = pool.state().0.accepts_entries() && !pool.streams();
                if open && !offered.iter().any(|stage| stage.name == name) {
                    offered.push(OfferedStage { name: name.to_owned(), contract: pool.contract() });
                }
            }
        }
        offered
    }

    /// Calls that this node has admitted and not answered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.gateway.in_flight()
    }

    /// Takes the permits for a call of one stage before its `bytes` are read.
    ///
    /// # Errors
    ///
    /// `Unavailable` when no route uses such a stage, or the node drains; `Overloaded` when the node's permits are out. Nothing was
    /// started.
    pub fn admit_stage(&self, stage: &str, bytes: u64) -> Result<StageAdmission, CallError> {
        let found = self.routes().into_iter().find_map(|route| {
            let pool = route.graph().stages().into_iter().find(|pool| pool.name().as_str() == stage).cloned()?;
            Some((route, pool))
        });
        let Some((route, pool)) = found else {
            let message = format!("this node does not run the stage `{stage}`");
            return Err(CallError::new(ErrorKind::Unavailable, message));
        };
        Ok(StageAdmission { admission: self.admit(&route, bytes)?, pool })
    }

    /// Runs an admitted call of a stage, here and nowhere else.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`].
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the call.
    pub async fn submit_stage(
        &self,
        admission: StageAdmission,
        payload: Payload,
        options: CallOptions,
    ) -> Result<Reply, CallError> {
        let StageAdmission { admission, pool } = admission;
        // Not sent on: who sent it has made the choice.
        let mut flight = Self::new_flight(&admission, &options);
        flight.beyond = None;
        let flight = Arc::new(flight);
        let deadline = flight.deadline.instant();
        tokio::select! {
            biased;
            outcome = pool.submit(payload, &flight, clock::now()) => {
                let reply = outcome.map_err(|error| error.after(flight.spent(clock::now())))?;
                let (payload, timing) = reply.into_parts();
                Ok(Reply::new(payload, timing))
            }
            () = tokio::time::sleep_until(deadline) => {
                let error = CallError::deadline_exceeded("before the outcome was there").at_stage(pool.name());
                Err(error.after(flight.spent(clock::now())))
            }
        }
    }
}
