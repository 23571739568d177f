//! ONNX Runtime: what it computes that the embedded engine does not, and what costs no copy.
//!
//! The library is the one of `ORT_DYLIB_PATH` or of the active virtual environment. Without one a test is skipped with
//! one line, unless `CALLBOARD_REQUIRE` names `onnxruntime`: then it fails.

use std::path::PathBuf;

use callboard_codec::{DType, Map, Scalar, StrTensor, Tensor, Value};
use callboard_core::{App, Node};
use callboard_onnx::{EngineChoice, LoadError, Model, OnnxConfig, Provider};
use ndarray::array;

use crate::support::library::{config, load, load_graph};
use crate::support::{BOOL, F32, F64, Fixed, Graph, I64, Listed, Named, TempFile, abs, add, lookup};

async fn serve(model: &Model) -> Node {
    let stage = callboard_onnx::stage("model", model);
    App::new().route_described("/model", stage, model.input_type(), model.output_type()).start().await.unwrap()
}

async fn call(model: &Model, item: impl Into<Value>) -> Value {
    serve(model).await.client().call("/model", item.into()).await.unwrap()
}

fn digits() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits.onnx"))
}

#[tokio::test]
async fn both_engines_give_the_same_answer() {
    let Some(model) = load(&config(digits())) else { return };
    let mut embedded = OnnxConfig::new(digits());
    embedded.engine = EngineChoice::Rten;
    let image = Tensor::from_array(ndarray::Array3::from_shape_fn((1, 8, 8), |(_, y, x)| (x * y % 17) as f32));
    let (ours, theirs) =
        (call(&model.unwrap(), image.clone()).await, call(&Model::from_config(&embedded).unwrap(), image).await);
    let (ours, theirs) = (ours.as_tensor().unwrap().clone(), theirs.as_tensor().unwrap().clone());
    for (a, b) in ours.as_slice::<f32>().unwrap().iter().zip(theirs.as_slice::<f32>().unwrap()) {
        assert!((a - b).abs() < 1e-3, "{a} {b}");
    }
}

#[tokio::test]
async fn doubles_are_computed_as_doubles() {
    let Some(model) = load_graph(&abs(F64, &[Named("batch"), Fixed(3)]), "ort-doubles") else { return };
    let answer = call(&model, Tensor::from_array(array![-1.0_f64 / 3.0, 16_777_217.0, 1e-300])).await;
    assert_eq!(answer.as_tensor().unwrap(), &Tensor::from_array(array![1.0_f64 / 3.0, 16_777_217.0, 1e-300]));
}

/// Every dtype, through an operator that hands its input through.
#[tokio::test]
async fn every_dtype_comes_back_as_it_was_sent() {
    let dtypes = [
        (DType::F32, 1),
        (DType::U8, 2),
        (DType::I8, 3),
        (DType::U16, 4),
        (DType::I16, 5),
        (DType::I32, 6),
        (DType::I64, 7),
        (DType::Bool, 9),
        (DType::F16, 10),
        (DType::F64, 11),
        (DType::U32, 12),
        (DType::U64, 13),
        (DType::BF16, 16),
    ];
    for (dtype, code) in dtypes {
        let graph = Graph::new()
            .input("x", code, &[Named("batch"), Fixed(3)])
            .output("y", code, &[Named("batch"), Fixed(3)])
            .node("Identity", &["x"], "y");
        let Some(model) = load_graph(&graph, &format!("ort-{dtype}")) else { return };
        let bytes: Vec<u8> = (0..3 * dtype.size_bytes())
            .map(|byte| if dtype == DType::Bool { byte as u8 & 1 } else { 17 + byte as u8 })
            .collect();
        let tensor = Tensor::try_new(dtype, &[3], bytes.into()).unwrap();
        assert_eq!(call(&model, tensor.clone()).await.as_tensor().unwrap(), &tensor, "{dtype}");
    }
}

