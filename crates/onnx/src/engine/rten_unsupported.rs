//! Nodes that rten 0.27 loads and computes otherwise than ONNX defines them. A model with such a node is refused as it
//! is loaded: a wrong answer looks like a right one.
//!
//! The table was made by comparing rten with ONNX Runtime (docs/testing.md, "Models of other tools"). Ranks and types
//! are as the file declares them; a rule that needs an undeclared rank or type says which way it decides.
//! After an update of rten, run the comparison again and remove the rules that are not needed any more.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use prost::Message as _;

use crate::proto::{
    AttributeProto, DimensionValue, ElementType, ModelOperators, NodeProto, OperatorGraph, TensorProto, TypeProto,
    ValueInfoProto,
};

/// The newest operators that were compared: opset 28, of `onnx` 1.23.
const NEWEST_OPSET: i64 = 28;

/// From here on `Softmax` normalizes one axis; before, all from `axis` on.
const SOFTMAX_OF_ONE_AXIS: i64 = 13;

/// Why a model is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unsupported {
    /// Operators of a version that was not compared.
    Opset(i64),
    /// Operators that cannot be read.
    Unreadable(String),
    /// A node that would be computed wrongly.
    Node {
        /// The operator.
        operator: String,
        /// The name of the node, if it has one.
        name: Option<String>,
        /// The part of it, such as an attribute or an input.
        what: &'static str,
        /// The behaviour of rten.
        does: &'static str,
    },
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opset(opset) => {
                write!(
                    f,
                    "the model has operators of opset {opset}, newer than opset {NEWEST_OPSET}, the last one known"
                )
            }
            Self::Unreadable(reason) => write!(f, "its operators cannot be read: {reason}"),
            Self::Node { operator, name, what, does } => {
                write!(f, "the operator {operator}{what}")?;
                if let Some(name) = name {
                    // A name may be long. It is escaped where it is shown.
                    let name: String = name.chars().take(80).collect();
                    write!(f, " (node `{name}`)")?;
                }
                write!(f, " is not computed as ONNX defines it: {does}")
            }
        }
    }
}

/// Finds what rten would compute wrongly in the model of this file.
pub(super) fn check(path: &Path, file: &[u8], opset: Option<i64>) -> Result<(), Unsupported> {
    if let Some(opset) = opset.filter(|opset| *opset > NEWEST_OPSET) {
        return Err(Unsupported::Opset(opset));
    }
    let model = ModelOperators::decode(file).map_err(|error| Unsupported::Unreadable(error.to_string()))?;
    let graph = model.graph.unwrap_or_default();
    check_graph(&graph, opset, None)?;
    warn_of_ties(path, &graph);
    Ok(())
}

/// Warns of a model whose answers may differ where numbers are equal.
fn warn_of_ties(path: &Path, graph: &OperatorGraph) {
    let picks = |node: &&NodeProto| matches!(node.op_type.as_deref(), Some("ArgMax" | "ArgMin"));
    if let Some(operator) = graph.node.iter().find(picks).and_then(|node| node.op_type.as_deref()) {
        tracing::warn!(model = %path.display(), operator, "of equal numbers rten gives the last, and ONNX the first");
    }
}

/// The declaration of a value in the file.
#[derive(Default)]
struct Value {
    elements: Option<ElementType>,
    /// The length of each axis, if it is fixed.
    axes: Option<Vec<Option<i64>>>,
}

/// The values that the nodes of a graph can name.
struct Scope<'g> {
    own: HashMap<&'g str, Value>,
    /// The values of the graph around the body of a loop or branch.
    outer: Option<&'g Self>,
}

impl<'g> Scope<'g> {
    fn new(graph: &'g OperatorGraph, outer: Option<&'g Self>) -> Self {
        let mut own = HashMap::new();
        let declared = graph.input.iter().chain(&graph.output).chain(&graph.value_info);
        own.extend(declared.filter_map(|info| Some((info.name.as_deref()?, declared_value(info)))));
        own.extend(graph.initializer.iter().filter_map(|weight| Some((weight.name.as_deref()?, weight_value(weight)))));
        for node in &graph.node {
            if let Some((output, value)) = node.output.first().zip(made_value(node)) {
                let known: &mut Value = own.entry(output).or_default();
                known.elements = known.elements.or(value.elements);
                known.axes = known.axes.take().or(value.axes);
            }
        }
        Self { own, outer }
    }

