//! `ModelInfer` as a generator for prost declares it: contents are shared bytes, which is the cheaper of its two forms.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelInferRequest {
    #[prost(string, tag = "1")]
    pub(crate) model_name: String,
    #[prost(string, tag = "2")]
    pub(crate) model_version: String,
    #[prost(string, tag = "3")]
    pub(crate) id: String,
    #[prost(map = "string, message", tag = "4")]
    pub(crate) parameters: HashMap<String, InferParameter>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) inputs: Vec<InferTensor>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) outputs: Vec<RequestedOutput>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub(crate) raw_input_contents: Vec<Bytes>,
}

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

/// Raw contents only: the typed ones are not sent.
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
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestedOutput {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(map = "string, message", tag = "2")]
    pub(crate) parameters: HashMap<String, InferParameter>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct InferParameter {
    #[prost(oneof = "ParameterChoice", tags = "1, 2, 3")]
    pub(crate) parameter_choice: Option<ParameterChoice>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum ParameterChoice {
    #[prost(bool, tag = "1")]
    Bool(bool),
    #[prost(int64, tag = "2")]
    Int64(i64),
    #[prost(string, tag = "3")]
    String(String),
}