#[tokio::test]
async fn texts_come_back_as_texts() {
    let graph = Graph::new().input("x", 8, &[Named("batch"), Fixed(2)]).output("y", 8, &[Named("batch"), Fixed(2)]);
    let Some(model) = load_graph(&graph.node("Identity", &["x"], "y"), "ort-texts") else { return };
    let texts = StrTensor::from_texts(&[2], ["Zoë\0", ""]).unwrap();
    let answer = call(&model, Value::StrTensor(texts.clone())).await;
    assert_eq!(answer, Value::StrTensor(texts));
}

/// What exporters of classifiers give: a label, and a list with a map for each item.
#[tokio::test]
async fn each_item_of_a_classifier_has_a_map_of_its_scores() {
    let graph = Graph::new()
        .input("x", F32, &[Named("batch"), Fixed(2)])
        .output_list("scores", &Listed::Maps)
        .node("ZipMap", &["x"], "scores")
        .in_ml("classlabels_int64s", &[3, 7]);
    let Some(model) = load_graph(&graph, "ort-zipmap") else { return };
    let answer = call(&model, Tensor::from_array(array![0.25_f32, 0.75])).await;
    let scores = [("3", Value::Scalar(Scalar::F32(0.25))), ("7", Value::Scalar(Scalar::F32(0.75)))];
    assert_eq!(answer, Value::Map(Map::from_iter(scores)));
}

#[tokio::test]
async fn a_list_of_tensors_is_one_result() {
    let graph = Graph::new().input("x", F32, &[Named("n")]).output_list("y", &Listed::Tensors).node(
        "SequenceConstruct",
        &["x", "x"],
        "y",
    );
    let Some(model) = load_graph(&graph, "ort-sequence") else { return };
    let x = Tensor::from_array(array![1.0_f32, 2.0]);
    assert_eq!(call(&model, x.clone()).await, Value::List(vec![x.clone().into(), x.into()]));
}

#[tokio::test]
async fn a_tensor_without_axes_goes_in_and_out() {
    let Some(model) = load_graph(&abs(F32, &[]), "ort-scalar") else { return };
    let answer = call(&model, Tensor::from_array(ndarray::arr0(-2.0_f32))).await;
    assert_eq!(answer.as_tensor().unwrap(), &Tensor::from_array(ndarray::arr0(2.0_f32)));
    assert_eq!(call(&model, Value::Float(-2.0)).await.as_tensor().unwrap().shape(), [0; 0]);
}

/// The result may point to the input, whose memory the caller gives back.
#[tokio::test]
async fn an_input_that_is_an_output_is_copied() {
    let graph = Graph::new()
        .input("x", F32, &[Named("batch"), Fixed(2)])
        .output("x", F32, &[Named("batch"), Fixed(2)])
        .output("y", BOOL, &[Named("batch"), Fixed(2)])
        .node("IsNaN", &["x"], "y");
    let Some(model) = load_graph(&graph, "ort-through") else { return };
    let answer = call(&model, Tensor::from_array(array![1.0_f32, f32::NAN])).await;
    assert_eq!(answer.get("x").unwrap().as_tensor().unwrap().as_slice::<f32>().unwrap()[0], 1.0);
    assert_eq!(answer.get("y").unwrap().as_tensor().unwrap(), &Tensor::from_array(array![false, true]));
}

#[tokio::test]
async fn weights_in_a_file_beside_the_model_are_found() {
    let name = format!("callboard-{}-weights.bin", std::process::id());
    let weights = std::env::temp_dir().join(&name);
    std::fs::write(&weights, [1.5_f32, 2.5].map(f32::to_le_bytes).concat()).unwrap();
    let graph = Graph::new()
        .input("x", F32, &[Named("batch"), Fixed(2)])
        .output("y", F32, &[Named("batch"), Fixed(2)])
        .external_weight("w", &[2], &name)
        .node("Add", &["x", "w"], "y");
    let model = load_graph(&graph, "ort-external");
    std::fs::remove_file(&weights).unwrap();
    let Some(model) = model else { return };
    let answer = call(&model, Tensor::from_array(array![1.0_f32, 1.0])).await;
    assert_eq!(answer.as_tensor().unwrap(), &Tensor::from_array(array![2.5_f32, 3.5]));
}

