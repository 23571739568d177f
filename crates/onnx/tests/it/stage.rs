//! The stage in a node: forms of items, errors of wrong items, and which items share a run.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use callboard_codec::{DType, Map, Tensor, Value};
use callboard_core::{App, CallError, ErrorKind, LocalClient, Node, Stage, StartError};
use callboard_onnx::{Engine, EngineChoice, EngineError, Model, OnnxConfig, Signature};
use ndarray::array;

use crate::support::{Axis, F32, F64, Fixed, Graph, Named, TempFile, abs, add, compare, lookup, mixing};

async fn start(model: &Model, max_batch_size: usize) -> Result<Node, StartError> {
    start_stage(model, callboard_onnx::stage("model", model).max_batch_size(max_batch_size)).await
}

pub(crate) async fn start_stage(model: &Model, stage: Stage<Value, Value>) -> Result<Node, StartError> {
    App::new().route_described("/model", stage, model.input_type(), model.output_type()).start().await
}

async fn serve(graph: &Graph, name: &str) -> Node {
    start(&graph.load(name).unwrap(), 8).await.unwrap()
}

async fn call(client: &LocalClient, item: impl Into<Value>) -> Result<Value, CallError> {
    client.call("/model", item.into()).await
}

async fn refused(node: &Node, item: impl Into<Value>) -> String {
    let error = call(&node.client(), item).await.unwrap_err();
    assert_eq!((error.kind(), error.status()), (ErrorKind::InvalidInput, Some(422)));
    error.message().to_owned()
}

