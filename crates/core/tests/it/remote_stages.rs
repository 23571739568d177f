//! Where the calls of a stage run, given what the other nodes do: the table in the documentation of
//! `pipeline/remote.rs`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::available_parallelism;
use std::time::Duration;

use callboard_codec::Payload;
use callboard_core::edge::{ErrorParts, PayloadReplies};
use callboard_core::remote::{RemoteFuture, RemoteStages, StageCall, StageLoad, StageOutputs, StageReply, StageTarget};
use callboard_core::testing::TestApp;
use callboard_core::timeline::Recorder;
use callboard_core::{
    App, CallError, CallOptions, Contract, Deadline, ErrorKind, Failure, Node, Pipeline, Reply, SessionKey, Stage,
    StageSettings, StreamPipeline, StreamStage, Timing,
};
use futures_util::{StreamExt, stream};
use tokio::time::Instant;

const COMPUTE: Duration = Duration::from_millis(5);

/// Other nodes that give the next of these answers: an output and the count of stages that ran.
#[derive(Clone, Debug, Default)]
struct Cluster(Arc<Script>);

#[derive(Debug, Default)]
struct Script {
    target: StageTarget,
    offers: bool,
    can_chain: bool,
    /// Whether the stages must not run again there.
    runs_once: bool,
    answers: Mutex<VecDeque<Result<(u64, usize), CallError>>>,
    calls: Mutex<Vec<StageCall>>,
    loads: Mutex<Vec<StageLoad>>,
}

impl Cluster {
    fn new(script: Script, answers: impl IntoIterator<Item = Result<(u64, usize), CallError>>) -> Self {
        Self(Arc::new(Script { answers: Mutex::new(answers.into_iter().collect()), ..script }))
    }

    /// The cluster prefers another node for the calls of each stage.
    fn preferred(answers: impl IntoIterator<Item = Result<(u64, usize), CallError>>) -> Self {
        let target = StageTarget { is_remote: true, revision: Some(7) };
        Self::new(Script { target, offers: true, ..Script::default() }, answers)
    }

    async fn serve(&self, app: App) -> Node {
        let node = TestApp::new(app).start().await.unwrap();
        node.handle().join(self.clone()).unwrap();
        node
    }

    /// The stages of each call.
    fn stages(&self) -> Vec<Vec<String>> {
        let names = |call: &StageCall| call.stages.iter().map(|stage| stage.as_str().to_owned()).collect();
        self.0.calls.lock().unwrap().iter().map(names).collect()
    }

    fn call(&self, nth: usize) -> StageCall {
        self.0.calls.lock().unwrap()[nth].clone()
    }

    fn answer(&self, call: StageCall) -> Result<(u64, usize), CallError> {
        if self.0.runs_once {
            call.set_ran_once();
        }
        self.0.calls.lock().unwrap().push(call);
        self.0.answers.lock().unwrap().pop_front().expect("no further call was expected")
    }
}

impl RemoteStages for Cluster {
    fn choose(&self, _: &str, _: Option<SessionKey>, here: &StageLoad) -> StageTarget {
        self.0.loads.lock().unwrap().push(*here);
        self.0.target
    }

    fn can_chain(&self, _: &str) -> bool {
        self.0.can_chain
    }

    fn offers(&self, _: &str) -> bool {
        self.0.offers
    }

    fn run(&self, call: StageCall) -> RemoteFuture<StageReply> {
        let node = call.options.recorder().map(|_| "peer".to_owned());
        let answer = self.answer(call).map(|(output, stages)| {
            let timing = Timing { compute: COMPUTE, ..Timing::default() };
            StageReply::new(Reply::new(Payload::new(output), timing), stages).with_node(node)
        });
        Box::pin(async move { answer })
    }

    fn stream(&self, call: StageCall) -> RemoteFuture<StageOutputs> {
        let answer = self.answer(call).map(|(output, stages)| {
            let outputs = stream::iter([Ok(Payload::new(output)), Ok(Payload::new(output))]);
            StageOutputs::new(PayloadReplies::new(outputs), stages)
        });
        Box::pin(async move { answer })
    }
}

