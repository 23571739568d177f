//! The names that most programs with Callboard import.

pub use std::time::Duration;

pub use callboard_codec::{Local, Map, Tensor, Value};
pub use callboard_core::{
    App, AsyncWorker, Batch, CallContext, CallError, CallOptions, Caller, ErrorKind, Failure, FunctionCall,
    LocalClient, Node, Pipeline, Replica, Stage, StreamPipeline, StreamStage, Worker,
};
#[cfg(feature = "net")]
pub use callboard_net::Client;
#[cfg(feature = "process")]
pub use callboard_process::Isolate;

#[cfg(feature = "http")]
pub use callboard_server::Server;
