//! Calls of tools that stream.

use callboard_codec::Value as Input;
use callboard_core::{App, Failure, RouteSpec, StreamStage};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::edge::{Served, handshake, stateless, until};

fn app() -> App {
    let words = StreamStage::each("words", |text: &String| {
        let words: Vec<String> = text.split_whitespace().map(|word| format!("{word} ")).collect();
        stream::iter(words.into_iter().map(Ok))
    });
    let steps = StreamStage::each("steps", |_: &Input| {
        let report = |done: u64| json!({ "progress": done, "total": 2, "message": "step" });
        let outputs = [report(1), report(2), json!({ "answer": 42 })];
        stream::iter(outputs.map(|output| Ok::<_, Failure>(Input::from_serialize(&output).unwrap())))
    });
    let breaks = StreamStage::each("breaks", |count: &u64| {
        let before = (0..*count).map(Ok);
        stream::iter(before.chain([Err(Failure::new("it broke"))]).collect::<Vec<_>>())
    });
    let endless = StreamStage::each("endless", |_: &Input| stream::iter((0u64..).map(Ok)));
    let tool = |spec: RouteSpec| spec.summary("Streams").tool();
    App::new()
        .mount(tool(RouteSpec::streaming("/words", words)))
        .mount(tool(RouteSpec::streaming("/steps", steps)))
        .mount(tool(RouteSpec::streaming("/breaks", breaks)))
        .mount(tool(RouteSpec::streaming("/endless", endless)))
}

fn call(name: &str, arguments: Value, token: Value) -> Value {
    json!({ "name": name, "arguments": arguments, "_meta": { "progressToken": token } })
}

#[tokio::test]
async fn without_a_token_the_outputs_are_the_content() {
    let served = Served::start(app()).await;
    let result = served.call("words", &json!({ "input": "one two" })).await.result();
    let text = json!([{ "type": "text", "text": "one two " }]);
    assert_eq!(result, json!({ "resultType": "complete", "content": text, "isError": false }));
    let result = served.call("steps", &json!({})).await.result();
    assert_eq!(result["content"], json!([{ "type": "text", "text": r#"{"answer":42}"# }]));
    assert_eq!(served.call("breaks", &json!({ "input": 2 })).await.failed(), "it broke");
}

#[tokio::test]
async fn with_a_token_each_output_is_progress_before_the_result() {
    let served = Served::start(app()).await;
    for is_old in [false, true] {
        let params = call("words", json!({ "input": "one two" }), json!("t"));
        let request = if is_old { handshake("tools/call", &params) } else { stateless("tools/call", &params) };
        let answer = served.send(request).await;
        assert_eq!(answer.headers["content-type"], "text/event-stream; charset=utf-8");
        assert_eq!(answer.headers["x-accel-buffering"], "no");
        let events = answer.events();
        let progress = |count: u64, text: &str| {
            let params = json!({ "progressToken": "t", "progress": count as f64, "message": text });
            json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
        };
        assert_eq!(events[..2], [progress(1, "one "), progress(2, "two ")]);
        assert_eq!((events.len(), &events[2]["id"]), (3, &json!(1)));
        assert_eq!(events[2]["result"]["content"], json!([{ "type": "text", "text": "one two " }]));
    }
    let events = served.send(stateless("tools/call", &call("steps", json!({}), json!(7)))).await.events();
    let report = json!({ "progressToken": 7, "progress": 1.0, "total": 2.0, "message": "step" });
    assert_eq!((events.len(), &events[0]["params"]), (4, &report));
    assert_eq!(events[3]["result"]["content"], json!([{ "type": "text", "text": r#"{"answer":42}"# }]));
}

#[tokio::test]
async fn a_stream_never_ends_without_an_answer() {
    let served = Served::start(app()).await;
    let answer = served.send(stateless("tools/call", &call("breaks", json!({ "input": 2 }), json!(1)))).await;
    let events = answer.events();
    assert_eq!((answer.status, events.len()), (200, 3));
    assert_eq!(events[2]["result"]["isError"], json!(true));
    assert_eq!(events[2]["result"]["content"][0]["text"], "it broke");
    // Before the first output there is no stream.
    let answer = served.send(stateless("tools/call", &call("breaks", json!({ "input": 0 }), json!(1)))).await;
    assert_eq!(
        (answer.headers["content-type"].as_bytes(), answer.failed().as_str()),
        (&b"application/json"[..], "it broke")
    );
}

#[tokio::test]
async fn a_client_that_reads_no_events_gets_none() {
    let served = Served::start(app()).await;
    let mut request = stateless("tools/call", &call("words", json!({ "input": "one" }), json!(1)));
    request.headers_mut().insert("accept", "application/json".parse().unwrap());
    assert_eq!(served.send(request).await.result()["content"][0]["text"], "one ");
}

#[tokio::test]
async fn closing_the_stream_cancels_the_call() {
    let served = Served::start(app()).await;
    let response = served.open(stateless("tools/call", &call("endless", json!({}), json!(1)))).await;
    let mut body = response.into_body().into_data_stream();
    assert!(body.next().await.unwrap().is_ok());
    let client = served.node.client();
    assert_eq!(client.in_flight(), 1);
    drop(body);
    until(|| client.in_flight() == 0).await;
}