/// An error of a node or a stage: whether it was started, may be repeated, and names a stage.
fn error(kind: ErrorKind, started: bool, may_repeat: bool, stage: Option<&str>) -> CallError {
    let mut parts = ErrorParts::new(kind, "there");
    (parts.started, parts.may_repeat, parts.stage) = (started, may_repeat, stage.map(Into::into));
    parts.into()
}

fn refusal(kind: ErrorKind) -> CallError {
    error(kind, false, false, None)
}

fn error_of_a_run() -> CallError {
    error(ErrorKind::WorkerFailed, true, false, None)
}

/// Adds 1 on this node, and counts its runs; takes a second for it.
fn add(runs: &Arc<AtomicUsize>) -> Stage<u64, u64> {
    let runs = Arc::clone(runs);
    Stage::each_async("add", move |n: Arc<u64>| {
        runs.fetch_add(1, Ordering::SeqCst);
        async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if *n == 13 { Err(Failure::invalid_input("not 13")) } else { Ok(*n + 1) }
        }
    })
}

async fn call(node: &Node, n: u64) -> Result<u64, CallError> {
    call_of(node, "/route", n).await
}

fn call_of(node: &Node, route: &'static str, n: u64) -> impl Future<Output = Result<u64, CallError>> + use<> {
    let client = node.client();
    async move { client.call(route, n).await }
}

#[tokio::test(start_paused = true)]
async fn a_call_for_another_node_runs_there_once() {
    let (cluster, runs) = (Cluster::preferred([Ok((40, 1)), Ok((50, 1))]), Arc::default());
    let stage = add(&runs).replicas(3).max_batch_size(4).revision(6);
    let next = Stage::each("next", |n: &u64| Ok(n + 2));
    let node = cluster.serve(App::new().route("/route", Pipeline::from(stage).then(next))).await;
    assert_eq!(call(&node, 1).await.unwrap(), 50);
    assert_eq!(cluster.stages(), [["add"], ["next"]]);
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    let load = cluster.0.loads.lock().unwrap()[0];
    assert_eq!((load.open, load.queued, load.capacity, load.revision), (true, 0, 12, 6));
    let first = cluster.call(0);
    assert_eq!((first.stage(), first.revision, first.credit), ("add", Some(7), StageSettings::DEFAULT_CREDIT));
    assert!(!first.may_run_again && first.can_run_here && !first.is_retry && first.budget().is_some());
}

#[tokio::test(start_paused = true)]
async fn the_load_of_a_stage_has_the_queues_of_all_stages_of_its_replicas() {
    let cluster = Cluster::new(Script { offers: true, ..Script::default() }, []);
    let host = add(&Arc::default()).concurrency(1).max_batch_size(1);
    let hosted = Stage::each_async("hosted", |n: Arc<u64>| async move { Ok(*n) }).hosted_by(&host.as_host());
    let node = App::new().route("/route", host).route("/hosted", hosted).start().await.unwrap();
    node.handle().join(cluster.clone()).unwrap();
    let waiting: Vec<_> = (0..3).map(|n| tokio::spawn(call_of(&node, "/route", n))).collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    call_of(&node, "/hosted", 1).await.unwrap();
    let load = *cluster.0.loads.lock().unwrap().last().unwrap();
    assert_eq!(load.queued, 2, "one of three runs");
    for call in waiting {
        call.await.unwrap().unwrap();
    }
}

/// Its stages could not read them elsewhere. A stage that no other node can replace runs without them.
#[tokio::test(start_paused = true)]
async fn a_call_with_extensions_stays_on_the_node_that_runs_its_stages() {
    let (cluster, runs) = (Cluster::preferred([Ok((40, 1))]), Arc::default());
    let pipeline = Pipeline::from(add(&runs)).then(Pipeline::<u64, u64>::remote("elsewhere"));
    let node = cluster.serve(App::new().route("/route", pipeline)).await;
    let options = CallOptions::new().with_extension("acme");
    assert_eq!(node.client().call_with::<u64, u64>("/route", 1, options).await.unwrap(), 40);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(cluster.stages(), [["elsewhere"]]);
}

