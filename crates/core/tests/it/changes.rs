//! Routes and stages change while the node serves, and no request fails because of it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use callboard_core::description::{StagePart, StageState};
use callboard_core::{
    App, AppliedChange, Batch, ChangeError, ErrorKind, Failure, Node, Pipeline, Replica, RouteChange, RouteSpec, Stage,
    StageSettings, Task, Worker,
};
use tokio::task::JoinHandle;

use super::load::{Counted, Counts, Healthy, Load, answering};
use super::support::{Gate, PATIENCE, breakable, gated, serve, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_replacement_of_a_route_fails_no_call() {
    let counts = Counts::default();
    let node = serve(counts.stage("model", 0)).await;
    let load = Load::on(&node.client(), "/route");
    for answer in 1..=20u64 {
        // Once more with quick code, so that replicas of both placements are replaced.
        let stage = if answer % 2 == 0 { answering("model", answer) } else { counts.stage("model", answer) };
        let changed = node.replace_route(RouteSpec::new("/route", stage)).await.unwrap();
        assert_eq!(changed.revision(), answer + 1);
        assert_eq!(node.client().call::<u64, u64>("/route", 0).await.unwrap(), answer);
    }
    let answers = load.end().await;
    assert!(answers.len() > 100, "{} calls", answers.len());
    until("the replaced stages have ended", || node.describe().stages.len() == 1).await;
    assert_eq!((counts.alive(), counts.cleaned()), (0, 11));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_other_routes_do_not_affect_a_route_under_load() {
    let node = App::new().route("/steady", answering("steady", 1)).start().await.unwrap();
    let client = node.client();
    let load = Load::on(&client, "/steady");
    for round in 0..20 {
        let stage = answering(&format!("guest-{round}"), round);
        node.add_route(RouteSpec::new("/guest", stage)).await.unwrap();
        assert_eq!(client.call::<u64, u64>("/guest", 0).await.unwrap(), round);
        node.remove_route("/guest").await.unwrap().settled().await;
        assert_eq!(client.call::<u64, u64>("/guest", 0).await.unwrap_err().kind(), ErrorKind::NotFound);
    }
    assert!(load.end().await.into_iter().all(|answer| answer == 1));
}

#[tokio::test]
async fn a_route_opens_only_when_its_stages_are_warm() {
    let node = App::new().start().await.unwrap();
    let gate = Gate::default();
    let slow = slow_to_load(&gate);
    let handle = node.handle();
    let adding = tokio::spawn(async move { handle.add_route(RouteSpec::new("/slow", slow)).await });
    until("the stage's construction runs", || gate.arrived() == 1).await;
    let stage = &node.describe().stages[0];
    assert_eq!((stage.part, stage.health.state), (StagePart::Starting, StageState::Starting));
    assert!(node.health().ready, "an unused stage does not affect readiness");
    assert_eq!(node.client().call::<u64, u64>("/slow", 1).await.unwrap_err().kind(), ErrorKind::NotFound);
    gate.open();
    adding.await.unwrap().unwrap();
    assert_eq!(node.describe().stages[0].part, StagePart::Serving);
    assert_eq!(node.client().call::<u64, u64>("/slow", 1).await.unwrap(), 1);
}

/// Waits at the gate in its warm-up.
struct GatedWarmup(Gate);

impl Worker for GatedWarmup {
    type In = u64;
    type Out = u64;

    fn warmup(&mut self) -> Result<(), Failure> {
        self.0.pass();
        Ok(())
    }

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        batch.iter().map(|n| Ok(*n)).collect()
    }
}

#[tokio::test]
async fn a_stage_is_not_ready_before_its_warm_up_ends() {
    let node = App::new().start().await.unwrap();
    let gate = Gate::default();
    let hold = gate.clone();
    let cold = Stage::worker("cold", move |_: &Replica| Ok(GatedWarmup(hold.clone())));
    let handle = node.handle();
    let adding = tokio::spawn(async move { handle.add_route(RouteSpec::new("/cold", cold)).await });
    until("the stage warms up", || gate.arrived() == 1).await;
    assert_eq!(node.describe().stages[0].health.state, StageState::WarmingUp);
    assert_eq!(node.client().call::<u64, u64>("/cold", 1).await.unwrap_err().kind(), ErrorKind::NotFound);
    gate.open();
    adding.await.unwrap().unwrap();
    assert_eq!(node.client().call::<u64, u64>("/cold", 1).await.unwrap(), 1);
}

#[tokio::test]
async fn a_change_whose_caller_has_left_is_undone() {
    let node = App::new().start().await.unwrap();
    let gate = Gate::default();
    let hold = gate.clone();
    let counts = Counts::default();
    let counted = counts.clone();
    let slow = Stage::worker("slow", move |_: &Replica| {
        hold.pass();
        counted.alive.fetch_add(1, Ordering::SeqCst);
        Ok(Counted { answer: 1, counts: counted.clone() })
    });
    let handle = node.handle();
    let adding = tokio::spawn(async move { handle.add_route(RouteSpec::new("/slow", slow)).await });
    until("the stage's construction runs", || gate.arrived() == 1).await;
    adding.abort();
    // The next change does not wait for the construction, which cannot be interrupted.
    node.add_route(RouteSpec::new("/quick", answering("quick", 1))).await.unwrap();
    gate.open();
    until("the half-built worker is dropped", || counts.cleaned() == 1 && counts.alive() == 0).await;
    until("its stage is removed", || node.describe().stages.len() == 1).await;
    assert!(node.client().route("/slow").is_none());
}

#[tokio::test]
async fn calls_in_flight_finish_in_the_revision_where_they_began() {
    let gate = Gate::default();
    let node = serve(gated(&gate)).await;
    let client = node.client();
    let old = tokio::spawn({
        let client = client.clone();
        async move { client.call::<u64, u64>("/route", 5).await }
    });
    until("the call is in the worker", || gate.arrived() == 1).await;

    let changed = node.replace_route(RouteSpec::new("/route", answering("gated", 100))).await.unwrap();
    assert_eq!(client.call::<u64, u64>("/route", 5).await.unwrap(), 105);
    let description = node.describe();
    let routes: Vec<_> = description.routes.iter().map(|route| (route.revision, route.closed)).collect();
    assert_eq!(routes, [(2, false), (1, true)]);
    let parts: Vec<_> = description.stages.iter().map(|stage| (stage.revision, stage.part)).collect();
    assert_eq!(parts, [(2, StagePart::Serving), (1, StagePart::Ending)]);

    let removed = node.remove_route("/route").await.unwrap();
    assert_eq!(client.call::<u64, u64>("/route", 5).await.unwrap_err().kind(), ErrorKind::NotFound);
    gate.open();
    assert_eq!(old.await.unwrap().unwrap(), 5);
    changed.settled().await;
    removed.settled().await;
    let description = node.describe();
    assert!(description.stages.is_empty() && description.routes.is_empty());
    assert_eq!((description.admitted, description.outcomes), (2, 2));
}

#[tokio::test]
async fn an_admission_for_a_route_that_was_replaced_is_for_the_new_one() {
    let node = serve(answering("model", 1)).await;
    let client = node.client();
    let old = client.route("/route").unwrap();
    node.replace_route(RouteSpec::new("/route", answering("model", 2))).await.unwrap().settled().await;
    let admission = client.edge().admit(&old, 8).unwrap();
    assert_eq!(admission.route().revision(), 2);
    let reply = client.edge().submit(admission, callboard_codec::Payload::new(0u64), Default::default()).await.unwrap();
    assert_eq!(reply.payload.into_inner::<u64>().unwrap(), 2);
    node.remove_route("/route").await.unwrap();
    assert_eq!(client.edge().admit(&old, 8).unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_shared_stage_stays_until_its_last_route_is_removed() {
    let counts = Counts::default();
    let shared = counts.stage("shared", 1);
    let node = App::new().route("/a", shared.clone()).start().await.unwrap();
    let both = Pipeline::from(shared.clone()).then(answering("more", 10));
    node.add_route(RouteSpec::new("/b", both)).await.unwrap();
    assert_eq!(counts.alive(), 1, "one pool for both");
    node.remove_route("/a").await.unwrap().settled().await;
    assert_eq!(node.client().call::<u64, u64>("/b", 0).await.unwrap(), 11);
    node.remove_route("/b").await.unwrap().settled().await;
    assert_eq!((counts.alive(), counts.cleaned()), (0, 1));
    // The same recipe again starts another life of the stage.
    node.add_route(RouteSpec::new("/a", shared)).await.unwrap();
    assert_eq!(node.client().call::<u64, u64>("/a", 0).await.unwrap(), 1);
}

/// A stage whose worker is built when the gate opens.
fn slow_to_load(gate: &Gate) -> Stage<u64, u64> {
    let hold = gate.clone();
    Stage::worker("slow", move |_: &Replica| {
        hold.pass();
        Ok(Healthy)
    })
}

/// A change that loads a stage until the gate opens. It also uses another stage, whose route was removed and whose last
/// call has left in the meantime.
async fn change_that_keeps_an_unused_stage() -> (Node, Gate, JoinHandle<Result<AppliedChange, ChangeError>>) {
    let (calls, loading) = (Gate::default(), Gate::default());
    let shared = gated(&calls);
    let node = App::new().route("/a", shared.clone()).start().await.unwrap();
    let client = node.client();
    let call = tokio::spawn(async move { client.call::<u64, u64>("/a", 1).await });
    until("the call runs", || calls.arrived() == 1).await;
    node.remove_route("/a").await.unwrap();
    let both = Pipeline::from(shared).then(slow_to_load(&loading));
    let handle = node.handle();
    let adding = tokio::spawn(async move { handle.add_route(RouteSpec::new("/b", both)).await });
    until("the other stage's construction runs", || loading.arrived() == 1).await;
    calls.open();
    assert_eq!(call.await.unwrap().unwrap(), 1);
    until("the closed route is removed", || node.describe().routes.is_empty()).await;
    (node, loading, adding)
}

#[tokio::test]
async fn a_stage_used_by_a_pending_change_outlives_its_last_call() {
    let (node, loading, adding) = change_that_keeps_an_unused_stage().await;
    loading.open();
    adding.await.unwrap().unwrap();
    assert_eq!(node.client().call::<u64, u64>("/b", 5).await.unwrap(), 5);
}

#[tokio::test]
async fn a_stage_used_only_by_an_undone_change_ends_with_it() {
    let (node, loading, adding) = change_that_keeps_an_unused_stage().await;
    adding.abort();
    loading.open();
    until("nothing runs any more", || node.describe().stages.is_empty()).await;
}

#[tokio::test]
async fn a_change_takes_effect_completely_or_not_at_all() {
    let node = App::new().route("/a", answering("a", 1)).start().await.unwrap();
    let broken =
        Stage::worker("broken", |_: &Replica| -> Result<Counted, Failure> { Err(Failure::new("no such file")) });
    let change = RouteChange::new()
        .remove_route("/a")
        .add_route(RouteSpec::new("/b", answering("b", 1)))
        .add_route(RouteSpec::new("/c", broken));
    let error = node.change(change).await.unwrap_err();
    assert_eq!(error.to_string(), "stage `broken` did not start: replica 0 could not start: no such file");
    let description = node.describe();
    assert_eq!(description.routes.len(), 1);
    assert_eq!(node.client().call::<u64, u64>("/a", 0).await.unwrap(), 1);
    until("the stages that it started have ended", || node.describe().stages.len() == 1).await;
    assert!(!node.metrics().contains("broken"));
}

#[tokio::test]
async fn an_impossible_change_is_refused_by_name() {
    let shared = answering("shared", 1);
    let node = App::new().route("/a", shared.clone()).route("/b", shared.clone()).start().await.unwrap();
    let route = |name: &str| RouteSpec::new(name, answering("new", 1));
    let refused = |change| {
        let node = &node;
        async move { node.change(change).await.unwrap_err() }
    };
    let exists = ChangeError::RouteExists { route: "/a".into() };
    assert_eq!(refused(RouteChange::new().add_route(route("/a"))).await, exists);
    assert_eq!(refused(RouteChange::new().replace_route(route("/a")).remove_route("/a")).await, exists);
    let unknown = ChangeError::NoSuchRoute { route: "/x".into() };
    assert_eq!(refused(RouteChange::new().replace_route(route("/x"))).await, unknown);
    assert_eq!(refused(RouteChange::new().remove_route("/x")).await, unknown);
    let bad = ChangeError::BadRouteName { route: "x".into() };
    assert_eq!(refused(RouteChange::new().add_route(route("x"))).await, bad);
    let namesake = RouteSpec::new("/a", answering("shared", 2));
    let model = |name: &str, aliases: &[&str]| {
        RouteSpec::new(name, answering("model", 1)).task(Task::Embed).aliases(aliases.iter().copied())
    };
    node.change(RouteChange::new().add_route(model("/m", &["embed"]))).await.unwrap();
    for (name, alias, same) in [("/n", "embed", "embed"), ("/n", "m", "m"), ("/embed", "other", "embed")] {
        let clash = RouteSpec::new(name, answering("new", 1)).task(Task::Complete).aliases([alias]);
        let (route, other, model) = (name.into(), "/m".into(), same.to_owned());
        assert_eq!(refused(RouteChange::new().add_route(clash)).await, ChangeError::SameModel { route, other, model });
    }
    // Its own name as an alias says nothing new.
    node.change(RouteChange::new().replace_route(model("/m", &["embed", "e", "m"]))).await.unwrap();
    node.change(RouteChange::new().remove_route("/m").add_route(model("/n", &["embed"]))).await.unwrap();
    let duplicate = ChangeError::DuplicateStage { stage: "shared".into() };
    assert_eq!(refused(RouteChange::new().replace_route(namesake)).await, duplicate);

    assert_eq!(node.scale_stage("nobody", 2).await, Err(ChangeError::NoSuchStage { stage: "nobody".into() }));
    for asked in [0, StageSettings::MAX_REPLICAS + 1] {
        assert_eq!(node.scale_stage("shared", asked).await, Err(ChangeError::BadReplicaCount { asked }));
    }
    let _ = node.drain(Duration::ZERO).await;
    assert_eq!(refused(RouteChange::new().remove_route("/a")).await, ChangeError::Ending);
    assert_eq!(node.scale_stage("shared", 2).await, Err(ChangeError::Ending));
}

#[tokio::test]
async fn changes_beyond_the_bound_are_refused_at_once() {
    let gate = Gate::default();
    let slow = slow_to_load(&gate);
    let node = App::new().start().await.unwrap();
    let change = |name: String, stage: Stage<u64, u64>| {
        let handle = node.handle();
        tokio::spawn(async move { handle.add_route(RouteSpec::new(&name, stage)).await })
    };
    let first = change("/slow".to_owned(), slow);
    until("the first change runs", || gate.arrived() == 1).await;
    let mut others: Vec<_> = (0..64).map(|n| change(format!("/{n}"), answering(&format!("quick-{n}"), n))).collect();
    let last = tokio::time::timeout(PATIENCE, others.pop().unwrap()).await.unwrap();
    assert_eq!(last.unwrap().unwrap_err(), ChangeError::Busy { limit: 64 });
    gate.open();
    for other in others {
        other.await.unwrap().unwrap();
    }
    first.await.unwrap().unwrap();
    assert_eq!(node.client().routes().len(), 64);
}

#[tokio::test]
async fn a_node_can_be_stopped_in_the_middle_of_a_change() {
    let gate = Gate::default();
    let slow = slow_to_load(&gate);
    let node = serve(answering("quick", 1)).await;
    let handle = node.handle();
    let adding = tokio::spawn(async move { handle.add_route(RouteSpec::new("/slow", slow)).await });
    until("the stage's construction runs", || gate.arrived() == 1).await;
    let _ = tokio::time::timeout(PATIENCE, node.shutdown(PATIENCE)).await.unwrap();
    assert_eq!(adding.await.unwrap().unwrap_err(), ChangeError::Ending);
    gate.open();
}

#[tokio::test]
async fn a_dropped_node_reports_that_it_is_gone() {
    let gate = Gate::default();
    let node = serve(gated(&gate)).await;
    let client = node.client();
    let calls: Vec<_> = (0..5)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.call::<u64, u64>("/route", n).await })
        })
        .collect();
    until("one call runs and four wait", || gate.arrived() == 1 && client.describe().stages[0].queued == 4).await;
    let handle = node.handle();
    drop(node);
    until("the tree has ended", || !handle.health().live).await;
    gate.open();
    let mut may_run_elsewhere = 0;
    for call in calls {
        may_run_elsewhere += usize::from(call.await.unwrap().is_err_and(|error| error.is_retryable()));
    }
    assert_eq!(may_run_elsewhere, 4, "one had started");
    let (health, description) = (handle.health(), handle.describe());
    assert!(!health.ready && health.stages.iter().all(|stage| !stage.state.is_ready()));
    assert_eq!((description.in_flight, description.stages[0].queued), (0, 0));
    assert!(handle.metrics().contains("callboard_stage_queued{stage=\"gated\"} 0\n"));
    let error = client.call::<u64, u64>("/route", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(handle.add_route(RouteSpec::new("/x", answering("x", 1))).await.unwrap_err(), ChangeError::Ending);
}

