//! Runs a script against a real node, on a runtime of one thread whose time passes only while all tasks wait.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use callboard_core::description::Description;
use callboard_core::{
    App, CallOptions, ChangeError, Deadline, Drained, Instant, LocalClient, Node, NodeHandle, Pipeline, RouteChange,
    RouteSpec, Stage,
};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

use super::invariants::{self, Sampler};
use super::journal::Journal;
use super::script::{CallPlan, Ending, Script, Step, StreamPlan};
use super::stages::UserCode;
use super::totals::Totals;

/// Far beyond every deadline, in virtual time: a task that is not done by then never will be.
const FOREVER: Duration = Duration::from_secs(3_600);

/// The result of one script.
pub(super) struct Run {
    pub(super) violations: Vec<String>,
    pub(super) journal: Arc<Journal>,
    pub(super) totals: Totals,
}

/// Runs a script and judges it.
///
/// The watchdog uses real time. On a busy machine it may find a task stage slow and move it to threads, which no
/// virtual clock orders. Such a run proves nothing, and is repeated.
pub(super) fn play(script: &Script) -> Run {
    let mut run = play_once(script);
    for _ in 0..10 {
        if !run.journal.book().moved_to_threads {
            break;
        }
        run = play_once(script);
    }
    run
}

fn play_once(script: &Script) -> Run {
    // The node's own randomness, such as the jitter of a back-off.
    fastrand::seed(script.seed);
    let script = Arc::new(script.clone());
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    let entered = runtime.enter();
    let journal = Arc::new(Journal::new(Arc::clone(&script)));
    drop(entered);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let world = World { script: Arc::clone(&script), journal: Arc::clone(&journal) };
            tokio::time::timeout(FOREVER, world.run()).await
        })
    }));
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(_)) => journal.book().violations.push("somebody waits forever".to_owned()),
        Err(panic) => journal.book().violations.push(format!("the run panicked: {}", words(panic.as_ref()))),
    }
    // The remaining tasks end here, and release what user code holds.
    drop(runtime);
    invariants::judge(&script, &journal);
    let violations = std::mem::take(&mut journal.book().violations);
    let totals = Totals::of(&journal);
    Run { violations, journal, totals }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied()).unwrap_or("?")
}

#[derive(Clone)]
struct World {
    script: Arc<Script>,
    journal: Arc<Journal>,
}

impl World {
    /// From the start of the node to its end.
    async fn run(self) {
        let mut stages = self.stages(0);
        let mut app = App::new().limits(self.script.limits.clone());
        for route in 0..self.script.routes.len() {
            app = app.mount(self.route(route, &stages));
        }
        let node = app.start().await.expect("the node starts");
        let (client, handle) = (node.client(), node.handle());
        let started = Instant::now();
        let ending = tokio::spawn(self.clone().end(node, started));
        let sampling = tokio::spawn(self.clone().sample(client.clone()));

        let sampler = Sampler::new(&self.script);
        let mut players = JoinSet::new();
        let mut revision = 0;
        for (at, step) in self.script.steps.clone() {
            sleep_until(started + at).await;
            match step {
                Step::Call(plan) => drop(players.spawn(self.clone().call(client.clone(), plan))),
                Step::Stream(plan) => drop(players.spawn(self.clone().stream(client.clone(), plan))),
                Step::Scale { stage, replicas } => {
                    players.spawn(self.clone().scale(handle.clone(), stage, replicas));
                }
                Step::Replace => {
                    revision += 1;
                    stages = self.stages(revision);
                    let routes = (0..self.script.routes.len()).map(|route| self.route(route, &stages));
                    let change = routes.fold(RouteChange::new(), RouteChange::replace_route);
                    players.spawn(self.clone().change(handle.clone(), change));
                }
                Step::Remove { route } => {
                    let change = RouteChange::new().remove_route(self.script.routes[route].name);
                    players.spawn(self.clone().change(handle.clone(), change));
                }
                Step::Add { route } => {
                    let change = RouteChange::new().add_route(self.route(route, &stages));
                    players.spawn(self.clone().change(handle.clone(), change));
                }
            }
            sampler.inspect(&client.describe(), &self.journal);
        }
        while let Some(played) = players.join_next().await {
            played.expect("no player panics");
        }
        self.journal.event("all players are done");
        if self.script.ending != Ending::Calm {
            let node = ending.await.expect("the ending does not panic");
            drop(node);
        } else {
            self.wait_for_quiet(&client).await;
            let node = ending.await.expect("the ending does not panic").expect("the node still exists");
            let drained = node.shutdown(Duration::from_secs(1)).await;
            if drained != Drained::Completely {
                self.journal.violation(format_args!("nothing was in flight, and the drain says {drained:?}"));
            }
        }
        sampling.abort();
        // Dropped tasks get their turn.
        sleep(Duration::from_millis(1)).await;
        let description = client.describe();
        sampler.at_rest(&description, &self.journal);
        sampler.books(&description, &client.metrics(), &self.journal);
    }

