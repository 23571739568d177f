//! `inference.GRPCInferenceService`: the Open Inference Protocol over gRPC.

pub(crate) mod contents;
pub(crate) mod infer;
pub(crate) mod models;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod streamed;
