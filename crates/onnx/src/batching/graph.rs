//! Operators that mix the items of a batch.
//!
//! Follows the axis of the batch from the inputs through the nodes. If an operator computes over that axis, such as
//! a sum or a softmax over it, the answer to an item depends on the others. Some operators hide where the axis goes;
//! nothing is found behind them, and the [trial](super::trial) decides alone. A file with more nodes or values than any
//! model has, or that costs more than its [`Budget`], is not read to its end: nothing is known of it.

use std::collections::HashMap;

use super::Reading;
use super::nodes::{Budget, Constant, Graph, Node};
use crate::signature::{Signature, TensorSpec, model};

/// Bodies in bodies: loops of models are one or two deep.
const MAX_DEPTH: usize = 16;

/// What the operators do to the items of a batch.
pub(super) fn read(file: &[u8], signature: &Signature) -> Reading {
    read_within(&Budget::default(), file, signature)
}

/// The same with a budget.
pub(super) fn read_within(budget: &Budget, file: &[u8], signature: &Signature) -> Reading {
    let Ok((graph, opset)) = model(file) else { return Reading::Unread };
    let places = signature.inputs().iter().map(|input| (input.name(), Axis(0))).collect();
    let outputs: Vec<&str> = signature.outputs().iter().map(TensorSpec::name).collect();
    read_graph(budget, graph, opset, places, None, &outputs, MAX_DEPTH).unwrap_or(Reading::Unread)
}

/// The place of the items of a batch in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Along this axis.
    Axis(usize),
    /// Nowhere: it is made of constants and shapes.
    Nowhere,
    /// Somewhere, or nowhere.
    Unknown,
}
use Place::{Axis, Nowhere, Unknown};

/// The values of a graph that were made so far.
pub(super) struct Values<'g> {
    graph: Graph<'g>,
    opset: Option<i64>,
    budget: &'g Budget,
    places: HashMap<&'g str, Place>,
    constants: HashMap<&'g str, Constant<'g>>,
    outer: Option<&'g Self>,
}

/// `None` if it is not read to its end.
fn read_graph<'g>(
    budget: &'g Budget,
    bytes: &'g [u8],
    opset: Option<i64>,
    places: HashMap<&'g str, Place>,
    outer: Option<&'g Values<'g>>,
    outputs: &[&str],
    depth: usize,
) -> Option<Reading> {
    let graph = Graph::read(bytes)?;
    let mut values = Values { graph, opset, budget, places, constants: HashMap::new(), outer };
    let mut is_apart = outer.is_none();
    for bytes in std::mem::take(&mut values.graph.nodes) {
        let node = Node::read(bytes)?;
        let mixes = values.mixes(&node);
        // A value that the budget left unknown must not become a finding.
        if budget.is_spent() {
            return None;
        }
        if let Some(does) = mixes {
            // A name may be long. It is escaped where it is shown.
            let name: String = node.name.chars().take(80).collect();
            let name = if name.is_empty() { name } else { format!(" (node `{name}`)") };
            return Some(Reading::Mixed(format!("the operator {}{name} {does}", node.operator)));
        }
        for body in node.bodies() {
            let depth = depth.checked_sub(1)?;
            let found = read_graph(budget, body, opset, HashMap::new(), Some(&values), &[], depth)?;
            if matches!(found, Reading::Mixed(_)) {
                return Some(found);
            }
        }
        is_apart = is_apart && values.keeps_apart(&node);
        values.note(&node)?;
    }
    is_apart = is_apart && outputs.iter().all(|output| values.place_of(output) == Axis(0));
    // A look-up beyond the budget tells nothing.
    if budget.is_spent() {
        return None;
    }
    Some(if is_apart { Reading::Apart } else { Reading::Open })
}

const ONE_SCALE: &str = "has one scale for the numbers of all items, so that large ones of an item round those of the \
                         others";
