//! Triton's own client, synchronous and asynchronous, against models of every kind.

use std::sync::Arc;
use std::time::Duration;

use callboard::codec::{DType, DataType, Map, Tensor, TensorField, TensorFields, Value};
use callboard::http::HttpConfig;
use callboard::{App, Batch, Failure, Replica, RouteSpec, Stage, StreamStage, Worker};
use futures_util::{StreamExt as _, stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::python::Python;
use crate::support::{Server, callboard};

#[test]
fn tritonclient_reads_health_metadata_and_results() {
    run("triton_calls.py");
}

#[test]
fn tritonclient_sends_and_receives_every_datatype() {
    run("triton_datatypes.py");
}

#[test]
fn tritonclient_transfers_64_mib_at_once() {
    run("triton_large.py");
}

#[test]
fn tritonclient_aio_calls_concurrently() {
    run("triton_aio.py");
}

/// A model without any configuration, through the binary.
#[test]
fn tritonclient_classifies_digits() {
    let Some(python) = Python::with("tritonclient") else { return };
    let server = Server::start(callboard(["serve", "examples/digits/digits.onnx", "--http", "127.0.0.1:0"]));
    python.run("triton_digits.py", &[&server.address]);
}

#[test]
fn tritonclient_unloads_and_loads_a_model() {
    let Some(python) = Python::with("tritonclient") else { return };
    let args = ["serve", "examples/digits/digits.onnx", "--http", "127.0.0.1:0", "--model-control", "true"];
    let server = Server::start(callboard(args));
    python.run("triton_repository.py", &[&server.address]);
}

fn run(script: &str) {
    run_with("tritonclient", script);
}

/// Runs a script with these packages against the routes; returns its output if Python is required.
pub(crate) fn run_with(requirements: &str, script: &str) -> Option<String> {
    let python = Python::with(requirements)?;
    Some(served(|address| python.run(script, &[address])))
}

/// What a client gives of a server with the routes.
pub(crate) fn served<T>(client: impl FnOnce(&str) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // The bytes before a tensor of 64 MiB count as well.
    let config = HttpConfig { max_body_bytes: 65 * 1024 * 1024, ..HttpConfig::default() };
    let server = runtime.block_on(callboard::Server::start(app(), "127.0.0.1:0", config)).unwrap();
    let output = client(&server.address().to_string());
    runtime.block_on(async { drop(server) });
    output
}

/// The routes of the scripts.
fn app() -> App {
    App::new()
        .mount(every_datatype())
        .mount(samples())
        .mount(any_shape())
        .route("/greet", Stage::each("greet", greet))
        .route("/number", Stage::each("number", |number: &f64| Ok(number * 2.0)))
        .route("/fail", Stage::each("fail", |_: &f64| Err::<f64, _>(Failure::new("the model is unwell"))))
        .route("/deep/inside", Stage::each("inside", |number: &i32| Ok(number + 1)))
        .route("/nap", nap())
        .route("/who", replica_index())
        .route_streaming("/count", count())
}

const DATATYPES: [(&str, Option<DType>); 14] = [
    ("BOOL", Some(DType::Bool)),
    ("UINT8", Some(DType::U8)),
    ("UINT16", Some(DType::U16)),
    ("UINT32", Some(DType::U32)),
    ("UINT64", Some(DType::U64)),
    ("INT8", Some(DType::I8)),
    ("INT16", Some(DType::I16)),
    ("INT32", Some(DType::I32)),
    ("INT64", Some(DType::I64)),
    ("FP16", Some(DType::F16)),
    ("BF16", Some(DType::BF16)),
    ("FP32", Some(DType::F32)),
    ("FP64", Some(DType::F64)),
    ("BYTES", None),
];

fn tensors(fields: impl IntoIterator<Item = (&'static str, Option<DType>, Option<Vec<Option<usize>>>)>) -> DataType {
    let fields = fields.into_iter().map(|(name, dtype, shape)| TensorField {
        name: name.to_owned(),
        dtype,
        shape,
        is_required: true,
    });
    DataType::value().with_tensors(TensorFields { fields: fields.collect(), stackable: false })
}

/// `every`: an array of each datatype, returned unchanged.
fn every_datatype() -> RouteSpec {
    let fields = || tensors(DATATYPES.map(|(name, dtype)| (name, dtype, Some(vec![None, Some(2)]))));
    RouteSpec::described("/every", Stage::each("every", |value: &Value| Ok(value.clone())), fields(), fields())
}

/// `any`: an array of any shape, returned unchanged.
fn any_shape() -> RouteSpec {
    let field = || tensors([("x", Some(DType::F32), None)]);
    RouteSpec::described("/any", Stage::each("any", |value: &Value| Ok(value.clone())), field(), field())
}

/// `samples`: three numbers to their sum and their order; a batch of samples has a new first axis.
fn samples() -> RouteSpec {
    let stage = Stage::batch("samples", |items: Batch<Value>| {
        let answer_for = |item: &Value| {
            let numbers = item.get("x").and_then(Value::as_tensor).ok_or_else(|| Failure::invalid_input("no x"))?;
            let numbers = numbers.as_slice::<f32>().map_err(|error| Failure::invalid_input(error.to_string()))?;
            let sum = Tensor::from_vec(&[1], vec![numbers.iter().sum::<f32>()]).map(Value::Tensor);
            let scores = Tensor::from_vec(&[numbers.len()], numbers.to_vec()).map(Value::Tensor);
            Ok(Value::Map(Map::from_iter([("sum", sum.unwrap()), ("scores", scores.unwrap())])))
        };
        items.iter().map(answer_for).collect()
    });
    let field = |name: &str, axes: &[usize]| TensorField {
        name: name.to_owned(),
        dtype: Some(DType::F32),
        shape: Some(axes.iter().copied().map(Some).collect()),
        is_required: true,
    };
    let described = |fields| DataType::value().with_tensors(TensorFields { fields, stackable: true });
    let (input, output) =
        (described(vec![field("x", &[3])]), described(vec![field("sum", &[1]), field("scores", &[3])]));
    RouteSpec::described("/samples", stage.max_batch_size(32), input, output)
}

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct Guest {
    name: String,
    times: Option<u8>,
}

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct Greeting {
    text: String,
    letters: Vec<u32>,
}

fn greet(guest: &Guest) -> Result<Greeting, Failure> {
    let names = vec![guest.name.as_str(); usize::from(guest.times.unwrap_or(1))];
    let letters = names.iter().map(|name| name.chars().count() as u32).collect();
    Ok(Greeting { text: format!("hello {}", names.join(" and ")), letters })
}

/// `nap`: sleeps for the given seconds.
fn nap() -> Stage<f64, f64> {
    Stage::each_async("nap", |seconds: Arc<f64>| async move {
        tokio::time::sleep(Duration::from_secs_f64(*seconds)).await;
        Ok(*seconds)
    })
}

/// `who`: the index of the replica that answers.
struct ReplicaIndex(usize);

impl Worker for ReplicaIndex {
    type In = f64;
    type Out = u64;

    fn call(&mut self, batch: Batch<f64>) -> Vec<Result<u64, Failure>> {
        batch.iter().map(|_| Ok(self.0 as u64)).collect()
    }
}

fn replica_index() -> Stage<f64, u64> {
    Stage::worker("who", |replica: &Replica| Ok(ReplicaIndex(replica.index()))).replicas(4)
}

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct Count {
    number: u64,
}

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct CountTo {
    to: u64,
}

/// `count`: counts up; fails beyond a hundred.
fn count() -> StreamStage<CountTo, Count> {
    StreamStage::each("count", |request: &CountTo| {
        stream::iter(1..=request.to).map(|number| match number {
            101.. => Err(Failure::new("who can count that far?")),
            number => Ok(Count { number }),
        })
    })
}
