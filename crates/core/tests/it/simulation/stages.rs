//! The user code of a script: takes virtual time, fails, panics and hangs by the script, and records its observations.

use std::sync::Arc;
use std::time::Duration;

use callboard_core::{AsyncWorker, BackoffPolicy, Batch, Failure, Replica, RestartIntensity, Stage};
use tokio::time::sleep;

use super::journal::Journal;
use super::script::{Form, Nature, Script, StagePlan};

/// One revision of a stage of the script.
#[derive(Clone, Debug)]
pub(super) struct UserCode {
    pub(super) script: Arc<Script>,
    pub(super) journal: Arc<Journal>,
    pub(super) stage: usize,
    pub(super) revision: u64,
}

impl UserCode {
    pub(super) fn stage(self) -> Stage<u64, u64> {
        let plan = self.script.stages[self.stage].clone();
        let seed = self.script.seed;
        let stage = match plan.form {
            Form::Task => Stage::batch(plan.name, move |batch: Batch<u64>| self.run_at_once(&batch)),
            Form::EachAsync => Stage::each_async(plan.name, move |call: Arc<u64>| {
                let code = self.clone();
                async move { code.run(vec![*call]).await.remove(0) }
            }),
            Form::AsyncWorker => Stage::async_worker(plan.name, move |replica: &Replica| {
                if self.script.fails_to_start(self.stage, replica.index(), replica.generation()) {
                    return Err(Failure::new("stillborn"));
                }
                Ok(SimulatedWorker(self.clone()))
            }),
        };
        configure(stage, &plan, seed)
    }

    fn run_at_once(&self, batch: &Batch<u64>) -> Vec<Result<u64, Failure>> {
        let calls: Vec<u64> = batch.iter().copied().collect();
        self.look_at(batch);
        let visiting = self.journal.enter(self.stage, self.revision, &calls);
        self.panic_by_script(&calls);
        visiting.returned();
        calls.into_iter().map(|call| self.result(call)).collect()
    }

    async fn run(&self, calls: Vec<u64>) -> Vec<Result<u64, Failure>> {
        let visiting = self.journal.enter(self.stage, self.revision, &calls);
        for call in &calls {
            let service = self.script.service(*call, self.stage);
            if !service.is_zero() {
                sleep(service).await;
            }
            self.panic_by_script(&[*call]);
            if self.script.nature(*call, self.stage) == Nature::Hangs {
                std::future::pending::<()>().await;
            }
        }
        visiting.returned();
        calls.into_iter().map(|call| self.result(call)).collect()
    }

    /// The context of each item at the start of user code.
    fn look_at(&self, batch: &Batch<u64>) {
        for (position, call) in batch.iter().enumerate() {
            if batch.context(position).is_cancelled() {
                self.journal.violation(format_args!("call {call} starts and is cancelled"));
            }
        }
    }

    fn panic_by_script(&self, calls: &[u64]) {
        for call in calls {
            let kills = match self.script.nature(*call, self.stage) {
                Nature::Kills => true,
                Nature::KillsOnce => !self.journal.has_panicked(*call, self.stage),
                Nature::Good | Nature::Fails | Nature::Hangs => false,
            };
            assert!(!kills, "meant to panic");
        }
    }

    fn result(&self, call: u64) -> Result<u64, Failure> {
        match self.script.nature(call, self.stage) {
            Nature::Fails => Err(Failure::new("meant to fail")),
            _ => Ok(call),
        }
    }
}

struct SimulatedWorker(UserCode);

impl AsyncWorker for SimulatedWorker {
    type In = u64;
    type Out = u64;

    async fn call(&self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        self.0.look_at(&batch);
        self.0.run(batch.into_inputs()).await
    }
}

fn configure(stage: Stage<u64, u64>, plan: &StagePlan, seed: u64) -> Stage<u64, u64> {
    let mut stage = stage
        .contract(plan.contract)
        .max_batch_size(plan.max_batch_size)
        .max_delay(plan.max_delay)
        .queue(plan.queue)
        .replicas(plan.replicas)
        .concurrency(plan.concurrency)
        .ageing(plan.ageing);
    if let Some(timeout) = plan.timeout {
        stage = stage.timeout(timeout);
    }
    if let Some(max_cost) = plan.max_cost {
        stage = stage.cost(move |call: &u64| Script::cost(seed, *call)).max_cost(max_cost);
    }
    let max_restarts = if plan.is_strict { 1 } else { u32::MAX };
    let intensity = RestartIntensity { max_restarts, within: Duration::from_secs(10) };
    let backoff = BackoffPolicy { max: Duration::from_millis(400), ..BackoffPolicy::default() };
    stage.map_settings(|settings| settings.with_intensity(intensity).with_backoff(backoff))
}
