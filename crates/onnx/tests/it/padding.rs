//! Items of different lengths in one run: the answer of each is that of the item alone.

use std::sync::{Arc, Mutex};

use callboard_codec::{DType, Map, Tensor, Value};
use callboard_core::{App, Node, Stage};
use callboard_onnx::{
    Engine, EngineChoice, EngineError, LoadError, Model, OnnxConfig, PadAxis, PadConfig, PadError, Signature,
};
use proptest::prelude::*;
use serde_json::Number;

use crate::support::{self, Axis, F32, Fixed, Graph, I64, Named, TempFile, add, compare, library, lookup};

/// Attention over word vectors, with a mask; three outputs, of which two have the axis, one of them twice.
fn encoder() -> Graph {
    let words: Vec<f32> = (0..32).map(|word| ((word * 37 % 19) as f32 - 9.0) / 7.0).collect();
    let token_axes = [Named("batch"), Named("sequence")];
    Graph::new()
        .input("ids", I64, &token_axes)
        .input("mask", I64, &token_axes)
        .output("vectors", F32, &[Named("batch"), Named("sequence"), Fixed(2)])
        .output("attention", F32, &[Named("batch"), Named("sequence"), Named("sequence")])
        .output("pooled", F32, &[Named("batch"), Fixed(1), Fixed(2)])
        .weight("words", &[16, 2], &words)
        .weight("biases", &[2, 1], &[-1e9, 0.0])
        .weight("keeps", &[2, 1], &[0.0, 1.0])
        .node("Gather", &["words", "ids"], "x")
        .node("Transpose", &["x"], "xt")
        .with("perm", &[0, 2, 1])
        .node("MatMul", &["x", "xt"], "scores")
        .node("Gather", &["biases", "mask"], "bias_column")
        .node("Transpose", &["bias_column"], "bias")
        .with("perm", &[0, 2, 1])
        .node("Add", &["scores", "bias"], "masked")
        .node("Softmax", &["masked"], "attention")
        .node("MatMul", &["attention", "x"], "vectors")
        .node("Gather", &["keeps", "mask"], "keep_column")
        .node("Transpose", &["keep_column"], "keep")
        .with("perm", &[0, 2, 1])
        .node("MatMul", &["keep", "vectors"], "pooled")
}

fn by_name(name: &str) -> PadConfig {
    PadConfig::new(PadAxis::Name(name.to_owned()))
}

fn masked(buckets: &[usize]) -> PadConfig {
    PadConfig { mask: Some("mask".to_owned()), buckets: buckets.to_vec(), ..by_name("sequence") }
}

fn config(file: &TempFile, engine: EngineChoice, pad: PadConfig) -> OnnxConfig {
    let mut config = OnnxConfig::new(&file.0);
    config.engine = engine;
    config.pad = Some(pad);
    config
}

fn load(graph: &Graph, name: &str, pad: PadConfig) -> Result<Model, LoadError> {
    let file = TempFile::new(name, &graph.to_onnx());
    Model::from_config(&config(&file, EngineChoice::Rten, pad))
}

async fn serve(model: &Model, change: impl FnOnce(Stage<Value, Value>) -> Stage<Value, Value>) -> Node {
    let stage = change(callboard_onnx::stage("model", model));
    App::new().route_described("/model", stage, model.input_type(), model.output_type()).start().await.unwrap()
}

/// Calls at once. A batch waits for all of them.
async fn call_all(model: &Model, items: Vec<Value>) -> Vec<Result<Value, callboard_core::CallError>> {
    let count = items.len();
    let node = serve(model, |stage| stage.max_batch_size(count).max_delay(std::time::Duration::from_secs(60))).await;
    let client = node.client();
    let calls = items.into_iter().map(|item| {
        let client = client.clone();
        tokio::spawn(async move { client.call("/model", item).await })
    });
    let mut answers = Vec::with_capacity(count);
    for call in calls.collect::<Vec<_>>() {
        answers.push(call.await.unwrap());
    }
    answers
}

fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Map(Map::from_iter(entries))
}

fn ids(length: usize, seed: usize) -> Tensor {
    let ids: Vec<i64> = (0..length).map(|at| ((at * 5 + seed) % 16) as i64).collect();
    Tensor::from_vec(&[length], ids).unwrap()
}

