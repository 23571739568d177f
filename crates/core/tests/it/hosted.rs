//! Stages that the replicas of another stage run: one worker, one order, batches of one stage each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::{
    App, AsyncWorker, Batch, CallOptions, Diagram, ErrorKind, Failure, Node, Rollout, RouteChange, RouteSpec, Stage,
};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::support::{hide_panics, until};

/// The batches of all stages, as their one worker had them.
#[derive(Default)]
struct Log {
    batches: Mutex<Vec<(String, Vec<u64>)>>,
    workers: AtomicUsize,
}

/// Answers with the name of the stage. Each batch waits for a permit; 13 panics, and 99 never ends.
struct Named {
    log: Arc<Log>,
    may: Arc<Semaphore>,
}

impl AsyncWorker for Named {
    type In = u64;
    type Out = String;

    async fn call(&self, batch: Batch<u64>) -> Vec<Result<String, Failure>> {
        let stage = batch.stage().to_string();
        self.log.batches.lock().push((stage.clone(), batch.iter().copied().collect()));
        self.may.acquire().await.expect("an open semaphore").forget();
        assert!(batch.iter().all(|n| *n != 13), "unlucky");
        if batch.iter().any(|n| *n == 99) {
            std::future::pending::<()>().await;
        }
        batch.iter().map(|n| Ok(format!("{stage} {n}"))).collect()
    }
}

struct Serving {
    node: Node,
    log: Arc<Log>,
    may: Arc<Semaphore>,
}

type NamedStage = Stage<u64, String>;

fn stages(log: &Arc<Log>, may: &Arc<Semaphore>) -> (NamedStage, NamedStage) {
    let worker = |log: &Arc<Log>, may: &Arc<Semaphore>| {
        let (log, may) = (Arc::clone(log), Arc::clone(may));
        move |_: &callboard_core::Replica| {
            log.workers.fetch_add(1, Ordering::SeqCst);
            Ok(Named { log: Arc::clone(&log), may: Arc::clone(&may) })
        }
    };
    let host = Stage::async_worker("host", worker(log, may)).concurrency(1).max_batch_size(2).queue(4);
    let hosted = Stage::async_worker("hosted", worker(log, may)).max_batch_size(3).queue(4);
    (host, hosted)
}

impl Serving {
    async fn start(change: impl FnOnce(NamedStage, NamedStage) -> (NamedStage, NamedStage)) -> Self {
        let (log, may) = (Arc::<Log>::default(), Arc::new(Semaphore::new(0)));
        let (host, hosted) = stages(&log, &may);
        let (host, hosted) = change(host, hosted);
        let hosted = hosted.hosted_by(&host.as_host());
        let node = App::new().route("/host", host).route("/hosted", hosted).start().await.unwrap();
        Self { node, log, may }
    }

    fn call(&self, route: &str, n: u64) -> JoinHandle<Result<String, callboard_core::CallError>> {
        let (client, route) = (self.node.client(), route.to_owned());
        tokio::spawn(async move { client.call::<u64, String>(&route, n).await })
    }

    /// Calls, and waits until the call is in a batch or in a queue.
    async fn queue(&self, route: &str, n: u64) -> JoinHandle<Result<String, callboard_core::CallError>> {
        let here = || {
            let queued: usize = self.node.describe().stages.iter().map(|stage| stage.queued).sum();
            queued + self.log.batches.lock().iter().map(|(_, items)| items.len()).sum::<usize>()
        };
        let before = here();
        let call = self.call(route, n);
        until("it waits or runs", || here() > before).await;
        call
    }

    fn batches(&self) -> Vec<(String, Vec<u64>)> {
        self.log.batches.lock().clone()
    }
}

fn as_is(host: NamedStage, hosted: NamedStage) -> (NamedStage, NamedStage) {
    (host, hosted)
}

#[tokio::test]
async fn stages_of_one_worker_run_in_one_order_in_batches_of_their_own() {
    let serving = Serving::start(as_is).await;
    assert_eq!(serving.log.workers.load(Ordering::SeqCst), 1, "one worker for both");
    let mut calls = vec![serving.queue("/host", 0).await];
    for (route, n) in [("/hosted", 1), ("/host", 2), ("/hosted", 3), ("/host", 4), ("/host", 5), ("/hosted", 6)] {
        calls.push(serving.queue(route, n).await);
    }
    serving.may.add_permits(100);
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.unwrap().unwrap());
    }
    assert_eq!(answers, ["host 0", "hosted 1", "host 2", "hosted 3", "host 4", "host 5", "hosted 6"]);
    let batch = |stage: &str, items: &[u64]| (stage.to_owned(), items.to_vec());
    let expected = [batch("host", &[0]), batch("hosted", &[1, 3, 6]), batch("host", &[2, 4]), batch("host", &[5])];
    assert_eq!(serving.batches(), expected, "each within its own largest batch, in the order of the first entries");
}

