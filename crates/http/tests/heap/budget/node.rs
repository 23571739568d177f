//! The edge under test, and the measurements of one call.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use callboard_codec::{DType, Data, DataFrame, DataType, Tensor, TensorField, TensorFields, Value};
use callboard_core::{App, Failure, Limits, LocalClient, Node, RouteSpec, Stage};
use callboard_http::{ApiInfo, HttpConfig, HttpEdge};
use http_body_util::BodyExt as _;
use rustix::time::{ClockId, clock_gettime};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};
use tower::Service as _;

use super::input::{Coding, Input};
use crate::heap;

/// The byte budget of the node; larger values are refused.
const BUDGET: u64 = 16 << 20;

/// A call's heap is at most its charge times this factor …
const HEAP_FACTOR: f64 = 1.5;

/// … plus these bytes: the call itself, its request, the head of its answer, small uncharged work, and the stage's own.
const HEAP_CONSTANT: usize = 96 * 1024;

/// A stage's input holds at most its charge and this many bytes.
const HELD_CONSTANT: usize = 32 * 1024;

/// Uncharged bytes of each further call of one request, in a stream or an inference request of many rows.
const CALL_CONSTANT: usize = 4 * 1024;

/// zstd allocates its requested window and decoder buffers at once. They are charged as they are touched.
const ZSTD_RESERVED: usize = (8 << 20) + 256 * 1024;

/// A call takes at most this time, in nanoseconds of all threads …
const TIME_CONSTANT: u64 = if cfg!(debug_assertions) { 100_000_000 } else { 5_000_000 };

/// … plus this for each byte of its body, its charge and its answer.
const TIME_PER_BYTE: u64 = if cfg!(debug_assertions) { 20_000 } else { 1000 };

/// A recursive type with every collection that serde supports.
#[derive(Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct Typed {
    name: String,
    numbers: Vec<u16>,
    pairs: Vec<(u8, Option<u64>)>,
    lists: Vec<Vec<u8>>,
    texts: Vec<String>,
    choice: Option<Choice>,
    choices: VecDeque<Choice>,
    table: BTreeMap<String, (i64, bool)>,
    tables: Vec<BTreeMap<String, u8>>,
    hashed: HashMap<String, Vec<u8>>,
    set: BTreeSet<u32>,
    #[expect(clippy::vec_box, reason = "what a box of each item costs is a part of what is tried")]
    boxed: Vec<Box<Self>>,
    tensor: Option<Tensor>,
    extra: Value,
}

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
enum Choice {
    Plain,
    Number(u8),
    Pair { left: String, right: char },
}

/// Bytes alive before a call.
static BASE: AtomicUsize = AtomicUsize::new(0);

/// The most bytes that a stage's input held beyond its charge and the constants of its calls.
static UNCHARGED: AtomicUsize = AtomicUsize::new(0);

/// The most calls in flight that a stage saw.
static CALLS: AtomicUsize = AtomicUsize::new(0);

static CLIENT: parking_lot::Mutex<Option<LocalClient>> = parking_lot::Mutex::new(None);

/// Returns its input, and records the bytes held at that time.
fn echo<T: Data + Clone>(name: &str) -> Stage<T, T> {
    Stage::each_async(name, |value: Arc<T>| {
        let held = heap::live().saturating_sub(BASE.load(Relaxed));
        let (charged, calls) =
            CLIENT.lock().as_ref().map_or((0, 1), |node| (node.edge().charged_bytes(), node.in_flight()));
        let paid = usize::try_from(charged).unwrap() + calls * CALL_CONSTANT;
        UNCHARGED.fetch_max(held.saturating_sub(paid), Relaxed);
        CALLS.fetch_max(calls, Relaxed);
        async { Ok::<_, Failure>(Arc::unwrap_or_clone(value)) }
    })
}

fn app() -> App {
    let field = |name: &str, dtype, shape| TensorField { name: name.to_owned(), dtype, shape, is_required: true };
    let arrays = |stackable: bool| {
        let shape = stackable.then(|| vec![Some(2)]);
        let fields = vec![field("x", Some(DType::F32), shape)];
        DataType::value().with_tensors(TensorFields { fields, stackable })
    };
    App::new()
        .limits(Limits { max_in_flight_bytes: BUDGET, ..Limits::default() })
        .route("/value", echo::<Value>("value"))
        .route("/typed", echo::<Typed>("typed"))
        .route("/text", echo::<String>("text"))
        .route("/tensor", echo::<Tensor>("tensor"))
        .route("/frame", echo::<DataFrame>("frame"))
        .mount(RouteSpec::described("/arrays", echo::<Value>("arrays"), arrays(false), arrays(false)))
        .mount(RouteSpec::described("/rows", echo::<Value>("rows").queue(100_000), arrays(true), arrays(true)))
}

/// One node, for many calls in turn.
pub(crate) struct Tested {
    runtime: Runtime,
    edge: HttpEdge,
    client: LocalClient,
    _node: Node,
}

