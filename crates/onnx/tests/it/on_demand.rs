//! A model that is loaded when a replica needs it.

use callboard_codec::{Tensor, Value};
use callboard_core::{App, CallError, ErrorKind, Node};
use callboard_onnx::{EngineChoice, Model, OnnxConfig};

use crate::support::{F32, Fixed, Graph, Named, TempFile, abs, add};

fn config(file: &TempFile) -> OnnxConfig {
    let mut config = OnnxConfig::new(&file.0);
    config.engine = EngineChoice::Rten;
    config
}

async fn serve(model: &Model) -> Node {
    let stage = callboard_onnx::stage("model", model).replicas_between(0, 2);
    App::new().route_described("/model", stage, model.input_type(), model.output_type()).start().await.unwrap()
}

async fn call(node: &Node) -> Result<Value, CallError> {
    let item = Tensor::from_vec(&[2], vec![1.0f32, 2.0]).unwrap();
    node.client().call("/model", Value::from(item)).await
}

#[tokio::test]
async fn the_first_call_loads_the_model_and_later_errors_are_its_answer() {
    let file = TempFile::new("on-demand", &add().to_onnx());
    let model = Model::on_demand(&config(&file)).unwrap();
    assert_eq!(model.signature(), Model::from_config(&config(&file)).unwrap().signature());
    let node = serve(&model).await;
    let answer = call(&node).await.unwrap();
    assert_eq!(answer.as_tensor().unwrap().as_slice::<f32>().unwrap(), [11.0, 22.0]);

    node.scale_stage("model", 0).await.unwrap();
    std::fs::write(&file.0, abs(F32, &[Named("batch"), Fixed(3)]).to_onnx()).unwrap();
    let error = call(&node).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("has other inputs or outputs than its stage was made for"), "{error}");
}

#[tokio::test]
async fn a_model_that_its_engine_refuses_is_an_error_of_the_first_call() {
    let graph = Graph::new().input("x", F32, &[Fixed(2)]).output("y", F32, &[Fixed(2)]).node("NoSuchOp", &["x"], "y");
    let file = TempFile::new("refused", &graph.to_onnx());
    let node = serve(&Model::on_demand(&config(&file)).unwrap()).await;
    let error = call(&node).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("NoSuchOp") && error.retry_after().is_some(), "{error}");
}

#[test]
fn a_model_is_as_large_as_all_its_files() {
    let weights = TempFile::new("weights", &[0; 8]);
    let name = weights.0.file_name().unwrap().to_str().unwrap();
    let axes = [Named("batch"), Fixed(2)];
    let graph = Graph::new().input("x", F32, &axes).output("y", F32, &axes).external_weight("w", &[2], name);
    let graph = graph.node("Add", &["x", "w"], "y").to_onnx();
    let file = TempFile::new("with-weights", &graph);
    assert_eq!(Model::on_demand(&config(&file)).unwrap().bytes(), graph.len() as u64 + 8);
}