/// The paths in the details of a refusal.
async fn paths(node: &Node, item: impl Into<Value>) -> Vec<String> {
    let error = call(&node.client(), item).await.unwrap_err();
    let fields = error.details().unwrap().get("fields").unwrap().as_list().unwrap().to_vec();
    fields.iter().map(|field| field.get("path").unwrap().as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn every_wrong_input_is_named_with_its_path() {
    let node = serve(&add(), "paths").await;
    assert_eq!(paths(&node, numbers(&[1.0])).await, ["$"]);
    assert_eq!(paths(&node, map([("x", "text".into())])).await, ["$.x"]);
    assert_eq!(paths(&node, map([])).await, ["$.x"]);
    assert_eq!(paths(&node, map([("y", 1.into()), ("z", 2.into())])).await, ["$.y", "$.z", "$.x"]);
}

fn numbers(numbers: &[f64]) -> Value {
    numbers.iter().copied().collect()
}

fn map<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Map(Map::from_iter(entries))
}

#[tokio::test]
async fn an_item_is_a_tensor_a_list_a_map_or_a_tensor_as_a_map() {
    let node = serve(&add(), "forms").await;
    let tensor = Tensor::from_array(array![1.0_f32, 2.0]);
    let as_map = map([("dtype", "f32".into()), ("shape", vec![Value::from(2)].into()), ("data", numbers(&[1.0, 2.0]))]);
    let with_axis = tensor.reshape(&[1, 2]).unwrap();
    let forms = [
        tensor.clone().into(),
        numbers(&[1.0, 2.0]),
        vec![Value::from(1), Value::from(2)].into(),
        map([("x", tensor.into())]),
        map([("x", numbers(&[1.0, 2.0]))]),
        as_map,
        with_axis.into(),
    ];
    for form in forms {
        let description = format!("{form:?}");
        let answer = call(&node.client(), form).await.expect(&description);
        assert_eq!(answer.as_tensor().unwrap(), &Tensor::from_array(array![11.0_f32, 22.0]), "{description}");
    }
}

#[tokio::test]
async fn the_error_of_a_wrong_input_names_the_expected_and_the_actual_type() {
    let node = serve(&add(), "wrong").await;
    let f64s = Tensor::from_array(array![1.0_f64, 2.0]);
    assert_eq!(refused(&node, f64s).await, "input `x`: expected f32 [2], got f64 [2]");
    let too_long = Tensor::from_array(array![1.0_f32, 2.0, 3.0]);
    assert_eq!(refused(&node, too_long).await, "input `x`: expected f32 [2], got f32 [3]");
    let two_items = Tensor::from_array(array![[1.0_f32, 2.0], [3.0, 4.0]]);
    assert_eq!(refused(&node, two_items).await, "input `x`: expected f32 [2], got f32 [2, 2]");
    assert_eq!(refused(&node, numbers(&[1.0])).await, "input `x`: expected f32 [2], got f32 [1]");
    let message = refused(&node, vec![Value::from(1.0), Value::from("two")]).await;
    assert!(message.starts_with("input `x`: expected f32 [2], got list: ") && message.contains("$[1]"), "{message}");
    let too_large = refused(&node, numbers(&[1.0, 1e300])).await;
    assert!(too_large.starts_with("input `x`: expected f32 [2], got list: "), "{too_large}");
    let null = refused(&node, Value::Null).await;
    assert!(null.starts_with("input `x`: expected f32 [2], got null"), "{null}");
    let error = call(&node.client(), numbers(&[1.0])).await.unwrap_err();
    assert_eq!(error.error_type(), Some("wrong_input"));
}

#[tokio::test]
async fn missing_and_unknown_inputs_are_named() {
    let node = serve(&compare(), "names").await;
    let a = || numbers(&[1.0, 2.0]);
    assert_eq!(refused(&node, map([("a", a())])).await, "input `b` is missing, expected f32 [width]");
    assert_eq!(
        refused(&node, map([("a", a()), ("b", a()), ("c", a())])).await,
        "there is no input `c`, the model takes `a`, `b`"
    );
    assert_eq!(refused(&node, a()).await, "expected a map of the inputs `a`, `b`, got list");
    assert_eq!(
        refused(&node, map([("a", a()), ("b", numbers(&[1.0]))])).await,
        "input `b`: axis `width` is 1, but 2 in `a`"
    );
}

#[tokio::test]
async fn several_outputs_are_a_map_of_the_declared_dtypes() {
    let node = serve(&compare(), "outputs").await;
    let answer = call(&node.client(), map([("a", numbers(&[1.0, 5.0])), ("b", numbers(&[2.0, 3.0]))])).await.unwrap();
    assert_eq!(answer.get("sum").unwrap().as_tensor().unwrap(), &Tensor::from_array(array![3.0_f32, 8.0]));
    assert_eq!(answer.get("greater").unwrap().as_tensor().unwrap(), &Tensor::from_array(array![false, true]));
}

#[tokio::test]
async fn integers_are_converted_for_the_engine_and_checked() {
    let node = serve(&lookup(), "integers").await;
    let answer = call(&node.client(), Tensor::from_array(array![2_i64, 0])).await.unwrap();
    assert_eq!(answer.as_tensor().unwrap(), &Tensor::from_array(array![[2.0_f32, 2.5], [0.0, 0.5]]));
    assert_eq!(
        refused(&node, Tensor::from_array(array![0_i64, 1 << 40])).await,
        "input `ids`: 1099511627776 at element 1 does not fit i32, which the engine computes i64 in"
    );
}

/// Clients with only one number type write `1.0` for 1, and `-0` in JSON is read as a float.
#[tokio::test]
async fn whole_numbers_sent_as_floats_are_integers() {
    let node = serve(&lookup(), "whole").await;
    let answer = call(&node.client(), list([Value::Float(2.0), Value::Int(1), Value::Float(-0.0)])).await.unwrap();
    assert_eq!(answer.as_tensor().unwrap(), &Tensor::from_array(array![[2.0_f32, 2.5], [1.0, 1.5], [0.0, 0.5]]));
    for number in [1.5, 1e300, f64::NAN] {
        assert!(
            refused(&node, list([Value::Int(1), Value::Float(number)])).await.starts_with("input `ids`"),
            "{number}"
        );
    }
}

fn list<const N: usize>(items: [Value; N]) -> Value {
    Value::List(items.to_vec())
}

/// Items with a batch axis run together by default, and cost their length if lengths differ.
#[test]
fn a_stage_batches_by_default_if_its_model_can() {
    let settings = |model: &Model| callboard_onnx::stage("model", model).settings().batching().max_batch_size.get();
    let stacked = add().load("default-stacked").unwrap();
    assert_eq!((settings(&stacked), stacked.signature().items_vary()), (Signature::DEFAULT_MAX_BATCH_SIZE, false));
    let varying = lookup().load("default-varying").unwrap();
    assert_eq!((settings(&varying), varying.signature().items_vary()), (Signature::DEFAULT_MAX_BATCH_SIZE, true));
    let single = abs(F32, &[Fixed(1), Fixed(2)]).load("default-single").unwrap();
    assert_eq!(settings(&single), 1);
}

#[tokio::test]
async fn doubles_are_computed_in_single_precision_and_returned_as_doubles() {
    let node = serve(&abs(F64, &[Named("batch"), Fixed(2)]), "doubles").await;
    let answer = call(&node.client(), Tensor::from_array(array![-1.5_f64, 2.0])).await.unwrap();
    assert_eq!(answer.as_tensor().unwrap(), &Tensor::from_array(array![1.5_f64, 2.0]));
}

#[tokio::test]
async fn nan_and_infinity_are_passed_to_the_engine() {
    let node = serve(&add(), "nan").await;
    let answer = call(&node.client(), Tensor::from_array(array![f32::NAN, f32::INFINITY])).await.unwrap();
    let answer = answer.as_tensor().unwrap().as_slice::<f32>().unwrap().to_vec();
    assert!(answer[0].is_nan() && answer[1] == f32::INFINITY, "{answer:?}");
}

#[tokio::test]
async fn a_model_without_a_batch_axis_runs_item_by_item() {
    let fixed = serve(&abs(F32, &[Fixed(1), Fixed(2)]), "one").await;
    let absent = serve(&abs(F32, &[Fixed(2)]), "absent").await;
    for node in [fixed, absent] {
        let client = node.client();
        let calls: Vec<_> = (0..20)
            .map(|i| {
                tokio::spawn({
                    let client = client.clone();
                    async move { call(&client, Tensor::from_array(array![-1.0_f32, i as f32])).await }
                })
            })
            .collect();
        for (i, answer) in calls.into_iter().enumerate() {
            let answer = answer.await.unwrap().unwrap();
            assert_eq!(answer.as_tensor().unwrap(), &Tensor::from_array(array![1.0_f32, i as f32]));
        }
    }
}

/// Runs another engine, and records its calls. The first call after warm-up waits for its release, so that further
/// calls queue.
#[derive(Debug)]
struct Gated {
    inner: Doubling,
    shapes: Arc<Mutex<Vec<Vec<usize>>>>,
    warm_ups: usize,
    started: mpsc::Sender<()>,
    gate: Mutex<mpsc::Receiver<()>>,
}

/// `y = 2x`; refuses negative numbers, for the whole run as engines do.
#[derive(Debug)]
struct Doubling;

impl Engine for Doubling {
    fn name(&self) -> &'static str {
        "doubling"
    }

    fn dtype(&self, declared: DType) -> Option<DType> {
        Some(declared)
    }

    fn run(&self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        let x = inputs[0].as_tensor().unwrap().view::<f32>().unwrap();
        match x.iter().find(|x| **x < 0.0) {
            Some(negative) => Err(EngineError::new("doubling", format_args!("{negative} is\nnegative"))),
            None => Ok(vec![Tensor::from_array(x.mapv(|x| 2.0 * x)).into()]),
        }
    }
}

