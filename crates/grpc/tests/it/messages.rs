//! The messages as a client declares them.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Named {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
}

/// `live`, `ready`, and the state of a service.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct State {
    #[prost(int32, tag = "1")]
    pub(crate) state: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Described {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) versions: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) platform: String,
    #[prost(message, repeated, tag = "4")]
    pub(crate) inputs: Vec<Tensor>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) outputs: Vec<Tensor>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Parameter {
    #[prost(oneof = "Choice", tags = "1, 2, 3, 4, 5")]
    pub(crate) choice: Option<Choice>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Choice {
    #[prost(bool, tag = "1")]
    Bool(bool),
    #[prost(int64, tag = "2")]
    Int(i64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(uint64, tag = "5")]
    Uint(u64),
}

pub(crate) type Parameters = HashMap<String, Parameter>;

pub(crate) fn parameters<const N: usize>(choices: [(&str, Choice); N]) -> Parameters {
    choices.into_iter().map(|(name, choice)| (name.to_owned(), Parameter { choice: Some(choice) })).collect()
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Contents {
    #[prost(bool, repeated, tag = "1")]
    pub(crate) bools: Vec<bool>,
    #[prost(int32, repeated, tag = "2")]
    pub(crate) ints: Vec<i32>,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) int64s: Vec<i64>,
    #[prost(uint32, repeated, tag = "4")]
    pub(crate) uints: Vec<u32>,
    #[prost(uint64, repeated, tag = "5")]
    pub(crate) uint64s: Vec<u64>,
    #[prost(float, repeated, tag = "6")]
    pub(crate) fp32s: Vec<f32>,
    #[prost(double, repeated, tag = "7")]
    pub(crate) fp64s: Vec<f64>,
    #[prost(bytes = "bytes", repeated, tag = "8")]
    pub(crate) bytes: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Tensor {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) shape: Vec<i64>,
    #[prost(map = "string, message", tag = "4")]
    pub(crate) parameters: Parameters,
    #[prost(message, optional, tag = "5")]
    pub(crate) contents: Option<Contents>,
}

impl Tensor {
    pub(crate) fn new(name: &str, datatype: &str, shape: &[i64]) -> Self {
        Self { name: name.to_owned(), datatype: datatype.to_owned(), shape: shape.to_vec(), ..Self::default() }
    }

    pub(crate) fn with(self, contents: Contents) -> Self {
        Self { contents: Some(contents), ..self }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Wanted {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(map = "string, message", tag = "2")]
    pub(crate) parameters: Parameters,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Infer {
    #[prost(string, tag = "1")]
    pub(crate) model: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(string, tag = "3")]
    pub(crate) id: String,
    #[prost(map = "string, message", tag = "4")]
    pub(crate) parameters: Parameters,
    #[prost(message, repeated, tag = "5")]
    pub(crate) inputs: Vec<Tensor>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) outputs: Vec<Wanted>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub(crate) raw: Vec<Bytes>,
}

impl Infer {
    /// A request with one input as raw bytes.
    pub(crate) fn raw(model: &str, datatype: &str, shape: &[i64], raw: impl Into<Bytes>) -> Self {
        let inputs = vec![Tensor::new("input", datatype, shape)];
        Self { model: model.to_owned(), inputs, raw: vec![raw.into()], ..Self::default() }
    }

    /// A request with one typed input.
    pub(crate) fn typed(model: &str, datatype: &str, shape: &[i64], contents: Contents) -> Self {
        let inputs = vec![Tensor::new("input", datatype, shape).with(contents)];
        Self { model: model.to_owned(), inputs, ..Self::default() }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Inferred {
    #[prost(string, tag = "1")]
    pub(crate) model: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(string, tag = "3")]
    pub(crate) id: String,
    #[prost(map = "string, message", tag = "4")]
    pub(crate) parameters: Parameters,
    #[prost(message, repeated, tag = "5")]
    pub(crate) outputs: Vec<Tensor>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub(crate) raw: Vec<Bytes>,
}

impl Inferred {
    pub(crate) fn is_final(&self) -> Option<bool> {
        match self.parameters.get("triton_final_response")?.choice {
            Some(Choice::Bool(is_final)) => Some(is_final),
            _ => None,
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StreamInferred {
    #[prost(string, tag = "1")]
    pub(crate) error: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) answer: Option<Inferred>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Change {
    #[prost(string, tag = "1")]
    pub(crate) first: String,
    #[prost(string, tag = "2")]
    pub(crate) second: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Changed {
    #[prost(string, tag = "1")]
    pub(crate) model: String,
    #[prost(bool, tag = "2")]
    pub(crate) is_loaded: bool,
}
