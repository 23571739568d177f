//! Operators that are known to compute within each item.
//!
//! The other table, of [`mixes`](super::graph), finds a dependence; this one shows that there is none. It holds only
//! what is certain from the file: every input has the items along its first axis or is a constant, and the axes over
//! which an operator computes are known and are others. A graph of such operators alone needs no trial.

use super::graph::Place::{Axis, Nowhere};
use super::graph::{Axes, Values, normalized};
use super::nodes::Node;

impl<'g> Values<'g> {
    /// Whether each output item is computed from its own input item alone. The caller has ruled out that the node
    /// [mixes](Self::mixes) items.
    pub(super) fn keeps_apart(&self, node: &Node<'g>) -> bool {
        if node.bodies().next().is_some() {
            return false;
        }
        let inputs: Vec<usize> = (0..node.inputs.len()).filter(|index| !node.inputs[*index].is_empty()).collect();
        if inputs.iter().all(|index| self.place(node, *index) == Nowhere) {
            return true;
        }
        let is_fixed = |index: usize| self.place(node, index) == Nowhere;
        let has_items = |index: usize| self.place(node, index) == Axis(0);
        // Only the first input has items; the others are constants.
        let is_alone = has_items(0) && inputs.iter().all(|index| *index == 0 || is_fixed(*index));
        let rank = self.rank_of(node, 0);
        let is_inner = |axis: i64| normalized(axis, rank).is_some_and(|axis| axis > 0);
        let are_inner = |axes: &Axes| matches!(axes, Axes::Known(axes) if axes.iter().copied().all(is_inner));
        if !matches!(node.domain, "" | "ai.onnx") {
            return false;
        }
        match node.operator {
            // Number by number.
            "Abs" | "Acos" | "Acosh" | "Asin" | "Asinh" | "Atan" | "Atanh" | "Cast" | "Ceil" | "Celu" | "Clip"
            | "Cos" | "Cosh" | "Dropout" | "Elu" | "Erf" | "Exp" | "Floor" | "Gelu" | "HardSigmoid" | "HardSwish"
            | "Identity" | "IsInf" | "IsNaN" | "LeakyRelu" | "Log" | "Mish" | "Neg" | "Not" | "Reciprocal" | "Relu"
            | "Round" | "Selu" | "Sigmoid" | "Sign" | "Sin" | "Sinh" | "Softplus" | "Softsign" | "Sqrt" | "Tan"
            | "Tanh" | "ThresholdedRelu" => is_alone,
            // Their definition has the batch as the first axis.
            "AveragePool"
            | "BatchNormalization"
            | "Conv"
            | "ConvInteger"
            | "ConvTranspose"
            | "DepthToSpace"
            | "GlobalAveragePool"
            | "GlobalLpPool"
            | "GlobalMaxPool"
            | "GroupNormalization"
            | "InstanceNormalization"
            | "LRN"
            | "LpPool"
            | "MaxPool"
            | "QLinearConv"
            | "SpaceToDepth" => is_alone,
            "QuantizeLinear" | "DequantizeLinear" => is_alone && node.int("axis").unwrap_or(1) > 0,
            "Add" | "And" | "Div" | "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "Max"
            | "Mean" | "Min" | "Mod" | "Mul" | "Or" | "PRelu" | "Pow" | "Sub" | "Sum" | "Where" | "Xor" => {
                self.pairs_items(node, &inputs)
            }
            "Gemm" => is_alone && (node.inputs.len() < 3 || self.rank_of(node, 2).is_some_and(|rank| rank < 2)),
            "MatMul" => {
                let other = self.rank_of(node, 1);
                let is_weight = is_alone && other.is_some_and(|other| other <= 2);
                let is_each = has_items(0) && has_items(1) && other == rank && rank.is_some_and(|rank| rank > 2);
                rank.is_some_and(|rank| rank > 1) && (is_weight || is_each)
            }
            "Concat" => inputs.iter().all(|index| has_items(*index)) && node.int("axis").is_some_and(is_inner),
            "Flatten" => is_alone && node.int("axis").unwrap_or(1) == 1,
            "Softmax" | "LogSoftmax" | "Hardmax" | "LayerNormalization" | "LpNormalization" | "RMSNormalization"
            | "TopK" | "ArgMax" | "ArgMin" => is_alone && rank.is_some(),
            "Split" => is_alone && node.int("axis").is_some_and(is_inner),
            "Transpose" => is_alone && node.ints("perm").is_some_and(|order| order.first() == Some(&0)),
            "Squeeze" | "Unsqueeze" | "Reshape" => is_alone && rank.is_some() && self.made(node).0 == Axis(0),
            "Slice" => {
                let axes = node.ints("axes").or_else(|| self.ints(node, 3));
                is_alone && axes.is_some_and(|axes| axes.into_iter().all(is_inner))
            }
            "Gather" if is_fixed(0) => has_items(1) && node.int("axis").unwrap_or(0) == 0,
            "Gather" => is_alone && node.int("axis").is_some_and(is_inner),
            operator if operator.starts_with("Reduce") => is_alone && are_inner(&self.axes(node, 1)),
            _ => false,
        }
    }

    /// Whether values are paired item by item: each has the items along its first axis, or has fewer axes than those,
    /// so that each item gets the same.
    fn pairs_items(&self, node: &Node<'g>, inputs: &[usize]) -> bool {
        let ranks: Option<Vec<usize>> = inputs.iter().map(|index| self.rank_of(node, *index)).collect();
        let Some((ranks, highest)) = ranks.and_then(|ranks| Some((ranks.clone(), ranks.into_iter().max()?))) else {
            return false;
        };
        inputs.iter().zip(ranks).all(|(index, rank)| match self.place(node, *index) {
            Axis(0) => rank == highest,
            Nowhere => rank < highest,
            _ => false,
        })
    }
}