    /// When every caller has its answer, all counts return to zero: at once, except entries that wait for a replica
    /// that is down.
    async fn wait_for_quiet(&self, client: &LocalClient) {
        let sampler = Sampler::new(&self.script);
        // Detached calls end at an unknown time, at the latest at their deadlines.
        let casts_end = Instant::now() + Duration::from_secs(10);
        while client.describe().in_flight > 0 && Instant::now() < casts_end {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(Duration::from_millis(1)).await;
        let is_down = |stage: &Description| stage.stages.iter().any(|s| s.queued > 0 && s.replicas.is_empty());
        let back = Instant::now() + Duration::from_secs(30);
        while is_down(&client.describe()) && Instant::now() < back {
            sleep(Duration::from_millis(1)).await;
        }
        let description = client.describe();
        sampler.at_rest(&description, &self.journal);
        sampler.books(&description, &client.metrics(), &self.journal);
    }

    fn stages(&self, revision: u64) -> Vec<Stage<u64, u64>> {
        let code =
            |stage| UserCode { script: Arc::clone(&self.script), journal: Arc::clone(&self.journal), stage, revision };
        (0..self.script.stages.len()).map(|stage| code(stage).stage()).collect()
    }

    fn route(&self, route: usize, stages: &[Stage<u64, u64>]) -> RouteSpec {
        let plan = &self.script.routes[route];
        let mut members = plan.stages.iter().map(|stage| stages[*stage].clone());
        let first = members.next().expect("a route has a stage");
        let pipeline = members.fold(Pipeline::from(first), |pipeline, stage| pipeline.then(stage));
        let spec = RouteSpec::new(plan.name, pipeline);
        match plan.max_in_flight {
            Some(calls) => spec.max_in_flight(calls),
            None => spec,
        }
    }

    async fn call(self, client: LocalClient, plan: CallPlan) {
        let deadline = Instant::now() + plan.timeout;
        let route = self.script.routes[plan.route].name;
        let mut options = CallOptions::new().with_deadline(Deadline::at(deadline)).with_priority(plan.priority);
        if let Some(session) = plan.session {
            options = options.with_session_key(format!("session {session}"));
        }
        self.journal.called(plan.id, Some(deadline));
        if plan.is_cast {
            if let Err(error) = client.call_detached_with(route, plan.id, options) {
                self.journal.record_outcome(plan.id, Err(error));
            }
            return;
        }
        let mut call = Box::pin(client.call_with::<u64, u64>(route, plan.id, options));
        let outcome = match plan.leaves_after {
            None => call.await,
            Some(patience) => match tokio::time::timeout(patience, &mut call).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    drop(call);
                    return self.journal.left(plan.id);
                }
            },
        };
        self.journal.record_outcome(plan.id, outcome);
    }

    async fn stream(self, client: LocalClient, plan: StreamPlan) {
        let route = self.script.routes[plan.route].name;
        let journal = Arc::clone(&self.journal);
        let inputs = (plan.first..plan.first + plan.count).inspect(move |call| journal.called(*call, None));
        let stream = match client.stream::<_, u64>(route, inputs) {
            Ok(stream) => stream,
            Err(error) => return self.journal.event(format_args!("no stream: {error}")),
        };
        let mut stream = stream.look_ahead(plan.look_ahead).timeout(Duration::from_secs(1));
        let mut yielded = 0;
        while plan.stops_after.is_none_or(|results| yielded < results)
            && let Some(outcome) = stream.next().await
        {
            self.journal.record_outcome(plan.first + yielded, outcome);
            yielded += 1;
            if !plan.pause.is_zero() {
                sleep(plan.pause).await;
            }
        }
        if plan.stops_after.is_none() && yielded != plan.count {
            self.journal.violation(format_args!("{yielded} results for the {} inputs of a stream", plan.count));
        }
        drop(stream);
        let unread: Vec<u64> = {
            let book = self.journal.book();
            book.calls.range(plan.first + yielded..plan.first + plan.count).map(|(call, _)| *call).collect()
        };
        for call in unread {
            self.journal.left(call);
        }
    }

    async fn scale(self, handle: NodeHandle, stage: usize, replicas: usize) {
        let scaled = handle.scale_stage(self.script.stages[stage].name, replicas).await;
        self.journal.event(format_args!("stage {stage} scaled to {replicas}: {scaled:?}"));
        if let Err(error) = scaled {
            self.judge_change(&error);
        }
    }

    async fn change(self, handle: NodeHandle, change: RouteChange) {
        match handle.change(change).await {
            Ok(changed) => {
                self.journal.event(format_args!("change {} took effect", changed.revision()));
                changed.settled().await;
            }
            Err(error) => {
                self.journal.event(format_args!("no change: {error}"));
                self.judge_change(&error);
            }
        }
    }

    fn judge_change(&self, error: &ChangeError) {
        let is_defect =
            matches!(error, ChangeError::Internal(_)) && !matches!(self.script.ending, Ending::Abort { .. });
        if is_defect || matches!(error, ChangeError::BadRouteName { .. } | ChangeError::BadReplicaCount { .. }) {
            self.journal.violation(format_args!("a change went wrong: {error}"));
        }
    }

    /// Ends the node by the script, or returns it.
    async fn end(self, node: Node, started: Instant) -> Option<Node> {
        match self.script.ending {
            Ending::Calm => Some(node),
            Ending::Drain { at } => {
                sleep_until(started + at).await;
                self.journal.event("draining");
                // Longer than the longest timeout.
                let drained = node.drain(Duration::from_secs(600)).await;
                self.journal.event(format_args!("drained: {drained:?}"));
                if drained != Drained::Completely {
                    self.journal.violation(format_args!("the drain ended as {drained:?}"));
                }
                let _ = node.shutdown(Duration::ZERO).await;
                None
            }
            Ending::Shutdown { at, grace } => {
                sleep_until(started + at).await;
                self.journal.event("shutting down");
                let drained = node.shutdown(grace).await;
                self.journal.event(format_args!("shut down: {drained:?}"));
                None
            }
            Ending::Abort { at } => {
                sleep_until(started + at).await;
                self.journal.event("aborted");
                node.abort();
                None
            }
        }
    }

    async fn sample(self, client: LocalClient) {
        let sampler = Sampler::new(&self.script);
        loop {
            sleep(Duration::from_millis(19)).await;
            // After all tasks that are ready at the same moment.
            for _ in 0..64 {
                tokio::task::yield_now().await;
            }
            sampler.inspect_at_rest(&client.describe(), &self.journal);
        }
    }
}
