//! A stage's code without its queue and its pool: what runs it in another process than its node.
//!
//! The node of the stage keeps queue, batches, timeouts and restarts, and sends each batch to the other process
//! ([`Stage::run_by`]). That process builds one replica from the same stage ([`StageCode`]), and runs its batches.

use std::fmt;
use std::sync::Arc;

use callboard_codec::{Data, Encoded, Map, Payload, Value};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, channel};

use crate::app::App;
use crate::call::{CallOptions, Flight, NodeElsewhere, Origin, ResponseFields};
use crate::client::LocalClient;
use crate::clock::Instant;
use crate::containment::contain;
use crate::deadline::Deadline;
use crate::error::{ErrorParts, Failure};
use crate::gateway::Limits;
use crate::id::StageName;
use crate::metrics::UsagePort;
use crate::node::BlockingNode;
use crate::stage::{Factory, Stage, StageSpec, StageTypes, StreamStage};
use crate::worker::{
    DynAsyncWorker, DynWorker, ExitPort, Item, ItemOutcome, NotePort, Replica, Turn, WrongCount, warm_up,
};

pub use crate::call::InnerCalls;

/// The code of a stage: how its workers are built, without the settings of its queue.
#[derive(Clone, Debug)]
pub struct StageCode(Arc<StageSpec>);

/// Which replica a process builds, as its node says.
#[derive(Clone, Debug)]
pub struct ReplicaPlace {
    /// See [`Replica::index`].
    pub index: usize,
    /// See [`Replica::generation`].
    pub generation: u64,
    /// See [`Replica::max_batch_size`].
    pub max_batch_size: usize,
    /// See [`Replica::settings`].
    pub settings: Map,
}

/// A replica that this process runs for a node elsewhere.
pub struct IsolatedReplica {
    code: Arc<StageSpec>,
    worker: IsolatedWorker,
    note: NotePort,
    node: IsolatedNode,
}

/// The node of a process that runs a replica: it has the runtime, and the clients for the replica's code. All routes
/// are those of the node elsewhere, which limits the calls.
pub struct IsolatedNode(BlockingNode);

enum IsolatedWorker {
    Sync(Box<dyn DynWorker>),
    Async(Arc<dyn DynAsyncWorker>),
}

/// One item of a batch.
#[derive(Debug)]
pub struct IsolatedItem(Item);

/// The caller of an item, as the process that runs the item sees it.
#[derive(Clone, Debug)]
pub struct IsolatedCall(Arc<Flight>);

/// The outcome of an item. That of a stream comes after its outputs, and has none itself.
pub type IsolatedOutcome = Result<Payload, Box<ErrorParts>>;

macro_rules! isolation {
    ($stage:ident) => {
        impl<In, Out> $stage<In, Out> {
            /// The code of this stage, to run it in another process.
            #[must_use]
            pub fn code(&self) -> StageCode {
                StageCode(Arc::clone(self.spec()))
            }

            /// This stage with the workers of another one, which take and give its items as values: they hand them to
            /// another process, which runs its [`code`](Self::code). Its name and its settings stay, but for those of
            /// where batches run, and how many at once.
            #[must_use]
            pub fn run_by(self, workers: &$stage<Value, Value>) -> Self {
                let (theirs, factory) = (workers.settings(), workers.spec().factory().clone());
                let types = self.spec().types().with_encoded(workers.spec().types().is_encoded);
                let settings = self.settings().clone().with_placement(theirs.placement());
                let settings = settings.with_concurrency(theirs.concurrency()).with_hands_ahead(theirs.hands_ahead());
                Self::from_spec(self.spec().with_workers(factory, settings).with_types(types))
            }
        }

        impl $stage<Encoded, Encoded> {
            /// This stage as one of other types, which its workers take and give encoded.
            #[must_use]
            pub fn of_types<In: Data, Out: Data>(self) -> $stage<In, Out> {
                $stage::from_spec(self.spec().with_types(StageTypes::encoded::<In, Out>()))
            }
        }
    };
}

isolation!(Stage);
isolation!(StreamStage);

impl StageCode {
    /// The name of the stage.
    #[must_use]
    pub fn name(&self) -> &StageName {
        self.0.name()
    }

