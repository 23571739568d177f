//! Graphs of a few nodes, each with what it does to the items of a batch.

use std::sync::atomic::{AtomicUsize, Ordering};

use callboard_codec::{DType, Tensor, Value};
use proptest::prelude::*;
use prost::Message as _;

use super::graph::read_within;
use super::nodes::Budget;
use super::{Reading, Trial, read, try_beside_others};
use crate::engine::{Engine, EngineError};
use crate::model::{Items, Model};
use crate::proto::{
    AttributeProto, DimensionProto, DimensionValue, ElementType, NodeProto, OperatorGraph, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};
use crate::signature::Signature;

fn float(name: &str, axes: &[&str]) -> ValueInfoProto {
    let axis = |axis: &&str| DimensionProto {
        value: Some(axis.parse().map_or_else(|_| DimensionValue::Param((*axis).to_owned()), DimensionValue::Value)),
    };
    let shape = Some(TensorShapeProto { dim: axes.iter().map(axis).collect() });
    let tensor_type = Some(TensorTypeProto { elem_type: Some(ElementType::Float as i32), shape });
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(TypeProto { tensor_type, ..TypeProto::default() }) }
}

/// `OPERATOR a b -> c NAME=1 NAME=1,2`; an operator of another domain is `DOMAIN::OPERATOR`.
fn node(line: &str) -> NodeProto {
    let (left, right) = line.split_once(" -> ").unwrap();
    let (mut left, mut right) = (left.split(' '), right.split(' '));
    let operator = left.next().unwrap();
    let (domain, operator) = operator.split_once("::").unwrap_or(("", operator));
    let output = right.next().unwrap();
    let attribute = |text: &str| {
        let (name, value) = text.split_once('=').unwrap();
        let ints: Vec<i64> = value.trim_end_matches(',').split(',').map(|int| int.parse().unwrap()).collect();
        let name = Some(name.to_owned());
        match (value.contains(','), &ints[..]) {
            (false, [only]) => AttributeProto { name, i: Some(*only), ..AttributeProto::default() },
            _ => AttributeProto { name, ints, ..AttributeProto::default() },
        }
    };
    NodeProto {
        input: left.map(|name| name.trim_matches('_').to_owned()).collect(),
        output: output.split(',').map(str::to_owned).collect(),
        op_type: Some(operator.to_owned()),
        domain: Some(domain.to_owned()),
        attribute: right.map(attribute).collect(),
        ..NodeProto::default()
    }
}

/// The constant `two` is the whole numbers 0 and 1, `one` is 0, `w` a matrix.
fn model(lines: &[&str], input: &[&str], output: &[&str]) -> (Vec<u8>, Signature) {
    let weight = |name: &str, dims: &[i64], kind: i32| TensorProto {
        name: Some(name.to_owned()),
        dims: dims.to_vec(),
        data_type: Some(kind),
        ..TensorProto::default()
    };
    let graph = OperatorGraph {
        node: lines.iter().map(|line| node(line)).collect(),
        initializer: vec![weight("w", &[4, 4], 1)],
        input: vec![float("x", input)],
        output: vec![float("y", output)],
        value_info: Vec::new(),
    };
    let mut graph = graph.encode_to_vec();
    for (name, numbers) in [("one", &[0_i64][..]), ("two", &[0, 1])] {
        let raw: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let mut bytes = weight(name, &[numbers.len() as i64], 7).encode_to_vec();
        bytes.extend([9 << 3 | 2, raw.len() as u8]);
        bytes.extend(raw);
        graph.extend([5 << 3 | 2, bytes.len() as u8]);
        graph.extend(bytes);
    }
    let opset = [0x42, 2, 0x10, 17];
    let mut file = vec![0x3a];
    prost::encoding::encode_varint(graph.len() as u64, &mut file);
    file.extend(graph);
    file.extend(opset);
    let signature = Signature::try_from_onnx(&file).unwrap();
    (file, signature)
}