#[tokio::test]
async fn an_item_that_the_model_cannot_compute_fails_alone() {
    let Some(model) = load_graph(&lookup(), "ort-range") else { return };
    let node = serve(&model).await;
    let client = node.client();
    let item = |id: i64| Value::from(Tensor::from_array(array![id]));
    let call = |id| client.call::<Value, Value>("/model", item(id));
    let (first, wrong, last) = (call(0).await, call(9).await, call(2).await);
    assert!(first.is_ok() && last.is_ok());
    let message = wrong.unwrap_err().message().to_owned();
    assert!(message.contains("ONNX Runtime") && message.contains("idx=9"), "{message}");
}

/// One session, many threads.
#[test]
fn replicas_run_at_the_same_time_and_share_the_weights() {
    let Some(model) = load_graph(&add(), "ort-parallel") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let stage = callboard_onnx::stage("model", &model).replicas(8).max_batch_size(2);
        let app = App::new().route_described("/model", stage, model.input_type(), model.output_type());
        let node = app.start().await.unwrap();
        let calls = (0..400).map(|i| {
            let client = node.client();
            tokio::spawn(async move {
                let answer: Value =
                    client.call("/model", Value::from(Tensor::from_array(array![i as f32, 0.0]))).await.unwrap();
                assert_eq!(answer.as_tensor().unwrap(), &Tensor::from_array(array![i as f32 + 10.0, 20.0]));
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap();
        }
    });
}

#[test]
fn a_provider_that_this_machine_lacks_is_an_error_unless_the_processor_follows() {
    let file = TempFile::new("ort-provider", &add().to_onnx());
    let mut config = config(&file.0);
    config.providers = vec![Provider::Coreml];
    let Some(refused) = load(&config) else { return };
    let LoadError::Engine { source, .. } = refused.unwrap_err() else { panic!("another error") };
    let expected = "ONNX Runtime: providers: `coreml`: ONNX Runtime: this library was built without it; add \"cpu\" behind it to run without it";
    assert_eq!(source.to_string(), expected);
    config.providers.push(Provider::Cpu);
    load(&config).unwrap().unwrap();
}

#[test]
fn a_second_library_is_refused_and_both_are_named() {
    let file = TempFile::new("ort-second", &add().to_onnx());
    let mut config = config(&file.0);
    if load(&config).is_none() {
        return;
    }
    config.library = Some(PathBuf::from("/no/such/libonnxruntime.so"));
    let LoadError::Library { source, .. } = Model::from_config(&config).unwrap_err() else { panic!("another error") };
    assert!(source.to_string().contains("/no/such/libonnxruntime.so cannot be loaded beside /"), "{source}");
}

#[test]
fn a_damaged_file_is_a_model_or_an_error() {
    let whole = add().to_onnx();
    for index in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[index] ^= 0xff;
        let file = TempFile::new("ort-damaged", &damaged);
        if load(&config(&file.0)).is_none() {
            return;
        }
    }
}

#[test]
fn settings_of_threads_and_memory_are_taken() {
    let settings = serde_json::json!({
        "model": digits(), "engine": "onnxruntime", "threads": 2, "inter_threads": 2, "spinning": false,
        "arena": false, "optimization": "basic", "providers": ["cuda", "cpu"],
    });
    let config: OnnxConfig = serde_json::from_value(settings).unwrap();
    if let Some(model) = load(&config) {
        assert_eq!(model.unwrap().signature().inputs()[0].dtype(), Some(DType::F32));
    }
}

/// Zeros are no value for each parameter, so a refused warm-up of several inputs does not prevent the start.
#[tokio::test]
async fn a_parameter_that_cannot_be_zero_does_not_prevent_the_start() {
    let graph = Graph::new()
        .input("a", I64, &[Fixed(1)])
        .input("b", I64, &[Fixed(1)])
        .output("y", I64, &[Fixed(1)])
        .node("Mod", &["a", "b"], "y");
    let Some(model) = load_graph(&graph, "ort-parameter") else { return };
    let number = |number: i64| Value::from(Tensor::from_array(array![number]));
    let answer = call(&model, Value::Map(Map::from_iter([("a", number(7)), ("b", number(4))]))).await;
    assert_eq!(answer.as_tensor().unwrap(), &Tensor::from_array(ndarray::arr0(3_i64)));
}
