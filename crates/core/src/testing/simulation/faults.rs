//! Faults of a stage: its worker is slow, or dies before or after its code has run.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::journal::Journal;
use crate::containment::panic_quietly;
use crate::error::Failure;
use crate::id::StageName;
use crate::restart::{BackoffPolicy, RestartIntensity};
use crate::stage::{Factory, StageSpec};
use crate::testing::Chance;
use crate::worker::{DynAsyncWorker, DynWorker, Item, ItemOutcome, Replica, Turn, WrongCount};

/// The message of a simulated crash. Another panic is the app's own.
pub(super) const CRASH: &str = "a simulated crash";

/// The longest back-off between two lives of a replica, so that a stage that crashes often still serves.
const MAX_BACKOFF: Duration = Duration::from_millis(400);

/// The faults of one stage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    /// One in this number of batches kills its worker; 0: none.
    pub(super) crashes: u64,
    /// A batch takes up to this much longer.
    pub(super) delay: Duration,
}

/// The faults of one stage, shared by its replicas.
pub(super) struct Faults {
    name: StageName,
    plan: Plan,
    chance: Mutex<Chance>,
    /// Off while the simulation checks whether the stage still serves.
    is_on: Arc<AtomicBool>,
    journal: Arc<Journal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Crash {
    BeforeItRuns,
    /// The work is done, but its callers get no outcome.
    AfterItRan,
}

impl Faults {
    pub(super) fn new(
        name: &StageName,
        plan: Plan,
        seed: u64,
        is_on: &Arc<AtomicBool>,
        journal: &Arc<Journal>,
    ) -> Self {
        let name_as_numbers: Vec<u64> = name.as_str().bytes().map(u64::from).collect();
        let chance = Mutex::new(Chance::for_thing(seed, &name_as_numbers));
        Self { name: name.clone(), plan, chance, is_on: Arc::clone(is_on), journal: Arc::clone(journal) }
    }

    fn draw(&self) -> (Duration, Option<Crash>) {
        if !self.is_on.load(Ordering::Relaxed) {
            return (Duration::ZERO, None);
        }
        let mut chance = self.chance.lock();
        let most = u64::try_from(self.plan.delay.as_millis()).unwrap_or(u64::MAX - 1);
        let delay = chance.millis(0..most + 1);
        let after = chance.one_in(2);
        let crash =
            chance.one_in(self.plan.crashes).then_some(if after { Crash::AfterItRan } else { Crash::BeforeItRuns });
        (delay, crash)
    }

    fn crash(&self, when: Crash) -> ! {
        self.journal.crashed(&self.name, when == Crash::AfterItRan);
        panic_quietly(CRASH)
    }
}

/// The stage with its faults. All its workers are futures, because a delay in virtual time is a future.
pub(super) fn with_faults(stage: &StageSpec, faults: Arc<Faults>) -> StageSpec {
    let mut settings = stage.settings().clone();
    let factory: Factory = match stage.factory() {
        Factory::Async(build) => {
            let build = Arc::clone(build);
            Factory::Async(Arc::new(move |replica: &Replica| {
                Ok(Arc::new(Faulty { worker: UserCode::Async(build(replica)?), faults: Arc::clone(&faults) }) as _)
            }))
        }
        Factory::Sync(build) => {
            // It runs one batch at a time, as on its thread.
            settings = settings.with_concurrency(NonZeroU32::MIN);
            let build = Arc::clone(build);
            Factory::Async(Arc::new(move |replica: &Replica| {
                let worker = UserCode::Sync(Mutex::new(build(replica)?));
                Ok(Arc::new(Faulty { worker, faults: Arc::clone(&faults) }) as _)
            }))
        }
    };
    let intensity = RestartIntensity { max_restarts: u32::MAX, ..settings.intensity() };
    let backoff = BackoffPolicy { max: MAX_BACKOFF, ..settings.backoff().clone() };
    stage.with_workers(factory, settings.with_intensity(intensity).with_backoff(backoff))
}

enum UserCode {
    Sync(Mutex<Box<dyn DynWorker>>),
    Async(Arc<dyn DynAsyncWorker>),
}

/// A replica's worker with the faults of its stage.
struct Faulty {
    worker: UserCode,
    faults: Arc<Faults>,
}

impl DynAsyncWorker for Faulty {
    fn warmup(&self) -> BoxFuture<'_, Result<(), Failure>> {
        match &self.worker {
            UserCode::Async(worker) => worker.warmup(),
            UserCode::Sync(worker) => Box::pin(async { worker.lock().warmup() }),
        }
    }

    fn run<'a>(
        &'a self,
        stage: &'a StageName,
        items: Vec<Item>,
        mut turn: Turn,
    ) -> BoxFuture<'a, Result<Vec<ItemOutcome>, WrongCount>> {
        Box::pin(async move {
            // A crash before it runs counts as one of the batch.
            turn.begin();
            let (delay, crash) = self.faults.draw();
            if !delay.is_zero() {
                self.faults.journal.slow(stage, delay);
                tokio::time::sleep(delay).await;
            }
            if let Some(crash @ Crash::BeforeItRuns) = crash {
                self.faults.crash(crash);
            }
            let outcomes = match &self.worker {
                UserCode::Async(worker) => worker.run(stage, items, turn).await,
                UserCode::Sync(worker) => run_at_once(worker, stage, items),
            };
            if let Some(crash) = crash {
                self.faults.crash(crash);
            }
            outcomes
        })
    }

    fn cleanup(&self) -> BoxFuture<'_, ()> {
        match &self.worker {
            UserCode::Async(worker) => worker.cleanup(),
            UserCode::Sync(worker) => Box::pin(async { worker.lock().cleanup() }),
        }
    }
}

fn run_at_once(
    worker: &Mutex<Box<dyn DynWorker>>,
    stage: &StageName,
    mut items: Vec<Item>,
) -> Result<Vec<ItemOutcome>, WrongCount> {
    let mut outcomes = Vec::with_capacity(items.len());
    worker.lock().run(stage, &mut items, &mut outcomes)?;
    Ok(outcomes)
}
