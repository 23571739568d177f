//! The servers under load, and how the measuring process starts them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::sse::{Event, Sse};
use axum::routing::post;
use axum::{Json, Router};
use callboard_codec::{DType, DataType, DecodeLimits, Format, Tensor, TensorField, TensorFields, Value};
use callboard_core::{App, CacheSettings, Pipeline, RouteSpec, Stage, StreamPipeline, StreamStage};
use callboard_http::{ApiInfo, HttpConfig, HttpEdge, serve, serve_edge, serve_router};
use callboard_oip::InferenceProtocol;
use futures_util::{FutureExt, stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;

use super::peer;
use super::workload::OIP_PATH;

/// The echoed value: a small request for a model of tabular data.
pub(crate) const BODY: &str =
    r#"{"id":184467,"name":"a sample of the usual size","values":[0.25,1.5,-3.0,42.125,0.001,7.75,1024.0,0.5]}"#;

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct Echo {
    id: u64,
    name: String,
    values: Vec<f64>,
}

/// The kind of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An axum handler, nothing else.
    Bare,
    /// A pipeline of one stage that runs as a task.
    Task,
    /// A pipeline of one stage on its own thread.
    Thread,
    /// A pipeline of one stage whose answer is in its cache.
    Cached,
    /// A pipeline of one stage, a task on another node.
    Peer,
}

impl Kind {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::Bare, Self::Task, Self::Thread, Self::Cached, Self::Peer]
            .into_iter()
            .find(|kind| kind.argument() == name)
    }

    fn argument(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Task => "task",
            Self::Thread => "thread",
            Self::Cached => "cached",
            Self::Peer => "peer",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare axum",
            Self::Task => "task stage",
            Self::Thread => "thread stage",
            Self::Cached => "cached stage",
            Self::Peer => "peer's stage",
        }
    }
}

/// Serves until stdin ends, which is the end of the measuring process.
pub(crate) fn run(kind: Kind) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap());
        std::io::stdout().flush().unwrap();
        let orphaned = async {
            _ = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await;
        };
        // In a separate task: the accept loop should not share a thread with `block_on`.
        let serving = match kind {
            Kind::Bare => tokio::spawn(serve_router(listener, bare(), HttpConfig::default(), orphaned)),
            Kind::Peer => {
                let echo = Stage::each("echo", |echo: &Echo| Ok(echo.clone())).max_batch_size(32);
                let gateway = App::new().route("/echo", Pipeline::<Echo, Echo>::remote("echo"));
                let (node, peer) = peer::start(gateway, App::new().route("/echo", echo), "echo").await;
                let client = node.client();
                tokio::spawn(async move {
                    let served = serve(listener, client, HttpConfig::default(), orphaned).await;
                    drop((node, peer));
                    served
                })
            }
            Kind::Task | Kind::Thread | Kind::Cached => {
                let echo = Stage::each("echo", |echo: &Echo| Ok(echo.clone())).max_batch_size(32);
                let tensor = Stage::each("tensor", |tensor: &Value| Ok(tensor.clone()));
                let (echo, tensor) = (of_kind(kind, echo), of_kind(kind, tensor));
                let app = App::new().route("/echo", echo).route("/tensor", tensor).route_streaming("/events", events());
                let app = app.mount(array(kind));
                let node = app.start().await.unwrap();
                let edge = HttpEdge::try_new(
                    node.client(),
                    HttpConfig::default(),
                    ApiInfo::default(),
                    vec![Arc::new(InferenceProtocol::new())],
                )
                .unwrap();
                tokio::spawn(async move {
                    serve_edge(listener, edge, orphaned.map(|()| Duration::ZERO)).await;
                    drop(node);
                    Ok(())
                })
            }
        };
        serving.await.unwrap().unwrap();
    });
}

/// The stage as this kind of server runs it.
fn of_kind<In, Out>(kind: Kind, stage: Stage<In, Out>) -> Stage<In, Out> {
    match kind {
        Kind::Thread => stage.on_threads(),
        Kind::Cached => stage.pure().cache(CacheSettings::new(CACHE_BYTES)),
        Kind::Bare | Kind::Task | Kind::Peer => stage,
    }
}

/// An answer of a mebibyte is below an eighth of it.
const CACHE_BYTES: u64 = 64 << 20;

/// An event of a model that writes a word at a time.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct Word {
    index: u64,
    text: String,
}

fn words(count: u64) -> impl Iterator<Item = Word> {
    (0..count).map(|index| Word { index, text: "a word or two".to_owned() })
}

