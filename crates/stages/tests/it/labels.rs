//! The `labels` stage in a node.

use callboard_codec::{Format, Map, Tensor, Value};
use callboard_core::{App, CallError, ErrorKind, Node};
use callboard_stages::labels::{self, LabelsConfig};
use ndarray::array;
use serde_json::json;

async fn serve(config: serde_json::Value) -> Node {
    let config: LabelsConfig = serde_json::from_value(config).unwrap();
    let stage = labels::stage("labels", &config).unwrap();
    App::new()
        .route_described("/labels", stage, labels::input_type(&config), labels::output_type(&config))
        .start()
        .await
        .unwrap()
}

async fn call(node: &Node, scores: impl Into<Value>) -> Result<Value, CallError> {
    node.client().call("/labels", scores.into()).await
}

async fn refused(node: &Node, scores: impl Into<Value>) -> (ErrorKind, String) {
    let error = call(node, scores).await.unwrap_err();
    (error.kind(), error.message().to_owned())
}

fn cannot_be_built(config: serde_json::Value) -> String {
    match serde_json::from_value::<LabelsConfig>(config) {
        Ok(config) => labels::stage("labels", &config).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn the_best_scores_come_with_their_names() {
    let node = serve(json!({ "names": ["cat", "dog", "fox"], "top_k": 2 })).await;
    let answer = call(&node, Tensor::from_array(array![0.25_f32, 0.5, 0.125])).await.unwrap();
    let expected = r#"{"label":"dog","score":0.5,"top":[{"label":"dog","score":0.5},{"label":"cat","score":0.25}]}"#;
    assert_eq!(answer.encode(Format::Json).unwrap(), expected);
}

#[tokio::test]
async fn without_names_the_index_is_the_label() {
    let node = serve(json!({ "softmax": true })).await;
    let answer = call(&node, Tensor::from_array(array![[2.0_f64, 2.0]])).await.unwrap();
    assert_eq!(answer.get("label").unwrap().as_str(), Some("0"));
    assert_eq!(answer.get("score").unwrap().as_f64(), Some(0.5));
    assert_eq!(answer.get("top").unwrap().as_list().unwrap().len(), 2);
}

#[tokio::test]
async fn scores_come_in_any_form_that_has_numbers() {
    let node = serve(json!({ "top_k": 1 })).await;
    let list: Value = vec![Value::from(1), Value::from(7), Value::from(2.5)].into();
    let forms: [Value; 4] = [
        list.clone(),
        Tensor::from_array(array![1_i64, 7, 2]).into(),
        Tensor::from_array(array![1_u8, 7, 2]).into(),
        Map::from_iter([("logits", list)]).into(),
    ];
    for form in forms {
        let answer = call(&node, form).await.unwrap();
        assert_eq!(answer.get("label").unwrap().as_str(), Some("1"));
    }
}

#[tokio::test]
async fn one_of_several_outputs_is_chosen_by_its_name() {
    let outputs = || {
        let scores = |scores| Value::from(Tensor::from_array(scores));
        Map::from_iter([("boxes", scores(array![9.0_f32, 0.0])), ("classes", scores(array![0.0_f32, 9.0]))])
    };
    let chosen = serve(json!({ "field": "classes" })).await;
    assert_eq!(call(&chosen, outputs()).await.unwrap().get("label").unwrap().as_str(), Some("1"));
    let unset = serve(json!({})).await;
    let (kind, message) = refused(&unset, outputs()).await;
    assert_eq!(
        (kind, message.as_str()),
        (
            ErrorKind::InvalidInput,
            "scores: expected one entry; where there are boxes, classes, the stage's `field` has to name one"
        )
    );
    let missing = serve(json!({ "field": "scores" })).await;
    assert_eq!(refused(&missing, outputs()).await.1, "scores: there is no `scores`");
}

#[tokio::test]
async fn what_are_no_scores_is_invalid_input() {
    let node = serve(json!({})).await;
    let told = |scores: Value| {
        let node = &node;
        async move {
            let (kind, message) = refused(node, scores).await;
            assert_eq!(kind, ErrorKind::InvalidInput);
            message
        }
    };
    assert_eq!(
        told(Tensor::from_array(array![[1.0_f32], [2.0]]).into()).await,
        "scores: expected [n] or [1, n], got f32 [2, 1]"
    );
    assert_eq!(told(Tensor::from_array(array![true, false]).into()).await, "scores: bool cannot be ranked");
    assert!(told("seven".into()).await.starts_with("scores: expected numbers, got str"));
}

#[tokio::test]
async fn nan_fails_and_is_not_ranked_anywhere() {
    let node = serve(json!({})).await;
    let (kind, message) = refused(&node, Tensor::from_array(array![0.5_f32, f32::NAN])).await;
    assert_eq!((kind, message.as_str()), (ErrorKind::Failed, "the scores cannot be ranked: score 1 is NaN"));
}

#[tokio::test]
async fn another_number_of_names_than_of_scores_fails() {
    let node = serve(json!({ "names": ["cat", "dog"] })).await;
    let (kind, message) = refused(&node, Tensor::from_array(array![1.0_f32, 2.0, 3.0])).await;
    assert_eq!((kind, message.as_str()), (ErrorKind::Failed, "2 names for 3 scores"));
}

#[tokio::test]
async fn names_are_read_from_a_file() {
    let path = std::env::temp_dir().join(format!("callboard-{}-names.txt", std::process::id()));
    std::fs::write(&path, "cat\r\ndog\n").unwrap();
    let node = serve(json!({ "names_file": path })).await;
    let answer = call(&node, Tensor::from_array(array![1.0_f32, 2.0])).await.unwrap();
    assert_eq!(answer.get("label").unwrap().as_str(), Some("dog"));

    std::fs::write(&path, "cat\n\ndog\n").unwrap();
    assert!(cannot_be_built(json!({ "names_file": path })).ends_with("needs one name on each line"));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_configuration_that_cannot_be_names_the_key() {
    assert_eq!(cannot_be_built(json!({ "names_file": "no/such/file" })), "`names_file`: cannot read no/such/file");
    assert_eq!(
        cannot_be_built(json!({ "names": ["cat"], "names_file": "file" })),
        "`names_file`: cannot stand beside `names`"
    );
    assert!(cannot_be_built(json!({ "topk": 3 })).contains("unknown field `topk`"));
    assert!(cannot_be_built(json!({ "top_k": 0 })).contains("nonzero"));
}

#[test]
fn the_output_type_knows_the_names() {
    let config: LabelsConfig = serde_json::from_value(json!({ "names": ["cat", "dog"], "top_k": 1 })).unwrap();
    let schema = labels::output_type(&config).schema().clone();
    assert_eq!(schema["properties"]["label"]["enum"], json!(["cat", "dog"]));
    assert_eq!(schema["properties"]["top"]["maxItems"], 1);
}
