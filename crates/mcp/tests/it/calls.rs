//! Calls of tools that answer once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use callboard_codec::{Media, Value as Input};
use callboard_core::{App, Contract, ErrorKind, Failure, RouteSpec, Stage};
use callboard_http::HttpConfig;
use callboard_mcp::McpConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::edge::{Served, handshake, stateless, until};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Trip {
    from: String,
    #[serde(default)]
    stops: Vec<String>,
}

#[tokio::test]
async fn arguments_are_the_input_and_the_output_is_content() {
    let back = Stage::each("back", |trip: &Trip| {
        let stops = trip.stops.iter().rev().cloned().collect();
        Ok(Trip { from: trip.from.to_uppercase(), stops })
    });
    let served = Served::start(App::new().mount(RouteSpec::new("/back", back).summary("The way back").tool())).await;
    let result = served.call("back", &json!({ "from": "a", "stops": ["b", "c"] })).await.result();
    let trip = json!({ "from": "A", "stops": ["c", "b"] });
    let text = json!([{ "type": "text", "text": r#"{"from":"A","stops":["c","b"]}"# }]);
    assert_eq!(
        result,
        json!({ "resultType": "complete", "content": text, "structuredContent": trip, "isError": false })
    );
    let old = served.call_old("back", &json!({ "from": "a", "stops": [] })).await.result();
    assert_eq!(old["structuredContent"], json!({ "from": "A", "stops": [] }));
    let list = served.send(handshake("tools/list", &json!({}))).await.result();
    assert_eq!(list["tools"][0]["outputSchema"]["required"][0], "from");
}

#[tokio::test]
async fn an_input_that_does_not_fit_is_for_the_model_to_correct() {
    let served = Served::start(crate::stateless::app()).await;
    for (arguments, words) in [
        (json!({ "input": ["a"] }), "expected"),
        (json!({}), "expected"),
        (json!({ "input": vec![0; 2_000_000] }), "1048576"),
    ] {
        let text = served.call("sum", &arguments).await.failed();
        assert!(text.contains(words), "{text}");
    }
    let answer = served.call("sum", &json!({ "input": "a" })).await.result();
    assert_eq!(answer["_meta"]["callboard/error"]["kind"], "invalid_input");
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let message = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"sum","arguments":{{"input":{deep}}}}}}}"#
    );
    served.send(crate::edge::post_text(message)).await.failed();
    assert_eq!(served.node.client().edge().charged_bytes(), 0);
}

#[tokio::test]
async fn an_argument_may_be_left_out_if_null_fits() {
    let greet = Stage::each("greet", |name: &Option<String>| Ok(name.clone().unwrap_or_else(|| "you".to_owned())));
    let served = Served::start(App::new().mount(RouteSpec::new("/greet", greet).summary("Greets").tool())).await;
    for params in [json!({ "name": "greet" }), json!({ "name": "greet", "arguments": {} })] {
        assert_eq!(served.send(stateless("tools/call", &params)).await.result()["structuredContent"], "you");
    }
    assert_eq!(served.call("greet", &json!({ "input": "me" })).await.result()["structuredContent"], "me");
}

#[tokio::test]
async fn a_file_is_a_picture_of_its_type() {
    let draw = Stage::each("draw", |_: &Input| Ok(Media::new(&b"\x89PNG\r\n\x1a\n"[..])));
    let served = Served::start(App::new().mount(RouteSpec::new("/draw", draw).summary("Draws").tool())).await;
    let result = served.call("draw", &json!({})).await.result();
    assert_eq!(result["content"], json!([{ "type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png" }]));
    assert_eq!(result["structuredContent"], json!(null));
}

