//! Chat and completions, whole and streamed.

use callboard_codec::Value as Input;
use callboard_core::edge::LARGE_BYTES;
use callboard_core::{App, Failure, RouteSpec, Stage, StreamStage, Task};
use futures_util::stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::edge::Served;

#[derive(Serialize, Deserialize, JsonSchema)]
struct Message {
    role: String,
    content: String,
}

/// What the model takes of a request.
#[derive(Serialize, Deserialize, JsonSchema)]
struct Ask {
    messages: Vec<Message>,
    max_tokens: Option<usize>,
}

/// Answers the words of the last message, each with a space, as a stream.
fn words() -> RouteSpec {
    let words = StreamStage::each("words", |ask: &Ask| {
        let said = ask.messages.last().map(|message| message.content.clone()).unwrap_or_default();
        let most = ask.max_tokens.unwrap_or(usize::MAX);
        let words: Vec<String> = said.split_whitespace().take(most).map(|word| format!("{word} ")).collect();
        stream::iter(words.into_iter().map(Ok))
    });
    RouteSpec::streaming("/words", words).task(Task::Chat)
}

/// Answers once, with everything that it was given.
fn mirror() -> RouteSpec {
    let mirror = Stage::each("mirror", |asked: &Input| {
        let text = serde_json::to_string(asked).unwrap();
        let usage = json!({ "prompt_tokens": 7, "completion_tokens": 5 });
        Ok(Input::from_serialize(&json!({ "content": text, "usage": usage })).unwrap())
    });
    RouteSpec::new("/team/mirror", mirror).task(Task::Chat)
}

fn ask(model: &str, text: &str, more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": text }], "model": model });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn log_probabilities_of_a_model_reach_the_client() {
    let of =
        |token: &str| json!({ "content": [{ "token": token, "logprob": -0.5, "bytes": [97], "top_logprobs": [] }] });
    let pieces = StreamStage::each("pieces", move |_: &Input| {
        let piece = move |token: &str| json!({ "content": token, "logprobs": of(token) });
        stream::iter(["a", "b"].map(|token| Ok::<_, Failure>(Input::from_serialize(&piece(token)).unwrap())))
    });
    let served = Served::start(App::new().mount(RouteSpec::streaming("/pieces", pieces).task(Task::Chat))).await;
    let whole = served.post("/v1/chat/completions", &ask("pieces", "hi", json!({ "logprobs": true }))).await.ok();
    let both = json!({ "content": [of("a")["content"][0], of("b")["content"][0]] });
    assert_eq!(whole["choices"][0]["logprobs"], both);
    let streamed = ask("pieces", "hi", json!({ "logprobs": true, "stream": true }));
    let (events, _) = served.post("/v1/chat/completions", &streamed).await.events();
    let each: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["logprobs"]).collect();
    assert_eq!(each, [&of("a"), &of("b"), &Value::Null]);
}

#[tokio::test]
async fn a_model_of_a_stream_answers_whole_and_streamed() {
    let served = Served::start(App::new().mount(words())).await;
    let body = ask("words", "one two three", json!({ "max_completion_tokens": 2 }));
    let answer = served.post("/v1/chat/completions", &body).await;
    assert!(answer.headers.contains_key("openai-processing-ms") && answer.headers.contains_key("x-request-id"));
    let whole = answer.ok();
    assert_eq!(whole["object"], "chat.completion");
    let choice = json!({
        "index": 0, "message": { "role": "assistant", "content": "one two " }, "logprobs": null, "finish_reason": "stop",
    });
    assert_eq!(whole["choices"], json!([choice]));
    assert!(
        whole["id"].as_str().unwrap().starts_with("chatcmpl-") && whole["created"].as_u64().unwrap() > 1_700_000_000
    );

    let body = ask("words", "one two", json!({ "stream": true }));
    let answer = served.post("/v1/chat/completions", &body).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream; charset=utf-8");
    let (chunks, is_done) = answer.events();
    assert!(is_done);
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    assert_eq!(deltas, [&json!({ "role": "assistant", "content": "one " }), &json!({ "content": "two " }), &json!({})]);
    let ends: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["finish_reason"]).collect();
    assert_eq!(ends, [&Value::Null, &Value::Null, &json!("stop")]);
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == chunks[0]["id"]));
}