fn events() -> StreamPipeline<u64, Word> {
    StreamStage::each("events", |count: &u64| stream::iter(words(*count).map(Ok))).into()
}

/// A model with a signature that returns its array.
fn array(kind: Kind) -> RouteSpec {
    let fields = || {
        let field = TensorField {
            name: "x".to_owned(),
            dtype: Some(DType::F32),
            shape: Some(vec![None, None]),
            is_required: true,
        };
        DataType::value().with_tensors(TensorFields { fields: vec![field], stackable: false })
    };
    let stage = Stage::each("array", |value: &Value| Ok(value.clone()));
    RouteSpec::described("/array", of_kind(kind, stage), fields(), fields())
}

/// The JSON of an inference request, with the fields that a handler reads.
#[derive(Deserialize)]
struct OipHead {
    inputs: [OipInput; 1],
}

#[derive(Deserialize)]
struct OipInput {
    name: String,
    shape: Vec<usize>,
    datatype: String,
    parameters: OipParameters,
}

#[derive(Deserialize)]
struct OipParameters {
    binary_data_size: usize,
}

/// The same by hand: reads the head and the tensor, and builds the answer.
fn bare_infer(headers: &HeaderMap, body: &Bytes) -> ([(&'static str, String); 2], Vec<u8>) {
    let json_bytes: usize = headers[JSON_BYTES].to_str().unwrap().parse().unwrap();
    let OipHead { inputs: [input] } = serde_json::from_slice(&body[..json_bytes]).unwrap();
    assert_eq!(input.datatype, "FP32");
    let data = body.slice(json_bytes..json_bytes + input.parameters.binary_data_size);
    let tensor = Tensor::try_new(DType::F32, &input.shape, data).unwrap();
    let head = json!({ "model_name": "array", "model_version": "1", "outputs": [{
        "name": input.name, "datatype": "FP32", "shape": tensor.shape(),
        "parameters": { "binary_data_size": tensor.data().len() } }] });
    let head = head.to_string();
    let headers = [("content-type", "application/octet-stream".to_owned()), (JSON_BYTES, head.len().to_string())];
    (headers, [head.as_bytes(), tensor.data()].concat())
}

const JSON_BYTES: &str = "inference-header-content-length";

/// The same answers as the edge, with constant headers.
fn bare() -> Router {
    let headers = [
        ("server-timing", "queue;dur=0.003, batch;dur=0.001, compute;dur=0.000"),
        ("x-request-id", "9f3ac27e01b4d658-0000002a"),
    ];
    // The same work on the body with the same codec.
    let tensor = move |body: Bytes| async move {
        let value = Value::decode(Format::Msgpack, &body, &DecodeLimits::default()).unwrap();
        (headers, [(CONTENT_TYPE, "application/msgpack")], value.encode(Format::Msgpack).unwrap())
    };
    let events = move |Json(count): Json<u64>| async move {
        let event = |word: Word| Event::default().id(word.index.to_string()).json_data(word);
        (headers, Sse::new(stream::iter(words(count).map(event))))
    };
    Router::new()
        .route("/echo", post(move |Json(echo): Json<Echo>| async move { (headers, Json(echo)) }))
        .route("/tensor", post(tensor))
        .route("/events", post(events))
        .route(
            OIP_PATH,
            post(move |request: HeaderMap, body: Bytes| async move { (headers, bare_infer(&request, &body)) }),
        )
        // An array of a mebibyte and its head are more than axum takes by default.
        .layer(DefaultBodyLimit::disable())
}

/// A server in its own process.
pub(crate) struct ServerProcess {
    pub(crate) kind: Kind,
    pub(crate) address: SocketAddr,
    process: Child,
}

impl ServerProcess {
    pub(crate) fn start(kind: Kind) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["serve", kind.argument()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { kind, address: line.trim().parse().expect("the server prints its address"), process }
    }

    /// User and system time of all its threads so far, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap();
        // Fields after the name, which is in parentheses and may hold spaces; `utime` and `stime` are fields 14 and 15.
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        ticks as f64 / TICKS_PER_SECOND
    }

    /// How often its threads have waited for something so far: each wait ends with a wake-up.
    pub(crate) fn waits(&self) -> u64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        let of_thread = |status: String| {
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
            line.trim().parse::<u64>().unwrap()
        };
        // A thread may end meanwhile.
        threads
            .filter_map(|thread| std::fs::read_to_string(thread.unwrap().path().join("status")).ok())
            .map(of_thread)
            .sum()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

/// The unit in which Linux reports CPU time.
const TICKS_PER_SECOND: f64 = 100.0;
