//! The seam for stages that run on other nodes: what a node asks of a network, which this crate does not know, and the
//! hash by which nodes agree.

pub use crate::pipeline::{
    PeerDescription, RemoteFuture, RemoteStages, StageCall, StageLoad, StageOutputs, StageReply, StageTarget,
};
pub use crate::splitmix64::splitmix64;
