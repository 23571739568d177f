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
//! Every admitted call ends in exactly one outcome: its result, or a [`CallError`] of one [`ErrorKind`]. Nothing expired
//! or abandoned is started. A panic ends one replica and its batch, nothing else. Every queue has a bound and says
//! `Overloaded` when it is full.

mod actor;
mod app;
mod batcher;
mod call;
mod client;
mod clock;
mod containment;
mod deadline;
mod diagram;
mod error;
mod failure;
mod gateway;
mod id;
mod metrics;
mod mix;
mod node;
mod offload;
mod pipeline;
mod router;
#[cfg(test)]
mod simulation;
mod stage;
mod supervisor;
pub mod testing;
mod text;
mod timeline;
mod worker;

pub use actor::{
    Actor, ActorContext, ActorError, ActorGroup, ActorSpec, ActorState, Answer, AskError, DEFAULT_MAILBOX, Ref,
    RestartWhen, Strategy, TellError, Timer,
};
pub use app::{App, RouteData, RouteSpec, StartError, check_route_name};
#[cfg(feature = "testing")]
pub use batcher::bench;
pub use batcher::{BatchPolicy, DEFAULT_AGEING, ReleaseReason};
pub use call::{
    CallContext, CallOptions, MAX_REQUEST_ID_CHARS, Priority, Reply, SessionKey, Timing, is_valid_request_id,
};
pub use client::{
    AsIs, BlockingClient, BlockingStream, CallStream, CallStreamWithInputs, Caller, FunctionCall, LOOK_FOR_ROOM_EVERY,
    LocalClient, LocalPrepared, NO_ARGS, OfferedStage, PayloadReplies, Prepare, Preprocess, Ready, Replies,
    RouteService, StageAdmission, StageQueue, TypedRoute, Unwritten,
};
pub use clock::Instant;
pub use deadline::{DEFAULT_TIMEOUT, Deadline, MAX_TIMEOUT};
pub use diagram::Diagram;
pub use error::{CallError, ErrorKind, ErrorParts};
pub use failure::Failure;
pub use gateway::{Admission, DEFAULT_MAX_IN_FLIGHT, DEFAULT_MAX_IN_FLIGHT_BYTES, HeldBytes, Limits};
pub use id::{FlightId, RouteName, StageName};
pub use metrics::{RouteStatistics, StageStatistics};
pub use node::{
    ActorDescription, AlreadyJoined, BlockingNode, CallDescription, Description, Drained, ElsewhereHealth, Health,
    Node, NodeHandle, ReplicaDescription, RestartDescription, RouteDescription, StageDescription, StageHealth,
    StagePart,
};
pub use pipeline::{
    Choice, Elsewhere, FromElsewhere, IntoPipeline, IntoStreamPipeline, MemberError, Members, PeerDescription,
    Pipeline, StageCall, StageLoad, StageOutputs, StageReply, StreamPipeline,
};
pub use router::{Change, ChangeError, Changed, MAX_REPLICAS, Route};
pub use stage::{
    Contract, DEFAULT_CONCURRENCY, DEFAULT_CRASH_RETRIES, DEFAULT_CREDIT, DEFAULT_MAX_ABANDONED_THREADS,
    DEFAULT_QUEUE_ENTRIES, Placement, Rows, Stage, StageSettings, StreamStage,
};
pub use supervisor::{BackoffPolicy, Intensity, StageState};
pub use text::{MAX_ERROR_CHARS, limit_error_text};
pub use timeline::{
    BatchFacts, BatchObserver, CallTracer, EndedBatch, NodeFacts, Recorder, Run, RunEnd, SpanId, Timeline, Visit,
};
pub use worker::{AsyncWorker, Batch, NotEmitted, Outputs, Replica, StreamWorker, Worker};
