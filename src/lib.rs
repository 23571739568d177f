//! Serve functions and models: batched, supervised, over HTTP, QUIC and in process.
//!
//! ```text
//!  HTTP clients        Client (QUIC)        LocalClient
//!       │                   │                    │
//!   http edge           net edge             in process       (three entrances, one pipeline)
//!       └───────────────┬───┴────────────────────┘
//!                   ▼
//!   Gateway   permits by count and bytes, calls in flight, drain
//!                   ▼
//!   Router    route → pipeline, as a snapshot
//!                   ▼
//!   Batcher   one per stage: bounded queue, batches for free workers
//!                   ▼
//!   Worker    one actor per replica: your code, one outcome per item
//!                   ▼
//!   the reply goes straight to the caller
//! ```
//!
//! A stage is a closure or a [`Worker`]; stages make a [`Pipeline`]; an [`App`] serves pipelines under routes.
//!
#![cfg_attr(feature = "http", doc = "```")]
#![cfg_attr(not(feature = "http"), doc = "```ignore")]
//! use callboard::prelude::*;
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, JsonSchema)]
//! struct Person { name: String }
//!
//! #[derive(Clone, Serialize, Deserialize, JsonSchema)]
//! struct Greeting { text: String }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let greet = Stage::each("greet", |person: &Person| {
//!     Ok(Greeting { text: format!("Hello, {}!", person.name) })
//! });
//! let server = callboard::serve(App::new().route("/greet", greet), "127.0.0.1:0").await?;
//! println!("curl -d '{{\"name\":\"Ada\"}}' -H 'content-type: application/json' http://{}/greet", server.address());
//!
//! // The same route from inside the process: nothing is encoded.
//! let greeting: Greeting = server.client().call("/greet", Person { name: "Ada".to_owned() }).await?;
//! assert_eq!(greeting.text, "Hello, Ada!");
//! server.shutdown(Duration::from_secs(5)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # Where to look
//!
//! | question | answer |
//! |---|---|
//! | How do I write a stage? | [`Stage`], [`Worker`], [`AsyncWorker`], [`Batch`] |
//! | How do I prepare inputs in parallel, off the worker's thread? | [`Stage::preprocess`] |
//! | How do I answer with many outputs? | [`StreamStage`], [`StreamWorker`], [`AsyncStreamWorker`], [`Caller::replies`]
//! |
//! | How do I call? | [`LocalClient`]: `call`, `send`, `call_detached`, `stream`, `replies`, `blocking` |
//! | How do I call over a network? | `Client::connect`, or `Client::builder` with settings: [see
//! below](#over-a-network) |
//! | How do I change what is served? | [`NodeHandle`], [`node::RouteChange`] |
//! | How do I run actors of my own? | [`actor::Actor`], [`actor::ActorSpec`], [`actor::ActorRef`] |
//! | How do I keep one actor for each user, cart or device? | [`actor::keyed::KeyedSpec`],
//! [`actor::keyed::Answers`], [`actor::keyed::KeyedRef`] |
//! | How do I ask an actor of another node? | [`actor::Question`], [`actor::RemoteRef`] |
//! | When is a batch released? | [`BatchPolicy`] |
//! | What can go wrong, and what does a caller see? | [`ErrorKind`], [`CallError`], [`Failure`] |
//! | What happens on a crash? | [`Contract`], [`stage::RestartIntensity`], [`stage::BackoffPolicy`],
//! [`description::StageState`] |
//! | How does a crash of a C library cost one replica only? | `Isolate`: the replicas are processes |
//! | What travels between stages? | [`codec`]: any serde type, or a [`Value`] |
//! | How do I serve over HTTP and QUIC, with routes of my own? | `Server::builder` |
//! | How do I serve another protocol? | [`edge::Edge`], `Server::builder().edge(…)`, [`edge::EdgeServer`] |
//! | How do I test my app? | [`testing::TestApp`] |
//! | Which limits are there? | [`Limits`], [`StageSettings`], `http::HttpConfig` |
//!
//! # Over a network
//!
//! A [`Client`] calls a node at `quic://host:port`, or the first that answers of `quic://a:1,b:2`. It and the
//! [`LocalClient`] are [`Caller`]s: code that is written for any caller works with both, and its tests need no sockets.
//!
#![cfg_attr(feature = "net", doc = "```")]
#![cfg_attr(not(feature = "net"), doc = "```ignore")]
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let state = std::env::temp_dir().join(format!("callboard-connect-{}", std::process::id()));
//! # // SAFETY: no other thread has been started yet that reads the environment.
//! # unsafe { std::env::set_var("XDG_STATE_HOME", &state) };
//! use callboard::net::{QuicEdge, Identity, NetConfig};
//! use callboard::prelude::*;
//!
//! async fn shout(caller: &impl Caller, text: &str) -> Result<String, CallError> {
//!     caller.call("/shout", text.to_owned()).await
//! }
//!
//! let edge = QuicEdge::bind("127.0.0.1:0".parse()?, Identity::development()?, NetConfig::default())?;
//! let node = App::new().route("/shout", Stage::each("shout", |text: &String| Ok(text.to_uppercase()))).start().await?;
//! edge.open(node.client());
//!
//! let client = Client::connect(&format!("quic://{}", edge.address())).await?;
//! assert_eq!(shout(&client, "ada").await?, "ADA");
//! assert_eq!(shout(&node.client(), "ada").await?, "ADA");
//! # std::fs::remove_dir_all(state)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `http` | yes | the HTTP edge: [`serve`], OpenAPI, health, metrics |
//! | `otlp` | yes | spans to an OpenTelemetry collector |
//! | `net` | yes | the QUIC edge, and the client over a network: `Client` |
//! | `onnx` | yes | ONNX models as stages |
//! | `state` | no | a file for the state of keyed actors: `RedbStore` |
//! | `postgres` | no | a server for the state of keyed actors: `PostgresStore` |
//! | `bucket` | no | a bucket, in S3 or the like, for the state of keyed actors: `BucketStore` |
//! | `process` | yes | stages in child processes: Python services, and any program that speaks the worker protocol |
//! | `tls` | yes | certificates on the HTTP edge; without it, a configuration that names one is an error at the start |
//! | `zstd` | yes | zstd as a coding of bodies over HTTP, beside gzip and deflate |
//! | `arrow` | yes | data frames in values, and Arrow IPC over HTTP: `codec::DataFrame` |
//! | `config` | yes | configuration files, the built-in stages `image` and `labels`, directories of models |
//! | `cli` | yes | the `callboard` command, and its commands for a program's own app |
//! | `anyhow` | no | the error of a call that a stage makes is found in an `anyhow::Error`, and passes through |
//!
//! Without default features only the core and its codec are compiled.