#[tokio::test]
async fn a_full_queue_of_one_stage_refuses_and_starves_no_other() {
    let serving = Serving::start(as_is).await;
    let mut flood = vec![serving.queue("/host", 0).await];
    for n in 1..=4 {
        flood.push(serving.queue("/host", n).await);
    }
    let refused = serving.call("/host", 5).await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Overloaded);
    assert!(refused.message().contains("`host`"), "{refused}");
    let other = serving.queue("/hosted", 7).await;
    serving.may.add_permits(3);
    for call in flood.drain(..3) {
        call.await.unwrap().unwrap();
    }
    // Whatever comes now is behind it.
    let later = serving.queue("/host", 8).await;
    serving.may.add_permits(1);
    assert_eq!(other.await.unwrap().unwrap(), "hosted 7");
    serving.may.add_permits(100);
    later.await.unwrap().unwrap();
    let order: Vec<u64> = serving.batches().into_iter().flat_map(|(_, items)| items).collect();
    assert_eq!(order, [0, 1, 2, 3, 4, 7, 8]);
}

#[tokio::test]
async fn a_crash_in_one_stage_ends_the_batch_alone_and_what_waits_runs_in_the_next_worker() {
    hide_panics();
    let serving = Serving::start(as_is).await;
    let crash = serving.queue("/hosted", 13).await;
    let waiting = serving.queue("/host", 1).await;
    serving.may.add_permits(100);
    let error = crash.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.stage()), (ErrorKind::WorkerFailed, Some("hosted")));
    assert_eq!(waiting.await.unwrap().unwrap(), "host 1");
    assert_eq!(serving.log.workers.load(Ordering::SeqCst), 2);
    assert_eq!(serving.call("/hosted", 2).await.unwrap().unwrap(), "hosted 2");
}

#[tokio::test]
async fn the_contract_of_the_stage_whose_batch_crashed_decides_what_runs_again() {
    hide_panics();
    let serving = Serving::start(|host, hosted| (host, hosted.idempotent().crash_retries(0))).await;
    let first = serving.queue("/host", 0).await;
    let calls =
        [serving.queue("/hosted", 1).await, serving.queue("/hosted", 13).await, serving.queue("/hosted", 2).await];
    serving.may.add_permits(100);
    first.await.unwrap().unwrap();
    let mut outcomes = Vec::new();
    for call in calls {
        outcomes.push(call.await.unwrap());
    }
    assert_eq!(outcomes[0].as_deref().unwrap(), "hosted 1");
    assert_eq!(outcomes[1].as_ref().unwrap_err().kind(), ErrorKind::WorkerFailed);
    assert_eq!(outcomes[2].as_deref().unwrap(), "hosted 2");
}

#[tokio::test]
async fn each_stage_has_the_timeout_of_its_own() {
    let short = Duration::from_millis(50);
    let serving = Serving::start(|host, hosted| (host, hosted.timeout(short))).await;
    serving.may.add_permits(100);
    let hung = serving.call("/hosted", 99).await.unwrap().unwrap_err();
    assert_eq!(hung.kind(), ErrorKind::DeadlineExceeded);
    assert!(hung.message().contains("stage `hosted` did not answer within its timeout of 50ms"), "{hung}");
    assert_eq!(serving.call("/host", 1).await.unwrap().unwrap(), "host 1");
}

#[tokio::test]
async fn a_worker_that_cannot_start_is_one_error() {
    let host = Stage::async_worker("host", |_| Err::<Named, _>(Failure::new("no model")));
    let hosted = Stage::async_worker("hosted", |_| Err::<Named, _>(Failure::new("never built")));
    let hosted = hosted.hosted_by(&host.as_host());
    let app = App::new().route("/hosted", hosted).route("/host", host);
    let error = app.start().await.unwrap_err().to_string();
    assert!(error.contains("`host`") && !error.contains("never"), "{error}");
}

#[tokio::test]
async fn replicas_are_those_of_the_host_and_described_once() {
    let serving = Serving::start(|host, hosted| (host.replicas(2), hosted.replicas(7))).await;
    serving.may.add_permits(100);
    serving.node.scale_stage("hosted", 3).await.unwrap();
    let description = serving.node.describe();
    let seen: Vec<_> = description
        .stages
        .iter()
        .map(|stage| {
            (stage.health.name.as_str(), stage.replicas.len(), stage.replicas_of.as_ref().map(|of| of.as_str()))
        })
        .collect();
    assert_eq!(seen, [("host", 3, None), ("hosted", 0, Some("host"))]);
    assert!(serving.node.health().stages.iter().all(|stage| stage.ready));
    serving.call("/hosted", 1).await.unwrap().unwrap();
    let metrics = serving.node.metrics();
    for line in ["callboard_stage_replicas{stage=\"host\"} 3", "callboard_stage_replicas{stage=\"hosted\"} 0"] {
        assert!(metrics.contains(line), "{metrics}");
    }
    assert!(Diagram::for_node(&description).to_dot().contains("replicas of host"));
}

