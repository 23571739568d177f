//! Where stages run: several on one peer, sessions, revisions, and the timing of a peer.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_codec::{Local, Payload};
use callboard_core::{App, CallOptions, Caller, ErrorKind, Failure, Pipeline, Stage};
use tokio::sync::Semaphore;

use crate::common::{Member, ServingNode, until};

type Count = Arc<AtomicUsize>;

fn runs(count: &Count) -> usize {
    count.load(Ordering::SeqCst)
}

/// Adds a number, and counts its runs.
fn adding(name: &str, n: i64, runs: &Count) -> Stage<i64, i64> {
    let runs = Arc::clone(runs);
    Stage::each(name, move |input: &i64| {
        runs.fetch_add(1, Ordering::SeqCst);
        Ok(input + n)
    })
}

fn remote_stage(stage: &str) -> Pipeline<i64, i64> {
    Pipeline::remote(stage)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consecutive_stages_on_one_peer_take_one_call() {
    let counts: [Count; 3] = Default::default();
    let pipeline = Pipeline::from(adding("one", 1, &counts[0])).then(adding("ten", 10, &counts[1]));
    let worker = ServingNode::start(App::new().route("/work", pipeline.then(adding("hundred", 100, &counts[2])))).await;
    let pipeline = remote_stage("one").then(remote_stage("ten")).then(remote_stage("hundred"));
    let gateway = Member::start(App::new().route("/run", pipeline), &[&worker.edge]).await;
    gateway.until_offered("hundred").await;
    let before = worker.streams_started();
    assert_eq!(gateway.call(5).await.unwrap(), 116);
    assert_eq!((worker.streams_started() - before, counts.each_ref().map(runs)), (1, [1, 1, 1]));
}

/// A gateway knows the contracts of its peers' stages: its own clients may repeat a lost call, and a refusal after such
/// a stage is retryable if the peer that ran it may run it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_route_may_run_again_where_every_peer_says_so_of_its_stage() {
    let worker = |stage: Stage<i64, i64>| ServingNode::start(App::new().route("/work", stage));
    let counts: [Count; 2] = Default::default();
    let pure = worker(adding("add", 1, &counts[0]).pure()).await;
    let once = worker(adding("add", 1, &counts[1])).await;
    let full = || Stage::each("full", |_: &i64| -> Result<i64, Failure> { Err(Failure::overloaded("later")) });
    for (peers, expected) in
        [(vec![&pure.edge], true), (vec![&once.edge], false), (vec![&pure.edge, &once.edge], false)]
    {
        let app = App::new().route("/run", remote_stage("add").then(full())).route("/add", remote_stage("add"));
        let gateway = Member::start(app, &peers).await;
        let client = gateway.served.node.client();
        gateway.until_connected(peers.len()).await;
        let route = client.route("/add").unwrap();
        assert_eq!(client.edge().may_run_again(&route), expected, "{} peers", peers.len());
        let mut ran_on_pure = HashSet::new();
        while ran_on_pure.len() < peers.len() {
            let before = runs(&counts[0]);
            let error = gateway.call(1).await.unwrap_err();
            let is_pure = runs(&counts[0]) > before;
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Overloaded, is_pure), "{error:?}");
            ran_on_pure.insert(is_pure);
        }
        // Its clients learn of it as the peers come.
        let outside = gateway.served.client().await;
        assert_eq!(outside.call::<i64, i64>("/add", 1).await.unwrap(), 2);
    }
    let alone = Member::start(App::new().route("/add", remote_stage("add")), &[]).await;
    let client = alone.served.node.client();
    assert!(!client.edge().may_run_again(&client.route("/add").unwrap()), "no peer is known");
}

/// The first two stages run on one peer, the third on another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consecutive_stages_on_two_peers_take_one_call_each() {
    let count = Count::default();
    let pipeline = Pipeline::from(adding("one", 1, &count)).then(adding("ten", 10, &count));
    let first = ServingNode::start(App::new().route("/work", pipeline)).await;
    let second = ServingNode::start(App::new().route("/work", adding("hundred", 100, &count))).await;
    let pipeline = remote_stage("one").then(remote_stage("ten")).then(remote_stage("hundred"));
    let gateway = Member::start(App::new().route("/run", pipeline), &[&first.edge, &second.edge]).await;
    gateway.until_connected(2).await;
    let before = (first.streams_started(), second.streams_started());
    assert_eq!(gateway.call(5).await.unwrap(), 116);
    assert_eq!((first.streams_started() - before.0, second.streams_started() - before.1), (1, 1));
}