// What most programs name. The modules below have the rest, by subject.
pub use callboard_codec::Value;
pub use callboard_core::{
    App, AsyncStreamWorker, AsyncWorker, Batch, BatchPolicy, CallContext, CallError, CallOptions, CallStream, Caller,
    Contract, Deadline, Drained, ErrorKind, Failure, FunctionCall, Limits, LocalClient, Node, NodeHandle, Pipeline,
    Priority, Replica, RetryPolicy, RouteSpec, Stage, StageSettings, StreamPipeline, StreamStage, StreamWorker, Task,
    Worker,
};
#[cfg(feature = "net")]
pub use callboard_net::Client;
#[cfg(feature = "process")]
pub use callboard_process::Isolate;
#[cfg(feature = "http")]
pub use callboard_server::{Server, serve};

pub mod prelude;

/// Stages: the user's code, and its execution.
pub mod stage {
    pub use callboard_core::{
        AsyncStreamWorker, AsyncWorker, BackoffPolicy, Batch, BatchPolicy, Contract, Failure, NotEmitted, Outputs,
        Placement, ReleaseReason, Replica, RestartIntensity, Rows, Stage, StageName, StageSettings, StreamStage,
        StreamWorker, Worker,
    };
}

/// Pipelines of stages, and their pictures.
pub mod pipeline {
    pub use callboard_core::{
        Diagram, IntoPipeline, IntoStreamPipeline, MemberError, Members, Pipeline, StreamPipeline,
    };
}