#[tokio::test]
async fn a_failure_of_code_is_a_result_and_one_of_the_callers_right_a_status() {
    let fails = Stage::each("fails", |kind: &String| -> Result<String, Failure> {
        Err(match kind.as_str() {
            "mine" => Failure::new("the tool is broken").with_type("Broken"),
            _ => Failure::invalid_input("there is no such city").with_status(404),
        })
    });
    let panics = Stage::each("panics", |_: &String| -> Result<String, Failure> { panic!("boom") });
    let app = App::new().mount(RouteSpec::new("/fails", fails).summary("Fails").tool());
    let served = Served::start(app.mount(RouteSpec::new("/panics", panics).summary("Panics").tool())).await;
    assert_eq!(served.call("fails", &json!({ "input": "mine" })).await.failed(), "the tool is broken");
    assert_eq!(served.call("fails", &json!({ "input": "yours" })).await.failed(), "there is no such city");
    let answer = served.call_old("panics", &json!({ "input": "" })).await;
    assert!(answer.failed().contains("panic"), "{answer:?}");
    let error = answer.result()["_meta"]["callboard/error"].clone();
    assert_eq!((&error["kind"], &error["retryable"]), (&json!(ErrorKind::WorkerFailed.as_str()), &json!(false)));
}

#[tokio::test]
async fn a_body_has_the_limit_of_its_route() {
    let limits = [("/sum".to_owned(), 300)].into_iter().collect();
    let config = HttpConfig { max_body_bytes: 2_000, max_body_bytes_by_route: limits, ..HttpConfig::default() };
    let served = Served::with(crate::stateless::app(), config, McpConfig::default()).await;
    let answer = served.call("sum", &json!({ "input": vec![1; 300] })).await;
    answer.refused(413, -32600);
    assert_eq!(answer.json()["id"], 1);
    let answer = served.call("text_shout", &json!({ "input": "a".repeat(3_000) })).await;
    answer.refused(413, -32600);
    assert_eq!(served.call("sum", &json!({ "input": [1, 2] })).await.result()["structuredContent"], json!(3.0));
}

#[tokio::test]
async fn no_room_is_a_result_that_says_how_long_to_wait() {
    let wait = Stage::each_async("wait", |_: Arc<Input>| std::future::pending::<Result<bool, Failure>>());
    let app = App::new().mount(RouteSpec::new("/wait", wait).summary("Waits").tool().max_in_flight(1));
    let served = Served::start(app).await;
    let nothing = json!({});
    let first = served.call("wait", &nothing);
    let second = async {
        let client = served.node.client();
        until(|| client.in_flight() == 1).await;
        served.call("wait", &nothing).await
    };
    tokio::select! {
        _ = first => unreachable!("it waits for ever"),
        answer = second => {
            assert!(answer.failed().contains("try again in "), "{answer:?}");
            assert_eq!(answer.result()["_meta"]["callboard/error"]["kind"], "overloaded");
        }
    }
    served.emptied().await;
}

/// A route whose calls are counted as they begin and as they end.
fn counted(contract: Contract, begun: &Arc<AtomicUsize>, ended: &Arc<AtomicUsize>) -> App {
    let (begun, ended) = (Arc::clone(begun), Arc::clone(ended));
    let slow = Stage::each_async("slow", move |gate: Arc<u64>| {
        let (begun, ended, turns) = (Arc::clone(&begun), Arc::clone(&ended), *gate);
        async move {
            begun.fetch_add(1, Ordering::SeqCst);
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            ended.fetch_add(1, Ordering::SeqCst);
            Ok(true)
        }
    });
    App::new().mount(RouteSpec::new("/slow", slow.contract(contract)).summary("Is slow").tool())
}

#[tokio::test]
async fn a_lost_connection_ends_a_call_of_the_new_era_and_of_what_may_run_again() {
    for (contract, is_old, runs_on) in
        [(Contract::AtMostOnce, false, false), (Contract::AtMostOnce, true, true), (Contract::Idempotent, true, false)]
    {
        let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let served = Served::start(counted(contract, &begun, &ended)).await;
        let turns = if runs_on { 10_000 } else { u64::MAX };
        let params = json!({ "name": "slow", "arguments": { "input": turns } });
        let request = if is_old { handshake("tools/call", &params) } else { stateless("tools/call", &params) };
        tokio::select! {
            biased;
            () = until(|| begun.load(Ordering::SeqCst) == 1) => {}
            _ = served.send(request) => unreachable!("it is slow"),
        }
        served.emptied().await;
        assert_eq!(ended.load(Ordering::SeqCst), usize::from(runs_on), "{contract:?} {is_old}");
    }
}
