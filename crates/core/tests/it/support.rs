//! Tools of the tests: gates that hold a worker until the test opens them, and bounded waiting for an event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use callboard_core::description::StageState;
use callboard_core::edge::{RouteData, contain};
use callboard_core::{
    App, AsyncWorker, BackoffPolicy, Batch, ErrorKind, Failure, IntoPipeline, Node, Replica, RouteSpec, Stage,
};

/// Longer than any step takes on the slowest machine; only a failing test waits this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Holds worker threads until it is opened, and counts the arrivals.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<bool>, Condvar, AtomicUsize)>);

impl Gate {
    /// Called by user code on a worker's thread.
    pub(crate) fn pass(&self) {
        let (open, changed, arrived) = &*self.0;
        arrived.fetch_add(1, Ordering::SeqCst);
        let open = open.lock().unwrap();
        let (open, timeout) = changed.wait_timeout_while(open, PATIENCE, |open| !*open).unwrap();
        assert!(*open && !timeout.timed_out(), "the test never opened the gate");
    }

    pub(crate) fn open(&self) {
        let (open, changed, _) = &*self.0;
        *open.lock().unwrap() = true;
        changed.notify_all();
    }

    pub(crate) fn arrived(&self) -> usize {
        self.0.2.load(Ordering::SeqCst)
    }
}

/// Hides intended panics from the output, where they would bury a real panic.
///
/// Core's own hook does not note the first panic after a program has set one while a node ran, as other tests may do
/// here: that first panic is this function's.
pub(crate) fn hide_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload_as_str() != Some("meant to panic") {
                tell(info);
            }
        }));
        let _ = contain(|| panic!("meant to panic"));
    });
}

/// Waits until `condition` holds; panics with `what` if it never does.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "never happened: {what}");
}

/// A node with one route.
pub(crate) async fn serve<In, Out>(pipeline: impl IntoPipeline<In, Out = Out>) -> Node
where
    In: RouteData,
    Out: RouteData,
{
    App::new().mount(RouteSpec::new("/route", pipeline)).start().await.expect("the node starts")
}

/// A thread stage of one replica whose calls wait at the gate and then return their input.
pub(crate) fn gated(gate: &Gate) -> Stage<u64, u64> {
    let gate = gate.clone();
    Stage::each("gated", move |number: &u64| {
        gate.pass();
        Ok(*number)
    })
    .on_threads()
}

/// The input that ends the worker of a [`breakable`] stage.
pub(crate) const DEADLY: u64 = 666;

/// Breaks and mends the model of a [`breakable`] stage.
#[derive(Clone, Default)]
pub(crate) struct Model(Arc<(AtomicBool, AtomicUsize)>);

impl Model {
    /// Fails the stage: its replica ends, and cannot be built again.
    pub(crate) async fn fail(&self, node: &Node) {
        hide_panics();
        self.0.0.store(true, Ordering::SeqCst);
        let error = node.client().call::<u64, u64>("/route", DEADLY).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WorkerFailed, "{error}");
        until("the stage has failed", || node.health().stages[0].state == StageState::Failed).await;
    }

    pub(crate) fn mend(&self) {
        self.0.0.store(false, Ordering::SeqCst);
    }

    /// How often a replica was to be built.
    pub(crate) fn built(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }
}

/// A stage that cannot be built while its model is broken.
pub(crate) fn breakable() -> (Stage<u64, u64>, Model) {
    let model = Model::default();
    let built = model.clone();
    let stage = Stage::async_worker("model", move |_: &Replica| {
        let (is_broken, count) = &*built.0;
        count.fetch_add(1, Ordering::SeqCst);
        if is_broken.load(Ordering::SeqCst) { Err(Failure::new("the weights are gone")) } else { Ok(Mortal) }
    });
    let fast = BackoffPolicy { initial: Duration::from_millis(1), ..BackoffPolicy::default() };
    (stage.map_settings(|settings| settings.with_backoff(fast)), model)
}

struct Mortal;

impl AsyncWorker for Mortal {
    type In = u64;
    type Out = u64;

    async fn call(&self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        assert!(batch.iter().all(|n| *n != DEADLY), "meant to panic");
        batch.iter().map(|n| Ok(*n)).collect()
    }
}
