//! Batches that are handed over ahead of their turn.

use std::sync::Arc;

use callboard_core::{
    App, AsyncWorker, Batch, CallError, CallOptions, ErrorKind, Failure, Node, Priority, Stage, WorkerExit,
};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::support::until;

/// What the worker was given, and what it has begun with.
#[derive(Default)]
struct Log {
    given: Mutex<Vec<String>>,
    begun: Mutex<Vec<String>>,
}

/// One batch at a time, in order, when it may. It ends at "crash", with all that it was given ahead.
struct Serial {
    log: Arc<Log>,
    may: Arc<Semaphore>,
    has_ended: tokio::sync::Mutex<bool>,
}

impl AsyncWorker for Serial {
    type In = String;
    type Out = String;

    async fn call(&self, mut batch: Batch<String>) -> Vec<Result<String, Failure>> {
        let mut turn = batch.take_turn();
        self.log.given.lock().extend(batch.iter().cloned());
        let mut has_ended = self.has_ended.lock().await;
        if *has_ended {
            WorkerExit::new("it has ended").unwind();
        }
        turn.begin();
        self.log.begun.lock().extend(batch.iter().cloned());
        self.may.acquire().await.expect("an open semaphore").forget();
        if batch.iter().any(|item| item == "crash") {
            *has_ended = true;
            drop(has_ended);
            WorkerExit::new("it has ended").unwind();
        }
        batch.into_inputs().into_iter().map(Ok).collect()
    }
}

struct Serving {
    node: Node,
    log: Arc<Log>,
    may: Arc<Semaphore>,
}

impl Serving {
    async fn start(max_batch_size: usize) -> Self {
        let (log, may) = (Arc::<Log>::default(), Arc::new(Semaphore::new(0)));
        let (logs, permits) = (Arc::clone(&log), Arc::clone(&may));
        let stage = Stage::async_worker("serial", move |_| {
            let (log, may) = (Arc::clone(&logs), Arc::clone(&permits));
            Ok(Serial { log, may, has_ended: tokio::sync::Mutex::new(false) })
        });
        let stage = stage.concurrency(1).hands_ahead().max_batch_size(max_batch_size);
        Self { node: App::new().route("/serial", stage).start().await.unwrap(), log, may }
    }

    fn call(&self, item: &'static str) -> JoinHandle<Result<String, CallError>> {
        self.call_with(item, CallOptions::new())
    }

    fn call_with(&self, item: &'static str, options: CallOptions) -> JoinHandle<Result<String, CallError>> {
        let client = self.node.client();
        tokio::spawn(async move { client.call_with("/serial", item.to_owned(), options).await })
    }

    /// Calls, and waits until the worker was given the item.
    async fn given(&self, item: &'static str) -> JoinHandle<Result<String, CallError>> {
        let call = self.call(item);
        until("the worker has it", || self.log.given.lock().iter().any(|given| given == item)).await;
        call
    }
}

#[tokio::test]
async fn a_batch_that_was_not_begun_outlives_its_worker_under_every_contract() {
    let serving = Serving::start(1).await;
    let (crash, ahead) = (serving.given("crash").await, serving.given("ahead").await);
    assert_eq!(*serving.log.begun.lock(), ["crash"]);
    serving.may.add_permits(2);
    assert_eq!(crash.await.unwrap().unwrap_err().kind(), ErrorKind::WorkerFailed);
    assert_eq!(ahead.await.unwrap().unwrap(), "ahead");
    assert_eq!(
        (&**serving.log.begun.lock(), &**serving.log.given.lock()),
        (
            &["crash".to_owned(), "ahead".to_owned()][..],
            &["crash".to_owned(), "ahead".to_owned(), "ahead".to_owned()][..],
        )
    );
}

/// Else it would wait behind one crash after the other, while other replicas become free.
#[tokio::test]
async fn a_batch_that_came_back_is_not_handed_ahead_again() {
    let serving = Serving::start(1).await;
    let (crash, ahead) = (serving.given("crash").await, serving.given("ahead").await);
    let urgent = CallOptions::new().with_priority(Priority::High);
    let other = serving.call_with("crash", urgent);
    until("it is queued", || serving.node.describe().stages[0].queued == 1).await;
    serving.may.add_permits(1);
    assert_eq!(crash.await.unwrap().unwrap_err().kind(), ErrorKind::WorkerFailed);
    until("the next crash runs", || *serving.log.begun.lock() == ["crash", "crash"]).await;
    assert_eq!(serving.node.describe().stages[0].queued, 1);
    serving.may.add_permits(2);
    assert_eq!(other.await.unwrap().unwrap_err().kind(), ErrorKind::WorkerFailed);
    assert_eq!(ahead.await.unwrap().unwrap(), "ahead");
    assert_eq!(*serving.log.given.lock(), ["crash", "ahead", "crash", "ahead"]);
}

#[tokio::test]
async fn a_call_that_leaves_before_its_turn_never_runs() {
    let serving = Serving::start(1).await;
    let (first, leaves) = (serving.given("first").await, serving.given("leaves").await);
    leaves.abort();
    until("it has left", || serving.node.describe().in_flight == 1).await;
    let last = serving.given("last").await;
    serving.may.add_permits(2);
    assert_eq!((first.await.unwrap().unwrap(), last.await.unwrap().unwrap()), ("first".to_owned(), "last".to_owned()));
    assert_eq!(*serving.log.begun.lock(), ["first", "last"]);
}

#[tokio::test]
async fn a_batch_that_may_grow_waits_in_the_queue() {
    let serving = Serving::start(2).await;
    let first = serving.given("first").await;
    let second = serving.call("second");
    until("it is queued", || serving.node.describe().stages[0].queued == 1).await;
    assert_eq!(*serving.log.given.lock(), ["first"]);
    let third = serving.given("third").await;
    assert_eq!(*serving.log.given.lock(), ["first", "second", "third"]);
    serving.may.add_permits(2);
    for call in [first, second, third] {
        assert!(call.await.unwrap().is_ok());
    }
}