impl Engine for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn dtype(&self, declared: DType) -> Option<DType> {
        self.inner.dtype(declared)
    }

    fn run(&self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        let calls = {
            let mut shapes = self.shapes.lock().unwrap();
            shapes.push(inputs[0].as_tensor().unwrap().shape().to_vec());
            shapes.len()
        };
        if calls == self.warm_ups + 1 {
            self.started.send(()).unwrap();
            self.gate.lock().unwrap().recv().unwrap();
        }
        self.inner.run(inputs)
    }
}

/// The outcomes of items that queue together while the worker is busy, and the shapes of their runs.
async fn run_together(items: Vec<Tensor>) -> (Vec<Result<Value, CallError>>, Vec<Vec<usize>>) {
    run_together_in(|stage| stage, items).await
}

async fn run_together_in(
    change: impl FnOnce(Stage<Value, Value>) -> Stage<Value, Value>,
    items: Vec<Tensor>,
) -> (Vec<Result<Value, CallError>>, Vec<Vec<usize>>) {
    let axes = [Named("batch"), Named("width")];
    let signature = Signature::try_from_onnx(&abs(F32, &axes).to_onnx()).unwrap();
    let shapes = Arc::new(Mutex::new(Vec::new()));
    let (started, has_started) = mpsc::channel();
    let (release, gate) = mpsc::channel();
    let gated = Gated { inner: Doubling, shapes: Arc::clone(&shapes), warm_ups: 2, started, gate: Mutex::new(gate) };
    let model = Model::with_engine(signature, gated).unwrap();
    let stage = callboard_onnx::stage("model", &model).max_batch_size(8);
    let node = start_stage(&model, change(stage)).await.unwrap();
    assert_eq!(*shapes.lock().unwrap(), [vec![1, 1], vec![8, 1]], "warm-up: one item, then the largest batch");

    let client = node.client();
    let first = tokio::spawn({
        let client = client.clone();
        async move { call(&client, Tensor::from_array(array![0.0_f32])).await }
    });
    tokio::task::spawn_blocking(move || has_started.recv().unwrap()).await.unwrap();
    let mut calls: Vec<_> = items.into_iter().map(|item| Box::pin(call(&client, item))).collect();
    // Each first poll sends a call to the batcher. A hundred yields on the only runtime thread put all of them into the
    // queue before the gate opens.
    for waiting in &mut calls {
        assert!(poll_once(waiting).is_none());
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    release.send(()).unwrap();
    first.await.unwrap().unwrap();
    let mut outcomes = Vec::new();
    for waiting in calls {
        outcomes.push(waiting.await);
    }
    let runs = shapes.lock().unwrap()[3..].to_vec();
    (outcomes, runs)
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(future).poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

fn answer(outcome: &Result<Value, CallError>) -> Vec<f32> {
    outcome.as_ref().unwrap().as_tensor().unwrap().as_slice().unwrap().to_vec()
}

#[tokio::test]
async fn items_that_wait_together_share_one_run() {
    let items = (1..=4).map(|i| Tensor::from_array(array![i as f32, 0.5])).collect();
    let (outcomes, runs) = run_together(items).await;
    assert_eq!(runs, [[4, 2]]);
    let answers: Vec<_> = outcomes.iter().map(answer).collect();
    assert_eq!(answers, [[2.0, 1.0], [4.0, 1.0], [6.0, 1.0], [8.0, 1.0]]);
}

#[tokio::test]
async fn items_of_different_lengths_run_in_separate_groups() {
    let long = |i: f32| Tensor::from_array(array![i, i, i]);
    let short = |i: f32| Tensor::from_array(array![i]);
    let (outcomes, runs) = run_together(vec![long(1.0), short(2.0), long(3.0), short(4.0)]).await;
    assert_eq!(runs, [[2, 3], [2, 1]]);
    let firsts: Vec<_> = outcomes.iter().map(|outcome| answer(outcome)[0]).collect();
    assert_eq!(firsts, [2.0, 4.0, 6.0, 8.0]);
}

#[tokio::test]
async fn an_item_of_a_model_with_varying_lengths_costs_its_length() {
    let items = (1..=4).map(|i| Tensor::from_array(array![i as f32, 0.5, 0.5])).collect();
    let (outcomes, runs) = run_together_in(|stage| stage.max_cost(6), items).await;
    assert_eq!(runs, [[2, 3], [2, 3]], "six values a batch, not six items");
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
}

#[tokio::test]
async fn a_wrong_item_fails_alone_and_other_items_run() {
    let good = |i: f32| Tensor::from_array(array![i]);
    let wrong_dtype = Tensor::from_array(array![1.0_f64]);
    let (outcomes, runs) = run_together(vec![good(1.0), wrong_dtype, good(3.0)]).await;
    assert_eq!(runs, [[2, 1]]);
    assert_eq!(outcomes[1].as_ref().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!((answer(&outcomes[0]), answer(&outcomes[2])), (vec![2.0], vec![6.0]));
}

#[tokio::test]
async fn an_item_that_the_model_cannot_compute_fails_alone() {
    let (outcomes, runs) = run_together([1.0, -2.0, 3.0].map(|x| Tensor::from_array(array![x as f32])).to_vec()).await;
    assert_eq!(runs, [[3, 1], [1, 1], [1, 1], [1, 1]]);
    let error = outcomes[1].as_ref().unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Failed, "the model failed: doubling: -2 is negative"));
    assert_eq!((answer(&outcomes[0]), answer(&outcomes[2])), (vec![2.0], vec![6.0]));
}

/// Returns an output without a batch axis, against its signature.
#[derive(Debug)]
struct WrongShape;

impl Engine for WrongShape {
    fn name(&self) -> &'static str {
        "wrong shape"
    }

    fn dtype(&self, declared: DType) -> Option<DType> {
        Some(declared)
    }

    fn run(&self, _inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        Ok(vec![Tensor::from_array(array![1.0_f32, 2.0, 3.0]).into()])
    }
}

