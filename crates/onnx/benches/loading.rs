//! What a model costs that is loaded by its first call: `cargo bench -p callboard-onnx --bench loading -- ENGINE`.
//!
//! A model of 100 MB: the first call of a stage that has no replica next to the start of one that has, in turns, and
//! the memory of the process with none, one and two replicas. Reads `/proc`, so Linux only.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and panics on an error")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use callboard_codec::{Tensor, Value};
use callboard_core::{App, Node};
use callboard_onnx::{Model, OnnxConfig};
use support::{F32, Fixed, Graph, Named, TempFile};

/// Rows and columns of the only weight: 100 MB.
const WIDTH: i64 = 5_000;

const ROUNDS: usize = 7;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    // `cargo bench` and `cargo test` start it without an engine.
    let Some(engine) = args.get(1).filter(|engine| !engine.starts_with('-')) else { return };
    let file = TempFile::new("loading", &one_large_weight());
    let config: OnnxConfig = serde_json::from_value(serde_json::json!({ "model": file.0, "engine": engine })).unwrap();

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut started, mut first, mut warm) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let node = serve(&Model::from_config(&config).unwrap(), 1).await;
            started.push(start.elapsed());
            let start = Instant::now();
            call(&node).await;
            warm.push(start.elapsed());
            end(node).await;

            let node = serve(&Model::on_demand(&config).unwrap(), 0).await;
            let start = Instant::now();
            call(&node).await;
            first.push(start.elapsed());
            end(node).await;
        }
        let [started, first, warm] = [started, first, warm].map(median);
        let ratio = first.as_secs_f64() / (started + warm).as_secs_f64();
        println!("start of a loaded stage {started:.1?} and a call {warm:.1?}; first call of the other {first:.1?} ({ratio:.3}x)");

        let node = serve(&Model::on_demand(&config).unwrap(), 0).await;
        let empty = resident();
        let mut sizes = Vec::new();
        for replicas in [1, 2, 0] {
            node.scale_stage("model", replicas).await.unwrap();
            if replicas > 0 {
                call(&node).await;
            }
            sizes.push(resident() - empty);
        }
        let [one, two, none] = sizes[..] else { unreachable!() };
        println!("one replica {one:.0} MB, two {two:.0} MB ({:.3}x), none again {none:.0} MB", two / one);
    });
}

/// `y = x · w`.
fn one_large_weight() -> Vec<u8> {
    let axes = [Named("batch"), Fixed(WIDTH)];
    let weight = vec![0.5; (WIDTH * WIDTH) as usize];
    let graph = Graph::new().input("x", F32, &axes).output("y", F32, &axes).weight("w", &[WIDTH, WIDTH], &weight);
    graph.node("MatMul", &["x", "w"], "y").to_onnx()
}

async fn serve(model: &Model, min: usize) -> Node {
    let stage = callboard_onnx::stage("model", model).max_batch_size(1).replicas_between(min, 2);
    App::new().route_described("/model", stage, model.input_type(), model.output_type()).start().await.unwrap()
}

async fn call(node: &Node) {
    let item = Tensor::from_array(ndarray::Array1::<f32>::ones(WIDTH as usize));
    let _: Value = node.client().call("/model", Value::from(item)).await.unwrap();
}

async fn end(node: Node) {
    let _ = node.shutdown(Duration::from_secs(5)).await;
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The resident memory of this process in MB.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1000.0
}