    /// Bodies lie in each other at most as deep as prost reads.
    fn get(&self, name: &str) -> Option<&Value> {
        self.own.get(name).or_else(|| self.outer?.get(name))
    }
}

fn check_graph(graph: &OperatorGraph, opset: Option<i64>, outer: Option<&Scope<'_>>) -> Result<(), Unsupported> {
    let values = Scope::new(graph, outer);
    for node in &graph.node {
        for body in node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()) {
            check_graph(body, opset, Some(&values))?;
        }
        let is_standard = matches!(node.domain.as_deref().unwrap_or_default(), "" | "ai.onnx");
        if let Some((what, does)) =
            is_standard.then(|| NodeUse { node, values: &values, opset }.unsupported()).flatten()
        {
            let operator = node.op_type.clone().unwrap_or_default();
            let name = node.name.clone().filter(|name| !name.is_empty());
            return Err(Unsupported::Node { operator, name, what, does });
        }
    }
    Ok(())
}

/// A node with what is known about its values.
struct NodeUse<'a> {
    node: &'a NodeProto,
    values: &'a Scope<'a>,
    opset: Option<i64>,
}

impl NodeUse<'_> {
    /// The table: what of this use is unsupported, and what rten does. A rule for one type does not refuse an input
    /// whose type is not declared, because most of them have the other one; `Sign` refuses it.
    fn unsupported(&self) -> Option<(&'static str, &'static str)> {
        match self.node.op_type.as_deref()? {
            // Equal floats are rare: `warn_of_ties` is enough for them.
            "ArgMax" | "ArgMin" if self.elements(0).is_some_and(is_integer) => {
                Some((" of integers", "of equal numbers it gives the last instead of the first"))
            }
            "BitCast" if matches!(self.to(), Some(ElementType::Double | ElementType::Int64)) => {
                Some((" with a `to` of 64 bits", "it has 32 bits of each number"))
            }
            "Cast" if self.to() == Some(ElementType::Bool) && self.is_float(0) => {
                Some((" of floats with `to` = BOOL", "it drops the fraction, so 0.5 is false"))
            }
            "CastLike" if self.elements(1) == Some(ElementType::Bool) && self.is_float(0) => {
                Some((" of floats to BOOL", "it drops the fraction, so 0.5 is false"))
            }
            "AveragePool" | "Conv" | "ConvInteger" | "ConvTranspose" | "MaxPool"
                if self.text("auto_pad") == Some(b"SAME_LOWER") && !self.pads_evenly() =>
            {
                Some((" with `auto_pad` = \"SAME_LOWER\"", "it pads as with \"SAME_UPPER\""))
            }
            "GRU" | "LSTM" if self.has_input(4) => {
                Some((" with the input `sequence_lens`", "it reads every sequence to the end of the longest"))
            }
            "MatMul" if self.rank(1) == Some(1) && self.rank(0).is_none_or(|rank| rank > 2) => {
                Some((" of a stack of matrices with a vector", "its result has one axis more"))
            }
            "NonMaxSuppression" => {
                Some(("", "it compares boxes of all classes and batches, by another measure of overlap"))
            }
            "Resize" if self.text("mode") == Some(b"cubic") => {
                Some((" with `mode` = \"cubic\"", "it interpolates linearly"))
            }
            "Sign" if !self.elements(0).is_some_and(is_integer) => Some((" of floats", "the sign of 0 is 1 or -1")),
            "Softmax" | "LogSoftmax" if self.opset.is_some_and(|opset| opset < SOFTMAX_OF_ONE_AXIS) => {
                let what = " before opset 13 on more axes than `axis` and those before it";
                (!self.normalizes_one_axis()).then_some((what, "it normalizes one axis instead of all from `axis` on"))
            }
            _ => None,
        }
    }

    fn attribute(&self, name: &str) -> Option<&AttributeProto> {
        attribute(self.node, name)
    }

    fn text(&self, name: &str) -> Option<&[u8]> {
        self.attribute(name)?.s.as_deref()
    }

    fn ints(&self, name: &str) -> &[i64] {
        self.attribute(name).map_or(&[], |attribute| &attribute.ints)
    }

    /// The type that a cast gives.
    fn to(&self) -> Option<ElementType> {
        cast_to(self.node)
    }

    fn has_input(&self, index: usize) -> bool {
        self.node.input.get(index).is_some_and(|name| !name.is_empty())
    }

    fn input(&self, index: usize) -> Option<&Value> {
        self.values.get(self.node.input.get(index)?.as_str())
    }

    fn elements(&self, index: usize) -> Option<ElementType> {
        self.input(index)?.elements
    }

    fn is_float(&self, index: usize) -> bool {
        matches!(self.elements(index), Some(ElementType::Float | ElementType::Float16 | ElementType::Double))
    }

    fn rank(&self, index: usize) -> Option<usize> {
        self.input(index)?.axes.as_ref().map(Vec::len)
    }

    /// Whether both ends get the same padding whatever the lengths are: with steps of 1 and windows of odd length.
    fn pads_evenly(&self) -> bool {
        let (windows, dilations) = (self.ints("kernel_shape"), self.ints("dilations"));
        let padding = |(axis, window): (usize, &i64)| {
            window.wrapping_sub(1).wrapping_mul(dilations.get(axis).copied().unwrap_or(1))
        };
        let is_even = !windows.is_empty() && windows.iter().enumerate().map(padding).all(|padding| padding % 2 == 0);
        is_even && self.ints("strides").iter().all(|stride| *stride == 1)
    }

    /// Whether a softmax over all axes from `axis` on is one over the axis that rten takes. Axes that are not declared
    /// are taken for more than one, unless `axis` is at least 2: exporters of today name the last one.
    fn normalizes_one_axis(&self) -> bool {
        let named = self.attribute("axis").and_then(|attribute| attribute.i);
        // The result has the same axes, and is often declared where the input is not.
        let of_output = || self.values.get(self.node.output.first()?.as_str())?.axes.as_ref();
        let Some(axes) = self.input(0).and_then(|value| value.axes.as_ref()).or_else(of_output) else {
            return named.is_some_and(|axis| axis == -1 || axis >= 2);
        };
        let rank = axes.len() as i64;
        let from = named.map_or(1, |axis| if axis < 0 { axis.saturating_add(rank) } else { axis });
        let taken = named.map_or(rank - 1, |_| from);
        let others = axes.iter().enumerate().filter(|(axis, _)| (*axis as i64) >= from && *axis as i64 != taken);
        others.into_iter().all(|(_, length)| *length == Some(1))
    }
}