#[tokio::test]
async fn a_model_that_violates_its_signature_does_not_start() {
    let signature = Signature::try_from_onnx(&add().to_onnx()).unwrap();
    let model = Model::with_engine(signature, WrongShape).unwrap();
    let error = start(&model, 8).await.unwrap_err();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    assert!(text.contains("output `y` of shape [3] has no batch axis of 1"), "{text}");
}

#[tokio::test]
async fn a_failed_warm_up_with_guessed_lengths_does_not_prevent_the_start() {
    // The guessed width of 1 does not fit the weights; the width of 8 does.
    let graph = Graph::new()
        .input("x", F32, &[Named("batch"), Named("width")])
        .output("y", F32, &[Named("batch"), Named("width")])
        .weight("w", &[8, 8], &[1.0; 64])
        .node("MatMul", &["x", "w"], "y");
    let node = serve(&graph, "guessed").await;
    let answer = call(&node.client(), numbers(&[1.0; 8])).await.unwrap();
    assert_eq!(answer.as_tensor().unwrap().as_slice::<f32>().unwrap(), [8.0; 8]);
}

#[tokio::test]
async fn nested_lists_may_end_at_an_empty_axis() {
    let shape = async |axes: &[Axis], item: Value| {
        let node = serve(&abs(F32, axes), "empty").await;
        let answer = call(&node.client(), item).await;
        answer.map(|answer| answer.as_tensor().unwrap().shape().to_vec()).map_err(|error| error.message().to_owned())
    };
    let none = || list::<0>([]);
    let past = [Named("batch"), Fixed(2), Named("past"), Fixed(4)];
    assert_eq!(shape(&past, list([none(), none()])).await, Ok(vec![2, 0, 4]));
    assert_eq!(shape(&past, list([list([none(), none()])])).await, Ok(vec![2, 0, 4]), "with the batch axis");
    assert_eq!(shape(&[Named("batch"), Named("past"), Fixed(2)], none()).await, Ok(vec![0, 2]));
    assert_eq!(shape(&[Named("batch"), Named("past"), Named("width")], none()).await, Ok(vec![0, 0]));
    let refused = shape(&past, none()).await.unwrap_err();
    assert!(refused.contains("expected f32 [2, past, 4], got f32 [0]"), "{refused}");
    // A tensor says its shape, and has another one.
    let tensor = Tensor::from_vec::<f32>(&[2, 0], Vec::new()).unwrap();
    let refused = shape(&past, tensor.into()).await.unwrap_err();
    assert!(refused.contains("got f32 [2, 0]"), "{refused}");
}

