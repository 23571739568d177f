//! A pipeline of Python code, run by the engine of a node in the process of a test.
//!
//! The node is a real one: it queues, batches, joins and cancels. Its stages are in Python, which takes their batches
//! as [events](Engine::take), runs them in a thread of its own and [answers](Engine::answer).
//!
//! * **Full:** the bounds are those of a node: a call that finds the queue of a stage full ends as `Overloaded`.
//! * **Cancelled:** [`cancel`](Engine::cancel) ends a call. When the last caller of a batch leaves, an event tells
//!   Python; the callers of the other members of a failed ensemble leave too.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use callboard_codec::{DataType, DecodeLimits, Format, Value};
use callboard_core::description::{PipelinePlan, Planned};
use callboard_core::{
    App, AsyncStreamWorker, AsyncWorker, Batch, CallError, CallOptions, Deadline, ErrorKind, Failure, Limits,
    LocalClient, Node, RouteSpec, Stage, StreamStage,
};
use futures_util::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::ending::Inside;
use crate::failure::Fault;
use crate::inbox::{Inbox, Messages};
use crate::options::seconds;
use crate::own::Own;

const ROUTE: &str = "/app";

/// The outputs of an item, and the failure that ended it.
type Answer = (Vec<Bytes>, Option<Failure>);

/// A failure: its kind, its message, and Python's number of the exception, which comes back as the details of the
/// error.
type Told = (String, String, u64);

/// What Python has to do.
#[derive(Debug)]
enum Event {
    /// Run this batch of a stage: its items with the numbers of their calls.
    Run { batch: u64, stage: String, items: Vec<(u64, Bytes)> },
    /// The callers of this batch have left.
    Left { batch: u64 },
    /// This call has ended.
    Ended { call: u64, outputs: Vec<Bytes>, error: Option<CallError> },
}

/// A running pipeline.
#[pyclass(frozen, module = "callboard._native")]
pub(crate) struct Engine {
    running: Own<Running>,
    events: Inbox<Event>,
}

struct Running {
    runtime: Runtime,
    node: Node,
    batches: Arc<Batches>,
    calls: Mutex<HashMap<u64, AbortHandle>>,
}

/// The batches that Python has to answer.
#[derive(Debug)]
struct Batches {
    next: AtomicU64,
    open: Mutex<HashMap<u64, oneshot::Sender<Vec<Answer>>>>,
    events: Arc<Messages<Event>>,
}

#[pymethods]
impl Engine {
    /// Starts a node with the pipeline of this plan, an envelope in the grammar of files. The stages are name, whether
    /// it streams, the largest batch, and how many batches run at once.
    #[new]
    fn new(py: Python<'_>, plan: PyBackedBytes, stages: Vec<(String, bool, usize, u32)>) -> PyResult<Self> {
        let _inside = Inside::enter(py);
        let wrong = |error: String| PyValueError::new_err(format!("plan: {error}"));
        let plan = decoded(Bytes::from_owner(plan)).and_then(|plan| plan.deserialize());
        let plan: PipelinePlan<String> = plan.map_err(|error| wrong(error.to_string()))?;
        let events = Inbox::new()?;
        let sent = events.messages().map_err(|fault| fault.exception(py, None))?;
        let batches = Arc::new(Batches { next: AtomicU64::new(0), open: Mutex::default(), events: sent });
        let stages: HashMap<String, Planned> =
            stages.into_iter().map(|stage| (stage.0.clone(), python_stage(stage, &batches))).collect();
        if let Some(unknown) = plan.stages().into_iter().find(|name| !stages.contains_key(*name)) {
            return Err(wrong(format!("there is no stage `{unknown}`")));
        }
        let pipeline = plan.build(&|name| stages[name].clone()).map_err(|error| wrong(error.to_string()))?;
        let route = match pipeline {
            Planned::Single(pipeline) => RouteSpec::described(ROUTE, pipeline, DataType::value(), DataType::value()),
            Planned::Stream(pipeline) => {
                RouteSpec::described_streaming(ROUTE, pipeline, DataType::value(), DataType::value())
            }
        };
        // A test may stop in a debugger.
        let limits = Limits { default_timeout: Deadline::MAX_TIMEOUT, ..Limits::default() };
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("callboard-engine").enable_all().build()?;
        let node = runtime.block_on(App::new().mount(route).limits(limits).start());
        let node = node.map_err(|error| wrong(error.to_string()))?;
        Ok(Self { running: Own::new(Running { runtime, node, batches, calls: Mutex::default() }), events })
    }