#[tokio::test]
async fn a_stage_may_be_hosted_by_one_that_no_route_uses_and_ends_it_with_its_last_route() {
    let (log, may) = (Arc::<Log>::default(), Arc::new(Semaphore::new(100)));
    let (host, hosted) = stages(&log, &may);
    let hosted = hosted.hosted_by(&host.as_host());
    let node = App::new().route("/hosted", hosted).start().await.unwrap();
    assert_eq!(node.client().call::<u64, String>("/hosted", 1).await.unwrap(), "hosted 1");
    assert_eq!(node.describe().stages.len(), 2);
    // Other lives of both, as after a change of their code.
    let (host, hosted) = stages(&Arc::default(), &may);
    let hosted = hosted.hosted_by(&host.as_host());
    let change =
        RouteChange::new().replace_route(RouteSpec::new("/hosted", hosted)).add_route(RouteSpec::new("/host", host));
    node.change(change).await.unwrap();
    assert_eq!(node.client().call::<u64, String>("/host", 2).await.unwrap(), "host 2");
    assert_eq!(node.client().call::<u64, String>("/hosted", 3).await.unwrap(), "hosted 3");
    until("the first lives have ended", || node.describe().stages.len() == 2).await;
    node.change(RouteChange::new().remove_route("/host")).await.unwrap();
    assert_eq!(node.client().call::<u64, String>("/hosted", 4).await.unwrap(), "hosted 4", "its host stays");
    node.change(RouteChange::new().remove_route("/hosted")).await.unwrap();
    until("both have ended", || node.describe().stages.is_empty()).await;
}

#[tokio::test]
async fn nothing_of_a_hosted_stage_outlives_it() {
    let host = Stage::each_async("host", |n: Arc<u64>| async move { Ok(*n) });
    let revision = |held: &Arc<u64>| {
        let held = Arc::clone(held);
        // The code of its host runs.
        let hosted = Stage::each_async("hosted", move |_: Arc<u64>| {
            let held = Arc::clone(&held);
            async move { Ok(*held) }
        });
        RouteSpec::new("/hosted", hosted.hosted_by(&host.as_host()))
    };
    let mut held = Arc::new(0);
    let node = App::new().route("/host", host.clone()).mount(revision(&held)).start().await.unwrap();
    for number in 1..20 {
        assert_eq!(node.client().call::<u64, u64>("/hosted", number).await.unwrap(), number);
        let ended = std::mem::replace(&mut held, Arc::new(number));
        node.change(RouteChange::new().replace_route(revision(&held))).await.unwrap();
        until("the old revision is gone", || Arc::strong_count(&ended) == 1).await;
    }
}

#[tokio::test]
async fn a_call_of_a_stage_of_the_same_replicas_is_refused() {
    let outer =
        Stage::each_async_with_context("outer", |n: Arc<u64>, context: callboard_core::CallContext| async move {
            Ok(context.client()?.call::<u64, u64>("/inner", *n).await?)
        });
    let inner = Stage::each_async("inner", |n: Arc<u64>| async move { Ok(*n) }).hosted_by(&outer.as_host());
    let node = App::new().route("/outer", outer).route("/inner", inner).start().await.unwrap();
    let options = CallOptions::new().with_timeout(Duration::from_secs(20));
    let error = node.client().call_with::<u64, u64>("/outer", 1, options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert!(error.message().contains("it would wait for its own workers"), "{error}");
}

#[tokio::test]
async fn a_stage_hosted_by_a_hosted_one_has_the_replicas_of_the_first() {
    let (log, may) = (Arc::<Log>::default(), Arc::new(Semaphore::new(100)));
    let (first, second) = stages(&log, &may);
    let second = second.hosted_by(&first.as_host());
    let third = NamedStage::async_worker("third", |_| Err::<Named, _>(Failure::new("never built")));
    let third = third.hosted_by(&second.as_host());
    let node = App::new().route("/third", third).start().await.unwrap();
    assert_eq!(node.client().call::<u64, String>("/third", 1).await.unwrap(), "third 1");
    let stages = node.describe().stages;
    let seen =
        stages.iter().map(|stage| (stage.health.name.as_str(), stage.replicas_of.as_ref().map(|of| of.as_str())));
    assert_eq!(seen.collect::<Vec<_>>(), [("host", None), ("third", Some("host"))]);
}

#[tokio::test]
async fn a_route_whose_stage_runs_in_the_replicas_of_another_route_is_not_rolled_out() {
    let serving = Serving::start(as_is).await;
    let next = || {
        let (host, hosted) = stages(&serving.log, &serving.may);
        let hosted = hosted.hosted_by(&host.as_host());
        (RouteSpec::new("/host", host), RouteSpec::new("/hosted", hosted))
    };
    let canary = || Rollout::canary(0.5);
    let ((host, _), (_, hosted), both, mixed) = (next(), next(), next(), next());
    for change in [
        RouteChange::new().roll_out(host, canary()),
        RouteChange::new().roll_out(hosted, canary()),
        RouteChange::new().roll_out(both.0, canary()).roll_out(both.1, canary()),
        RouteChange::new().roll_out(mixed.0, canary()).replace_route(mixed.1),
    ] {
        let error = serving.node.change(change).await.unwrap_err().to_string();
        assert!(error.contains("routes that share a stage or its replicas change together"), "{error}");
    }
    let (host, hosted) = next();
    serving.node.change(RouteChange::new().replace_route(host).replace_route(hosted)).await.unwrap();
}
