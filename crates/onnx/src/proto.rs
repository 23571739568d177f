//! The messages of the ONNX protobuf with the operators of a graph, and for tests the messages of a signature.
//!
//! Field numbers are those of `onnx.proto` (IR version 10, <https://github.com/onnx/onnx/blob/main/onnx/onnx.proto>);
//! fields that are not listed, the weights among them, are skipped without being kept. Types contain themselves (a
//! sequence of maps), and so do graphs (the body of a loop); prost counts the nesting and ends at 100, so a file cannot
//! overflow the stack.

use prost::{Enumeration, Message, Oneof};

#[cfg(test)]
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelProto {
    #[prost(int64, optional, tag = "1")]
    pub(crate) ir_version: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) producer_name: Option<String>,
    #[prost(message, optional, tag = "7")]
    pub(crate) graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) opset_import: Vec<OperatorSetIdProto>,
}

#[cfg(test)]
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OperatorSetIdProto {
    #[prost(string, optional, tag = "1")]
    pub(crate) domain: Option<String>,
    #[prost(int64, optional, tag = "2")]
    pub(crate) version: Option<i64>,
}

#[cfg(test)]
#[derive(Clone, PartialEq, Message)]
pub(crate) struct GraphProto {
    #[prost(message, repeated, tag = "5")]
    pub(crate) initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub(crate) output: Vec<ValueInfoProto>,
}

/// A `ModelProto` that is read for its operators: they may be many, and a signature does not need them.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelOperators {
    #[prost(message, optional, tag = "7")]
    pub(crate) graph: Option<OperatorGraph>,
}

/// A `GraphProto` with its operators.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OperatorGraph {
    #[prost(message, repeated, tag = "1")]
    pub(crate) node: Vec<NodeProto>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub(crate) output: Vec<ValueInfoProto>,
    /// The types of values between nodes; exporters write some or none of them.
    #[prost(message, repeated, tag = "13")]
    pub(crate) value_info: Vec<ValueInfoProto>,
}

/// A use of an operator.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub(crate) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) output: Vec<String>,
    #[prost(string, optional, tag = "3")]
    pub(crate) name: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(crate) op_type: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attribute: Vec<AttributeProto>,
    #[prost(string, optional, tag = "7")]
    pub(crate) domain: Option<String>,
}

/// An attribute; floats and most lists are not listed.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AttributeProto {
    #[prost(string, optional, tag = "1")]
    pub(crate) name: Option<String>,
    #[prost(int64, optional, tag = "3")]
    pub(crate) i: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub(crate) s: Option<Vec<u8>>,
    #[prost(message, optional, tag = "5")]
    pub(crate) t: Option<TensorProto>,
    /// The body of a loop or a branch.
    #[prost(message, optional, tag = "6")]
    pub(crate) g: Option<OperatorGraph>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub(crate) ints: Vec<i64>,
}

/// A weight: its name, type and shape, and the location of its data.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorProto {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub(crate) dims: Vec<i64>,
    #[prost(int32, optional, tag = "2")]
    pub(crate) data_type: Option<i32>,
    #[prost(string, optional, tag = "8")]
    pub(crate) name: Option<String>,
    /// The place of the data: `location` is the file, relative to this one.
    #[prost(message, repeated, tag = "13")]
    pub(crate) external_data: Vec<StringStringEntryProto>,
    /// 0 in this file, 1 in a separate file.
    #[prost(int32, optional, tag = "14")]
    pub(crate) data_location: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StringStringEntryProto {
    #[prost(string, optional, tag = "1")]
    pub(crate) key: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(crate) value: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ValueInfoProto {
    #[prost(string, optional, tag = "1")]
    pub(crate) name: Option<String>,
    #[prost(message, optional, tag = "2")]
    pub(crate) r#type: Option<TypeProto>,
}

/// One of these; sparse tensors and opaque values are not listed.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub(crate) tensor_type: Option<TensorTypeProto>,
    #[prost(message, optional, boxed, tag = "4")]
    pub(crate) sequence_type: Option<Box<ElementOfProto>>,
    #[prost(message, optional, boxed, tag = "5")]
    pub(crate) map_type: Option<Box<MapTypeProto>>,
    #[prost(message, optional, boxed, tag = "9")]
    pub(crate) optional_type: Option<Box<ElementOfProto>>,
}

/// `TypeProto.Sequence` and `TypeProto.Optional`, which have one form.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ElementOfProto {
    #[prost(message, optional, boxed, tag = "1")]
    pub(crate) elem_type: Option<Box<TypeProto>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MapTypeProto {
    #[prost(int32, optional, tag = "1")]
    pub(crate) key_type: Option<i32>,
    #[prost(message, optional, boxed, tag = "2")]
    pub(crate) value_type: Option<Box<TypeProto>>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorTypeProto {
    #[prost(int32, optional, tag = "1")]
    pub(crate) elem_type: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub(crate) shape: Option<TensorShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub(crate) dim: Vec<DimensionProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DimensionProto {
    #[prost(oneof = "DimensionValue", tags = "1, 2")]
    pub(crate) value: Option<DimensionValue>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum DimensionValue {
    #[prost(int64, tag = "1")]
    Value(i64),
    #[prost(string, tag = "2")]
    Param(String),
}

/// `TensorProto.DataType`. Unsupported types (complex numbers, 8-bit floats) are not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(crate) enum ElementType {
    Undefined = 0,
    Float = 1,
    Uint8 = 2,
    Int8 = 3,
    Uint16 = 4,
    Int16 = 5,
    Int32 = 6,
    Int64 = 7,
    String = 8,
    Bool = 9,
    Float16 = 10,
    Double = 11,
    Uint32 = 12,
    Uint64 = 13,
    Bfloat16 = 16,
}