/// Never comes back while its sender lives.
#[derive(Debug)]
struct Hanging(Mutex<mpsc::Receiver<()>>);

impl Engine for Hanging {
    fn name(&self) -> &'static str {
        "hanging"
    }

    fn dtype(&self, declared: DType) -> Option<DType> {
        Some(declared)
    }

    fn run(&self, _: &[Value]) -> Result<Vec<Value>, EngineError> {
        let _ = self.0.lock().unwrap().recv();
        Err(EngineError::new("hanging", "ended"))
    }
}

#[tokio::test]
async fn a_run_at_the_start_may_take_as_long_as_the_timeout_says() {
    let (_alive, gate) = mpsc::channel();
    let signature = Signature::try_from_onnx(&add().to_onnx()).unwrap();
    let model = Model::with_engine(signature, Hanging(Mutex::new(gate))).unwrap();
    let stage = callboard_onnx::stage("model", &model).timeout(Duration::from_millis(50));
    let error = start_stage(&model, stage).await.unwrap_err().to_string();
    assert!(error.contains("a run at its start took longer than timeout = 50ms"), "{error}");
}

/// `[1, 2]` beside `[100, 100]`, of a stage with these settings.
async fn beside_another(model: &Model, stage: Stage<Value, Value>) -> Vec<f32> {
    let node = start_stage(model, stage).await.unwrap();
    let client = node.client();
    // The queue forms one batch of what has come while the worker is busy with the first.
    let loud = || call(&client, numbers(&[100.0, 100.0]));
    let calls = (0..8).map(|_| loud());
    let (mine, _) = tokio::join!(call(&client, numbers(&[1.0, 2.0])), futures_join(calls));
    answer(&mine)
}