    /// Whether it is asynchronous: its replica runs several batches at once.
    #[must_use]
    pub fn is_async(&self) -> bool {
        self.0.is_async()
    }

    /// Whether it answers an item with many outputs.
    #[must_use]
    pub fn is_streaming(&self) -> bool {
        self.0.is_streaming()
    }

    /// Builds a replica on this thread, which must be none of a runtime, and warms it up.
    ///
    /// # Errors
    ///
    /// The failure of the worker.
    pub fn build(&self, node: IsolatedNode, place: ReplicaPlace) -> Result<IsolatedReplica, Failure> {
        let ReplicaPlace { index, generation, max_batch_size, settings } = place;
        let note = NotePort::default();
        let replica = Replica {
            stage: self.name().clone(),
            index,
            generation,
            count: self.0.settings().replicas().get(),
            max_batch_size,
            settings,
            timeout: self.0.settings().timeout(),
            contract: self.0.settings().contract(),
            // The node has pinned this process.
            core: None,
            node: node.client().shared,
            exit: ExitPort::unconnected(),
            usage: UsagePort::default(),
            note: note.clone(),
        };
        let runtime = node.0.runtime().clone();
        let _entered = runtime.enter();
        let built = contain(|| match self.0.factory() {
            Factory::Sync(build) => {
                let mut worker = build(&replica)?;
                worker.warmup()?;
                Ok(IsolatedWorker::Sync(worker))
            }
            Factory::Async(build) => {
                let worker = build(&replica)?;
                runtime.block_on(warm_up(&*worker))?;
                Ok(IsolatedWorker::Async(worker))
            }
        });
        let worker = built.unwrap_or_else(|words| Err(Failure::new(format!("panicked: {words}"))))?;
        Ok(IsolatedReplica { code: Arc::clone(&self.0), worker, note, node })
    }
}

impl IsolatedNode {
    /// Starts it, on a thread that must be none of a runtime.
    ///
    /// # Errors
    ///
    /// The system has refused the threads of a runtime.
    pub fn start() -> Result<Self, Failure> {
        let limits = Limits {
            max_in_flight: usize::MAX,
            max_in_flight_bytes: u64::MAX,
            default_timeout: Deadline::MAX_TIMEOUT,
            ..Limits::default()
        };
        let node = App::new().limits(limits).start_blocking().map_err(Failure::from)?;
        let LocalClient { shared, .. } = node.node().client();
        shared.router.call_elsewhere(shared.metrics.route(&"elsewhere".into()));
        Ok(Self(node))
    }

    /// A client for the calls of items.
    #[must_use]
    pub fn client(&self) -> LocalClient {
        self.0.node().client()
    }
}

impl IsolatedReplica {
    /// The runtime of this process.
    #[must_use]
    pub fn runtime(&self) -> &Handle {
        self.node.0.runtime()
    }

    /// The note of its worker; see [`Replica::leave_note`].
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.note.get()
    }

    /// Runs a batch of synchronous code on this thread: one outcome for each item, in order. A panic of the worker
    /// passes through.
    pub fn run(&mut self, items: Vec<IsolatedItem>) -> Vec<IsolatedOutcome> {
        let _entered = self.node.0.runtime().enter();
        let count = items.len();
        let IsolatedWorker::Sync(worker) = &mut self.worker else { return outcomes(Err(none_of(count)), count) };
        let mut items = items.into_iter().map(|item| item.0).collect();
        let mut done = Vec::with_capacity(count);
        let result = worker.run(self.code.name(), &mut items, &mut done);
        outcomes(result.map(|()| done), count)
    }

    /// Runs a batch of asynchronous code: one outcome for each item, in order. Other batches may run meanwhile.
    ///
    /// # Cancellation
    ///
    /// Dropping the future drops that of the worker.
    pub fn run_async(&self, items: Vec<IsolatedItem>) -> impl Future<Output = Vec<IsolatedOutcome>> + Send + use<> {
        let (count, code) = (items.len(), Arc::clone(&self.code));
        let worker = match &self.worker {
            IsolatedWorker::Async(worker) => Some(Arc::clone(worker)),
            IsolatedWorker::Sync(_) => None,
        };
        async move {
            let Some(worker) = worker else { return outcomes(Err(none_of(count)), count) };
            let items = items.into_iter().map(|item| item.0).collect();
            outcomes(worker.run(code.name(), items, Turn::default()).await, count)
        }
    }

    /// Lets the worker clean up.
    pub fn cleanup(&mut self) {
        let runtime = self.node.0.runtime().clone();
        let _entered = runtime.enter();
        let done = contain(|| match &mut self.worker {
            IsolatedWorker::Sync(worker) => worker.cleanup(),
            IsolatedWorker::Async(worker) => runtime.block_on(worker.cleanup()),
        });
        if let Err(words) = done {
            tracing::error!(
                parent: None, stage = %self.code.name(), "the worker panicked while it cleaned up: {words}"
            );
        }
    }
}

