//! The dozen names that every program with Callboard imports.

pub use std::time::Duration;

pub use callboard_codec::{Map, Tensor, Value};
pub use callboard_core::{
    App, AsyncWorker, Batch, CallError, CallOptions, Client, ErrorKind, Failure, FunctionCall, Node, Pipeline, Replica,
    Stage, StreamPipeline, StreamStage, Worker,
};
