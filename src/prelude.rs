//! The dozen names that every program with Callboard imports.

pub use std::time::Duration;

pub use callboard_codec::{Tensor, Value};
pub use callboard_core::{
    App, Batch, CallError, CallOptions, Client, ErrorKind, Failure, Node, Pipeline, Replica, Stage, Worker,
};
