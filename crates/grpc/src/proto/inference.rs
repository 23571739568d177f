//! `inference.GRPCInferenceService`, as Triton has it: requests, answers, and what clients read about models.
//!
//! The latter is the JSON of the protocol over HTTP, whose members have the names of these fields.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Message, Oneof};
use serde::Deserialize;

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ServerLiveResponse {
    #[prost(bool, tag = "1")]
    pub(crate) live: bool,
}

/// Of the server, or of a model.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ReadyResponse {
    #[prost(bool, tag = "1")]
    pub(crate) ready: bool,
}

/// A model by name and version: the request of the methods that read.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ModelRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerMetadataResponse {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(string, repeated, tag = "3")]
    pub(crate) extensions: Vec<String>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelMetadataResponse {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) versions: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) platform: String,
    #[prost(message, repeated, tag = "4")]
    pub(crate) inputs: Vec<TensorMetadata>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) outputs: Vec<TensorMetadata>,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TensorMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferParameter {
    #[prost(oneof = "ParameterChoice", tags = "1, 2, 3, 4, 5")]
    pub(crate) parameter_choice: Option<ParameterChoice>,
}

#[derive(Clone, PartialEq, Oneof)]
#[expect(clippy::enum_variant_names, reason = "the protocol's names")]
pub(crate) enum ParameterChoice {
    #[prost(bool, tag = "1")]
    BoolParam(bool),
    #[prost(int64, tag = "2")]
    Int64Param(i64),
    #[prost(string, tag = "3")]
    StringParam(String),
    #[prost(double, tag = "4")]
    DoubleParam(f64),
    #[prost(uint64, tag = "5")]
    Uint64Param(u64),
}

/// The elements of an array by their type.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferTensorContents {
    #[prost(bool, repeated, tag = "1")]
    pub(crate) bool_contents: Vec<bool>,
    #[prost(int32, repeated, tag = "2")]
    pub(crate) int_contents: Vec<i32>,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) int64_contents: Vec<i64>,
    #[prost(uint32, repeated, tag = "4")]
    pub(crate) uint_contents: Vec<u32>,
    #[prost(uint64, repeated, tag = "5")]
    pub(crate) uint64_contents: Vec<u64>,
    #[prost(float, repeated, tag = "6")]
    pub(crate) fp32_contents: Vec<f32>,
    #[prost(double, repeated, tag = "7")]
    pub(crate) fp64_contents: Vec<f64>,
    #[prost(bytes = "bytes", repeated, tag = "8")]
    pub(crate) bytes_contents: Vec<Bytes>,
}

/// An input or an output.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferTensor {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) shape: Vec<i64>,
    #[prost(map = "string, message", tag = "4")]
    pub(crate) parameters: HashMap<String, InferParameter>,
    #[prost(message, optional, tag = "5")]
    pub(crate) contents: Option<InferTensorContents>,
}

/// The answer of `ModelInfer`. The server writes the raw contents after it, without a copy.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelInferResponse {
    #[prost(string, tag = "1")]
    pub(crate) model_name: String,
    #[prost(string, tag = "2")]
    pub(crate) model_version: String,
    #[prost(string, tag = "3")]
    pub(crate) id: String,
    #[prost(map = "string, message", tag = "4")]
    pub(crate) parameters: HashMap<String, InferParameter>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) outputs: Vec<InferTensor>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub(crate) raw_output_contents: Vec<Bytes>,
}

/// An answer in a stream: an error of one request, or its outputs.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelStreamInferResponse {
    #[prost(string, tag = "1")]
    pub(crate) error_message: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) infer_response: Option<ModelInferResponse>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct RepositoryIndexRequest {
    #[prost(string, tag = "1")]
    pub(crate) repository_name: String,
    #[prost(bool, tag = "2")]
    pub(crate) ready: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RepositoryIndexResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) models: Vec<ModelIndex>,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelIndex {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    #[serde(default)]
    pub(crate) version: String,
    #[prost(string, tag = "3")]
    pub(crate) state: String,
    #[prost(string, tag = "4")]
    pub(crate) reason: String,
}

/// Loads or unloads a model. KServe's own clients have its name as the first field.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RepositoryChangeRequest {
    #[prost(string, tag = "1")]
    pub(crate) repository_name: String,
    #[prost(string, tag = "2")]
    pub(crate) model_name: String,
    #[prost(map = "string, message", tag = "3")]
    pub(crate) parameters: HashMap<String, ModelRepositoryParameter>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelRepositoryParameter {
    #[prost(oneof = "RepositoryParameterChoice", tags = "1, 2, 3, 4")]
    pub(crate) parameter_choice: Option<RepositoryParameterChoice>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
#[expect(clippy::enum_variant_names, reason = "the protocol's names")]
pub(crate) enum RepositoryParameterChoice {
    #[prost(bool, tag = "1")]
    BoolParam(bool),
    #[prost(int64, tag = "2")]
    Int64Param(i64),
    #[prost(string, tag = "3")]
    StringParam(String),
    #[prost(bytes = "bytes", tag = "4")]
    BytesParam(Bytes),
}

/// What KServe's clients read. Triton's skip it.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct RepositoryChangeResponse {
    #[prost(string, tag = "1")]
    pub(crate) model_name: String,
    /// Whether it is loaded, or unloaded.
    #[prost(bool, tag = "2")]
    pub(crate) is_done: bool,
}