#[tokio::test]
async fn a_model_that_answers_once_streams_in_one_chunk_with_its_usage() {
    let served = Served::start(App::new().mount(mirror())).await;
    let body = ask(
        "team/mirror",
        "hi",
        json!({ "mood": 1, "stop": null, "stream": true, "stream_options": { "include_usage": true } }),
    );
    let (chunks, is_done) = served.post("/v1/chat/completions", &body).await.events();
    assert!(is_done);
    let [first, end, usage] = &chunks[..] else { panic!("{chunks:?}") };
    assert_eq!((&first["usage"], &end["usage"]), (&Value::Null, &Value::Null));
    assert_eq!(usage["usage"], json!({ "prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12 }));
    assert_eq!(usage["choices"], json!([]));
    let given: Value = serde_json::from_str(first["choices"][0]["delta"]["content"].as_str().unwrap()).unwrap();
    assert_eq!((&given["mood"], &given["stop"]), (&json!(1), &Value::Null));
}

#[tokio::test]
async fn each_choice_is_a_call() {
    let served = Served::start(App::new().mount(mirror())).await;
    let whole = served.post("/v1/chat/completions", &ask("team/mirror", "hi", json!({ "n": 3 }))).await.ok();
    let indices: Vec<_> = whole["choices"].as_array().unwrap().iter().map(|choice| choice["index"].as_u64()).collect();
    assert_eq!(indices, [Some(0), Some(1), Some(2)]);
    assert_eq!(whole["usage"], json!({ "prompt_tokens": 7, "completion_tokens": 15, "total_tokens": 22 }));
    assert_eq!(served.node.client().describe().admitted, 3);
    let body = ask("team/mirror", "hi", json!({ "n": 2, "stream": true }));
    let (chunks, is_done) = served.post("/v1/chat/completions", &body).await.events();
    let mut ends: Vec<_> = chunks.iter().filter(|chunk| chunk["choices"][0]["finish_reason"] == "stop").collect();
    ends.sort_by_key(|chunk| chunk["choices"][0]["index"].as_u64());
    assert!(is_done && ends.len() == 2 && ends[1]["choices"][0]["index"] == 1, "{chunks:?}");
}

#[tokio::test]
async fn a_stop_sequence_ends_a_choice_and_cancels_its_call() {
    let endless = StreamStage::each("endless", |_: &Vec<Message>| {
        stream::iter((0..).map(|number: u64| Ok(format!("{number} "))))
    });
    let served = Served::start(App::new().mount(RouteSpec::streaming("/endless", endless).task(Task::Chat))).await;
    for is_streamed in [false, true] {
        let body = ask("endless", "go", json!({ "stop": ["9 1"], "stream": is_streamed }));
        let answer = served.post("/v1/chat/completions", &body).await;
        let text = if is_streamed {
            let (chunks, is_done) = answer.events();
            assert!(is_done && chunks.last().unwrap()["choices"][0]["finish_reason"] == "stop");
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
        } else {
            let whole = answer.ok();
            assert_eq!(whole["choices"][0]["finish_reason"], "stop");
            whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
        };
        assert_eq!(text, "0 1 2 3 4 5 6 7 8 ");
    }
    // Nothing runs on: both calls have an outcome.
    let client = served.node.client();
    let ended = async {
        while client.in_flight() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), ended).await.unwrap();
}

#[tokio::test]
async fn an_error_inside_of_a_stream_is_its_last_event() {
    let breaking = StreamStage::each("breaking", |_: &Vec<Message>| {
        stream::iter([Ok("a ".to_owned()), Err(Failure::new("the model is broken"))])
    });
    let served = Served::start(App::new().mount(RouteSpec::streaming("/breaking", breaking).task(Task::Chat))).await;
    let (chunks, is_done) =
        served.post("/v1/chat/completions", &ask("breaking", "go", json!({ "stream": true }))).await.events();
    assert!(!is_done, "{chunks:?}");
    assert_eq!(chunks.last().unwrap()["error"]["message"], "the model is broken");
    let answer = served.post("/v1/chat/completions", &ask("breaking", "go", json!({}))).await;
    assert_eq!(answer.refused(500, "failed"), "the model is broken");
    assert_eq!(answer.headers["x-should-retry"], "false");
}

/// It is read on another thread, while the piece before it leaves.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_piece_behind_a_small_one_is_not_lost() {
    let large = "large ".repeat(LARGE_BYTES / 4);
    let said = [json!("first"), json!({ "content": large, "usage": { "completion_tokens": 3 } }), json!("last")];
    let pieces = StreamStage::each("pieces", move |_: &Input| {
        let pieces = said.iter().map(|piece| Ok::<_, Failure>(Input::from_serialize(piece).unwrap()));
        stream::iter(pieces.collect::<Vec<_>>())
    });
    let served = Served::start(App::new().mount(RouteSpec::streaming("/pieces", pieces).task(Task::Chat))).await;
    let body = ask("pieces", "go", json!({ "max_tokens": 9, "stream": true, "input": "go" }));
    for path in ["/v1/chat/completions", "/v1/responses", "/v1/messages"] {
        let text = served.post(path, &body).await.text;
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{path}: {} bytes", text.len()));
        assert!(at("\"first\"") < at(&large) && at(&large) < at("\"last\""), "{path}");
    }
}

#[tokio::test]
async fn completions_have_a_choice_for_each_prompt() {
    let shout = Stage::each("shout", |prompt: &String| Ok(prompt.to_uppercase()));
    let served = Served::start(App::new().mount(RouteSpec::new("/shout", shout).task(Task::Complete))).await;
    let body = json!({ "model": "shout", "prompt": ["a", "b"], "n": 2, "stop": "B" });
    let whole = served.post("/v1/completions", &body).await.ok();
    let texts: Vec<_> = whole["choices"].as_array().unwrap().iter().map(|choice| choice["text"].as_str()).collect();
    assert_eq!(
        (whole["object"].as_str(), texts),
        (Some("text_completion"), vec![Some("A"), Some("A"), Some(""), Some("")])
    );
    let body = json!({ "model": "shout", "prompt": "a", "stream": true });
    let (chunks, is_done) = served.post("/v1/completions", &body).await.events();
    assert!(is_done && chunks[0]["choices"][0]["text"] == "A", "{chunks:?}");
}

#[tokio::test]
async fn a_tool_call_is_passed_through() {
    let calling = Stage::each("calling", |asked: &Input| {
        let tools = asked.get("tools").cloned().unwrap_or_default();
        let call = json!({ "id": "call_1", "type": "function", "function": { "name": "f", "arguments": "{}" } });
        let mut reply = Input::from_serialize(&json!({ "tool_calls": [call] })).unwrap();
        if let Input::Map(reply) = &mut reply {
            reply.insert("seen", tools);
        }
        Ok(reply)
    });
    let served = Served::start(App::new().mount(RouteSpec::new("/calling", calling).task(Task::Chat))).await;
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let whole = served.post("/v1/chat/completions", &ask("calling", "go", json!({ "tools": tools }))).await.ok();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!((&choice["message"]["content"], &choice["message"]["seen"]), (&Value::Null, &tools));
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{}");
    assert_eq!(choice["message"]["tool_calls"][0]["id"], "call_1");
}

#[tokio::test]
async fn a_tool_call_without_an_id_gets_one() {
    let calling = Stage::each("calling", |_: &Input| {
        let call = json!({ "type": "function", "function": { "name": "f", "arguments": "{}" } });
        Ok(Input::from_serialize(&json!({ "tool_calls": [call, call] })).unwrap())
    });
    let served = Served::start(App::new().mount(RouteSpec::new("/calling", calling).task(Task::Chat))).await;
    let mut ids = std::collections::BTreeSet::new();
    for stream in [false, true] {
        let answer =
            served.post("/v1/chat/completions", &ask("calling", "go", json!({ "n": 2, "stream": stream }))).await;
        let choices: Vec<Value> = if stream {
            answer.events().0.iter().map(|event| event["choices"][0]["delta"].clone()).collect()
        } else {
            answer.ok()["choices"].as_array().unwrap().iter().map(|choice| choice["message"].clone()).collect()
        };
        let calls = choices.iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
        ids.extend(calls.map(|call| call["id"].as_str().unwrap().to_owned()));
    }
    assert_eq!(ids.len(), 8, "{ids:?}");
}
