//! Heads as they are written and read, and what is left out of them.

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::testing::WaitingNode;

fn decoded(head: &Json) -> Result<FromChild, rmp_serde::decode::Error> {
    FromChild::decode(&encode(head).unwrap().into())
}

fn outcomes(items: Json) -> Vec<Option<ItemError>> {
    match decoded(&json!({ "id": 1, "items": items, "type": "outcomes" })).unwrap() {
        FromChild::Outcomes(outcomes) => outcomes.items,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_frame_has_at_most_4096_outcomes() {
    assert_eq!(outcomes(json!(vec![Json::Null; MAX_ITEMS])).len(), MAX_ITEMS);
    let error = decoded(&json!({ "type": "outcomes", "id": 1, "items": vec![Json::Null; MAX_ITEMS + 1] }));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("invalid length 4097, expected a list of at most 4096"), "{error}");
}

#[test]
fn what_an_earlier_worker_does_not_say_has_a_default() {
    let FromChild::Ready(ready) = decoded(&json!({ "type": "ready", "protocol": 1 })).unwrap() else { panic!() };
    assert_eq!((ready.max_batches, ready.ahead, ready.methods, ready.shared_memory), (1, 0, false, false));
}

#[tokio::test]
async fn a_start_names_the_hosts_of_files_if_there_are_some() {
    let node = WaitingNode::start().await;
    let mut config = ProcessConfig::new(["worker"]);
    assert!(Start::new(&config, &node.replica).files.is_none());
    config.files.hosts = vec!["https://a".to_owned()];
    (config.files.max_bytes, config.files.timeout) = (7, Duration::from_secs(3));
    let files = Start::new(&config, &node.replica).files.unwrap();
    assert_eq!((files.hosts, files.max_bytes, files.timeout_ms), (config.files.hosts, 7, 3000));
}

#[test]
fn an_error_has_its_kind_only_if_it_is_not_that_of_the_worker_itself() {
    let error = |kind: ErrorKind, stage: Option<&str>| {
        let parts = ErrorParts { stage: stage.map(callboard_core::StageName::new), ..ErrorParts::new(kind, "m") };
        let error = ItemError::from(parts);
        (error.kind, error.invalid)
    };
    assert_eq!(error(ErrorKind::Failed, None), (None, false));
    assert_eq!(error(ErrorKind::Failed, Some("s")), (Some("failed".to_owned()), false));
    assert_eq!(error(ErrorKind::InvalidInput, None), (Some("invalid_input".to_owned()), true));
    let details = |bytes: usize| {
        let details = Some(Value::from("x".repeat(bytes)));
        ItemError::from(ErrorParts { details, ..ErrorParts::new(ErrorKind::Failed, "m") }).details.is_some()
    };
    // The text and the five bytes before it.
    assert!(details(MAX_DETAILS_BYTES - 5) && !details(MAX_DETAILS_BYTES - 4));
}

#[test]
fn a_stop_says_when_the_child_is_killed() {
    assert!(matches!(ToChild::stop(Duration::from_millis(1500)), ToChild::Stop { timeout_ms: Some(1500) }));
    assert!(matches!(ToChild::stop(Duration::MAX), ToChild::Stop { timeout_ms: None }));
}

/// So that a worker of an earlier version reads them.
#[test]
fn what_is_the_default_is_not_said() {
    let keys = |message: &FromChild| {
        let head: Json = rmp_serde::from_slice(&encode(message).unwrap()).unwrap();
        head.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ")
    };
    let ready = |max_batches, ahead, methods| {
        let worker = "rust".to_owned();
        let (shared_memory, note) = (false, None);
        let ready = ReadyMessage { protocol: 1, worker, shared_memory, max_batches, ahead, methods, note };
        keys(&FromChild::Ready(ready))
    };
    assert_eq!(ready(1, 0, false), "type protocol worker shared_memory");
    assert_eq!(ready(2, 1, true), "type protocol worker shared_memory max_batches ahead methods");
    let failed = |error: ItemError| {
        let responses = Vec::new();
        let outcomes = OutcomesMessage { id: 1, items: vec![Some(error)], responses, last: false };
        let head: Json = rmp_serde::from_slice(&encode(&FromChild::Outcomes(outcomes)).unwrap()).unwrap();
        head["items"][0].as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(failed(ItemError::default()), "message");
    let whole = ItemError { invalid: true, retryable: true, status: Some(400), ..ItemError::default() };
    assert_eq!(failed(whole), "message invalid status retryable");
}

#[test]
fn details_beyond_the_limit_are_left_out_and_the_error_stays() {
    let details = json!({ "fields": [{ "path": "$.a", "message": "no" }], "n": [1, -1, 0.5, true, null] });
    let kept = outcomes(json!([{ "message": "m", "details": details }])).remove(0).unwrap();
    assert_eq!(json!(kept.details), details);
    let deep = (0..20).fold(json!([]), |inner, _| json!([inner]));
    for (details, is_kept) in [
        (deep, true),
        (json!(vec![json!([]); 1000]), true),
        (json!(vec![json!([]); 100_000]), false),
        (json!({ "a": vec![1; 100_000], "b": 2 }), false),
        (json!(vec![json!({ "k": 1 }); 10_000]), false),
        (json!("x".repeat(300_000)), false),
        (Json::Null, false),
    ] {
        let error = outcomes(json!([{ "message": "m", "details": details, "status": 418 }])).remove(0).unwrap();
        assert_eq!((&*error.message, error.status, error.details.is_some()), ("m", Some(418), is_kept));
    }
}

#[test]
fn bytes_in_details_are_kept_within_the_limit() {
    let error = |details: Value| {
        let head: Map =
            [("message".to_owned(), Value::from("m")), ("details".to_owned(), details)].into_iter().collect();
        rmp_serde::from_slice::<ItemError>(&rmp_serde::to_vec_named(&Value::Map(head)).unwrap()).unwrap()
    };
    details::begin_head();
    assert_eq!(error(Value::Bytes(vec![7; 100].into())).details, Some(Value::Bytes(vec![7; 100].into())));
    assert_eq!(error(Value::Bytes(vec![7; 300_000].into())).details, None);
}

#[test]
fn the_details_of_all_errors_of_a_head_have_a_limit_together() {
    let item = json!({ "message": "m", "details": vec![1; 5_000] });
    let kept = |items: Vec<Option<ItemError>>| items.iter().flatten().filter(|item| item.details.is_some()).count();
    let of_head = kept(outcomes(json!(vec![item.clone(); 400])));
    assert!((10..200).contains(&of_head), "{of_head}");
    assert_eq!(kept(outcomes(json!([item]))), 1, "the next head has its own");
}

#[test]
fn headers_and_unknown_keys_beyond_what_is_used_are_ignored() {
    let headers = vec![("x-a", "b"); 1000];
    let error = outcomes(json!([{ "message": "m", "headers": headers, "more": [[], {}] }])).remove(0).unwrap();
    assert_eq!(error.headers.len(), 64);
    let error = decoded(&json!({ "type": "outcomes", "id": 1, "items": [{ "message": "m", "headers": 5 }] }));
    assert!(error.unwrap_err().to_string().contains("expected pairs of names and values"));
    assert!(matches!(decoded(&json!({ "x": vec![0; 1000], "type": "pong" })), Ok(FromChild::Pong)));
    assert!(decoded(&json!({ "type": "greeting" })).unwrap_err().to_string().contains("`greeting`"));
    assert!(decoded(&json!({ "message": "no type" })).is_err());
}

#[test]
fn the_answer_of_an_item_has_a_status_and_headers_within_limits() {
    let many = vec![["x-a", "b"]; 1000];
    let responses = json!([null, { "status": 201, "headers": many, "more": 1 }, { "status": 99 }, {}]);
    let head = json!({ "type": "outcomes", "id": 1, "items": [null, null, null, null], "responses": responses });
    let FromChild::Outcomes(outcomes) = decoded(&head).unwrap() else { panic!("{head}") };
    let fields = |index: usize| {
        let fields = ResponseFields::from(outcomes.responses[index].clone().unwrap_or_default());
        (fields.status(), fields.headers().len())
    };
    assert_eq!([fields(0), fields(1), fields(2), fields(3)], [(None, 0), (Some(201), 16), (None, 0), (None, 0)]);
    let nulls = vec![Json::Null; MAX_ITEMS + 1];
    assert!(decoded(&json!({ "type": "outcomes", "id": 1, "items": [], "responses": nulls })).is_err());
}

proptest! {
    #[test]
    fn any_head_is_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = FromChild::decode(&bytes.into());
    }
}