fn numbers(answer: &Value, output: &str) -> (Vec<usize>, Vec<f32>) {
    let tensor = answer.get(output).unwrap().as_tensor().unwrap();
    (tensor.shape().to_vec(), tensor.as_slice().unwrap().to_vec())
}

/// Hands each run on, and records the shapes of its first input.
#[derive(Debug)]
struct Recorded {
    inner: Watched,
    shapes: Arc<Mutex<Vec<Vec<usize>>>>,
}

/// `y = x`, and the same for every further input and output.
#[derive(Debug)]
struct Watched;

impl Engine for Recorded {
    fn name(&self) -> &'static str {
        "recorded"
    }

    fn dtype(&self, declared: DType) -> Option<DType> {
        Some(declared)
    }

    fn run(&self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        let Watched = self.inner;
        self.shapes.lock().unwrap().push(inputs[0].as_tensor().unwrap().shape().to_vec());
        Ok(inputs.to_vec())
    }
}

/// A model that gives back what it gets.
fn echo(axes: &[Axis], inputs: &[&str], pad: &PadConfig) -> (Model, Arc<Mutex<Vec<Vec<usize>>>>) {
    let graph = inputs.iter().fold(Graph::new(), |graph, name| {
        let output = format!("{name}_out");
        graph.input(name, I64, axes).output(&output, I64, axes).node("Identity", &[name], &output)
    });
    let signature = Signature::try_from_onnx(&graph.to_onnx()).unwrap().with_padding(pad).unwrap();
    let shapes = Arc::new(Mutex::new(Vec::new()));
    let engine = Recorded { inner: Watched, shapes: Arc::clone(&shapes) };
    (Model::with_engine(signature, engine).unwrap(), shapes)
}

