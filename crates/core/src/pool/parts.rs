//! An input that is too large for one batch, run in parts: one call, one permit, one outcome.
//!
//! The parts queue like entries of their own, under a flight that branches off the call's, so that they are given up
//! together. Only a few parts per replica queue at a time: more urgent entries get their turn between them, and the
//! queue stays bounded. The first part takes a permit as any call does; the others need none, because half a call is
//! useless. The first error is the call's outcome. If the stage may not run an entry twice, that outcome says that the
//! call was started: another part may have run.

use std::sync::Arc;

use callboard_codec::Payload;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::handle::Pool;
use crate::call::Flight;
use crate::clock::{self, Instant};
use crate::error::{CallError, ErrorKind};
use crate::metrics::EntryRefusal;
use crate::queue::{EntryOutcome, EntryReply, QueuePermit};
use crate::stage::Splitting;
use crate::timeline::Timing;

/// Parts of one call that queue or run at a time, per batch that can run: one runs, the next one waits for it.
const AHEAD: usize = 2;

impl Pool {
    /// Runs an input that costs more than one batch may.
    ///
    /// # Cancellation
    ///
    /// As [`submit`](Self::submit): all parts are abandoned.
    pub(crate) async fn submit_in_parts(
        &self,
        payload: Payload,
        cost: u64,
        flight: &Arc<Flight>,
        now: Instant,
    ) -> EntryOutcome {
        let splitting = self.spec.sizing().splitting().ok_or_else(|| self.too_large(cost))?;
        let parts = self.split(splitting, payload)?;
        let (permit, now) = self.take_or_await_permit(flight, now).await?;
        // When one part ends, another may have begun.
        let may_have_begun = parts.len() > 1 && !self.spec.contract().may_run_again();
        let outcome = self.run_parts(splitting, parts, permit, &Arc::new(Flight::branch_of(flight)), now).await;
        outcome.map_err(|error| error.after_start(may_have_begun))
    }

    async fn run_parts(
        &self,
        splitting: &Splitting,
        parts: Vec<(Payload, u64)>,
        permit: QueuePermit,
        branch: &Arc<Flight>,
        now: Instant,
    ) -> EntryOutcome {
        let queue = |index: usize, (part, cost): (Payload, u64), permit: QueuePermit, now: Instant| {
            let entry = self.enqueue(permit, part, cost, branch, now)?;
            Ok::<_, CallError>(async move { (index, entry.await) })
        };
        let mut outputs = Vec::from_iter(parts.iter().map(|_| None));
        let mut parts = parts.into_iter().enumerate();
        let mut permit = Some(permit);
        let mut running = FuturesUnordered::new();
        for (index, part) in parts.by_ref().take(AHEAD * self.replicas.slots()) {
            let permit = permit.take().unwrap_or_else(|| self.entrance.permits.take_again());
            running.push(queue(index, part, permit, now)?);
        }
        let mut first = Timing::default();
        while let Some((index, outcome)) = running.next().await {
            // Returning drops the others, which abandons them.
            let (payload, timing) = outcome?.into_parts();
            if index == 0 {
                first = timing;
            }
            outputs[index] = Some(payload);
            if let Some((index, part)) = parts.next() {
                running.push(queue(index, part, self.entrance.permits.take_again(), clock::now())?);
            }
        }

        let payload = self.guarded("join", || splitting.join(outputs.into_iter().flatten().collect()))?;
        // For its caller the call waited until its first part ran, and ran from then on.
        let Timing { queue, batch, .. } = first;
        let total = clock::now().saturating_duration_since(now);
        let timing = Timing { queue, batch, compute: total.saturating_sub(queue + batch) };
        Ok(EntryReply::new(payload, timing))
    }

    /// The parts with their costs: at least one part, and none too large.
    fn split(&self, splitting: &Splitting, payload: Payload) -> Result<Vec<(Payload, u64)>, CallError> {
        let max_cost = self.policy().bounds().1;
        let parts = self.guarded("split", || splitting.split(payload, max_cost))?;
        let parts: Vec<(Payload, u64)> = parts.into_iter().map(|part| self.measure(part)).collect::<Result<_, _>>()?;
        let broken = match parts.iter().map(|(_, cost)| *cost).max() {
            None => "made no parts".to_owned(),
            Some(cost) if cost > max_cost => format!("made a part that costs {cost}, more than max_cost = {max_cost}"),
            Some(_) => return Ok(parts),
        };
        let message = format!("the split function of stage `{}` {broken}", self.name());
        Err(CallError::new(ErrorKind::WorkerFailed, message).at_stage(self.name()))
    }

    fn too_large(&self, cost: u64) -> CallError {
        self.metrics.refused(EntryRefusal::Large);
        let (name, max_cost) = (self.name(), self.policy().bounds().1);
        let message =
            format!("the input costs {cost}, and stage `{name}` takes at most max_cost = {max_cost} in a batch");
        CallError::new(ErrorKind::InvalidInput, message).at_stage(name)
    }
}