fn found(lines: &[&str]) -> Option<String> {
    let (file, signature) = model(lines, &["N", "4"], &["N", "4"]);
    mixed(read(&file, &signature))
}

fn mixed(reading: Reading) -> Option<String> {
    if let Reading::Mixed(reason) = reading { Some(reason) } else { None }
}

/// Each mixes items, and would be found by no other rule of the table.
#[test]
fn operators_that_compute_over_the_items_of_a_batch_are_found() {
    for lines in [
        &["DynamicQuantizeLinear x -> q,s,z"][..],
        &["Reshape x s -> r", "DynamicQuantizeLinear r -> q,s,z"],
        &["com.microsoft::DynamicQuantizeMatMul x w -> y"],
        &["BatchNormalization x a b c d -> y training_mode=1"],
        &["ReduceMean x -> m axes=0,", "Sub x m -> y"],
        &["ReduceMax x -> m axes=-2,"],
        &["ReduceSum x one -> m"],
        &["ReduceSum x two -> m"],
        &["ReduceMean x -> m"],
        &["Softmax x -> y axis=0"],
        &["LogSoftmax x -> y axis=-2"],
        &["LpNormalization x -> y axis=0"],
        &["LayerNormalization x a -> y axis=0"],
        &["MeanVarianceNormalization x -> y"],
        &["ArgMax x -> y"],
        &["TopK x one -> y,i axis=0"],
        &["CumSum x one -> y"],
        &["ReverseSequence x l -> y"],
        &["Unique x -> y"],
        &["Compress x c -> y axis=0"],
        &["Unsqueeze x two -> s", "Transpose s -> t perm=2,1,0,3", "LSTM t a b -> y", "ReduceSum t -> z axes=0,"],
        &["LSTM x a b -> y"],
        &["Gather x one -> y"],
        &["Split x -> a,b"],
        &["Slice x one two -> y"],
        &["Slice x -> y starts=1, ends=9,"],
        &["Transpose x -> t perm=1,0", "MatMul x t -> y"],
        &["Transpose x -> t", "MatMul t x -> y"],
        &["Transpose x -> t perm=1,0", "MatMul t w -> y"],
        &["Gemm x x -> y transB=1"],
        &["Gemm x w -> y transA=1"],
        &["Transpose x -> t perm=1,0", "ReduceMean t -> m axes=1,"],
        &["Transpose x -> t perm=1,0", "Relu t -> r", "Softmax r -> y axis=1"],
        &["Unsqueeze x one -> u", "Softmax u -> y axis=1"],
        &["Flatten x -> f", "ArgMax f -> y axis=0"],
        &["Add x w -> a", "MatMul a w -> m", "ReduceProd m -> y axes=0,"],
        &["ReduceMean x -> m axes=1, keepdims=0", "Softmax m -> y axis=0"],
        &["Concat x x -> c axis=1", "ArgMin c -> y"],
        &["Gather w i -> g", "Split x -> a,b axis=1", "Softmax b -> y axis=0"],
    ] {
        assert!(found(lines).is_some(), "{lines:?}");
    }
    let said = found(&["Relu x -> r", "Softmax r -> y axis=0"]).unwrap();
    assert_eq!(said, "the operator Softmax computes over the items of a batch, not within each");
}

