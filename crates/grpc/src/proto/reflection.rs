//! `grpc.reflection`, the same in versions `v1` and `v1alpha`.

use bytes::Bytes;
use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ServerReflectionRequest {
    #[prost(string, tag = "1")]
    pub(crate) host: String,
    #[prost(oneof = "Asked", tags = "3, 4, 5, 6, 7")]
    pub(crate) asked: Option<Asked>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub(crate) enum Asked {
    #[prost(string, tag = "3")]
    FileByFilename(String),
    #[prost(string, tag = "4")]
    FileContainingSymbol(String),
    /// No message here has extensions.
    #[prost(bytes = "bytes", tag = "5")]
    FileContainingExtension(Bytes),
    #[prost(string, tag = "6")]
    AllExtensionNumbersOfType(String),
    #[prost(string, tag = "7")]
    ListServices(String),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ServerReflectionResponse {
    #[prost(string, tag = "1")]
    pub(crate) valid_host: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) original_request: Option<ServerReflectionRequest>,
    #[prost(oneof = "Answered", tags = "4, 5, 6, 7")]
    pub(crate) answered: Option<Answered>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub(crate) enum Answered {
    #[prost(message, tag = "4")]
    Files(Files),
    #[prost(message, tag = "5")]
    Extensions(Extensions),
    #[prost(message, tag = "6")]
    Services(Services),
    #[prost(message, tag = "7")]
    Error(ErrorResponse),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Files {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub(crate) files: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Extensions {
    #[prost(string, tag = "1")]
    pub(crate) base_type_name: String,
    #[prost(int32, repeated, tag = "2")]
    pub(crate) numbers: Vec<i32>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Services {
    #[prost(message, repeated, tag = "1")]
    pub(crate) services: Vec<Service>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Service {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ErrorResponse {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}
