//! A node with every door, and the measurements of one request to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::{App, Limits, LocalClient, Node};
use callboard_grpc::GrpcProtocol;
use callboard_http::protocol::Protocol;
use callboard_http::{ApiInfo, HttpConfig, HttpEdge};
use callboard_mcp::{McpConfig, McpProtocol};
use callboard_oip::InferenceProtocol;
use callboard_openai::{CohereProtocol, MessagesProtocol, OpenAiProtocol};
use http_body_util::BodyExt as _;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tower_service::Service as _;

use crate::heap;
use crate::models::{self, Script};
use crate::request::{Changed, seeds};

/// The bytes of the node; larger requests are refused.
const BUDGET: u64 = 16 << 20;

/// A request's heap is at most its charge times this factor …
const HEAP_FACTOR: f64 = 1.5;

/// … plus these bytes: the head of its answer, small uncharged work, and the stage's own.
const HEAP_CONSTANT: usize = 96 * 1024;

/// Uncharged bytes of each call of a request with many.
const CALL_CONSTANT: usize = 4 * 1024;

/// All panics so far, also one that the node catches.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// One node, for many requests in turn.
pub(crate) struct Tested {
    runtime: Runtime,
    edge: HttpEdge,
    client: LocalClient,
    _node: Node,
    _release: watch::Sender<bool>,
}

/// The measurements of one request.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) status: u16,
    /// Peaks of the heap and of the accounts.
    heap: usize,
    charged: usize,
    /// The calls that it became.
    calls: usize,
    /// Bytes still charged, and calls in flight, after the answer was read.
    remaining: (u64, usize),
    panics: usize,
    /// The body, which the test allocates.
    body: usize,
}

impl Tested {
    pub(crate) fn start() -> Self {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            previous(info);
        }));
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (release, released) = watch::channel(true);
        let app = App::new().limits(Limits { max_in_flight_bytes: BUDGET, ..Limits::default() });
        let app = models::streaming(models::whole(app, 1.0, &Arc::default()), &Script::Held(released));
        let node = runtime.block_on(app.start()).unwrap();
        let client = node.client();
        let tested = Self { runtime, edge: edge(&client), client, _node: node, _release: release };
        // One-time allocations belong to no request.
        for seed in seeds() {
            tested.send(&seed);
        }
        tested
    }

    /// Sends a request, and reads its whole answer.
    pub(crate) fn send(&self, request: &Changed) -> Measured {
        let _ = self.client.edge().take_peak_charged_bytes();
        let (admitted, panics) = (self.client.describe().admitted, PANICS.load(Ordering::SeqCst));
        let ((status, remaining), heap, _) = heap::measured(|| self.runtime.block_on(self.answered(request)));
        Measured {
            status,
            heap,
            charged: usize::try_from(self.client.edge().take_peak_charged_bytes()).unwrap(),
            calls: usize::try_from(self.client.describe().admitted - admitted).unwrap(),
            remaining,
            panics: PANICS.load(Ordering::SeqCst) - panics,
            body: request.body_bytes(),
        }
    }

    async fn answered(&self, request: &Changed) -> (u16, (u64, usize)) {
        let Ok(answer) = self.edge.clone().call(request.request()).await;
        let (head, mut body) = answer.into_parts();
        while let Some(frame) = body.frame().await {
            // Other tests cover truncated answers.
            if frame.is_err() {
                break;
            }
        }
        drop((head.headers, body));
        let rest = || (self.client.edge().charged_bytes(), self.client.in_flight());
        // Work on another thread owns its call until it returns.
        for turn in 0..1000 {
            if rest() == (0, 0) {
                break;
            }
            match turn {
                ..100 => tokio::task::yield_now().await,
                _ => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        (head.status.as_u16(), rest())
    }
}

fn edge(client: &LocalClient) -> HttpEdge {
    let inference = Arc::new(InferenceProtocol::new());
    let protocols: Vec<Arc<dyn Protocol>> = vec![
        Arc::<InferenceProtocol>::clone(&inference),
        Arc::new(OpenAiProtocol::new()),
        Arc::new(MessagesProtocol),
        Arc::new(CohereProtocol),
        Arc::new(GrpcProtocol::new(inference)),
        Arc::new(McpProtocol::new(McpConfig::default())),
    ];
    let config = HttpConfig { relay: true, ..HttpConfig::default() };
    HttpEdge::try_new(client.clone(), config, ApiInfo::default(), protocols).unwrap()
}

impl Measured {
    /// The exceeded bound, if any.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.heap > self.allowed() {
            return Some(format!("{} bytes of heap, {} charged, {} allowed", self.heap, self.charged, self.allowed()));
        }
        if self.panics > 0 {
            return Some("a panic".to_owned());
        }
        (self.remaining != (0, 0)).then(|| format!("bytes charged and calls that remain: {:?}", self.remaining))
    }

    /// The used share of the allowed heap.
    pub(crate) fn share(&self) -> f64 {
        self.heap as f64 / self.allowed() as f64
    }

    fn allowed(&self) -> usize {
        let charged = (self.charged as f64 * HEAP_FACTOR) as usize;
        self.body + charged + HEAP_CONSTANT + self.calls * CALL_CONSTANT
    }
}