    /// The socket that is readable while there are events.
    fn fileno(&self) -> i32 {
        self.events.fileno()
    }

    /// The events since the last time: `("run", batch, stage, [(call, envelope)])`, `("left", batch)`, and
    /// `("ended", call, [envelope], failure)`.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let _inside = Inside::enter(py);
        self.events.take().into_iter().map(|event| self.to_python(py, event)).collect()
    }

    /// Starts the call of this number.
    #[pyo3(signature = (call, envelope, timeout=None))]
    fn call(&self, py: Python<'_>, call: u64, envelope: PyBackedBytes, timeout: Option<f64>) -> PyResult<()> {
        let _inside = Inside::enter(py);
        let running = self.running(py)?;
        let events = Arc::clone(&running.batches.events);
        let mut options = CallOptions::new().with_request_id(call.to_string());
        if let Some(timeout) = timeout {
            options = options.with_timeout(seconds("timeout", timeout)?);
        }
        let client = running.node.client();
        let input = decoded(Bytes::from_owner(envelope)).map_err(|error| PyValueError::new_err(error.to_string()))?;
        // Locked before it can end.
        let mut calls = running.calls.lock();
        let calling = async move {
            let (outputs, error) = exchange(&client, input, options).await;
            events.push(Event::Ended { call, outputs, error });
        };
        calls.insert(call, running.runtime.spawn(calling).abort_handle());
        Ok(())
    }

    /// Cancels this call, unless it has ended.
    fn cancel(&self, call: u64) {
        if let Some(task) = self.running.get().ok().and_then(|running| running.calls.lock().remove(&call)) {
            task.abort();
        }
    }

    /// Answers a batch: for each item its outputs, and the failure that ended it.
    fn answer(&self, batch: u64, answers: Vec<(Vec<PyBackedBytes>, Option<Told>)>) {
        let Ok(running) = self.running.get() else { return };
        let Some(port) = running.batches.open.lock().remove(&batch) else { return };
        let answer = |(outputs, told): (Vec<_>, Option<_>)| {
            (outputs.into_iter().map(Bytes::from_owner).collect(), told.map(failure))
        };
        // The callers may have left in this moment.
        let _ = port.send(answers.into_iter().map(answer).collect());
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let Some(Running { runtime, node, .. }) = self.running.take() else { return };
        node.abort();
        runtime.shutdown_background();
    }
}

impl Engine {
    fn running(&self, py: Python<'_>) -> PyResult<&Running> {
        self.running.get().map_err(|fault| fault.exception(py, None))
    }

    fn to_python<'py>(&self, py: Python<'py>, event: Event) -> PyResult<Bound<'py, PyAny>> {
        let bytes = |outputs: Vec<Bytes>| outputs.iter().map(|output| PyBytes::new(py, output)).collect::<Vec<_>>();
        Ok(match event {
            Event::Run { batch, stage, items } => {
                let items: Vec<_> = items.into_iter().map(|(call, item)| (call, PyBytes::new(py, &item))).collect();
                ("run", batch, stage, items).into_pyobject(py)?.into_any()
            }
            Event::Left { batch } => ("left", batch).into_pyobject(py)?.into_any(),
            Event::Ended { call, outputs, error } => {
                self.running(py)?.calls.lock().remove(&call);
                let failure = error.map(|error| Fault::Call(error).exception(py, None).into_value(py));
                ("ended", call, bytes(outputs), failure).into_pyobject(py)?.into_any()
            }
        })
    }
}

/// The outputs of a call, and the error that ended it.
async fn exchange(client: &LocalClient, input: Value, options: CallOptions) -> (Vec<Bytes>, Option<CallError>) {
    let mut outputs = Vec::new();
    let mut replies = match client.replies_with::<Value, Value>(ROUTE, input, options) {
        Ok(replies) => replies,
        Err(error) => return (outputs, Some(error)),
    };
    while let Some(reply) = replies.next().await {
        match reply.and_then(|output| Ok(output.encode(Format::Envelope)?)) {
            Ok(output) => outputs.push(output),
            Err(error) => return (outputs, Some(error)),
        }
    }
    (outputs, None)
}