const OVER_ITEMS: &str = "computes over the items of a batch, not within each";
const AS_TIME: &str = "reads the items of a batch as the steps of one sequence";
const PICKS: &str = "takes single items of a batch";
const CROSSES: &str = "multiplies the items of a batch with each other";
const BATCH_STATISTICS: &str = "is in training mode, where it normalizes with the mean of the batch";

impl<'g> Values<'g> {
    /// The table: what an operator does to the items of a batch, if it mixes them.
    fn mixes(&self, node: &Node<'g>) -> Option<&'static str> {
        match (node.domain, node.operator) {
            ("" | "ai.onnx", "DynamicQuantizeLinear")
            | ("com.microsoft", "DynamicQuantizeMatMul" | "DynamicQuantizeLSTM") => {
                return (self.place(node, 0) != Nowhere).then_some(ONE_SCALE);
            }
            ("" | "ai.onnx", "BatchNormalization") if node.int("training_mode") == Some(1) => {
                return Some(BATCH_STATISTICS);
            }
            ("" | "ai.onnx", _) => {}
            _ => return None,
        }
        let Axis(batch) = self.place(node, 0) else { return None };
        let rank = self.rank_of(node, 0);
        let is_batch = |axis: i64| normalized(axis, rank) == Some(batch);
        // The operator takes all axes from this one on as one.
        let from = |axis: i64| normalized(axis, rank).is_some_and(|axis| axis <= batch);
        let over = |is_over: bool| is_over.then_some(OVER_ITEMS);
        match node.operator {
            operator if operator.starts_with("Reduce") => match self.axes(node, 1) {
                Axes::All => over(node.int("noop_with_empty_axes") != Some(1)),
                Axes::Known(axes) => over(axes.into_iter().any(is_batch)),
                Axes::Unknown => None,
            },
            "Softmax" | "LogSoftmax" | "Hardmax" if self.opset.is_none_or(|opset| opset < 13) => {
                over(from(node.int("axis").unwrap_or(1)))
            }
            "Softmax" | "LogSoftmax" | "Hardmax" | "LpNormalization" | "TopK" => {
                over(is_batch(node.int("axis").unwrap_or(-1)))
            }
            "LayerNormalization" | "RMSNormalization" => over(from(node.int("axis").unwrap_or(-1))),
            "MeanVarianceNormalization" => {
                over(node.ints("axes").unwrap_or_else(|| vec![0, 2, 3]).into_iter().any(is_batch))
            }
            "ArgMax" | "ArgMin" => over(is_batch(node.int("axis").unwrap_or(0))),
            "CumSum" | "CumProd" => over(self.ints(node, 1)?.into_iter().any(is_batch)),
            "ReverseSequence" => over(is_batch(node.int("time_axis").unwrap_or(0))),
            "Unique" | "Compress" => over(node.int("axis").is_none_or(is_batch)),
            "RNN" | "GRU" | "LSTM" => (batch == 0 && node.int("layout") != Some(1)).then_some(AS_TIME),
            "Gather" if self.place(node, 1) == Nowhere => is_batch(node.int("axis").unwrap_or(0)).then_some(PICKS),
            "Split" => is_batch(node.int("axis").unwrap_or(0)).then_some(PICKS),
            "Slice" => self.cuts(node, batch, rank)?.then_some(PICKS),
            "MatMul" => self.crosses(node, batch, rank?)?.then_some(CROSSES),
            "Gemm" => {
                let sums = (node.int("transA") == Some(1)) == (batch == 0);
                (sums || matches!(self.place(node, 1), Axis(_))).then_some(CROSSES)
            }
            _ => None,
        }
    }

    /// Whether a slice leaves out some of the items.
    fn cuts(&self, node: &Node<'g>, batch: usize, rank: Option<usize>) -> Option<bool> {
        let part = |name, input| node.ints(name).or_else(|| self.ints(node, input));
        let (starts, ends) = (part("starts", 1)?, part("ends", 2)?);
        let axes = part("axes", 3);
        let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
        let index = axes.iter().position(|axis| normalized(*axis, rank) == Some(batch));
        let Some(index) = index else { return Some(false) };
        Some(starts.get(index) != Some(&0) || ends.get(index).is_none_or(|end| *end < i32::MAX.into()))
    }

    /// Whether a product sums over the items, or has a number for each pair of them.
    fn crosses(&self, node: &Node<'g>, batch: usize, rank: usize) -> Option<bool> {
        let sums = batch + 1 == rank;
        let Axis(other) = self.place(node, 1) else { return Some(sums && rank > 1) };
        let other_rank = self.rank_of(node, 1)?;
        Some(sums || other + 2 >= other_rank)
    }

    /// Remembers what a node makes. `None` if that is too much.
    fn note(&mut self, node: &Node<'g>) -> Option<()> {
        let (place, rank) = self.made(node);
        if let Some((name, constant)) = node.outputs.first().zip(node.tensor()) {
            self.constants.insert(name, constant);
        }
        for (index, output) in node.outputs.iter().enumerate() {
            self.budget.value()?;
            // All parts of a split are like its first output.
            let is_like_first = index == 0 || place == Nowhere || node.operator == "Split";
            self.places.insert(output, if is_like_first { place } else { Unknown });
            if let Some(rank) = rank.filter(|_| is_like_first) {
                self.graph.ranks.entry(output).or_insert(rank);
            }
        }
        Some(())
    }

    /// The place of the items in the first output, and its number of axes.
    pub(super) fn made(&self, node: &Node<'g>) -> (Place, Option<usize>) {
        let inputs = || (0..node.inputs.len()).filter(|index| !node.inputs[*index].is_empty());
        if matches!(node.operator, "Shape" | "Size") || inputs().all(|index| self.place(node, index) == Nowhere) {
            return (Nowhere, None);
        }
        if !matches!(node.domain, "" | "ai.onnx") {
            return (Unknown, None);
        }
        let (first, rank) = (self.place(node, 0), self.rank_of(node, 0));
        match node.operator {
            "Abs"
            | "Acos"
            | "Acosh"
            | "Asin"
            | "Asinh"
            | "Atan"
            | "Atanh"
            | "AveragePool"
            | "BatchNormalization"
            | "Cast"
            | "Ceil"
            | "Celu"
            | "Clip"
            | "Conv"
            | "ConvInteger"
            | "ConvTranspose"
            | "Cos"
            | "Cosh"
            | "CumSum"
            | "DepthToSpace"
            | "DequantizeLinear"
            | "Dropout"
            | "Elu"
            | "Erf"
            | "Exp"
            | "Floor"
            | "Gelu"
            | "GlobalAveragePool"
            | "GlobalMaxPool"
            | "GroupNormalization"
            | "HardSigmoid"
            | "HardSwish"
            | "Hardmax"
            | "Identity"
            | "InstanceNormalization"
            | "IsInf"
            | "IsNaN"
            | "LRN"
            | "LayerNormalization"
            | "LeakyRelu"
            | "Log"
            | "LogSoftmax"
            | "LpNormalization"
            | "LpPool"
            | "MaxPool"
            | "Mish"
            | "Neg"
            | "Not"
            | "PRelu"
            | "Pad"
            | "QLinearConv"
            | "QuantizeLinear"
            | "RMSNormalization"
            | "Reciprocal"
            | "Relu"
            | "Resize"
            | "Round"
            | "Selu"
            | "Sigmoid"
            | "Sign"
            | "Sin"
            | "Sinh"
            | "Slice"
            | "Softmax"
            | "Softplus"
            | "Softsign"
            | "SpaceToDepth"
            | "Split"
            | "Sqrt"
            | "Tan"
            | "Tanh"
            | "ThresholdedRelu"
            | "TopK"
            | "Trilu"
            | "Upsample" => (first, rank),
            "Add" | "And" | "BitwiseAnd" | "Div" | "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual"
            | "Max" | "Mean" | "Min" | "Mod" | "Mul" | "Or" | "Pow" | "Sub" | "Sum" | "Where" | "Xor" => {
                self.broadcast(node)
            }
            "MatMul" | "MatMulInteger" => match (first, rank, self.place(node, 1)) {
                (Axis(batch), Some(rank), Nowhere) if batch + 1 < rank => (first, Some(rank)),
                (Axis(batch), Some(rank), Axis(other)) if batch == other && batch + 2 < rank => (first, Some(rank)),
                _ => (Unknown, None),
            },
            "Gemm" => (if matches!(first, Axis(_)) { Axis(0) } else { Unknown }, Some(2)),
            "Transpose" => self.transposed(node, first, rank),
            "Reshape" => self.reshaped(node, first),
            "Flatten" => match (first, node.int("axis").unwrap_or(1)) {
                (Axis(0), 1..) => (first, Some(2)),
                _ => (Unknown, Some(2)),
            },
            "Unsqueeze" => self.unsqueezed(node, first, rank),
            "Concat" => {
                let is_along = |axis: usize| normalized(node.int("axis").unwrap_or(0), rank) == Some(axis);
                let all = inputs()
                    .all(|index| matches!(self.place(node, index), place if place == first || place == Nowhere));
                (if all && !matches!(first, Axis(axis) if is_along(axis)) { first } else { Unknown }, rank)
            }
            "Gather" => match (first, self.place(node, 1), node.int("axis").unwrap_or(0)) {
                (Nowhere, indices @ Axis(_), 0) => (indices, None),
                (Axis(batch), Nowhere, axis) if usize::try_from(axis).is_ok_and(|axis| axis > batch) => (first, None),
                _ => (Unknown, None),
            },
            "Squeeze" => reduced(first, rank, self.axes(node, 1), false),
            "ArgMax" | "ArgMin" => {
                reduced(first, rank, Axes::Known(vec![node.int("axis").unwrap_or(0)]), keeps_axes(node))
            }
            operator if operator.starts_with("Reduce") => reduced(first, rank, self.axes(node, 1), keeps_axes(node)),
            _ => (Unknown, None),
        }
    }

    /// Axes are counted from the last one where values are broadcast.
    fn broadcast(&self, node: &Node<'g>) -> (Place, Option<usize>) {
        let ranks: Vec<Option<usize>> = (0..node.inputs.len()).map(|index| self.rank_of(node, index)).collect();
        let highest = ranks.iter().copied().collect::<Option<Vec<_>>>().and_then(|ranks| ranks.into_iter().max());
        let mut made = Nowhere;
        for (index, rank) in ranks.iter().enumerate() {
            let place = match (self.place(node, index), rank.zip(highest)) {
                (Axis(axis), Some((rank, highest))) => Axis(axis + highest - rank),
                (Axis(_), None) if ranks.len() > 1 => Unknown,
                (other, _) => other,
            };
            made = match (made, place) {
                (made, Nowhere) => made,
                (Nowhere, place) => place,
                (made, place) if made == place => made,
                _ => Unknown,
            };
        }
        (made, highest)
    }

    /// A shape that begins with 0 keeps the first axis.
    fn reshaped(&self, node: &Node<'g>, place: Place) -> (Place, Option<usize>) {
        let shape = self.ints(node, 1).filter(|_| node.int("allowzero").unwrap_or(0) == 0);
        let keeps_first = place == Axis(0) && shape.as_ref().is_some_and(|shape| shape.first() == Some(&0));
        (if keeps_first { place } else { Unknown }, shape.map(|shape| shape.len()))
    }

    fn transposed(&self, node: &Node<'g>, place: Place, rank: Option<usize>) -> (Place, Option<usize>) {
        let Axis(batch) = place else { return (place, rank) };
        let moved = match (node.ints("perm"), rank) {
            (Some(order), _) => order.iter().position(|axis| usize::try_from(*axis) == Ok(batch)),
            (None, Some(rank)) => rank.checked_sub(batch + 1),
            (None, None) => None,
        };
        (moved.map_or(Unknown, Axis), rank.or_else(|| Some(node.ints("perm")?.len())))
    }

    fn unsqueezed(&self, node: &Node<'g>, place: Place, rank: Option<usize>) -> (Place, Option<usize>) {
        let (Axis(batch), Axes::Known(axes)) = (place, self.axes(node, 1)) else { return (Unknown, None) };
        let made = rank.map(|rank| rank + axes.len());
        let Some(mut axes) = axes.into_iter().map(|axis| normalized(axis, made)).collect::<Option<Vec<_>>>() else {
            return (Unknown, made);
        };
        axes.sort_unstable();
        (Axis(axes.into_iter().fold(batch, |batch, axis| if axis <= batch { batch + 1 } else { batch })), made)
    }

    /// The axes of a node: an attribute, or since opset 13 or 18 an input.
    pub(super) fn axes(&self, node: &Node<'g>, input: usize) -> Axes {
        let is_given = node.inputs.get(input).is_some_and(|name| !name.is_empty());
        match node.ints("axes").or_else(|| self.ints(node, input)) {
            Some(axes) if axes.is_empty() => Axes::All,
            Some(axes) => Axes::Known(axes),
            None if node.has("axes") || is_given => Axes::Unknown,
            None => Axes::All,
        }
    }

    /// The numbers of an input, if it is a constant.
    pub(super) fn ints(&self, node: &Node<'g>, input: usize) -> Option<Vec<i64>> {
        self.constant(node.inputs.get(input)?)?.ints(self.budget)
    }

    fn constant(&self, name: &str) -> Option<Constant<'g>> {
        self.budget.step()?;
        let own = self.constants.get(name).copied().or_else(|| self.graph.weight(name));
        own.or_else(|| self.outer?.constant(name))
    }