#[test]
fn operators_that_compute_within_an_item_are_not() {
    for lines in [
        &["BatchNormalization x a b c d -> y"][..],
        &["ReduceMean x -> m axes=1,"],
        &["ReduceMean x -> m axes=-1,", "Sub x m -> y"],
        &["ReduceSum x _ -> m noop_with_empty_axes=1"],
        &["ReduceSum x unknown -> m"],
        &["Softmax x -> y"],
        &["LayerNormalization x a -> y"],
        &["MeanVarianceNormalization x -> y axes=1,"],
        &["ArgMax x -> y axis=1"],
        &["TopK x one -> y,i"],
        &["LSTM x a b -> y layout=1"],
        &["Gather x one -> y axis=1"],
        &["Gather w x -> y"],
        &["Split x -> a,b axis=1"],
        &["Slice x -> y starts=0, ends=2, axes=1,"],
        &["Slice x -> y starts=0, ends=9223372036854775807,"],
        &["MatMul x w -> y"],
        &["Gemm x w -> y"],
        &["Gemm x w -> y transB=1"],
        &["Transpose x -> t perm=1,0", "ReduceMean t -> m axes=0,"],
        &["Transpose x -> t perm=1,0", "Transpose t -> b perm=1,0", "MatMul b w -> y"],
        // Of shapes and constants, not of items.
        &["Shape x -> s", "Gather s one -> n", "Concat n one -> t axis=0", "Reshape x t -> y"],
        &["Shape x -> s", "ReduceProd s -> p axes=0,"],
        &["Softmax w -> v axis=0", "MatMul x v -> y"],
        &["DynamicQuantizeLinear w -> q,s,z"],
        // Where the items lie is not known any more.
        &["Reshape x s -> r", "Softmax r -> y axis=0"],
        &["another.domain::Softmax x -> y axis=0"],
    ] {
        assert_eq!(found(lines), None, "{lines:?}");
    }
}

/// Each follows the items from the input to the output. A trial is not needed.
#[test]
fn graphs_of_operators_within_an_item_are_known_to_keep_items_apart() {
    let reading = |lines: &[&str]| {
        let (file, signature) = model(lines, &["N", "4"], &["N", "4"]);
        read(&file, &signature)
    };
    for lines in [
        &["Relu x -> y"][..],
        &["Conv x w -> c", "BatchNormalization c w w w w -> y"],
        &["Identity w -> v", "Conv x v -> y"],
        &["MaxPool x -> p", "Sigmoid p -> s", "Mul x s -> y"],
        &["Add x one -> y"],
        &["MatMul x w -> m", "Add m two -> y"],
        &["Gemm x w -> y"],
        &["Gemm x w one -> y transB=1"],
        &["Concat x x -> y axis=1"],
        &["Flatten x -> y"],
        &["Softmax x -> y"],
        &["ReduceMean x -> m axes=1, keepdims=1", "Sub x m -> y"],
        &["Transpose x -> t perm=0,1", "Clip t -> y"],
        &["Reshape x two -> y"],
        &["Slice x -> y starts=0, ends=2, axes=1,"],
        &["Gather w x -> y"],
        &["Gather x one -> g axis=1", "Relu x -> y"],
        &["Split x -> a,y axis=1"],
        &["ArgMax x -> y axis=1"],
        &["QuantizeLinear x one -> q", "DequantizeLinear q one -> y"],
    ] {
        assert_eq!(reading(lines), Reading::Apart, "{lines:?}");
    }
    for lines in [
        // Nothing is known of them, or of one of their inputs.
        &["NonZero x -> y"][..],
        &["another.domain::Relu x -> y"],
        &["Resize x one two -> y"],
        &["Relu x -> z"],
        &["Conv x unknown -> y"],
        &["Conv w x -> y"],
        &["Add x unknown -> y"],
        // As many axes as the items: its rows may be of other items.
        &["Add x w -> y"],
        &["Gemm x w w -> y"],
        &["PRelu x w -> y"],
        // The number of items comes in.
        &["Shape x -> s", "Mul x s -> y"],
        // The items are along another axis, or along two.
        &["Transpose x -> t perm=1,0", "Conv t w -> y"],
        &["Flatten x -> y axis=0"],
        &["Reshape x one -> r", "Reshape r s -> y"],
        &["Concat x w -> y axis=1"],
        &["QuantizeLinear x two -> y axis=0"],
        &["Unsqueeze x one -> y"],
        &["Slice x -> y starts=0, ends=9223372036854775807, steps=2,"],
    ] {
        assert_eq!(reading(lines), Reading::Open, "{lines:?}");
    }
}

