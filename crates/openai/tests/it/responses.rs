//! The Responses API in front of routes that chat.

use std::time::Duration;

use callboard_codec::Value as Input;
use callboard_core::{App, Failure, RouteSpec, Stage, StreamStage, Task};
use futures_util::stream;
use serde_json::{Value, json};

use crate::edge::Served;

const PATH: &str = "/v1/responses";

fn app() -> App {
    let mirror = Stage::each("mirror", |asked: &Input| {
        let text = serde_json::to_string(asked).unwrap();
        let usage = json!({ "prompt_tokens": 7, "completion_tokens": 5 });
        Ok(Input::from_serialize(&json!({ "content": text, "usage": usage })).unwrap())
    });
    let pieces = StreamStage::each("pieces", |_: &Input| {
        let call = json!({ "tool_calls": [{ "id": "a", "function": { "name": "f", "arguments": "{\"x\"" } }] });
        let rest = json!({ "tool_calls": [{ "function": { "arguments": ":1}" } }] });
        let other = json!({ "tool_calls": [{ "id": "b", "function": { "name": "g", "arguments": "{}" } }] });
        let usage = json!({ "usage": { "prompt_tokens": 1, "completion_tokens": 4 } });
        let pieces = [json!("one "), json!("two"), call, rest, other, usage];
        stream::iter(pieces.map(|piece| Ok::<_, Failure>(Input::from_serialize(&piece).unwrap())))
    });
    let breaks =
        StreamStage::each("breaks", |_: &Input| stream::iter([Ok("half ".to_owned()), Err(Failure::new("it broke"))]));
    let cut = Stage::each("cut", |_: &Input| {
        Ok(Input::from_serialize(&json!({ "content": "ha", "finish_reason": "length" })).unwrap())
    });
    App::new()
        .mount(RouteSpec::new("/mirror", mirror).task(Task::Chat))
        .mount(RouteSpec::streaming("/pieces", pieces).task(Task::Chat))
        .mount(RouteSpec::streaming("/breaks", breaks).task(Task::Chat))
        .mount(RouteSpec::new("/cut", cut).task(Task::Chat))
}

fn ask(model: &str, more: Value) -> Value {
    let mut body = json!({ "model": model, "input": "hi" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_text_is_one_message_with_its_usage() {
    let served = Served::start(app()).await;
    let body = ask("mirror", json!({ "instructions": "be kind", "max_output_tokens": 7, "mood": 1 }));
    let response = served.post(PATH, &body).await.ok();
    assert!(response["id"].as_str().unwrap().starts_with("resp_"));
    assert_eq!((&response["object"], &response["status"]), (&json!("response"), &json!("completed")));
    let usage = &response["usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["output_tokens"], &usage["total_tokens"]),
        (&json!(7), &json!(5), &json!(12))
    );
    let [message] = &response["output"].as_array().unwrap()[..] else { panic!("{response}") };
    assert_eq!((&message["type"], &message["status"]), (&json!("message"), &json!("completed")));
    let given: Value = serde_json::from_str(message["content"][0]["text"].as_str().unwrap()).unwrap();
    let messages = json!([{ "role": "system", "content": "be kind" }, { "role": "user", "content": "hi" }]);
    assert_eq!(given, json!({ "mood": 1, "max_completion_tokens": 7, "messages": messages }));

    let cut = served.post(PATH, &ask("cut", json!({}))).await.ok();
    assert_eq!(
        (&cut["status"], &cut["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!((&cut["output"][0]["status"], &cut["usage"]), (&json!("incomplete"), &Value::Null));
}

#[tokio::test]
async fn events_build_the_items_of_the_last_one() {
    let served = Served::start(app()).await;
    let whole = served.post(PATH, &ask("pieces", json!({}))).await.ok();
    let (events, is_done) = served.post(PATH, &ask("pieces", json!({ "stream": true }))).await.events();
    assert!(!is_done, "the last event is the end");
    let names: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let text = ["output_text.delta", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"];
    let arguments = ["function_call_arguments.delta"; 2];
    let expected: Vec<String> = ["created", "in_progress", "output_item.added", "content_part.added"]
        .into_iter()
        .chain(text)
        .chain(["output_item.added"])
        .chain(arguments)
        .chain(["function_call_arguments.done", "output_item.done"])
        .chain(["output_item.added", arguments[0], "function_call_arguments.done", "output_item.done", "completed"])
        .map(|name| format!("response.{name}"))
        .collect();
    assert_eq!(names, expected);
    assert!(events.iter().enumerate().all(|(at, event)| event["sequence_number"] == at));

    let last = &events.last().unwrap()["response"];
    let without_ids = |response: &Value| {
        let mut items = response["output"].clone();
        items.as_array_mut().unwrap().iter_mut().for_each(|item| item["id"] = Value::Null);
        items
    };
    assert_eq!(without_ids(last), without_ids(&whole));
    assert_eq!((&last["usage"]["total_tokens"], &whole["usage"]), (&json!(5), &last["usage"]));
    assert_eq!((&last["output"][1]["call_id"], &last["output"][1]["arguments"]), (&json!("a"), &json!("{\"x\":1}")));
    let done: Vec<_> = events.iter().filter(|event| event["type"] == "response.output_item.done").collect();
    let items: Vec<_> = done.iter().map(|event| event["item"].clone()).collect();
    assert_eq!(json!(items), last["output"]);
}

#[tokio::test]
async fn a_stream_that_fails_ends_with_its_error_and_what_there_was() {
    let served = Served::start(app()).await;
    let (events, _) = served.post(PATH, &ask("breaks", json!({ "stream": true }))).await.events();
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert_eq!(last["response"]["error"]["message"], "it broke");
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], "half ");
    assert_eq!(last["sequence_number"], events.len() - 1);
    let failed = served.post(PATH, &ask("breaks", json!({}))).await;
    assert_eq!((failed.status, &failed.headers["x-should-retry"]), (500, &"false".parse().unwrap()));
}

/// The answer begins with a heartbeat, so the error is the first event.
#[tokio::test(start_paused = true)]
async fn a_stream_that_fails_late_begins_first() {
    let late = StreamStage::each("late", |_: &Input| {
        stream::once(async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Err::<String, _>(Failure::new("it broke"))
        })
    });
    let served = Served::start(App::new().mount(RouteSpec::streaming("/late", late).task(Task::Chat))).await;
    let (events, _) = served.post(PATH, &ask("late", json!({ "stream": true }))).await.events();
    let types: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["response.created", "response.in_progress", "response.failed"]);
    assert_eq!(events[2]["sequence_number"], 2);
}

#[tokio::test]
async fn what_needs_a_kept_response_is_refused() {
    let served = Served::start(app()).await;
    let refused = served.post(PATH, &ask("mirror", json!({ "previous_response_id": "resp_1" }))).await;
    assert!(refused.refused(400, "invalid_value").contains("nothing is kept"));
    assert!(served.get("/v1/responses/resp_1").await.refused(404, "not_found").contains("kept"));
    assert_eq!(served.get(PATH).await.status, 405);
    assert!(served.post(PATH, &ask("absent", json!({}))).await.refused(404, "model_not_found").contains("absent"));
}