/// The count of this process's threads whose name has this prefix.
#[cfg(target_os = "linux")]
fn threads_named(prefix: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with(prefix)).count()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_hundred_loads_and_unloads_leave_only_their_counts() {
    let node: Node = App::new().route("/steady", answering("steady", 1)).start().await.unwrap();
    let client = node.client();
    let counts = Counts::default();
    let recipe = Arc::new(());
    let series = || node.metrics().lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let before = series();
    for round in 0..100u64 {
        // Held only by the recipe and by a step of the route.
        let (in_stage, in_route) = (Arc::clone(&recipe), Arc::clone(&recipe));
        let quick = Stage::each("quick", move |n: &u64| {
            let _held = &in_stage;
            Ok(*n)
        });
        let model = counts.stage("guest-model", round).replicas(2);
        let pipeline = Pipeline::from(quick).then(model).map("step", move |n: &u64| {
            let _held = &in_route;
            Ok(*n)
        });
        node.add_route(RouteSpec::new("/guest", pipeline)).await.unwrap();
        assert_eq!(client.call::<u64, u64>("/guest", 1).await.unwrap(), round + 1);
        assert!(node.metrics().contains("guest"));
        node.remove_route("/guest").await.unwrap().settled().await;
    }
    assert_eq!((counts.alive(), counts.cleaned()), (0, 200));
    until("the last recipe is dropped", || Arc::strong_count(&recipe) == 1).await;
    until("the last thread has ended", || threads_named("guest-model") == 0).await;
    let after = series();
    let left: Vec<_> = after.symmetric_difference(&before).collect();
    let tell_of_now = ["stage_queued", "stage_replicas", "stage_replica_states", "stage_ready", "abandoned"];
    let stale = |line: &&&String| tell_of_now.iter().any(|family| line.contains(family));
    assert_eq!(left.iter().find(stale), None, "no series may remain");
    for counted in ["requests_total{route=\"/guest\",outcome=\"ok\"}", "stage_batch_size_count{stage=\"guest-model\"}"]
    {
        let line = format!("callboard_{counted} 100");
        assert!(after.contains(&line), "a counter restarts with each load: {left:?}");
    }
    assert_eq!(node.describe().stages.len(), 1);
    let description = node.describe();
    assert_eq!((description.admitted, description.outcomes), (100, 100));
}

