//! The places of loaded stages, as the supervisors of a node share them.
//!
//! A supervisor looks at its own place; a message to it is only a hint to look again. While a stage waits, its
//! supervisor asks for the next step every [`ASK_EVERY`], because no message tells that another stage's last call
//! ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ractor::ActorRef;

use super::loaded::{LoadedLimits, LoadedStages, NeverFits, PlaceId, PlaceState, PlaceStep, PlaceUse};
use super::message::DeploymentMessage;
use crate::id::StageName;
use crate::pool::Pool;

/// How often the supervisor of a stage that waits for its place asks for the next step.
pub(super) const ASK_EVERY: Duration = Duration::from_millis(20);

/// The places of one node.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<PlaceTable>);

#[derive(Debug, Default)]
struct PlaceTable {
    stages: LoadedStages,
    holders: BTreeMap<PlaceId, Holder>,
}

#[derive(Debug)]
struct Holder {
    pool: Arc<Pool>,
    supervisor: ActorRef<DeploymentMessage>,
}

/// The place of one stage, or its request for one. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct HeldPlace {
    places: Arc<Places>,
    id: PlaceId,
}

/// The permission of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PlaceOrder {
    /// Wait for its place.
    Wait,
    /// Load, and stay.
    Stay,
    /// It has to make room for this stage, if it has no call.
    Go(StageName),
}

impl Places {
    pub(crate) fn new(limits: LoadedLimits) -> Self {
        Self(Mutex::new(PlaceTable { stages: LoadedStages::new(limits), holders: BTreeMap::new() }))
    }

    /// Asks for the place of a stage.
    pub(super) fn request(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        supervisor: ActorRef<DeploymentMessage>,
    ) -> Result<HeldPlace, NeverFits> {
        let settings = pool.settings();
        let mut table = self.0.lock();
        let id = table.stages.request(settings.memory(), settings.is_pinned())?;
        table.holders.insert(id, Holder { pool: Arc::clone(pool), supervisor });
        drop(table);
        self.step();
        Ok(HeldPlace { places: Arc::clone(self), id })
    }

    /// Takes all steps that can be taken now, and hints at them.
    pub(super) fn step(&self) {
        let mut hints = Vec::new();
        {
            let table = &mut *self.0.lock();
            let holders = &table.holders;
            let use_of = |id: PlaceId| {
                let pool = holders.get(&id).map(|holder| &holder.pool);
                PlaceUse {
                    has_calls: pool.is_some_and(|pool| pool.has_calls()),
                    last: pool.and_then(|pool| pool.demand.last_batch()),
                }
            };
            while let Some(step) = table.stages.step(use_of) {
                let (PlaceStep::Grant(id) | PlaceStep::Evict(id, _)) = step;
                hints.extend(holders.get(&id).map(|holder| holder.supervisor.clone()));
            }
        }
        for supervisor in hints {
            // If it is gone, its place will be given back.
            let _ = supervisor.cast(DeploymentMessage::Look);
        }
    }
}

impl HeldPlace {
    /// The next step of the stage.
    pub(super) fn order(&self) -> PlaceOrder {
        let table = self.places.0.lock();
        match table.stages.state(self.id) {
            Some(PlaceState::Waiting) => PlaceOrder::Wait,
            Some(PlaceState::Leaving(first)) => match table.holders.get(&first) {
                Some(holder) => PlaceOrder::Go(holder.pool.name().clone()),
                // It has withdrawn.
                None => PlaceOrder::Stay,
            },
            Some(PlaceState::Loaded) | None => PlaceOrder::Stay,
        }
    }

    /// It has calls again, and stays.
    pub(super) fn stay(&self) {
        self.places.0.lock().stages.stay(self.id);
    }

    /// Asks for the next step.
    pub(super) fn ask(&self) {
        self.places.step();
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        {
            let mut table = self.places.0.lock();
            table.stages.release(self.id);
            table.holders.remove(&self.id);
        }
        self.places.step();
    }
}