fn decoded(envelope: Bytes) -> Result<Value, callboard_codec::DecodeError> {
    Value::decode(Format::Envelope, &envelope, &DecodeLimits::default())
}

// ---- Stages ---------------------------------------------------------------------------------------------------------

fn python_stage(
    (name, streams, max_batch_size, concurrency): (String, bool, usize, u32),
    batches: &Arc<Batches>,
) -> Planned {
    let worker = PythonWorker { stage: name.clone(), batches: Arc::clone(batches) };
    let worker = move |_: &callboard_core::Replica| Ok(worker.clone());
    if streams {
        let stage = StreamStage::async_batch_worker(name, worker).max_batch_size(max_batch_size);
        Planned::Stream(stage.concurrency(concurrency).into())
    } else {
        let stage = Stage::async_worker(name, worker).max_batch_size(max_batch_size);
        Planned::Single(stage.concurrency(concurrency).into())
    }
}

/// Gives its batches to Python.
#[derive(Clone, Debug)]
struct PythonWorker {
    stage: String,
    batches: Arc<Batches>,
}

/// A batch that Python runs. Dropped before its answer, its callers have left.
struct OpenBatch {
    number: u64,
    batches: Arc<Batches>,
}

impl Drop for OpenBatch {
    fn drop(&mut self) {
        if self.batches.open.lock().remove(&self.number).is_some() {
            self.batches.events.push(Event::Left { batch: self.number });
        }
    }
}

impl PythonWorker {
    async fn answers(&self, batch: &Batch<Value>) -> Vec<Answer> {
        let failed = |failure| batch.iter().map(|_| (Vec::new(), Some(Failure::clone(&failure)))).collect();
        self.run(batch).await.unwrap_or_else(failed)
    }

    async fn run(&self, batch: &Batch<Value>) -> Result<Vec<Answer>, Failure> {
        let item = |(index, item): (usize, &Value)| -> Result<(u64, Bytes), Failure> {
            let call = batch.context(index).request_id().and_then(|id| id.parse().ok()).unwrap_or_default();
            Ok((call, item.encode(Format::Envelope)?))
        };
        let items = batch.iter().enumerate().map(item).collect::<Result<_, _>>()?;
        let (port, answers) = oneshot::channel();
        let number = self.batches.next.fetch_add(1, Ordering::Relaxed);
        self.batches.open.lock().insert(number, port);
        let _open = OpenBatch { number, batches: Arc::clone(&self.batches) };
        self.batches.events.push(Event::Run { batch: number, stage: self.stage.clone(), items });
        answers.await.map_err(|_| Failure::new("the test client has ended"))
    }
}

fn read(output: Bytes) -> Result<Value, Failure> {
    decoded(output).map_err(|error| Failure::new(format!("the output cannot be read: {error}")))
}

fn failure((kind, message, number): Told) -> Failure {
    let failure = ErrorKind::from_name(&kind).filter(|kind| *kind != ErrorKind::Failed);
    let failure = failure.map_or_else(|| Failure::new(&*message), |kind| CallError::new(kind, &*message).into());
    failure.with_details(number)
}

impl AsyncWorker for PythonWorker {
    type In = Value;
    type Out = Value;

    async fn call(&self, batch: Batch<Value>) -> Vec<Result<Value, Failure>> {
        let outcome = |(outputs, failure): Answer| match (failure, outputs.into_iter().next()) {
            (Some(failure), _) => Err(failure),
            (None, Some(output)) => read(output),
            (None, None) => Err(Failure::new("there is no output")),
        };
        self.answers(&batch).await.into_iter().map(outcome).collect()
    }
}

impl AsyncStreamWorker for PythonWorker {
    type In = Value;
    type Out = Value;

    fn call(&self, batch: Batch<Value>) -> impl Stream<Item = (usize, Result<Value, Failure>)> + Send {
        let answered = async move {
            let answers = self.answers(&batch).await.into_iter().enumerate();
            let outputs = answers.flat_map(|(index, (outputs, failure))| {
                let outputs = outputs.into_iter().map(read).chain(failure.map(Err));
                outputs.map(move |output| (index, output)).collect::<Vec<_>>()
            });
            stream::iter(outputs.collect::<Vec<_>>())
        };
        stream::once(answered).flatten()
    }
}