#[tokio::test]
async fn a_change_restores_a_failed_stage() {
    let (stage, model) = breakable();
    let node = serve(stage.clone()).await;
    model.fail(&node).await;
    model.mend();
    node.replace_route(RouteSpec::new("/route", stage)).await.unwrap().settled().await;
    assert_eq!(node.client().call::<u64, u64>("/route", 5).await.unwrap(), 5);
    let stages = node.describe().stages;
    assert_eq!(stages.iter().map(|stage| stage.health.state).collect::<Vec<_>>(), [StageState::Ready]);
    assert!(node.health().ready);
}

#[tokio::test]
async fn a_failed_stage_reports_why_it_is_neither_shared_nor_scaled() {
    let (stage, model) = breakable();
    let node = serve(stage.clone()).await;
    model.fail(&node).await;
    let shared = node.add_route(RouteSpec::new("/other", stage)).await.unwrap_err();
    assert!(matches!(&shared, ChangeError::Stage { message, .. } if message.contains("5 crashes")), "{shared}");
    let scaled = node.scale_stage("model", 2).await.unwrap_err().to_string();
    assert!(scaled.contains("the weights are gone") && scaled.contains("it tries again in"), "{scaled}");
}

#[tokio::test(start_paused = true)]
async fn scaling_a_failed_stage_tries_it_at_once() {
    let (stage, model) = breakable();
    let node = serve(stage).await;
    model.fail(&node).await;
    // The next try by itself would come in a minute.
    tokio::time::sleep(Duration::from_secs(1000)).await;
    model.mend();
    let asked_at = tokio::time::Instant::now();
    node.scale_stage("model", 2).await.unwrap();
    assert!(asked_at.elapsed() < Duration::from_secs(1));
    assert_eq!(node.describe().stages[0].replicas.len(), 2);
    assert!(node.health().ready);
}
