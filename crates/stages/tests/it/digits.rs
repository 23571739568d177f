//! The digits example through all three of its stages: every held-out picture, compared with what its training script
//! recorded. Equal, not about.

use base64::Engine as _;
use bytes::Bytes;
use callboard_codec::Value;
use callboard_core::{App, CallError, ErrorKind, Node, Pipeline};
use callboard_onnx::Model;
use callboard_stages::image::{self, ImageConfig};
use callboard_stages::labels::{self, LabelsConfig};
use serde::Deserialize;
use serde_json::json;

/// One line of `heldout.jsonl`.
#[derive(Deserialize)]
struct Heldout {
    png: String,
    prediction: u8,
    logits: Vec<f32>,
}

fn example(file: &str) -> String {
    format!("{}/../../examples/digits/{file}", env!("CARGO_MANIFEST_DIR"))
}

fn heldout() -> Vec<Heldout> {
    let text = std::fs::read_to_string(example("heldout.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn png(heldout: &Heldout) -> Value {
    Value::Bytes(base64::engine::general_purpose::STANDARD.decode(&heldout.png).unwrap().into())
}

/// Two routes that share stages: one to the logits, one to the label.
async fn serve() -> Node {
    let picture = json!({ "color": "grey", "width": 8, "height": 8, "resize": "area", "scale": 0.0625 });
    let picture: ImageConfig = serde_json::from_value(picture).unwrap();
    let names: LabelsConfig = serde_json::from_value(json!({ "softmax": true, "top_k": 3 })).unwrap();
    let model = Model::load(example("digits.onnx")).unwrap();
    let logits = Pipeline::from(image::stage("decode", &picture).unwrap())
        .then(callboard_onnx::stage("digits", &model).max_batch_size(32));
    let digits = logits.clone().then(labels::stage("labels", &names).unwrap());
    App::new()
        .route_described("/logits", logits, image::input_type(&picture), model.output_type())
        .route_described("/digits", digits, image::input_type(&picture), labels::output_type(&names))
        .start()
        .await
        .unwrap()
}

async fn call(node: &Node, route: &'static str, item: Value) -> Result<Value, CallError> {
    node.client().call(route, item).await
}

#[tokio::test]
async fn every_held_out_picture_is_predicted_as_recorded() {
    let node = serve().await;
    let heldout = heldout();
    assert_eq!(heldout.len(), 360);
    // All at once, so that they are batched as load happens to batch them.
    let calls: Vec<_> = heldout
        .iter()
        .map(|line| {
            let (client, item) = (node.client(), png(line));
            tokio::spawn(async move { client.call::<Value, Value>("/digits", item).await })
        })
        .collect();
    for (line, call) in heldout.iter().zip(calls) {
        let answer = call.await.unwrap().unwrap();
        assert_eq!(answer.get("label").unwrap().as_str().unwrap(), line.prediction.to_string());
    }
}

#[tokio::test]
async fn every_logit_is_the_recorded_one_to_the_last_bit() {
    let node = serve().await;
    for line in heldout() {
        let answer = call(&node, "/logits", png(&line)).await.unwrap();
        assert_eq!(answer.as_tensor().unwrap().as_slice::<f32>().unwrap(), line.logits);
    }
}

#[tokio::test]
async fn the_sample_pictures_are_what_their_names_say() {
    let node = serve().await;
    for (file, digit) in [("zero", "0"), ("three", "3"), ("five", "5"), ("seven", "7"), ("eight", "8")] {
        let png = std::fs::read(example(&format!("{file}.png"))).unwrap();
        let answer = call(&node, "/digits", Value::Bytes(png.into())).await.unwrap();
        assert_eq!(answer.get("label").unwrap().as_str(), Some(digit));
        assert!(answer.get("score").unwrap().as_f64().unwrap() > 0.9);
    }
}

#[tokio::test]
async fn a_bad_picture_is_its_senders_fault_and_names_the_stage() {
    let node = serve().await;
    let png = Bytes::from(std::fs::read(example("seven.png")).unwrap());
    let error = call(&node, "/digits", Value::Bytes(png.slice(..png.len() / 2))).await.unwrap_err();
    assert_eq!((error.kind(), error.stage()), (ErrorKind::InvalidInput, Some("decode")));
    assert_eq!(error.message(), "`image` is cut short: the PNG data ends too early");
}