/// While what is sent to other nodes has all of them, an edge waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_for_other_nodes_are_encoded_by_the_threads_of_the_node() {
    let cluster = Cluster::preferred([Ok((40, 1))]);
    let node = cluster.serve(App::new().route("/route", add(&Arc::default()))).await;
    call(&node, 1).await.unwrap();
    let threads = available_parallelism().map_or(1, |cores| cores.get().saturating_sub(1).max(1));
    let (begun, have_begun) = mpsc::channel();
    let releases: Vec<_> = std::iter::repeat_with(|| {
        let (release, released) = mpsc::channel::<()>();
        let (begun, call) = (begun.clone(), cluster.call(0));
        let work = move || {
            begun.send(()).unwrap();
            released.recv()
        };
        tokio::spawn(async move { call.budget().unwrap().off_thread((), work).await.map(drop) });
        release
    })
    .take(threads)
    .collect();
    tokio::task::block_in_place(|| have_begun.iter().take(threads).for_each(drop));

    let is_released = Arc::new(AtomicBool::new(false));
    let (was_released, client) = (Arc::clone(&is_released), node.client());
    let edge = tokio::spawn(async move {
        let (edge, deadline) = (client.edge(), Deadline::from(Deadline::MAX_TIMEOUT));
        let budget = edge.codec_budget(Arc::new(edge.held_bytes()), deadline);
        budget.off_thread((), move || was_released.load(Ordering::SeqCst)).await
    });
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    is_released.store(true, Ordering::SeqCst);
    drop(releases);
    assert!(edge.await.unwrap().unwrap().1);
}

