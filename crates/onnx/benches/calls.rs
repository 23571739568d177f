//! Calls of a model in process, for `benches/models/compare.py`, which says when: `calls MODEL ENGINE`, then a line
//! with a number of calls on stdin for each line with their median in milliseconds on stdout.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and panics on an error")]

use std::io::BufRead as _;
use std::time::Instant;

use bytes::Bytes;
use callboard_codec::{DType, Map, Tensor, Value};
use callboard_core::App;
use callboard_onnx::{Axis, BatchAxis, Model, OnnxConfig};

/// The length of an axis that the model leaves open, as in `compare.py`.
const OPEN_AXIS: usize = 64;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    // `cargo bench` and `cargo test` start it without a model.
    let (Some(path), Some(engine)) = (args.get(1).filter(|path| !path.starts_with('-')), args.get(2)) else { return };
    let config: OnnxConfig = serde_json::from_value(serde_json::json!({ "model": path, "engine": engine })).unwrap();
    let model = Model::from_config(&config).unwrap();
    let item = item(&model);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let stage = callboard_onnx::stage("model", &model).max_batch_size(1);
        let app = App::new().route_described("/model", stage, model.input_type(), model.output_type());
        let node = app.start().await.unwrap();
        println!("ready");
        for line in std::io::stdin().lock().lines() {
            let mut times = Vec::new();
            for _ in 0..line.unwrap().trim().parse().unwrap() {
                let start = Instant::now();
                let _: Value = node.client().call("/model", item.clone()).await.unwrap();
                times.push(start.elapsed());
            }
            times.sort();
            println!("{}", times[times.len() / 2].as_secs_f64() * 1e3);
        }
    });
}

/// Numbers below 100 for each input: pixels, or words of a small vocabulary.
fn item(model: &Model) -> Value {
    let signature = model.signature();
    let inputs = signature.inputs().iter().map(|spec| {
        let batch = usize::from(signature.batch_axis() != BatchAxis::Absent);
        let axes = &spec.shape().unwrap()[batch..];
        let length = |axis: &Axis| if let Axis::Fixed(length) = axis { *length } else { OPEN_AXIS };
        let shape: Vec<usize> = axes.iter().map(length).collect();
        let numbers = (0..shape.iter().product::<usize>()).map(|i| i * 31 % 97);
        let data: Bytes = match spec.dtype().unwrap() {
            DType::F32 => numbers.flat_map(|n| (n as f32 / 97.0).to_le_bytes()).collect(),
            DType::I64 => numbers.flat_map(|n| (n as i64).to_le_bytes()).collect(),
            other => panic!("inputs of {other}"),
        };
        (spec.name().to_owned(), Value::from(Tensor::try_new(spec.dtype().unwrap(), &shape, data).unwrap()))
    });
    Value::Map(inputs.collect::<Map>())
}
