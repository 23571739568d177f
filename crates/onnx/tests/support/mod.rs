//! Builds small ONNX files: `Graph::new().input(..).output(..).node(..).to_onnx()`.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::PathBuf;

use prost::{Message, Oneof};

/// `TensorProto.DataType`.
pub(crate) const F32: i32 = 1;
pub(crate) const U8: i32 = 2;
pub(crate) const I64: i32 = 7;
pub(crate) const BOOL: i32 = 9;
pub(crate) const F64: i32 = 11;
pub(crate) const U32: i32 = 12;

/// An axis of a declared shape.
#[derive(Clone, Copy)]
pub(crate) enum Axis {
    Fixed(i64),
    Named(&'static str),
}
pub(crate) use Axis::{Fixed, Named};

#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(int64, tag = "1")]
    ir_version: i64,
    #[prost(message, optional, tag = "7")]
    graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    opset_import: Vec<OperatorSet>,
}

#[derive(Clone, PartialEq, Message)]
struct OperatorSet {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(int64, tag = "2")]
    version: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Graph {
    #[prost(message, repeated, tag = "1")]
    node: Vec<Node>,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<Weight>,
    #[prost(message, repeated, tag = "11")]
    input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    output: Vec<ValueInfo>,
}

#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(string, repeated, tag = "1")]
    input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    output: Vec<String>,
    #[prost(string, tag = "4")]
    op_type: String,
}

#[derive(Clone, PartialEq, Message)]
struct Weight {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(float, repeated, tag = "4")]
    float_data: Vec<f32>,
    #[prost(string, tag = "8")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct ValueInfo {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    r#type: Option<Type>,
}

#[derive(Clone, PartialEq, Message)]
struct Type {
    #[prost(message, optional, tag = "1")]
    tensor_type: Option<TensorType>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorType {
    #[prost(int32, tag = "1")]
    elem_type: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
}

#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(message, repeated, tag = "1")]
    dim: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
struct Dimension {
    #[prost(oneof = "Length", tags = "1, 2")]
    length: Option<Length>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Length {
    #[prost(int64, tag = "1")]
    Value(i64),
    #[prost(string, tag = "2")]
    Param(String),
}

fn value_info(name: &str, elem_type: i32, axes: &[Axis]) -> ValueInfo {
    let length = |axis: &Axis| match axis {
        Fixed(length) => Length::Value(*length),
        Named(name) => Length::Param((*name).to_owned()),
    };
    let dim = axes.iter().map(|axis| Dimension { length: Some(length(axis)) }).collect();
    let tensor_type = TensorType { elem_type, shape: Some(Shape { dim }) };
    ValueInfo { name: name.to_owned(), r#type: Some(Type { tensor_type: Some(tensor_type) }) }
}

impl Graph {
    pub(crate) fn new() -> Self {
        Self { name: "test".to_owned(), ..Self::default() }
    }

    pub(crate) fn input(mut self, name: &str, elements: i32, axes: &[Axis]) -> Self {
        self.input.push(value_info(name, elements, axes));
        self
    }

    pub(crate) fn output(mut self, name: &str, elements: i32, axes: &[Axis]) -> Self {
        self.output.push(value_info(name, elements, axes));
        self
    }

    pub(crate) fn weight(mut self, name: &str, dims: &[i64], data: &[f32]) -> Self {
        let (name, dims, float_data) = (name.to_owned(), dims.to_vec(), data.to_vec());
        self.initializer.push(Weight { dims, data_type: F32, float_data, name });
        self
    }

    pub(crate) fn node(mut self, op_type: &str, inputs: &[&str], output: &str) -> Self {
        let input = inputs.iter().map(|name| (*name).to_owned()).collect();
        self.node.push(Node { input, output: vec![output.to_owned()], op_type: op_type.to_owned() });
        self
    }

    pub(crate) fn to_onnx(&self) -> Vec<u8> {
        let opset_import = vec![OperatorSet { domain: String::new(), version: 17 }];
        ModelProto { ir_version: 8, graph: Some(self.clone()), opset_import }.encode_to_vec()
    }

    /// Loads the model through a temporary file.
    pub(crate) fn load(&self, name: &str) -> Result<callboard_onnx::Model, callboard_onnx::LoadError> {
        let file = TempFile::new(name, &self.to_onnx());
        callboard_onnx::Model::load(&file.0)
    }
}

/// A temporary file, removed when it is dropped.
pub(crate) struct TempFile(pub(crate) PathBuf);

impl TempFile {
    pub(crate) fn new(name: &str, content: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("callboard-{}-{name}.onnx", std::process::id()));
        std::fs::write(&path, content).unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// `y = x + [10, 20]` over `[batch, 2]`.
pub(crate) fn add() -> Graph {
    Graph::new()
        .input("x", F32, &[Named("batch"), Fixed(2)])
        .output("y", F32, &[Named("batch"), Fixed(2)])
        .weight("w", &[2], &[10.0, 20.0])
        .node("Add", &["x", "w"], "y")
}

/// `rows = table[ids]`, a table of three rows.
pub(crate) fn lookup() -> Graph {
    Graph::new()
        .input("ids", I64, &[Named("batch"), Named("length")])
        .output("rows", F32, &[Named("batch"), Named("length"), Fixed(2)])
        .weight("table", &[3, 2], &[0.0, 0.5, 1.0, 1.5, 2.0, 2.5])
        .node("Gather", &["table", "ids"], "rows")
}

/// Two inputs, two outputs: `sum = a + b`, `greater = a > b`.
pub(crate) fn compare() -> Graph {
    Graph::new()
        .input("a", F32, &[Named("batch"), Named("width")])
        .input("b", F32, &[Named("batch"), Named("width")])
        .output("sum", F32, &[Named("batch"), Named("width")])
        .output("greater", BOOL, &[Named("batch"), Named("width")])
        .node("Add", &["a", "b"], "sum")
        .node("Greater", &["a", "b"], "greater")
}

/// `y = |x|` with the axes as given.
pub(crate) fn abs(elements: i32, axes: &[Axis]) -> Graph {
    Graph::new().input("x", elements, axes).output("y", elements, axes).node("Abs", &["x"], "y")
}
