//! The child's side of an isolated stage: reads messages on one thread, runs batches on another.
//!
//! The reader sees callers that leave while the worker computes, and the end of the node. Synchronous code has one
//! batch at a time on its thread; asynchronous code has a task for each.

use std::collections::HashMap;
use std::io;
use std::process;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use callboard_codec::{DecodeLimits, Payload};
use callboard_core::edge::{ErrorParts, contain, contain_future};
use callboard_core::isolation::{
    IsolatedCall, IsolatedItem, IsolatedNode, IsolatedOutcome, IsolatedReplica, ReplicaPlace, StageCode,
};
use futures_util::future::{Either, join, join_all, select};
use parking_lot::{Condvar, Mutex};
use tokio::sync::{SemaphorePermit, mpsc};

use super::messages::{Batch, EndReason, Messages, OpenBatch, connect, has_left, is_readable};
use super::node::Node;
use super::{ServeWorkerError, log};
use crate::frame::limits;
use crate::message::{AHEAD, CREDIT, FromChild, LogMessage, OutputMessage, Start};

/// The exit code of a Rust program that has panicked.
const PANICKED: i32 = 101;

/// Serves a replica of the stage until the node ends it, and ends the process.
pub(crate) fn serve_and_exit(code: StageCode) -> ! {
    // The caller's thread may belong to a runtime, which a worker with a runtime of its own would refuse.
    let serving = thread::Builder::new().name("callboard-node".to_owned()).spawn(move || serve(code));
    match serving.map(JoinHandle::join) {
        Ok(Ok(served)) => {
            or_end(served);
            exit(0)
        }
        Ok(Err(_panic)) => exit(PANICKED),
        Err(error) => fail(&error.to_string()),
    }
}

#[expect(clippy::exit, reason = "the process is the replica, and `main` must not go on")]
fn exit(code: i32) -> ! {
    process::exit(code)
}

/// Says why in the last line, which the node reads.
fn fail(message: &str) -> ! {
    use io::Write as _;
    let _ = writeln!(io::stderr(), "{message}");
    exit(1)
}

/// Without its node the process ends.
fn or_end<T>(result: Result<T, ServeWorkerError>) -> T {
    result.unwrap_or_else(|error| match error {
        ServeWorkerError::Socket(error) => fail(&format!("the socket of the node failed: {error}")),
        error => fail(&error.to_string()),
    })
}

/// The messages of the node, which both threads read.
struct SharedMessages {
    messages: Mutex<Messages>,
    has_come: Condvar,
}

/// Reads messages until the node sends `stop`, or ends.
fn serve(code: StageCode) -> Result<(), ServeWorkerError> {
    let (mut messages, node) = connect()?;
    // By this message the node knows that the program reached its stage.
    let (level, message) = ("debug".to_owned(), "the program has come to its stage".to_owned());
    node.send(&FromChild::Log(LogMessage { level, message, ..LogMessage::default() }), &[])?;
    let records = node.clone();
    log::send_by(move |record| or_end(records.send(record, &[])));
    let Some(start) = messages.start()? else { return Ok(()) };
    let own_node = IsolatedNode::start().unwrap_or_else(|failure| {
        or_end(node.failed(&failure));
        exit(1)
    });
    messages.client = Some(own_node.client());
    let socket = messages.socket()?;
    let shared = Arc::new(SharedMessages { messages: Mutex::new(messages), has_come: Condvar::new() });
    let worker = start_worker(code, own_node, start, node, Arc::clone(&shared))?;
    loop {
        is_readable(&socket, None)?;
        let mut messages = shared.messages.lock();
        messages.look()?;
        shared.has_come.notify_one();
        match messages.end {
            None => {}
            Some(EndReason::Gone) => exit(0),
            Some(EndReason::Stop) => {
                drop(messages);
                // The node kills a worker that takes too long.
                let _ = worker.join();
                return Ok(());
            }
        }
    }
}

impl SharedMessages {
    /// Waits for the next batch. `None`: the node sends no more.
    fn next(&self) -> Option<Batch> {
        let mut messages = self.messages.lock();
        loop {
            match or_end(messages.next()) {
                None if messages.end.is_none() => self.has_come.wait(&mut messages),
                next => return next,
            }
        }
    }
}

/// Starts the worker's thread, which ends the process when the worker has cleaned up.
fn start_worker(
    code: StageCode,
    own_node: IsolatedNode,
    start: Start,
    node: Node,
    shared: Arc<SharedMessages>,
) -> io::Result<JoinHandle<()>> {
    let name = format!("{}-{}", start.stage, start.replica);
    thread::Builder::new().name(name).spawn(move || {
        let Start { replica: index, generation, max_batch_size, max_bytes, settings, max_batches, .. } = start;
        let place = ReplicaPlace { index, generation, max_batch_size, settings };
        let mut replica = match code.build(own_node, place) {
            Ok(replica) => replica,
            Err(failure) => {
                or_end(node.failed(&failure));
                exit(1)
            }
        };
        let max_batches = max_batches.filter(|_| code.is_async()).unwrap_or(1) as usize;
        // Asynchronous code begins each batch when it arrives, and answers in any order. So the node could not tell
        // whether a batch ahead began before the child died: only a batch that did not begin runs elsewhere.
        let ahead = if code.is_async() { 0 } else { start.ahead.unwrap_or_default().min(AHEAD) };
        or_end(node.ready(start.shared_memory, (max_batches, ahead), replica.note()));
        // A panic ends the replica. It has been printed.
        if contain(|| work(&code, &mut replica, &shared, &node, max_bytes)).is_err() {
            exit(PANICKED);
        }
        replica.cleanup();
        drop(replica);
        exit(0)
    })
}