#[tokio::test]
async fn the_answer_of_an_item_does_not_depend_on_its_companions() {
    let items: Vec<Value> = (1..=12)
        .map(|length| match length % 3 {
            // Without its mask, and with one.
            0 => map([("ids", ids(length, length).into())]),
            _ => map([
                ("ids", ids(length, length).into()),
                ("mask", Tensor::from_vec(&[length], vec![1_i64; length]).unwrap().into()),
            ]),
        })
        .collect();
    for (name, engine) in [("companions-rten", EngineChoice::Rten), ("companions-ort", EngineChoice::OnnxRuntime)] {
        for buckets in [&[][..], &[4, 8, 16]] {
            let file = TempFile::new(name, &encoder().to_onnx());
            let model = match engine {
                EngineChoice::OnnxRuntime => match library::load(&config(&file, engine, masked(buckets))) {
                    Some(model) => model.unwrap(),
                    None => return,
                },
                _ => Model::from_config(&config(&file, engine, masked(buckets))).unwrap(),
            };
            let alone = Model::from_config(&OnnxConfig { pad: None, ..config(&file, engine, masked(&[])) }).unwrap();
            let together = call_all(&model, items.clone()).await;
            for (length, answer) in (1..).zip(together) {
                let answer = answer.unwrap();
                let mask = Tensor::from_vec(&[length], vec![1_i64; length]).unwrap();
                let item = map([("ids", ids(length, length).into()), ("mask", mask.into())]);
                let lone = call_all(&alone, vec![item]).await.remove(0).unwrap();
                for (output, shape) in
                    [("vectors", vec![length, 2]), ("attention", vec![length, length]), ("pooled", vec![1, 2])]
                {
                    let ((shape_here, here), (_, there)) = (numbers(&answer, output), numbers(&lone, output));
                    assert_eq!(shape_here, shape, "{output}");
                    let close = here.iter().zip(&there).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs().max(1.0));
                    assert!(close && here.len() == there.len(), "{name} {buckets:?} {output}: {here:?} {there:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_model_that_computes_each_place_alone_gives_the_same_bits() {
    let items: Vec<Value> =
        (1..=5).map(|length| Tensor::from_vec(&[length], vec![2_i64; length]).unwrap().into()).collect();
    let model = load(&lookup(), "pad-exact", by_name("length")).unwrap();
    for (length, answer) in (1..).zip(call_all(&model, items).await) {
        let expected = Tensor::from_vec(&[length, 2], [2.0_f32, 2.5].repeat(length)).unwrap();
        assert_eq!(answer.unwrap().as_tensor().unwrap(), &expected);
    }
}

#[tokio::test]
async fn a_run_is_as_long_as_its_longest_item_or_as_its_bucket() {
    let axes = [Named("batch"), Named("sequence")];
    let items = || [3, 1, 4, 7].map(|length| map([("ids", ids(length, 1).into())])).to_vec();
    let runs_of = |buckets: &'static [usize]| async move {
        let (model, shapes) = echo(&axes, &["ids"], &PadConfig { buckets: buckets.to_vec(), ..by_name("sequence") });
        let answers = call_all(&model, items()).await;
        for (answer, length) in answers.into_iter().zip([3, 1, 4, 7]) {
            assert_eq!(answer.unwrap().as_tensor().unwrap(), &ids(length, 1), "cropped");
        }
        shapes.lock().unwrap()[2..].to_vec()
    };
    assert_eq!(runs_of(&[]).await, [[4, 7]]);
    assert_eq!(runs_of(&[4, 8]).await, [[3, 4], [1, 8]]);
}

/// What the model sees of an item of two in a run of four: the value of each input, and 0 in the mask.
#[tokio::test]
async fn each_input_has_its_value_and_the_mask_ends_in_zeros() {
    let pad = PadConfig {
        value: Number::from(7),
        values: [("types".to_owned(), Number::from(9))].into(),
        buckets: vec![4],
        ..masked(&[])
    };
    // The outputs have a fixed length, so nothing is cropped.
    let graph = ["ids", "types", "mask"].iter().fold(Graph::new(), |graph, name| {
        let output = format!("{name}_out");
        let graph = graph.input(name, I64, &[Named("batch"), Named("sequence")]);
        graph.output(&output, I64, &[Named("batch"), Fixed(4)]).node("Identity", &[name], &output)
    });
    let model = load(&graph, "pad-values", pad).unwrap();
    let two = || Tensor::from_vec(&[2], vec![1_i64, 2]).unwrap();
    let without_mask = map([("ids", two().into()), ("types", two().into())]);
    let with_mask = map([
        ("ids", two().into()),
        ("types", two().into()),
        ("mask", Tensor::from_vec(&[2], vec![1_i64, 0]).unwrap().into()),
    ]);
    let seen =
        |answer: &Value, name: &str| answer.get(name).unwrap().as_tensor().unwrap().as_slice::<i64>().unwrap().to_vec();
    let answers = call_all(&model, vec![without_mask, with_mask]).await;
    let [made, sent] = [0, 1].map(|index| answers[index].as_ref().unwrap());
    assert_eq!((seen(made, "ids_out"), seen(made, "types_out")), (vec![1, 2, 7, 7], vec![1, 2, 9, 9]));
    assert_eq!((seen(made, "mask_out"), seen(sent, "mask_out")), (vec![1, 1, 0, 0], vec![1, 0, 0, 0]));
}

#[tokio::test]
async fn an_item_beyond_the_largest_bucket_is_refused_alone() {
    let model = load(&encoder(), "pad-long", masked(&[2, 4])).unwrap();
    let items = [4, 5].map(|length| map([("ids", ids(length, 0).into())])).to_vec();
    let answers = call_all(&model, items).await;
    assert!(answers[0].is_ok(), "{answers:?}");
    let error = answers[1].as_ref().unwrap_err();
    assert_eq!(error.status(), Some(422));
    assert_eq!(error.message(), "input `ids`: axis `sequence` is 5, at most 4 is allowed");
}

#[tokio::test]
async fn inputs_of_an_item_must_be_equally_long() {
    // The axis has no name, so only the padding knows that both inputs have the same one.
    let graph = Graph::new()
        .input("ids", I64, &[Named("batch"), Named("")])
        .input("mask", I64, &[Named("batch"), Named("")])
        .output("y", I64, &[Named("batch"), Named("")])
        .node("Add", &["ids", "mask"], "y");
    let pad = PadConfig { mask: Some("mask".to_owned()), ..PadConfig::new(PadAxis::Number(1)) };
    let model = load(&graph, "pad-differ", pad).unwrap();
    let item = map([("ids", ids(3, 0).into()), ("mask", ids(2, 0).into())]);
    let good = map([("ids", ids(2, 0).into())]);
    let answers = call_all(&model, vec![item, good, map([("ids", ids(4, 0).into())])]).await;
    let error = answers[0].as_ref().unwrap_err();
    assert_eq!(error.message(), "input `mask`: axis `1` is 2, but 3 in `ids`");
    let sum = answers[1].as_ref().unwrap().as_tensor().unwrap().clone();
    assert_eq!(sum.as_slice::<i64>().unwrap(), [1, 6], "padded by number, cropped by number");
}

#[test]
fn only_the_mask_may_be_left_out() {
    let model = load(&encoder(), "pad-required", masked(&[])).unwrap();
    let schema = model.input_type().schema().clone();
    assert_eq!(schema["required"], serde_json::json!(["ids"]));
    let fields: Vec<bool> =
        model.input_type().tensors().unwrap().fields.iter().map(|field| field.is_required).collect();
    assert_eq!(fields, [true, false]);
}

#[test]
fn what_the_model_does_not_have_is_an_error_at_the_start() {
    let error = |graph: &Graph, name: &str, pad: PadConfig| match load(graph, name, pad).unwrap_err() {
        LoadError::Padding { source, .. } => source.to_string(),
        other => panic!("{other}"),
    };
    assert_eq!(
        error(&encoder(), "pad-e1", by_name("sequnce")),
        "pad: no input has an axis `sequnce` of any length; the inputs are ids: i64 [batch, sequence], mask: i64 [batch, \
         sequence]"
    );
    assert_eq!(error(&encoder(), "pad-e2", by_name("batch")), "pad: axis `batch` is the batch axis");
    assert_eq!(
        error(&add(), "pad-e3", PadConfig::new(PadAxis::Number(1))),
        "pad: no input has an axis `1` of any length; the inputs are x: f32 [batch, 2]"
    );
    let mask = |name: &str, axis: &str| PadConfig { mask: Some(name.to_owned()), ..by_name(axis) };
    assert_eq!(
        error(&encoder(), "pad-e4", mask("attention_mask", "sequence")),
        "pad: mask `attention_mask` is no input of the model, which takes `ids`, `mask`"
    );
    let values = |name: &str, number: i64| PadConfig {
        values: [(name.to_owned(), Number::from(number))].into(),
        ..by_name("width")
    };
    assert_eq!(
        error(&compare(), "pad-e5", values("c", 0)),
        "pad: values `c` is no input of the model, which takes `a`, `b`"
    );
    let tokens = |elements| Graph::new().input("x", elements, &[Named("batch"), Named("width")]);
    let bytes =
        tokens(support::U8).output("y", support::U8, &[Named("batch"), Named("width")]).node("Abs", &["x"], "y");
    let error_of =
        |graph: &Graph, pad| Signature::try_from_onnx(&graph.to_onnx()).unwrap().with_padding(&pad).unwrap_err();
    assert_eq!(error_of(&bytes, values("x", 256)).to_string(), "pad: 256 is no u8, the type of input `x`");
    let single = support::abs(F32, &[Fixed(1), Named("width")]);
    assert!(matches!(error_of(&single, by_name("width")), PadError::NoBatchAxis { .. }));
    let (fixed, wide) = ([Named("batch"), Fixed(2)], [Named("batch"), Named("width"), Named("other")]);
    let odd = |axes: &[Axis]| {
        let graph = Graph::new().input("x", F32, &[Named("batch"), Named("width")]).input("mask", F32, axes);
        graph.output("y", F32, &[Named("batch"), Named("width")]).node("Abs", &["x"], "y")
    };
    assert_eq!(
        error_of(&odd(&fixed), mask("mask", "width")).to_string(),
        "pad: mask `mask` has no axis `width` to be padded"
    );
    assert_eq!(
        error_of(&odd(&wide), mask("mask", "width")).to_string(),
        "pad: mask `mask` has an axis besides `width` of any length"
    );
}

/// An output whose declared axis is not as long as the inputs would be cropped to nonsense.
#[tokio::test]
async fn an_output_that_breaks_its_declaration_is_an_error_even_alone() {
    let graph = Graph::new()
        .input("ids", I64, &[Named("batch"), Named("sequence")])
        .output("y", I64, &[Named("batch"), Named("sequence")])
        .node("Concat", &["ids", "ids"], "y")
        .in_ml("none", &[]);
    let signature = Signature::try_from_onnx(&graph.to_onnx()).unwrap().with_padding(&by_name("sequence")).unwrap();
    let model = Model::with_engine(signature, Doubled).unwrap();
    let answer = call_all(&model, vec![Value::from(ids(3, 0))]).await.remove(0);
    let message = answer.unwrap_err().message().to_owned();
    assert_eq!(message, "`y`: axis `sequence` of shape [6] is not 3 long, as the padded inputs are");
}

/// Gives an output that is twice as long as its input.
#[derive(Debug)]
struct Doubled;

impl Engine for Doubled {
    fn name(&self) -> &'static str {
        "doubled"
    }

    fn dtype(&self, declared: DType) -> Option<DType> {
        Some(declared)
    }

    fn run(&self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        let shape = inputs[0].as_tensor().unwrap().shape().to_vec();
        let longer = [shape[0], 2 * shape[1]];
        Ok(vec![Tensor::from_vec(&longer, vec![0_i64; longer[0] * longer[1]]).unwrap().into()])
    }
}

/// A batch is full by the lengths of its buckets, in each form that an item may have.
#[tokio::test]
async fn an_item_costs_the_length_of_its_bucket() {
    let list = |length: usize| Value::List(vec![Value::Int(1); length]);
    let forms = |length: usize| {
        [
            map([("ids", ids(length, 0).into())]),
            map([("ids", list(length))]),
            map([("ids", Value::List(vec![list(length)]))]),
            map([("ids", map([("dtype", "i64".into()), ("shape", list_of(&[length])), ("data", list(length))]))]),
        ]
    };
    let model = load(&encoder(), "pad-cost", masked(&[4, 8])).unwrap();
    let node = serve(&model, |stage| stage.max_cost(4)).await;
    for item in forms(3) {
        let description = format!("{item:?}");
        node.client().call::<Value, Value>("/model", item).await.expect(&description);
    }
    for item in forms(5) {
        let error = node.client().call::<Value, Value>("/model", item).await.unwrap_err();
        assert!(error.message().contains('8') && error.message().contains('4'), "{error}");
    }
}

fn list_of(lengths: &[usize]) -> Value {
    Value::List(lengths.iter().map(|length| Value::Int(*length as i64)).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// For any lengths, buckets and place of the axis: each item comes back as it went.
    #[test]
    fn every_item_comes_back_at_its_own_length(
        lengths in prop::collection::vec(0_usize..9, 1..8), buckets in prop::collection::btree_set(1_usize..9, 0..4),
        is_last: bool,
    ) {
        let axes = if is_last { [Named("b"), Fixed(2), Named("n")] } else { [Named("b"), Named("n"), Fixed(2)] };
        let buckets: Vec<usize> = buckets.into_iter().collect();
        let limit = buckets.last().copied().unwrap_or(usize::MAX);
        let (model, _) = echo(&axes, &["x"], &PadConfig { buckets, ..by_name("n") });
        let item = |(index, length): (usize, &usize)| {
            let shape = if is_last { [2, *length] } else { [*length, 2] };
            Tensor::from_vec(&shape, (0..2 * *length).map(|at| (at + 100 * index) as i64).collect()).unwrap()
        };
        let items: Vec<Tensor> = lengths.iter().enumerate().map(item).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answers = runtime.block_on(call_all(&model, items.iter().cloned().map(Value::from).collect()));
        for ((answer, item), length) in answers.into_iter().zip(items).zip(lengths) {
            match answer {
                Ok(answer) => prop_assert_eq!(answer.as_tensor().unwrap(), &item),
                Err(error) => prop_assert!(length > limit && error.status() == Some(422), "{}", error),
            }
        }
    }
}
