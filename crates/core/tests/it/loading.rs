//! Stages without a replica: loaded by their first call, unloaded when idle or when another stage needs the place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::description::{ScaleDescription, StageDescription, StageState};
use callboard_core::{
    App, BackoffPolicy, Batch, CallOptions, ChangeError, ErrorKind, Failure, Limits, LocalClient, Node, Replica,
    RestartIntensity, Stage, Worker,
};

use super::load::{Counts, Healthy, Load, answering};
use super::support::{Gate, gated, hide_panics, serve, until};

fn described(node: &Node, stage: &str) -> StageDescription {
    node.describe().stages.into_iter().find(|described| described.health.name.as_str() == stage).unwrap()
}

fn last(node: &Node, stage: &str) -> ScaleDescription {
    described(node, stage).scaling.last.unwrap()
}

fn calling(
    client: &LocalClient,
    route: &'static str,
) -> tokio::task::JoinHandle<Result<u64, callboard_core::CallError>> {
    let client = client.clone();
    tokio::spawn(async move { client.call::<u64, u64>(route, 1).await })
}

/// A stage whose construction waits at a gate, and that counts its constructions.
fn slow_to_load(gate: &Gate) -> Stage<u64, u64> {
    let gate = gate.clone();
    Stage::worker("model", move |_: &Replica| {
        gate.pass();
        Ok(Healthy)
    })
    .replicas_between(0, 1)
}

#[tokio::test]
async fn a_stage_without_a_replica_is_ready_and_loaded_once_for_all_waiting_callers() {
    let gate = Gate::default();
    let node = serve(slow_to_load(&gate)).await;
    assert!(node.health().ready, "{:?}", node.health());
    assert_eq!((gate.arrived(), described(&node, "model").replicas.len()), (0, 0));

    let calls: Vec<_> = (0..20).map(|_| calling(&node.client(), "/route")).collect();
    until("the load runs, and all wait", || gate.arrived() == 1 && described(&node, "model").queued == 20).await;
    assert!(node.health().ready, "a load does not take the node out");
    gate.open();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), 1);
    }
    assert_eq!(gate.arrived(), 1, "one load for all");
    let change = last(&node, "model");
    assert_eq!((change.from, change.to, change.reason.as_str()), (0, 1, "a call waits"));
    let metrics = node.metrics();
    assert!(metrics.contains("callboard_stage_loads_total{stage=\"model\",result=\"ok\"} 1\n"), "{metrics}");
    assert!(metrics.contains("callboard_stage_load_seconds_count{stage=\"model\"} 1\n"), "{metrics}");
    assert!(metrics.contains("callboard_stage_replicas_wanted{stage=\"model\"} 1\n"), "{metrics}");
}