/// The measurements of one call.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) status: u16,
    /// Peaks of the heap and of the account.
    heap: usize,
    account: usize,
    /// Uncharged bytes of the stage's input.
    uncharged: usize,
    calls: usize,
    /// Bytes still charged, and calls in flight, after the answer was read.
    remaining: u64,
    in_flight: usize,
    nanoseconds: u64,
    /// Bytes that are allocated but never touched, or belong to the test.
    reserved: usize,
    /// Bytes of body and answer.
    bytes: usize,
}

/// The edge with its default limits and the Open Inference Protocol.
pub(crate) fn edge_of(client: &LocalClient) -> HttpEdge {
    let inference = Arc::new(callboard_oip::InferenceProtocol::new());
    HttpEdge::try_new(client.clone(), HttpConfig::default(), ApiInfo::default(), vec![inference]).unwrap()
}

impl Tested {
    pub(crate) fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let node = runtime.block_on(app().start()).unwrap();
        let client = node.client();
        *CLIENT.lock() = Some(client.clone());
        let edge = edge_of(&client);
        let tested = Self { runtime, edge, client, _node: node };
        // One-time allocations belong to no call.
        for form in 0..=u8::MAX {
            tested.call(&Input::with_flags(&[form, b'1'], form).unwrap().packed());
        }
        tested
    }

    /// Makes the call, and reads its whole answer.
    pub(crate) fn call(&self, input: &Input) -> Measured {
        let _ = self.client.edge().take_peak_charged_bytes();
        UNCHARGED.store(0, Relaxed);
        CALLS.store(0, Relaxed);
        // The unread part of a stream belongs to the test.
        BASE.store(heap::live() + if input.is_stream() { input.body().len() } else { 0 }, Relaxed);
        let start = cpu_time();
        let ((status, answered, remaining, in_flight), heap, _) =
            heap::measured(|| self.runtime.block_on(self.answer(input)));
        Measured {
            status,
            heap,
            account: usize::try_from(self.client.edge().take_peak_charged_bytes()).unwrap(),
            uncharged: UNCHARGED.load(Relaxed),
            calls: CALLS.load(Relaxed),
            remaining,
            in_flight,
            nanoseconds: cpu_time() - start,
            reserved: if input.coding() == Coding::Zstd { ZSTD_RESERVED } else { 0 } + input.unread_bytes(),
            bytes: input.body().len() + answered,
        }
    }

    async fn answer(&self, input: &Input) -> (u16, usize, u64, usize) {
        let Ok(answer) = self.edge.clone().call(input.request()).await;
        let (head, mut body) = answer.into_parts();
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            // Other tests cover truncated answers.
            let Ok(frame) = frame else { break };
            bytes += frame.data_ref().map_or(0, |data| data.len());
        }
        drop((head.headers, body));
        // Work on another thread owns its call until it returns.
        let mut turns = 0;
        while turns < 1000 && (self.client.edge().charged_bytes(), self.client.in_flight()) != (0, 0) {
            tokio::task::yield_now().await;
            turns += 1;
            if turns > 100 {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
        (head.status.as_u16(), bytes, self.client.edge().charged_bytes(), self.client.in_flight())
    }
}

impl Measured {
    /// The exceeded bound, if any. A slow call is measured again first.
    pub(crate) fn problem(&self, measure_again: impl Fn() -> Self) -> Option<String> {
        let allowed = self.allowed_heap();
        if self.heap > allowed {
            return Some(format!("{} bytes of heap, {} charged, {allowed} allowed", self.heap, self.account));
        }
        if self.uncharged > HELD_CONSTANT {
            return Some(format!("the stage's input holds {} bytes more than is charged", self.uncharged));
        }
        if (self.remaining, self.in_flight) != (0, 0) {
            return Some(format!("{} bytes and {} calls remain", self.remaining, self.in_flight));
        }
        let least = |first: u64| (0..2).map(|_| measure_again().nanoseconds).fold(first, u64::min);
        let is_slow = self.nanoseconds > self.allowed_time() && least(self.nanoseconds) > self.allowed_time();
        is_slow.then(|| format!("{} ns, {} allowed", self.nanoseconds, self.allowed_time()))
    }

    /// Shares of the allowed heap, of the uncharged bytes, and of the time.
    pub(crate) fn shares(&self) -> [f64; 3] {
        let share = |used: f64, allowed: f64| used / allowed;
        [
            share(self.heap as f64, self.allowed_heap() as f64),
            share(self.uncharged as f64, HELD_CONSTANT as f64),
            share(self.nanoseconds as f64, self.allowed_time() as f64),
        ]
    }

    fn allowed_heap(&self) -> usize {
        let charged = (self.account as f64 * HEAP_FACTOR) as usize;
        self.reserved + charged + HEAP_CONSTANT + self.calls * CALL_CONSTANT
    }

    fn allowed_time(&self) -> u64 {
        TIME_CONSTANT + TIME_PER_BYTE * (self.bytes + self.account) as u64
    }
}

/// The CPU time of all threads of this process, in nanoseconds.
fn cpu_time() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