/// All outcomes.
async fn futures_join<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(move |context| {
        for (future, outcome) in &mut pending {
            if outcome.is_none()
                && let std::task::Poll::Ready(done) = future.as_mut().poll(context)
            {
                *outcome = Some(done);
            }
        }
        if pending.iter().all(|(_, outcome)| outcome.is_some()) {
            return std::task::Poll::Ready(pending.iter_mut().filter_map(|(_, outcome)| outcome.take()).collect());
        }
        std::task::Poll::Pending
    })
    .await
}

#[tokio::test]
async fn a_model_that_mixes_the_items_of_a_batch_runs_them_one_by_one() {
    let model = mixing().load("mixing").unwrap();
    let reason = model.mixes_items().unwrap();
    assert!(reason.contains("output `y`") && reason.contains("beside"), "{reason}");
    let stage = || callboard_onnx::stage("model", &model);
    let alone = vec![2.5, 3.5];
    assert_eq!(beside_another(&model, stage()).await, alone);
    let node = start_stage(&model, stage()).await.unwrap();
    let described = &node.describe().stages[0];
    assert_eq!((described.max_batch_size, described.note.as_deref()), (1, Some(reason)));
    // Asked for, batches are formed.
    let node = start(&model, 8).await.unwrap();
    assert_eq!(node.describe().stages[0].max_batch_size, 8);

    // Of a model that its first call loads, only the load shows it.
    let file = TempFile::new("mixing", &mixing().to_onnx());
    let mut config = OnnxConfig::new(&file.0);
    config.engine = EngineChoice::Rten;
    let model = Model::on_demand(&config).unwrap();
    assert_eq!((model.mixes_items(), model.default_max_batch_size()), (None, Signature::DEFAULT_MAX_BATCH_SIZE));
    assert_eq!(beside_another(&model, callboard_onnx::stage("model", &model)).await, alone);
}

#[test]
fn a_model_that_keeps_items_apart_is_batched_also_where_its_numbers_differ_in_the_last_digits() {
    let wide = Graph::new()
        .input("x", F32, &[Named("batch"), Named("width"), Fixed(64)])
        .output("y", F32, &[Named("batch"), Named("width"), Fixed(8)])
        .weight("w", &[64, 8], &std::array::from_fn::<f32, 512, _>(|index| (index % 13) as f32 - 6.0))
        .node("MatMul", &["x", "w"], "product")
        .node("Softmax", &["product"], "y")
        .with_int("axis", 2);
    for graph in [add(), lookup(), compare(), abs(F64, &[Named("batch"), Fixed(3)]), wide] {
        let model = graph.load("apart").unwrap();
        assert_eq!((model.mixes_items(), model.default_max_batch_size()), (None, Signature::DEFAULT_MAX_BATCH_SIZE));
    }
}