fn attribute<'n>(node: &'n NodeProto, name: &str) -> Option<&'n AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name))
}

fn cast_to(node: &NodeProto) -> Option<ElementType> {
    ElementType::try_from(i32::try_from(attribute(node, "to")?.i?).ok()?).ok()
}

fn is_integer(elements: ElementType) -> bool {
    use ElementType::{Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64};
    matches!(elements, Int8 | Int16 | Int32 | Int64 | Uint8 | Uint16 | Uint32 | Uint64)
}

fn declared_value(info: &ValueInfoProto) -> Value {
    let tensor = info.r#type.as_ref().and_then(|TypeProto { tensor_type, .. }| tensor_type.as_ref());
    let length = |value: &Option<DimensionValue>| match value {
        Some(DimensionValue::Value(length)) => Some(*length),
        _ => None,
    };
    let axes = tensor.and_then(|tensor| tensor.shape.as_ref());
    Value {
        elements: tensor.and_then(|tensor| ElementType::try_from(tensor.elem_type?).ok()),
        axes: axes.map(|shape| shape.dim.iter().map(|axis| length(&axis.value)).collect()),
    }
}

fn weight_value(weight: &TensorProto) -> Value {
    let elements = weight.data_type.and_then(|code| ElementType::try_from(code).ok());
    Value { elements, axes: Some(weight.dims.iter().copied().map(Some).collect()) }
}

/// The facts about the first output that follow from the operator of its node.
fn made_value(node: &NodeProto) -> Option<Value> {
    match node.op_type.as_deref()? {
        "Constant" => node.attribute.iter().find_map(|attribute| attribute.t.as_ref()).map(weight_value),
        "Cast" => Some(Value { elements: cast_to(node), axes: None }),
        "Flatten" | "Gemm" => Some(Value { elements: None, axes: Some(vec![None; 2]) }),
        _ => None,
    }
}