impl IsolatedCall {
    /// A call with this deadline and, from its options, the priority, the session, the request id, the
    /// trace, the caller, headers and tags. Its code makes inner calls with the client of this process's
    /// [node](IsolatedNode::client), if there is one.
    #[must_use]
    pub fn new(deadline: Deadline, options: &CallOptions, inner: Option<(&LocalClient, Arc<dyn InnerCalls>)>) -> Self {
        let mut flight = Flight::new(deadline, options.priority().unwrap_or_default());
        flight.session = options.session();
        flight.origin = Origin::from_options(options, None);
        if let Some((client, calls)) = inner {
            let mut origin = flight.origin.map(Arc::unwrap_or_clone).unwrap_or_default();
            origin.node = Some(NodeElsewhere { node: Arc::clone(&client.shared) as Arc<_>, calls });
            flight.origin = Some(Arc::new(origin));
        }
        Self(Arc::new(flight))
    }

    /// Whether its caller still waits for it.
    #[must_use]
    pub fn is_wanted(&self, now: Instant) -> bool {
        self.0.is_wanted(now)
    }

    /// Status and headers that its code has chosen for the answer; `None` if it chose nothing.
    #[must_use]
    pub fn response(&self) -> Option<ResponseFields> {
        self.0.response()
    }

    /// Cancels the call: its caller left, or its deadline passed.
    pub fn cancel(&self) {
        self.0.abandon();
    }
}

impl IsolatedItem {
    /// An item of a stage with one output for each.
    #[must_use]
    pub fn new(input: Encoded, call: &IsolatedCall) -> Self {
        Self(Item { payload: Payload::new(input), flight: Arc::clone(&call.0), outputs: None })
    }

    /// An item of a streaming stage, of which `credit` outputs may wait to be read. 0 counts as 1.
    #[must_use]
    pub fn streaming(input: Encoded, call: &IsolatedCall, credit: usize) -> (Self, Receiver<Payload>) {
        let (outputs, reader) = channel(credit.max(1));
        let Self(item) = Self::new(input, call);
        (Self(Item { outputs: Some(outputs), ..item }), reader)
    }
}

fn none_of(count: usize) -> WrongCount {
    WrongCount { expected: count, got: 0 }
}

/// One outcome for each item. A worker that returns another count has failed all of them.
fn outcomes(result: Result<Vec<ItemOutcome>, WrongCount>, count: usize) -> Vec<IsolatedOutcome> {
    let failed = |failure: Failure| Err(Box::new(failure.into_parts()));
    let one = |outcome| match outcome {
        ItemOutcome::Done(payload) => Ok(payload),
        ItemOutcome::Failed(failure) => failed(failure),
        ItemOutcome::Panicked(words) => failed(Failure::new(format!("panicked: {words}"))),
        // Its caller has been told.
        ItemOutcome::NotRun | ItemOutcome::Late => failed(Failure::new("its caller has left")),
    };
    match result {
        Ok(outcomes) => outcomes.into_iter().map(one).collect(),
        Err(wrong) => (0..count).map(|_| failed(Failure::new(wrong.to_string()))).collect(),
    }
}

impl fmt::Debug for IsolatedNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IsolatedNode(..)")
    }
}

impl fmt::Debug for IsolatedReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IsolatedReplica").field("stage", self.code.name()).finish_non_exhaustive()
    }
}