#[tokio::test]
async fn a_deadline_shorter_than_the_load_ends_the_call_and_not_the_load() {
    let gate = Gate::default();
    let node = serve(slow_to_load(&gate)).await;
    let client = node.client();
    let options = CallOptions::new().with_timeout(Duration::from_millis(30));
    let error = client.call_with::<u64, u64>("/route", 1, options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    assert!(!error.was_started(), "{error}");
    gate.open();
    until("the load is over", || described(&node, "model").replicas.len() == 1).await;
    assert_eq!(client.call::<u64, u64>("/route", 2).await.unwrap(), 2);
    assert_eq!(gate.arrived(), 1);
}

#[tokio::test]
async fn a_failed_load_tells_its_callers_why_and_is_tried_again_after_a_back_off() {
    let (loads, is_broken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
    let (count, broken) = (Arc::clone(&loads), Arc::clone(&is_broken));
    let stage = Stage::worker("model", move |_: &Replica| {
        count.fetch_add(1, Ordering::SeqCst);
        if broken.load(Ordering::SeqCst) { Err(Failure::new("no such file")) } else { Ok(Healthy) }
    });
    let backoff = BackoffPolicy { initial: Duration::from_millis(200), max: Duration::from_millis(200), jitter: 0.0 };
    let intensity = RestartIntensity { max_restarts: 1, within: Duration::from_secs(60) };
    let stage = stage.map_settings(|settings| settings.with_backoff(backoff).with_intensity(intensity));
    let node = serve(stage.replicas_between(0, 2)).await;

    let failed = |error: &callboard_core::CallError| {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(
            error.message().contains("stage `model` is not loaded: replica 0 could not start: no such file"),
            "{error}"
        );
        assert!(error.retry_after().is_some_and(|after| after <= Duration::from_millis(200)) && error.is_refusal());
    };
    for call in (0..5).map(|_| calling(&node.client(), "/route")).collect::<Vec<_>>() {
        failed(&call.await.unwrap().unwrap_err());
    }
    assert_eq!(loads.load(Ordering::SeqCst), 1, "the calls during the back-off start nothing");
    let health = node.health();
    assert_eq!((health.ready, health.stages[0].state), (true, StageState::Degraded), "the next call may succeed");
    assert!(health.stages[0].reason.as_ref().unwrap().contains("no such file"));

    for attempt in 2..5 {
        until("the back-off is over, and the load fails again", || {
            drop(calling(&node.client(), "/route"));
            loads.load(Ordering::SeqCst) == attempt
        })
        .await;
    }
    is_broken.store(false, Ordering::SeqCst);
    let wait = async {
        while node.client().call::<u64, u64>("/route", 1).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(super::support::PATIENCE, wait).await.unwrap();
    assert_eq!(node.health().stages[0].state, StageState::Ready);
}

#[tokio::test]
async fn an_idle_stage_unloads_and_the_next_call_loads_it_again() {
    let counts = Counts::default();
    let node = serve(counts.stage("model", 7).replicas_between(0, 1).idle(Duration::from_millis(300))).await;
    for round in 1..4 {
        assert_eq!(node.client().call::<u64, u64>("/route", 0).await.unwrap(), 7);
        assert_eq!(counts.alive(), 1);
        until("it is unloaded", || counts.alive() == 0 && described(&node, "model").replicas.is_empty()).await;
        assert_eq!(counts.cleaned(), round);
        assert_eq!(last(&node, "model").reason, "no call for 300ms");
        assert!(node.health().ready);
    }
}

/// An app with stages `a`, `b` … under routes of their names.
async fn many(stages: impl IntoIterator<Item = Stage<u64, u64>>, limits: Limits) -> Node {
    let mount = |app: App, stage: Stage<u64, u64>| app.route(&format!("/{}", stage.name()), stage);
    stages.into_iter().fold(App::new().limits(limits), mount).start().await.unwrap()
}

fn at_most(max_loaded: usize) -> Limits {
    Limits { max_loaded: Some(max_loaded), ..Limits::default() }
}

fn loaded(node: &Node) -> Vec<String> {
    let stages = node.describe().stages.into_iter().filter(|stage| stage.scaling.target > 0);
    stages.map(|stage| stage.health.name.to_string()).collect()
}

#[tokio::test]
async fn the_least_recently_used_stage_leaves_for_another_and_a_pinned_one_stays() {
    let counts = Counts::default();
    let stage = |name: &str| counts.stage(name, 7).replicas_between(0, 1);
    let node = many([stage("a").pinned(), stage("b"), stage("c"), stage("d")], at_most(3)).await;
    assert_eq!(counts.alive(), 1, "a pinned stage is loaded from the start");
    let client = node.client();
    for route in ["/b", "/c", "/b", "/d"] {
        assert_eq!(client.call::<u64, u64>(route, 0).await.unwrap(), 7);
        assert!(counts.alive() <= 3, "{}", counts.alive());
        // The answer comes before the end of its batch, and a stage with a batch does not leave.
        until("its batch has ended", || described(&node, &route[1..]).replicas.iter().all(|replica| !replica.busy))
            .await;
    }
    assert_eq!(loaded(&node), ["a", "b", "d"]);
    assert_eq!(last(&node, "c").reason, "stage `d` needs its place, and it was used least recently");
    assert!(node.metrics().contains("callboard_stage_evictions_total{stage=\"c\"} 1\n"));
}

#[tokio::test]
async fn bytes_are_a_limit_as_well_and_what_never_fits_is_refused() {
    let counts = Counts::default();
    let stage = |name: &str, bytes| counts.stage(name, 7).replicas_between(0, 1).memory(bytes);
    let limits = Limits { max_loaded_bytes: Some(100), ..Limits::default() };
    let node = many([stage("a", 60), stage("b", 30), stage("c", 70), stage("d", 101)], limits).await;
    for route in ["/a", "/b", "/c"] {
        node.client().call::<u64, u64>(route, 0).await.unwrap();
    }
    assert_eq!(loaded(&node), ["b", "c"]);
    let error = node.client().call::<u64, u64>("/d", 0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("it takes 101 bytes, and `max_loaded_bytes` = 100"), "{error}");
}

#[tokio::test]
async fn a_stage_with_calls_does_not_leave_and_the_others_wait_within_their_deadlines() {
    let gate = Gate::default();
    let busy = gated(&gate).replicas_between(0, 1);
    let node = many([busy, answering("other", 7).replicas_between(0, 1)], at_most(1)).await;
    let client = node.client();
    let first = calling(&client, "/gated");
    until("it runs", || gate.arrived() == 1).await;
    let options = CallOptions::new().with_timeout(Duration::from_millis(50));
    let error = client.call_with::<u64, u64>("/other", 1, options).await.unwrap_err();
    assert_eq!((error.kind(), error.was_started()), (ErrorKind::DeadlineExceeded, false), "{error}");

    let waiting = calling(&client, "/other");
    until("it waits", || described(&node, "other").queued == 1).await;
    assert_eq!(loaded(&node), ["gated"]);
    gate.open();
    assert_eq!(first.await.unwrap().unwrap(), 1);
    assert_eq!(waiting.await.unwrap().unwrap(), 8);
    assert_eq!(loaded(&node), ["other"]);
}

#[tokio::test]
async fn a_call_that_comes_while_its_stage_leaves_is_answered() {
    /// Cleans up only when the gate is open.
    struct Slow(Gate);
    impl Worker for Slow {
        type In = u64;
        type Out = u64;
        fn call(&mut self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
            batch.iter().map(|n| Ok(*n)).collect()
        }
        fn cleanup(&mut self) {
            self.0.pass();
        }
    }
    let gate = Gate::default();
    let hold = gate.clone();
    let slow = Stage::worker("slow", move |_: &Replica| Ok(Slow(hold.clone()))).replicas_between(0, 1);
    let node = many([slow, answering("other", 7).replicas_between(0, 1)], at_most(1)).await;
    let client = node.client();
    client.call::<u64, u64>("/slow", 1).await.unwrap();
    let other = calling(&client, "/other");
    until("it leaves", || gate.arrived() == 1).await;
    let again = calling(&client, "/slow");
    until("both wait", || described(&node, "slow").queued + described(&node, "other").queued == 2).await;
    gate.open();
    assert_eq!(other.await.unwrap().unwrap(), 8);
    assert_eq!(again.await.unwrap().unwrap(), 1);
    assert_eq!(loaded(&node), ["slow"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_stages_than_places_answer_every_call() {
    let counts = Counts::default();
    let names = ["a", "b", "c", "d", "e", "f"];
    let node = many(names.map(|name| counts.stage(name, 7).replicas_between(0, 2)), at_most(2)).await;
    let calls: Vec<_> = (0..8)
        .map(|caller: usize| {
            let client = node.client();
            tokio::spawn(async move {
                for turn in 0..40 {
                    let route = format!("/{}", names[(caller + turn * (caller + 1)) % names.len()]);
                    assert_eq!(client.call::<u64, u64>(&route, 0).await.unwrap(), 7, "{route}");
                }
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    until("at most two are in memory", || counts.alive() <= 4 && loaded(&node).len() <= 2).await;
    assert!(node.describe().stages.iter().all(|stage| stage.health.state == StageState::Ready));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_follow_the_load_within_a_second() {
    let stage = Stage::worker("model", |_: &Replica| Ok(Sleepy));
    let node = serve(stage.replicas_between(1, 2).scale_delay(Duration::from_millis(20))).await;
    let start = std::time::Instant::now();
    let load = Load::on(&node.client(), "/route");
    until("there are two", || described(&node, "model").replicas.len() == 2).await;
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    let change = last(&node, "model");
    assert!(
        change.reason.starts_with("the queue takes ") && change.reason.ends_with("longer than 20ms"),
        "{}",
        change.reason
    );
    assert!(load.end().await.into_iter().all(|answer| answer == 0));
}

/// Takes 10 ms for each item.
struct Sleepy;

impl Worker for Sleepy {
    type In = u64;
    type Out = u64;

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        #[expect(clippy::disallowed_methods, reason = "user code that takes this long")]
        std::thread::sleep(Duration::from_millis(10));
        batch.iter().map(|n| Ok(*n)).collect()
    }
}

#[tokio::test]
async fn an_operator_sets_a_number_within_the_bounds() {
    let counts = Counts::default();
    let node = serve(counts.stage("model", 7).replicas_between(0, 3)).await;
    for replicas in [2, 3, 0, 1] {
        node.scale_stage("model", replicas).await.unwrap();
        assert_eq!(counts.alive(), replicas);
        assert_eq!(last(&node, "model").reason, "an operator asked for it");
    }
    let error = node.scale_stage("model", 4).await.unwrap_err();
    assert_eq!(error, ChangeError::OutOfBounds { stage: "model".into(), min: 0, max: 3 });
    assert_eq!(node.client().call::<u64, u64>("/route", 0).await.unwrap(), 7);
}

#[tokio::test]
async fn a_batch_that_ends_the_last_replica_of_its_stage_loads_another() {
    hide_panics();
    let gate = Gate::default();
    let pass = gate.clone();
    let model = Stage::each("model", move |n: &u64| {
        pass.pass();
        assert!(pass.arrived() > 1, "meant to panic");
        Ok(n + 1)
    });
    let node = serve(model.on_threads().idempotent().replicas_between(0, 1)).await;
    let first = calling(&node.client(), "/route");
    until("it runs", || gate.arrived() == 1).await;
    // The replica leaves when its batch is over, which it ends by its panic.
    let scaled = node.scale_stage("model", 0);
    let opened = async {
        until("it leaves", || last(&node, "model").to == 0).await;
        gate.open();
    };
    // The call loads a replica again, which may come before the answer to the operator.
    let (_scaled, ()) = tokio::join!(scaled, opened);
    assert_eq!(first.await.unwrap().unwrap(), 2);
}
