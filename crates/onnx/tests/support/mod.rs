//! Builds small ONNX files: `Graph::new().input(..).output(..).node(..).to_onnx()`.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod library;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use callboard_onnx::{EngineChoice, LoadError, Model, OnnxConfig};
use prost::{Message, Oneof};

/// `TensorProto.DataType`.
pub(crate) const F32: i32 = 1;
pub(crate) const U8: i32 = 2;
pub(crate) const I32: i32 = 6;
pub(crate) const I64: i32 = 7;
pub(crate) const BOOL: i32 = 9;
pub(crate) const F64: i32 = 11;
pub(crate) const U32: i32 = 12;

/// The operators for classical models.
const ML: &str = "ai.onnx.ml";

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
    #[prost(message, repeated, tag = "5")]
    attribute: Vec<Attribute>,
    #[prost(string, tag = "7")]
    domain: String,
}

/// An attribute: integers, an integer, a text or a graph.
#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(int64, optional, tag = "3")]
    i: Option<i64>,
    #[prost(string, optional, tag = "4")]
    s: Option<String>,
    #[prost(message, optional, tag = "6")]
    g: Option<Graph>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    ints: Vec<i64>,
    #[prost(int32, tag = "20")]
    r#type: i32,
}

/// `AttributeProto.AttributeType`.
const INT: i32 = 2;
const STRING: i32 = 3;
const GRAPH: i32 = 5;
const INTS: i32 = 7;

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
    #[prost(message, repeated, tag = "13")]
    external_data: Vec<Entry>,
    #[prost(int32, tag = "14")]
    data_location: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
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
    #[prost(message, optional, boxed, tag = "4")]
    sequence_type: Option<Box<ElementOf>>,
    #[prost(message, optional, boxed, tag = "5")]
    map_type: Option<Box<MapType>>,
}

#[derive(Clone, PartialEq, Message)]
struct ElementOf {
    #[prost(message, optional, boxed, tag = "1")]
    elem_type: Option<Box<Type>>,
}

#[derive(Clone, PartialEq, Message)]
struct MapType {
    #[prost(int32, tag = "1")]
    key_type: i32,
    #[prost(message, optional, boxed, tag = "2")]
    value_type: Option<Box<Type>>,
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
    let r#type = Type { tensor_type: Some(tensor_type), ..Type::default() };
    ValueInfo { name: name.to_owned(), r#type: Some(r#type) }
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
        self.initializer.push(Weight { dims, data_type: F32, float_data, name, ..Weight::default() });
        self
    }

    /// A weight whose numbers are in a file beside the model.
    pub(crate) fn external_weight(mut self, name: &str, dims: &[i64], file: &str) -> Self {
        let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
        let length = (4 * dims.iter().product::<i64>()).to_string();
        let external_data = vec![entry("location", file), entry("offset", "0"), entry("length", &length)];
        let (name, dims) = (name.to_owned(), dims.to_vec());
        self.initializer.push(Weight {
            dims,
            data_type: F32,
            name,
            external_data,
            data_location: 1,
            ..Weight::default()
        });
        self
    }

    /// An output that is a list.
    pub(crate) fn output_list(mut self, name: &str, of: &Listed) -> Self {
        let tensor = value_info("", F32, &[]).r#type.map(Box::new);
        let element = match of {
            Listed::Tensors => tensor,
            Listed::Maps => {
                let map = MapType { key_type: I64, value_type: tensor };
                Some(Box::new(Type { map_type: Some(Box::new(map)), ..Type::default() }))
            }
        };
        let list = Type { sequence_type: Some(Box::new(ElementOf { elem_type: element })), ..Type::default() };
        self.output.push(ValueInfo { name: name.to_owned(), r#type: Some(list) });
        self
    }

    pub(crate) fn node(mut self, op_type: &str, inputs: &[&str], output: &str) -> Self {
        let input = inputs.iter().map(|name| (*name).to_owned()).collect();
        let (output, op_type) = (vec![output.to_owned()], op_type.to_owned());
        self.node.push(Node { input, output, op_type, ..Node::default() });
        self
    }

    /// The last node is of the operators for classical models, and has this attribute.
    pub(crate) fn in_ml(mut self, name: &str, ints: &[i64]) -> Self {
        self.node.last_mut().unwrap().domain = ML.to_owned();
        self.with(name, ints)
    }

    /// The last node has this attribute.
    pub(crate) fn with(self, name: &str, ints: &[i64]) -> Self {
        self.attribute(Attribute { name: name.to_owned(), ints: ints.to_vec(), r#type: INTS, ..Attribute::default() })
    }

    pub(crate) fn with_int(self, name: &str, int: i64) -> Self {
        self.attribute(Attribute { name: name.to_owned(), i: Some(int), r#type: INT, ..Attribute::default() })
    }

    pub(crate) fn with_text(self, name: &str, text: &str) -> Self {
        let text = Some(text.to_owned());
        self.attribute(Attribute { name: name.to_owned(), s: text, r#type: STRING, ..Attribute::default() })
    }

    pub(crate) fn with_graph(self, name: &str, graph: Self) -> Self {
        self.attribute(Attribute { name: name.to_owned(), g: Some(graph), r#type: GRAPH, ..Attribute::default() })
    }

    fn attribute(mut self, attribute: Attribute) -> Self {
        self.node.last_mut().unwrap().attribute.push(attribute);
        self
    }

    pub(crate) fn to_onnx(&self) -> Vec<u8> {
        self.to_opset(17)
    }

    pub(crate) fn to_opset(&self, opset: i64) -> Vec<u8> {
        let set = |domain: &str, version| OperatorSet { domain: domain.to_owned(), version };
        let opset_import = vec![set("", opset), set(ML, 3)];
        ModelProto { ir_version: 8, graph: Some(self.clone()), opset_import }.encode_to_vec()
    }

    /// Loads the model on the embedded engine, through a temporary file.
    pub(crate) fn load(&self, name: &str) -> Result<Model, LoadError> {
        self.load_on(EngineChoice::Rten, name)
    }

    pub(crate) fn load_on(&self, engine: EngineChoice, name: &str) -> Result<Model, LoadError> {
        let file = TempFile::new(name, &self.to_onnx());
        let mut config = OnnxConfig::new(&file.0);
        config.engine = engine;
        Model::from_config(&config)
    }
}

/// A temporary file, removed when it is dropped.
pub(crate) struct TempFile(pub(crate) PathBuf);

impl TempFile {
    /// Tests run at the same time, so that each file has a number of its own.
    pub(crate) fn new(name: &str, content: &[u8]) -> Self {
        static FILES: AtomicUsize = AtomicUsize::new(0);
        let (process, number) = (std::process::id(), FILES.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("callboard-{process}-{number}-{name}.onnx"));
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

/// `y = x + the mean of all numbers of the batch`, in a way that only a run shows.
pub(crate) fn mixing() -> Graph {
    Graph::new()
        .input("x", F32, &[Named("batch"), Fixed(2)])
        .output("y", F32, &[Named("batch"), Fixed(2)])
        .node("Flatten", &["x"], "all")
        .with_int("axis", 0)
        .node("ReduceMean", &["all"], "mean")
        .node("Add", &["x", "mean"], "y")
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

/// A sequence of maps from i64 to f32, or of tensors of f32.
pub(crate) enum Listed {
    Maps,
    Tensors,
}