#[tokio::test(start_paused = true)]
async fn a_contract_of_this_node_is_told_to_the_others() {
    let cluster = Cluster::preferred([Ok((40, 1))]);
    let node = cluster.serve(App::new().route("/route", add(&Arc::default()).contract(Contract::Pure))).await;
    assert_eq!(call(&node, 1).await.unwrap(), 40);
    assert!(cluster.call(0).may_run_again);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_another_node_refused_or_lost_harmlessly_runs_here() {
    let lost = error(ErrorKind::Unavailable, true, true, None);
    for error in [refusal(ErrorKind::Overloaded), refusal(ErrorKind::Unavailable), lost] {
        let (cluster, runs) = (Cluster::preferred([Err(error)]), Arc::default());
        let node = cluster.serve(App::new().route("/route", add(&runs))).await;
        assert_eq!(call(&node, 1).await.unwrap(), 2);
        assert_eq!((runs.load(Ordering::SeqCst), cluster.stages().len()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn any_other_error_of_another_node_is_the_outcome() {
    for (kind, may_repeat, stage) in [
        (ErrorKind::Unavailable, false, None),
        (ErrorKind::Unavailable, true, Some("add")),
        (ErrorKind::Unavailable, false, Some("add")),
        (ErrorKind::WorkerFailed, true, None),
        (ErrorKind::InvalidInput, false, None),
    ] {
        let (cluster, runs) = (Cluster::preferred([Err(error(kind, true, may_repeat, stage))]), Arc::default());
        let node = cluster.serve(App::new().route("/route", add(&runs))).await;
        let error = call(&node, 1).await.unwrap_err();
        assert_eq!((error.kind(), error.message(), runs.load(Ordering::SeqCst)), (kind, "there", 0));
    }
}

/// A stage that has room for one call, which waits for another one in vain.
fn waiting(stage: Stage<u64, u64>) -> Stage<u64, u64> {
    stage.queue(1).max_batch_size(2).max_delay(Duration::from_millis(1))
}

/// Two calls of a stage that has room for one, on this node first.
async fn two_calls(offers: bool, answer: Option<Result<(u64, usize), CallError>>) -> (Result<u64, CallError>, usize) {
    let cluster = Cluster::new(Script { offers, ..Script::default() }, answer);
    let node = cluster.serve(App::new().route("/route", waiting(add(&Arc::default())))).await;
    let (first, second) = tokio::join!(call(&node, 1), call(&node, 1));
    assert_eq!(first.unwrap(), 2);
    (second, cluster.stages().len())
}

#[tokio::test(start_paused = true)]
async fn a_call_that_this_node_refuses_goes_to_another_one() {
    let (outcome, calls) = two_calls(true, Some(Ok((40, 1)))).await;
    assert_eq!((outcome.unwrap(), calls), (40, 1));
    let (outcome, calls) = two_calls(false, None).await;
    assert_eq!((outcome.unwrap_err().kind(), calls), (ErrorKind::Overloaded, 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_all_nodes_refuse_gets_the_refusal_of_this_one() {
    let (outcome, _) = two_calls(true, Some(Err(refusal(ErrorKind::Unavailable)))).await;
    let error = outcome.unwrap_err();
    assert!(error.kind() == ErrorKind::Overloaded && error.message().contains("the queue of stage `add` is full"));
    let (outcome, _) = two_calls(true, Some(Err(error_of_a_run()))).await;
    assert_eq!(outcome.unwrap_err().message(), "there");
}

#[tokio::test(start_paused = true)]
async fn an_outcome_of_this_node_is_final() {
    let cluster = Cluster::new(Script { offers: true, ..Script::default() }, []);
    let node = cluster.serve(App::new().route("/route", add(&Arc::default()))).await;
    assert_eq!(call(&node, 13).await.unwrap_err().message(), "not 13");
    assert_eq!(cluster.stages().len(), 0);
}

fn remote_pair() -> App {
    App::new().route("/route", Pipeline::<u64, u64>::remote("first").then(Pipeline::<u64, u64>::remote("second")))
}

#[tokio::test(start_paused = true)]
async fn remote_stages_run_in_one_call_where_they_may() {
    let cluster = Cluster::new(Script { can_chain: true, ..Script::default() }, [Ok((40, 2))]);
    let node = cluster.serve(remote_pair()).await;
    assert_eq!(call(&node, 1).await.unwrap(), 40);
    assert_eq!(cluster.stages(), [["first", "second"]]);
    assert!(cluster.call(0).may_run_again && !cluster.call(0).can_run_here);

    let cluster = Cluster::new(Script::default(), [Ok((40, 1)), Ok((50, 1))]);
    let node = cluster.serve(remote_pair()).await;
    assert_eq!(call(&node, 1).await.unwrap(), 50);
    assert_eq!(cluster.stages(), [["first"], ["second"]]);
}

#[tokio::test(start_paused = true)]
async fn without_a_cluster_a_remote_stage_is_unavailable() {
    let tokens = StreamPipeline::<u64, u64>::remote("tokens");
    let node = TestApp::new(remote_pair().route_streaming("/stream", tokens)).start().await.unwrap();
    let error = call(&node, 1).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::Unavailable, "no node is known that runs the stage `first`")
    );
    let mut replies = node.client().replies::<u64, u64>("/stream", 1).unwrap();
    let error = replies.next().await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::Unavailable, "no node is known that runs the stage `tokens`")
    );
}

#[tokio::test(start_paused = true)]
async fn a_recorded_call_has_a_visit_for_each_stage_that_ran_elsewhere() {
    let cluster = Cluster::new(Script { can_chain: true, ..Script::default() }, [Ok((40, 2)), Err(error_of_a_run())]);
    let node = cluster.serve(remote_pair()).await;
    let recorded = async || {
        let recorder = Recorder::new(Instant::now());
        let options = CallOptions::new().with_recorder(recorder.clone());
        let _outcome = node.client().call_with::<u64, u64>("/route", 1, options).await;
        recorder.timeline(Instant::now()).visits
    };
    let visits = recorded().await;
    assert_eq!(visits.iter().map(|visit| visit.stage.as_str()).collect::<Vec<_>>(), ["first", "second"]);
    assert!(visits.iter().all(|visit| visit.is_remote && visit.left.is_some()));
    let facts: Vec<_> = visits.iter().filter_map(|visit| visit.remote.clone()).collect();
    assert!(facts.len() == 2 && facts.iter().all(|facts| facts.node == "peer"), "{facts:?}");
    assert_eq!(
        [facts[0].timing.map(|timing| timing.compute), facts[1].timing.map(|timing| timing.compute)],
        [Some(COMPUTE), None]
    );
    let visits = recorded().await;
    assert!(visits.len() == 1 && visits[0].left.is_some() && visits[0].remote.is_none(), "{visits:?}");
}

/// The first outcome of a stream of calls, which wait for capacity; how long it took, and which calls were retries.
async fn patient_call(answers: Vec<Result<(u64, usize), CallError>>) -> (Result<u64, CallError>, Duration, Vec<bool>) {
    let cluster = Cluster::new(Script::default(), answers);
    let app = App::new().route("/route", Pipeline::<u64, u64>::remote("first"));
    let (node, began) = (cluster.serve(app).await, Instant::now());
    let outcome = node.client().stream("/route", [1_u64]).unwrap().next().await.unwrap();
    let retries = cluster.0.calls.lock().unwrap().iter().map(|call| call.is_retry).collect();
    (outcome, began.elapsed(), retries)
}

fn full(retry_after: Duration) -> CallError {
    let mut parts = ErrorParts::new(ErrorKind::Overloaded, "there");
    parts.retry_after = Some(retry_after);
    parts.into()
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_capacity_asks_again_after_a_pause() {
    let (outcome, took, retries) = patient_call(vec![Err(full(Duration::from_millis(100))), Ok((40, 1))]).await;
    assert_eq!((outcome.unwrap(), retries), (40, vec![false, true]));
    // The first pause of the retry policy is 10 to 30 ms.
    assert!((Duration::from_millis(110)..Duration::from_millis(132)).contains(&took), "{took:?}");
    // The longest retry time that is respected.
    let (outcome, took, _) = patient_call(vec![Err(full(Duration::from_secs(9))), Ok((40, 1))]).await;
    assert!(outcome.is_ok() && took < Duration::from_millis(2_032), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_capacity_waits_for_nothing_else() {
    for error in [refusal(ErrorKind::Unavailable), error(ErrorKind::Overloaded, true, false, None), error_of_a_run()] {
        let (outcome, _, retries) = patient_call(vec![Err(error)]).await;
        assert_eq!((outcome.unwrap_err().message(), retries), ("there", vec![false]));
    }
    let cluster = Cluster::new(Script::default(), [Err(full(Duration::from_millis(100)))]);
    let node = cluster.serve(App::new().route("/route", Pipeline::<u64, u64>::remote("first"))).await;
    assert_eq!(call(&node, 1).await.unwrap_err().kind(), ErrorKind::Overloaded, "a single call does not wait");
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_first_stage_must_not_run_again_may_not_be_repeated() {
    for runs_once in [false, true] {
        let cluster = Cluster::new(Script { runs_once, ..Script::default() }, [Ok((1, 1)), Ok((1, 1))]);
        let pipeline = Pipeline::<u64, u64>::remote("first").then(waiting(add(&Arc::default())));
        let node = cluster.serve(App::new().route("/route", pipeline)).await;
        let (first, second) = tokio::join!(call(&node, 1), call(&node, 1));
        let error = first.and(second).unwrap_err();
        assert_eq!((error.kind(), error.was_started()), (ErrorKind::Overloaded, true));
        assert_eq!(error.is_retryable(), !runs_once);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_begins_where_the_cluster_prefers() {
    let count = || StreamStage::each("count", |n: &u64| stream::iter((0..*n).map(Ok))).credit(3);
    let read = async |cluster: &Cluster| {
        let node = cluster.serve(App::new().route_streaming("/count", count())).await;
        let replies = node.client().replies::<u64, u64>("/count", 3).unwrap();
        replies.map(Result::unwrap).collect::<Vec<_>>().await
    };
    let there = Cluster::preferred([Ok((40, 1))]);
    assert_eq!(read(&there).await, [40, 40]);
    assert_eq!((there.call(0).credit, there.call(0).revision), (3, Some(7)));
    let here = Cluster::new(Script { offers: true, ..Script::default() }, []);
    assert_eq!(read(&here).await, [0, 1, 2]);
}