fn work(code: &StageCode, replica: &mut IsolatedReplica, shared: &SharedMessages, node: &Node, max_bytes: u64) {
    let (mut running, limits) = (Vec::new(), limits(max_bytes));
    while let Some(batch) = shared.next() {
        let Prepared { items, outputs, errors } = prepare(code, &batch, &limits);
        let passing = pass_on(outputs, Arc::clone(&batch.open), batch.id, node.clone());
        if code.is_async() {
            running.retain(|task: &tokio::task::JoinHandle<()>| !task.is_finished());
            running.push(run_async(replica, items, passing, errors, batch, node.clone()));
        } else {
            let passing = code.is_streaming().then(|| replica.runtime().spawn(passing));
            let outcomes = if items.is_empty() { Vec::new() } else { replica.run(items) };
            let broken = passing.and_then(|passing| replica.runtime().block_on(passing).ok()?);
            answer(outcomes, errors, broken, batch, node);
        }
    }
    replica.runtime().block_on(join_all(running));
}

/// Runs a batch of asynchronous code as a task. If its only caller leaves, the code is dropped.
fn run_async(
    replica: &IsolatedReplica,
    items: Vec<IsolatedItem>,
    passing: impl Future<Output = Broken> + Send + 'static,
    mut errors: Vec<Option<Box<ErrorParts>>>,
    batch: Batch,
    node: Node,
) -> tokio::task::JoinHandle<()> {
    let running = replica.run_async(items);
    replica.runtime().spawn(async move {
        let open = &*batch.open;
        let left = async {
            open.cancelled.notified().await;
            // Without concurrency a batch has several items: the other callers still wait.
            if open.calls.len() > 1 {
                std::future::pending::<()>().await;
            }
        };
        let ended = join(contain_future(running), passing);
        let (outcomes, broken) = match select(Box::pin(ended), Box::pin(left)).await {
            Either::Left(((Ok(outcomes), broken), _)) => (outcomes, broken),
            // A panic ends the replica. It has been printed.
            Either::Left(((Err(_), _), _)) => exit(PANICKED),
            Either::Right(_) => {
                errors.fill_with(|| Some(has_left()));
                Default::default()
            }
        };
        answer(outcomes, errors, broken, batch, &node);
    })
}

/// A batch as the worker takes it.
#[derive(Default)]
struct Prepared {
    items: Vec<IsolatedItem>,
    /// The outputs of streams, with the index of their item.
    outputs: Vec<(usize, mpsc::Receiver<Payload>)>,
    /// By the index of the item; of an item that does not run, its error.
    errors: Vec<Option<Box<ErrorParts>>>,
}

fn prepare(code: &StageCode, batch: &Batch, limits: &DecodeLimits) -> Prepared {
    let mut prepared = Prepared::default();
    for (index, (input, call)) in batch.items(limits).enumerate() {
        match input {
            Ok(input) if code.is_streaming() => {
                let (item, outputs) = IsolatedItem::streaming(input, call, CREDIT);
                prepared.items.push(item);
                prepared.outputs.push((index, outputs));
                prepared.errors.push(None);
            }
            Ok(input) => {
                prepared.items.push(IsolatedItem::new(input, call));
                prepared.errors.push(None);
            }
            Err(error) => prepared.errors.push(Some(error)),
        }
    }
    prepared
}

/// The streams of a batch with an output that cannot be sent, by the index of their item.
type Broken = Option<HashMap<usize, Box<ErrorParts>>>;

/// Sends the outputs of streams as they come, until all of them have ended.
async fn pass_on(outputs: Vec<(usize, mpsc::Receiver<Payload>)>, open: Arc<OpenBatch>, id: u64, node: Node) -> Broken {
    let is_streaming = !outputs.is_empty();
    let passing = outputs.into_iter().map(async |(item, mut outputs)| {
        let mut is_first = true;
        loop {
            // The semaphore is never closed.
            open.credit.acquire().await.into_iter().for_each(SemaphorePermit::forget);
            match node.output(&outputs.recv().await?) {
                Ok(part) => {
                    let chosen = std::mem::take(&mut is_first).then(|| open.calls[item].response()).flatten();
                    let output = OutputMessage { id, item, response: chosen.map(Into::into) };
                    or_end(node.send(&FromChild::Output(output), &[part]));
                }
                Err(error) => return Some((item, error)),
            }
        }
    });
    let broken = join_all(passing).await.into_iter().flatten().collect();
    is_streaming.then_some(broken)
}

/// Sends the outcomes of a batch: of items that ran, in order, and the errors of the others.
fn answer(
    outcomes: Vec<IsolatedOutcome>,
    errors: Vec<Option<Box<ErrorParts>>>,
    mut streams: Broken,
    batch: Batch,
    node: &Node,
) {
    let (mut outcomes, mut sent) = (outcomes.into_iter(), node.outcomes());
    for (index, error) in errors.into_iter().enumerate() {
        let outcome = error.map_or_else(|| outcomes.next().expect("one outcome for each item"), Err);
        let broken = streams.as_mut().and_then(|streams| streams.remove(&index));
        let outcome = broken.map_or(outcome, Err);
        let chosen = batch.open.calls.get(index).and_then(IsolatedCall::response);
        sent.push(outcome.map(|output| streams.is_none().then_some(output)), chosen);
    }
    or_end(sent.send(batch.id, node));
    node.calls().end_all_of(batch.id);
}