/// A refusal of a later stage does not repeat the earlier ones: their output goes to a node with room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consecutive_stage_without_room_runs_on_another_peer() {
    let open = Arc::new(Semaphore::new(0));
    let (started, before, after): (Count, Count, Count) = Default::default();
    let full = Stage::each_async("narrow", {
        let (open, started) = (Arc::clone(&open), Arc::clone(&started));
        move |n: Arc<i64>| {
            let (open, started) = (Arc::clone(&open), Arc::clone(&started));
            async move {
                started.fetch_add(1, Ordering::SeqCst);
                open.acquire().await.unwrap().forget();
                Ok(*n)
            }
        }
    });
    let full = full.queue(1).concurrency(1);
    let app = App::new().route("/work", Pipeline::from(adding("first", 1, &before)).then(full.clone()));
    let first = ServingNode::start(app.route("/narrow", full)).await;
    let second = ServingNode::start(App::new().route("/work", adding("narrow", 10, &after))).await;
    let app = App::new().route("/run", remote_stage("first").then(remote_stage("narrow")));
    let gateway = Member::start(app, &[&first.edge, &second.edge]).await;
    gateway.until_connected(2).await;
    // One runs and one waits there: no room for a third.
    let filler = |n: i64| {
        let client = first.node.client();
        tokio::spawn(async move { client.call::<i64, i64>("/narrow", n).await })
    };
    let mut fillers = vec![filler(0)];
    // Both at once would need room for two in the queue.
    until(|| runs(&started) == 1).await;
    fillers.push(filler(1));
    until(|| first.node.describe().stages.iter().any(|stage| stage.queued == 1)).await;
    assert_eq!(gateway.call(5).await.unwrap(), 16);
    assert_eq!((runs(&before), runs(&after)), (1, 1));
    open.add_permits(2);
    for filler in fillers {
        filler.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_times_that_a_peer_reports_are_recorded() {
    let open = Arc::new(Semaphore::new(0));
    let gate = Arc::clone(&open);
    let held = Stage::each_async("held", move |n: Arc<i64>| {
        let gate = Arc::clone(&gate);
        async move {
            gate.acquire().await.unwrap().forget();
            Ok(*n)
        }
    });
    let worker = ServingNode::start(App::new().route("/held", held.concurrency(1))).await;
    let gateway = Member::start(App::new().route("/run", remote_stage("held")), &[&worker.edge]).await;
    gateway.until_offered("held").await;
    let client = gateway.served.node.client();
    let calls = [1_i64, 2].map(|n| {
        let client = client.clone();
        tokio::spawn(async move {
            let route = client.route("/run").unwrap();
            let admission = client.edge().admit(&route, 8).unwrap();
            client.edge().submit(admission, Payload::new(n), CallOptions::new()).await.unwrap().timing
        })
    });
    until(|| worker.node.describe().stages[0].queued == 1).await;
    open.add_permits(2);
    let [first, second] = calls.map(|call| async move { call.await.unwrap() });
    let timings = [first.await, second.await];
    // One of the two has waited in the peer's queue, and both were computed there.
    assert!(timings.iter().any(|timing| timing.queue > Duration::ZERO), "{timings:?}");
    assert!(timings.iter().all(|timing| timing.compute > Duration::ZERO), "{timings:?}");
}

#[test]
fn a_remote_stage_appears_in_the_app_as_a_stage() {
    assert_eq!(App::new().route("/run", remote_stage("classify")).to_string(), "/run: ↗classify\n");
}

/// Three workers that return their number.
async fn three_workers() -> (Vec<ServingNode>, Member) {
    let mut workers = Vec::new();
    for n in 0..3_i64 {
        let who = Stage::each("who", move |_: &i64| Ok(n)).revision(n as u64 % 2);
        workers.push(ServingNode::start(App::new().route("/who", who)).await);
    }
    let edges: Vec<_> = workers.iter().map(|worker| &worker.edge).collect();
    let gateway = Member::start(App::new().route("/run", remote_stage("who")), &edges).await;
    gateway.until_connected(3).await;
    (workers, gateway)
}

async fn worker_of_session(gateway: &Member, session: u64) -> i64 {
    let options = CallOptions::new().with_session_key(session.to_string().as_str());
    gateway.served.node.client().call_with::<i64, i64>("/run", 0, options).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_stays_with_its_peer_until_the_peer_ends() {
    let (mut workers, gateway) = three_workers().await;
    let mut homes = Vec::new();
    for session in 0..30 {
        let home = worker_of_session(&gateway, session).await;
        for _ in 0..3 {
            assert_eq!(worker_of_session(&gateway, session).await, home, "session {session}");
        }
        homes.push(home);
    }
    assert_eq!(homes.iter().collect::<HashSet<_>>().len(), 3, "all workers have sessions: {homes:?}");
    let ServingNode { node, edge } = workers.remove(0);
    edge.shutdown(Duration::ZERO).await;
    drop(node);
    gateway.until_connected(2).await;
    for (session, home) in (0..).zip(homes) {
        let now = worker_of_session(&gateway, session).await;
        assert!(now == home || home == 0, "session {session} left {home} for {now}");
    }
}

/// Two peers run revision 0, one runs revision 1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revisions_get_exactly_their_share() {
    let (workers, gateway) = three_workers().await;
    gateway.cluster.split("who", [(0, 7), (1, 3)]);
    let mut second = 0;
    for _ in 0..100 {
        second += usize::from(gateway.call(0).await.unwrap() == 1);
    }
    assert_eq!(second, 30);
    // A revision without a node gets no calls, and no call fails for it.
    gateway.cluster.split("who", [(0, 1), (1, 1), (2, 98)]);
    let mut second = 0;
    for _ in 0..100 {
        second += usize::from(gateway.call(0).await.unwrap() == 1);
    }
    assert_eq!(second, 50);
    gateway.cluster.split("who", []);
    assert!((0..3).contains(&gateway.call(0).await.unwrap()));
    drop(workers);
}

/// The node runs a revision itself, free and near, and still leaves the other its share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remote_revision_gets_its_share_of_a_stage_that_also_runs_locally() {
    let who = |n: i64| Stage::each("who", move |_: &i64| Ok(n)).revision(n as u64);
    let worker = ServingNode::start(App::new().route("/who", who(2))).await;
    let gateway = Member::start(App::new().route("/run", who(1)), &[&worker.edge]).await;
    gateway.until_offered("who").await;
    gateway.cluster.split("who", [(1, 3), (2, 1)]);
    let mut counts = [0; 2];
    for _ in 0..40 {
        counts[gateway.call(0).await.unwrap() as usize - 1] += 1;
    }
    assert_eq!(counts, [30, 10]);
    // The share of an absent node goes to the others.
    worker.edge.shutdown(Duration::ZERO).await;
    gateway.until_connected(0).await;
    for _ in 0..10 {
        assert_eq!(gateway.call(0).await.unwrap(), 1);
    }
}

