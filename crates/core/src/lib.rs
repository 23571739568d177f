//! The core of Callboard: stages, pipelines, batching, supervision. No sockets.
//!
//! A **stage** is a recipe for workers; a **pipeline** connects stages; an [`App`] serves pipelines under names; a
//! [`Node`] is a running app. A call takes the shortest path:
//!
//! ```text
//!  LocalClient ── permit ──► Gateway      counts calls and bytes, knows what is in flight
//!    │   ── pick ────► Router        a snapshot: route → pipeline
//!    │   ── inbox ───► Batcher       one message for a burst; the bounded queue of one stage
//!    │                   │  Run      one message per batch, when a worker is free
//!    │                 Worker        user code: one outcome per item
//!    ◄─── one-shot reply ┘           straight to the caller
//! ```
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use callboard_core::{App, Batch, Pipeline, Stage};
//!
//! let words = Stage::each("words", |text: &String| {
//!     Ok(text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
//! });
//! let count = Stage::batch("count", |batch: Batch<Vec<String>>| {
//!     batch.iter().map(|words| Ok(words.len())).collect()
//! })
//! .max_batch_size(32);
//!
//! let node = App::new().route("/count", Pipeline::from(words).then(count)).start().await?;
//! let words: usize = node.client().call("/count", "three small words".to_owned()).await?;
//! assert_eq!(words, 3);
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! Every admitted call ends in exactly one outcome: its result, or a [`CallError`] of one [`ErrorKind`]. Nothing
//! expired or abandoned is started. A panic ends one replica and its batch, nothing else. Every queue has a bound and
//! says `Overloaded` when it is full.

pub mod actor;
mod app;
mod batcher;
mod call;
mod client;
mod clock;
mod containment;
mod contract;
mod deadline;
pub mod description;
mod diagram;
pub mod edge;
mod error;
mod executor;
mod gateway;
mod host;
mod id;
pub mod isolation;
pub mod keyed;
pub mod log_limit;
mod metrics;
mod node;
mod offload;
mod pipeline;
mod pool;
mod queue;
pub mod remote;
mod restart;
mod retry;
mod router;
#[cfg(test)]
mod simulation;
mod splitmix64;
mod stage;
mod supervisor;
pub mod testing;
mod text;
pub mod timeline;
mod worker;

pub use app::App;
pub use call::{CallContext, CallOptions, FunctionCall, Priority, Reply, ResponseFields, SessionKey};
pub use client::{
    BlockingClient, BlockingStream, CallStream, CallStreamWithInputs, Caller, LocalClient, LocalPrepared, NoPreprocess,
    Prepare, Preprocess, Replies, RouteService, StartedCall, TypedRoute,
};
pub use clock::Instant;
pub use containment::WorkerExit;
pub use contract::Contract;
pub use deadline::Deadline;
pub use diagram::Diagram;
pub use error::{CallError, ErrorKind, ErrorReason, Failure};
pub use gateway::Limits;
pub use id::{RouteName, StageName};
pub use metrics::{CacheUse, ProcessUsage, ReportedSample, ReportedValue, SampleReporter};
pub use node::{AlreadyJoined, BlockingNode, Drained, Node, NodeHandle, StartError};
pub use pipeline::{IntoPipeline, IntoStreamPipeline, MemberError, Members, Pipeline, StreamPipeline};
pub use queue::BatchPolicy;
#[cfg(feature = "testing")]
pub use queue::bench;
pub use restart::{BackoffPolicy, RestartIntensity};
pub use retry::{RetryBudget, RetryPolicy};
pub use router::{
    AppliedChange, ChangeError, Rollout, RouteChange, RouteSpec, Task, check_route_name, route_name, split_route_name,
};
pub use stage::{CacheSettings, Placement, ReplicaHost, Rows, Scaling, Stage, StageSettings, StreamStage};
pub use timeline::{ReleaseReason, Timing};
pub use worker::{
    AsyncStreamWorker, AsyncWorker, Batch, ExitPort, NotEmitted, Outputs, Replica, StreamWorker, Turn, Worker,
};