/// The app that serves pipelines under routes, and the node that runs the app.
pub mod node {
    pub use callboard_core::{
        AlreadyJoined, App, AppliedChange, BlockingNode, ChangeError, Drained, Limits, Node, NodeHandle, Rollout,
        RouteChange, RouteName, RouteSpec, StartError, check_route_name,
    };
}

/// Calls: callers, options and outcomes.
pub mod call {
    pub use callboard_core::{
        BlockingClient, BlockingStream, CallContext, CallError, CallOptions, CallStream, CallStreamWithInputs, Caller,
        Deadline, ErrorKind, ErrorReason, FunctionCall, Instant, LocalClient, LocalPrepared, NoPreprocess, Prepare,
        Preprocess, Priority, Replies, Reply, RetryPolicy, RouteService, SessionKey, Timing, TypedRoute,
    };
}

/// Values, tensors, payloads and their encodings.
pub mod codec {
    pub use callboard_codec::*;
}

pub use callboard_core::{description, remote, testing, timeline};

/// Actors of users, those with keys ([`keyed`](actor::keyed)), and stores for these (`state`).
pub mod actor {
    pub use callboard_core::actor::*;
    pub use callboard_core::keyed;
    #[cfg(feature = "state")]
    pub use callboard_state as state;
}

/// What edges of a program call, and a node with such edges.
pub mod edge {
    pub use callboard_core::edge::*;
    pub use callboard_server::{EdgeServer, EdgeServerError};
}

/// A node with HTTP and other edges.
#[cfg(feature = "http")]
pub mod server {
    pub use callboard_server::{ServeError, Server, ServerBuilder, StartingServer, serve};
}

/// The HTTP edge.
#[cfg(feature = "http")]
pub mod http {
    pub use callboard_grpc::GrpcProtocol;
    pub use callboard_http::*;
    pub use callboard_mcp::{Authorization, AuthorizationError, McpConfig, McpProtocol};
    pub use callboard_oip::InferenceProtocol;
    pub use callboard_openai::{MessagesProtocol, OpenAiProtocol};
}

/// The QUIC edge, and the client that calls a node over a network.
#[cfg(feature = "net")]
pub mod net {
    pub use callboard_net::*;
}

/// Stages whose replicas are child processes.
#[cfg(feature = "process")]
pub mod process {
    pub use callboard_process::*;
}

/// ONNX models as stages.
#[cfg(feature = "onnx")]
pub mod onnx {
    pub use callboard_onnx::*;
}

// The command line, configuration files, and directories of models.
#[cfg(feature = "cli")]
pub use callboard_cli::{cli, cli_with};

/// The `callboard` binary.
#[cfg(feature = "cli")]
pub mod cli {
    pub use callboard_cli::main;
}

/// Configuration files, and what they resolve to.
#[cfg(feature = "config")]
pub mod config {
    pub use callboard_config::*;
}

/// Sources of models for a node that serves.
#[cfg(feature = "config")]
pub mod models {
    pub use callboard_models::*;
}

/// The small HTTP client of the commands that call a server.
#[cfg(feature = "cli")]
pub mod http_client {
    pub use callboard_http_client::*;
}

/// The built-in stages of configured pipelines.
#[cfg(feature = "config")]
pub mod stages {
    pub use callboard_stages::*;
}

/// The programs of the page for Rust, as tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/rust.md")]
struct RustPage;

/// The program of the page about tests, as a test.
#[cfg(doctest)]
#[doc = include_str!("../docs/testing-your-app.md")]
struct TestingYourApp;