/// Has no serde.
struct Parsed(i64);

/// A stage with a remote share, whose input cannot be sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_cannot_be_encoded_runs_locally() {
    let used = |revision: u64, runs: &Count| {
        let runs = Arc::clone(runs);
        let parse = Stage::each("parse", |n: &i64| Ok(Local(Parsed(*n))));
        let take = Stage::each("take", move |parsed: &Local<Parsed>| {
            runs.fetch_add(1, Ordering::SeqCst);
            Ok(parsed.0.0 + 1)
        });
        Pipeline::from(parse).then(take.revision(revision))
    };
    let (local, remote) = (Count::default(), Count::default());
    let worker = ServingNode::start(App::new().route("/run", used(2, &remote))).await;
    let gateway = Member::start(App::new().route("/run", used(1, &local)), &[&worker.edge]).await;
    gateway.until_offered("take").await;
    gateway.cluster.split("take", [(1, 1), (2, 3)]);
    for n in 0..20 {
        assert_eq!(gateway.call(n).await.unwrap(), n + 1);
    }
    assert_eq!((runs(&local), runs(&remote)), (20, 0));

    // Where it does not run locally, the error names the type.
    let parse = Stage::each("parse", |n: &i64| Ok(Local(Parsed(*n))));
    let take = Pipeline::<Local<Parsed>, i64>::remote("take");
    let gateway = Member::start(App::new().route("/run", Pipeline::from(parse).then(take)), &[&worker.edge]).await;
    gateway.until_offered("take").await;
    let error = gateway.call(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(error.message().contains("Parsed` does not leave its process"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_chain_of_stages_is_split_at_the_limit_of_the_peer() {
    let count = Count::default();
    let worker = ServingNode::start(App::new().route("/one", adding("one", 1, &count))).await;
    let mut pipeline = remote_stage("one");
    for _ in 0..40 {
        pipeline = pipeline.then(remote_stage("one"));
    }
    let gateway = Member::start(App::new().route("/run", pipeline), &[&worker.edge]).await;
    gateway.until_offered("one").await;
    let before = worker.streams_started();
    // The peer announces how many it takes at once, and gets no more.
    assert_eq!(gateway.call(0).await.unwrap(), 41);
    assert_eq!((worker.streams_started() - before, runs(&count)), (3, 41));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streaming_stage_is_no_candidate_for_a_call_with_one_outcome() {
    let count = callboard_core::StreamStage::each("count", |n: &i64| futures_util::stream::iter((0..*n).map(Ok)));
    let worker = ServingNode::start(App::new().route_streaming("/count", count)).await;
    let gateway = Member::start(App::new().route("/run", remote_stage("count")), &[&worker.edge]).await;
    gateway.until_offered("count").await;
    let error = gateway.call(3).await.unwrap_err();
    assert_eq!((error.kind(), error.was_started()), (ErrorKind::Unavailable, false), "{error}");
}