    pub(super) fn place(&self, node: &Node<'g>, input: usize) -> Place {
        node.inputs.get(input).filter(|name| !name.is_empty()).map_or(Nowhere, |name| self.place_of(name))
    }

    fn place_of(&self, name: &str) -> Place {
        if self.budget.step().is_none() {
            return Unknown;
        }
        match self.places.get(name) {
            Some(place) => *place,
            None if self.graph.weight(name).is_some() => Nowhere,
            None => self.outer.map_or(Unknown, |outer| outer.place_of(name)),
        }
    }

    pub(super) fn rank_of(&self, node: &Node<'g>, input: usize) -> Option<usize> {
        let name = *node.inputs.get(input)?;
        self.graph.ranks.get(name).copied().or_else(|| self.constant(name)?.rank(self.budget))
    }
}

/// The axes over which an operator computes.
pub(super) enum Axes {
    All,
    Known(Vec<i64>),
    Unknown,
}

/// The axis, counted from the first one. `None` if it is counted from the last one of an unknown number.
pub(super) fn normalized(axis: i64, rank: Option<usize>) -> Option<usize> {
    usize::try_from(axis).ok().or_else(|| usize::try_from(axis.checked_add(rank? as i64)?).ok())
}

fn keeps_axes(node: &Node<'_>) -> bool {
    node.int("keepdims") != Some(0)
}

/// The place of the items after a reduction of other axes.
fn reduced(place: Place, rank: Option<usize>, axes: Axes, keeps_axes: bool) -> (Place, Option<usize>) {
    let (Axis(batch), Axes::Known(axes)) = (place, axes) else { return (Unknown, None) };
    if keeps_axes {
        return (place, rank);
    }
    let Some(axes) = axes.into_iter().map(|axis| normalized(axis, rank)).collect::<Option<Vec<_>>>() else {
        return (if batch == 0 { place } else { Unknown }, None);
    };
    // A file may name an axis twice.
    let moved = batch.checked_sub(axes.iter().filter(|axis| **axis < batch).count());
    (moved.filter(|_| !axes.contains(&batch)).map_or(Unknown, Axis), rank.and_then(|rank| rank.checked_sub(axes.len())))
}