#[test]
fn a_model_is_batched_only_if_something_shows_that_its_items_are_apart() {
    let (differs, untried) = (Trial::Different("d".to_owned()), Trial::Untried("u".to_owned()));
    let (mixed, unknown) = (|text: &str| Items::Mixed(text.to_owned()), |text: &str| Items::Unknown(text.to_owned()));
    let too_large = unknown("its graph is too large to be read");
    for (reading, trial, items) in [
        (Reading::Mixed("r".to_owned()), Trial::Same, mixed("r")),
        (Reading::Apart, Trial::Same, Items::Apart),
        (Reading::Apart, differs.clone(), mixed("d")),
        (Reading::Apart, untried.clone(), Items::Apart),
        (Reading::Open, Trial::Same, Items::Apart),
        (Reading::Open, differs.clone(), mixed("d")),
        (Reading::Open, untried.clone(), unknown("u")),
        (Reading::Unread, Trial::Same, too_large),
        (Reading::Unread, differs, mixed("d")),
        (Reading::Unread, untried, unknown("u")),
    ] {
        let found = Items::of_loaded(reading.clone(), || Ok::<_, ()>(trial.clone()));
        assert_eq!(found, Ok(items), "{reading:?} {trial:?}");
    }
}

/// An engine that answers each run as a function of the number of runs before it.
#[derive(Debug)]
struct Answers(fn(usize) -> Result<f32, EngineError>, AtomicUsize);

impl Engine for Answers {
    fn name(&self) -> &'static str {
        "answers"
    }

    fn dtype(&self, declared: DType) -> Option<DType> {
        Some(declared)
    }

    fn run(&self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        let number = (self.0)(self.1.fetch_add(1, Ordering::Relaxed))?;
        let shape = inputs[0].as_tensor().unwrap().shape().to_vec();
        let numbers = vec![number; shape.iter().product()];
        Ok(vec![Value::Tensor(Tensor::from_vec(&shape, numbers).unwrap())])
    }
}

fn trial(input: &[&str], answer: fn(usize) -> Result<f32, EngineError>) -> Trial {
    let (_, signature) = model(&["Relu x -> y"], input, input);
    try_beside_others(&Model::with_engine(signature, Answers(answer, AtomicUsize::new(0))).unwrap())
}

#[test]
fn a_trial_without_a_result_says_why() {
    let refuses = |_| Err(EngineError::new("answers", "it knows no such word"));
    let untried = |reason: &str| Trial::Untried(format!("it cannot be tried with made-up items: {reason}"));
    assert_eq!(trial(&["N", "4"], |_| Ok(1.0)), Trial::Same);
    assert_eq!(trial(&["N", "4"], refuses), untried("the model failed: answers: it knows no such word"));
    // The item alone, beside another one, and alone again.
    let draws = |run: usize| Ok(run as f32);
    assert_eq!(trial(&["N", "4"], draws), untried("two runs of one item give two outputs `y`"));
    let large = untried("one of its input `x` has more than 2097152 numbers");
    assert_eq!(trial(&["N", "4000000"], |_| Ok(1.0)), large);
    // Where lengths are open, a shorter one is tried.
    assert_eq!(trial(&["N", "M", "400000"], |_| Ok(1.0)), Trial::Same);
}

#[test]
fn a_softmax_before_opset_13_takes_all_axes_from_its_axis_on() {
    let (file, signature) = model(&["Softmax x -> y axis=0"], &["N", "4"], &["N", "4"]);
    let opset = |version: u8| {
        let mut file = file.clone();
        *file.last_mut().unwrap() = version;
        mixed(read(&file, &signature)).is_some()
    };
    assert!(opset(12) && opset(13));
    let (file, signature) = model(&["Softmax x -> y"], &["N", "4"], &["N", "4"]);
    assert_eq!(read(&file, &signature), Reading::Apart);
}

#[test]
fn an_axis_of_the_batch_within_an_item_is_found() {
    let said = |output: &[&str]| {
        let (file, signature) = model(&["Relu x -> y"], &["N", "4"], output);
        mixed(read(&file, &signature))
    };
    assert_eq!(said(&["N", "N"]).unwrap(), "each item of `y` has an axis `N`, whose length is the number of items");
    assert_eq!((said(&["N", "M"]), said(&["M", "4"])), (None, None));
}

#[test]
fn more_nodes_than_any_model_has_are_not_read() {
    let mut lines = vec!["Relu x -> y"; 100_000];
    lines.push("Softmax x -> y axis=0");
    let (file, signature) = model(&lines, &["N", "4"], &["N", "4"]);
    assert_eq!(read(&file, &signature), Reading::Unread);
}

#[test]
fn ranks_and_axes_that_cannot_be_are_no_reason_to_panic() {
    let lines =
        ["Relu x -> r", "Transpose r -> t", "ReduceMean t -> m axes=0,0,0 keepdims=0", "Softmax m -> y axis=-9"];
    let (file, signature) = model(&lines, &["N", "4"], &["N", "4"]);
    // `r` is declared as a number without axes.
    let declared = [13 << 3 | 2, 9, 0x0a, 1, b'r', 0x12, 4, 0x0a, 2, 0x12, 0];
    let mut graph = declared.to_vec();
    graph.extend(crate::signature::model(&file).unwrap().0);
    let mut file = vec![0x3a];
    prost::encoding::encode_varint(graph.len() as u64, &mut file);
    file.extend(graph);
    let _ = read(&file, &signature);
}

proptest! {
    #[test]
    fn a_damaged_graph_mixes_items_or_does_not(position in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let lines = [
            "Unsqueeze x one -> u", "Transpose u -> t perm=1,0,2", "ReduceMean t -> m axes=0, keepdims=0",
            "MatMul m w -> p", "Slice p one two -> c", "Concat c x -> d axis=0", "Gemm d w -> g", "Squeeze g -> s axes=1,",
            "Gather w s -> h", "Softmax h -> y axis=0",
        ];
        let (mut file, signature) = model(&lines, &["N", "4"], &["N", "4"]);
        let position = position.index(file.len());
        file[position] = byte;
        let _ = read(&file, &signature);
    }
}

/// Ends with an operator that mixes items, so that it is known whether the file was read to its end.
fn found_within(steps: usize, values: usize, first: &str) -> bool {
    let (file, signature) = model(&[first, "Softmax x -> y axis=0"], &["N", "4"], &["N", "4"]);
    match read_within(&Budget::new(steps, values), &file, &signature) {
        Reading::Mixed(_) => true,
        Reading::Unread => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_with_more_values_than_any_model_is_not_read_to_its_end() {
    let outputs = vec!["v"; 50].join(",");
    let split = format!("Relu x -> {outputs}");
    assert!(found_within(1_000, 60, &split));
    assert!(!found_within(1_000, 40, &split));
}

#[test]
fn a_file_whose_nodes_name_a_constant_again_and_again_is_not_read_to_its_end() {
    // Each name costs the look-ups and the fields of the tensor.
    let sum = format!("Sum x{} -> v", " w".repeat(50));
    assert!(found_within(1_000, 60, &sum));
    assert!(!found_within(300, 60, &sum));
}

#[test]
fn a_spent_budget_is_no_finding() {
    // A quantized constant mixes nothing. Its place is unknown when the budget is spent.
    let (file, signature) = model(&["Sum w w w w -> v", "DynamicQuantizeLinear w -> q,s,z"], &["N", "4"], &["N", "4"]);
    for steps in 0..200 {
        let reading = read_within(&Budget::new(steps, 60), &file, &signature);
        assert!(matches!(reading, Reading::Unread | Reading::Open), "{steps} steps: {reading:?}");
    }
}
