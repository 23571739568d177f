//! Anthropic's Messages API in front of routes that chat.

use callboard_codec::Value as Input;
use callboard_core::{App, RouteSpec, Stage, StreamStage, Task};
use callboard_http::{ApiKeys, HttpConfig};
use futures_util::stream;
use serde_json::{Value, json};

use crate::edge::{Answer, Served};

/// Answers once, with everything that it was given.
fn mirror() -> RouteSpec {
    let mirror = Stage::each("mirror", |asked: &Input| {
        let text = serde_json::to_string(asked).unwrap();
        let usage = json!({ "prompt_tokens": 7, "completion_tokens": 5 });
        Ok(Input::from_serialize(&json!({ "content": text, "usage": usage })).unwrap())
    });
    RouteSpec::new("/mirror", mirror).task(Task::Chat)
}

/// Streams these pieces.
fn pieces(name: &str, pieces: Value) -> RouteSpec {
    let stage = StreamStage::each("pieces", move |_: &Input| {
        let pieces = pieces.as_array().unwrap().iter().map(|piece| Ok(Input::from_serialize(piece).unwrap()));
        stream::iter(pieces.collect::<Vec<_>>())
    });
    RouteSpec::streaming(name, stage).task(Task::Chat)
}

fn ask(model: &str, messages: Value, more: Value) -> Value {
    let mut body = json!({ "model": model, "max_tokens": 100, "messages": messages });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn hello() -> Value {
    json!([{ "role": "user", "content": "hello" }])
}

impl Answer {
    /// The names of the events and their data, which have their names as well.
    fn named_events(&self) -> Vec<(String, Value)> {
        let events = self.text.split("\n\n").filter(|event| !event.is_empty());
        let read = |event: &str| {
            let (name, data) = event.split_once('\n').unwrap();
            let (name, data) = (name.strip_prefix("event: ").unwrap(), data.strip_prefix("data: ").unwrap());
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(data["type"], name);
            (name.to_owned(), data)
        };
        events.map(read).collect()
    }
}

#[tokio::test]
async fn a_conversation_is_that_of_a_chat() {
    let served = Served::start(App::new().mount(mirror())).await;
    let messages = json!([
        { "role": "user", "content": [{ "type": "text", "text": "one" }, { "type": "text", "text": "two" }] },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "hm", "signature": "x" },
            { "type": "text", "text": "I look" },
            { "type": "tool_use", "id": "t1", "name": "weather", "input": { "city": "Rome" } },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "rain" }] },
            { "type": "tool_result", "tool_use_id": "t2", "content": "no such city", "is_error": true },
            { "type": "text", "text": "see" },
            { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "QUJD" } },
        ] },
    ]);
    let more = json!({
        "system": [{ "type": "text", "text": "Be brief." }],
        "stop_sequences": ["\n\n"],
        "temperature": 0.5,
        "tools": [{ "name": "weather", "description": "of a city", "input_schema": { "type": "object" } }],
        "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
        "metadata": { "user_id": "ann" },
    });
    let answer = served.post("/v1/messages", &ask("mirror", messages, more)).await;
    assert_eq!(answer.headers["request-id"], answer.headers["x-request-id"]);
    let message = answer.ok();
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!(
        (&message["type"], &message["role"], &message["model"]),
        (&json!("message"), &json!("assistant"), &json!("mirror"))
    );
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("end_turn"), &Value::Null));
    assert_eq!(message["usage"], json!({ "input_tokens": 7, "output_tokens": 5 }));
    assert_eq!(message["content"][0]["type"], "text");
    let given: Value = serde_json::from_str(message["content"][0]["text"].as_str().unwrap()).unwrap();
    let call = json!({ "id": "t1", "type": "function", "function": { "name": "weather", "arguments": "{\"city\":\"Rome\"}" } });
    assert_eq!(
        given["messages"],
        json!([
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "one\ntwo" },
            { "role": "assistant", "content": "I look", "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "t1", "content": "rain" },
            { "role": "tool", "tool_call_id": "t2", "content": "Error: no such city" },
            { "role": "user", "content": [
                { "type": "text", "text": "see" },
                { "type": "image_url", "image_url": { "url": "data:image/png;base64,QUJD" } },
            ] },
        ])
    );
    let function = json!({ "name": "weather", "description": "of a city", "parameters": { "type": "object" } });
    assert_eq!(given["tools"], json!([{ "type": "function", "function": function }]));
    assert_eq!((&given["tool_choice"], &given["user"]), (&json!("required"), &json!("ann")));
    assert_eq!(given["parallel_tool_calls"], false);
    assert_eq!((&given["stop"], &given["max_tokens"]), (&json!(["\n\n"]), &json!(100)));
}

#[tokio::test]
async fn a_stream_has_the_events_of_text_and_of_tools() {
    let call = |more: Value| json!({ "tool_calls": [more] });
    let said = json!([
        "Let me ",
        { "content": "look.", "usage": { "prompt_tokens": 9 } },
        call(json!({ "id": "t1", "function": { "name": "weather", "arguments": "" } })),
        call(json!({ "function": { "arguments": "{\"city\":" } })),
        call(json!({ "function": { "arguments": "\"Rome\"}" } })),
        { "usage": { "completion_tokens": 4 } },
    ]);
    let served = Served::start(App::new().mount(pieces("/looks", said))).await;
    let answer = served.post("/v1/messages", &ask("looks", hello(), json!({ "stream": true }))).await;
    assert_eq!(
        (answer.status, answer.headers["content-type"].as_bytes()),
        (200, &b"text/event-stream; charset=utf-8"[..])
    );
    let events = answer.named_events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let (start, delta, stop) = ("content_block_start", "content_block_delta", "content_block_stop");
    assert_eq!(
        names,
        ["message_start", start, delta, delta, stop, start, delta, delta, stop, "message_delta", "message_stop"]
    );
    let message = &events[0].1["message"];
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
    assert_eq!(events[1].1["content_block"], json!({ "type": "text", "text": "" }));
    assert_eq!(events[3].1["delta"], json!({ "type": "text_delta", "text": "look." }));
    assert_eq!(events[5].1["index"], 1);
    assert_eq!(events[5].1["content_block"], json!({ "type": "tool_use", "id": "t1", "name": "weather", "input": {} }));
    let json: String = events[6..8].iter().map(|(_, event)| event["delta"]["partial_json"].as_str().unwrap()).collect();
    assert_eq!(json, "{\"city\":\"Rome\"}");
    assert_eq!(events[9].1["delta"], json!({ "stop_reason": "tool_use", "stop_sequence": null }));
    assert_eq!(events[9].1["usage"], json!({ "input_tokens": 9, "output_tokens": 4 }));

    // The same, whole.
    let whole = served.post("/v1/messages", &ask("looks", hello(), json!({}))).await.ok();
    let tool = json!({ "type": "tool_use", "id": "t1", "name": "weather", "input": { "city": "Rome" } });
    assert_eq!(whole["content"], json!([{ "type": "text", "text": "Let me look." }, tool]));
    assert_eq!(whole["stop_reason"], "tool_use");
}

#[tokio::test]
async fn calls_whose_pieces_alternate_are_blocks_one_after_another() {
    let call = |index: usize, more: Value| {
        let mut call = json!({ "index": index });
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "tool_calls": [call] })
    };
    let said = json!([
        call(0, json!({ "id": "a", "function": { "name": "f", "arguments": "" } })),
        call(1, json!({ "function": { "name": "g", "arguments": "{" } })),
        call(0, json!({ "function": { "arguments": "{\"x\":" } })),
        "so ",
        call(1, json!({ "function": { "arguments": "}" } })),
        call(0, json!({ "function": { "arguments": "1}" } })),
        { "content": "it is", "finish_reason": "stop" },
    ]);
    let served = Served::start(App::new().mount(pieces("/uses", said))).await;
    let events = served.post("/v1/messages", &ask("uses", hello(), json!({ "stream": true }))).await.named_events();
    let begun: Vec<&Value> = events.iter().filter_map(|(_, event)| event.get("content_block")).collect();
    let tool = |id: &str, name: &str| json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
    let given = begun[2]["id"].as_str().unwrap();
    assert!(given.starts_with("call_") && given.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{given}");
    assert_eq!(begun, [&tool("a", "f"), &json!({ "type": "text", "text": "" }), &tool(given, "g")]);
    let of = |index: usize| {
        let of_block = events.iter().filter(|(_, event)| event["index"] == index).map(|(_, event)| &event["delta"]);
        let text = |delta: &Value| delta["partial_json"].as_str().or_else(|| delta["text"].as_str()).map(str::to_owned);
        of_block.filter_map(text).collect::<String>()
    };
    assert_eq!((of(0), of(1), of(2)), ("{\"x\":1}".to_owned(), "so it is".to_owned(), "{}".to_owned()));
    let end = events.iter().find(|(name, _)| name == "message_delta").unwrap();
    assert_eq!(end.1["delta"]["stop_reason"], "tool_use");

    let whole = served.post("/v1/messages", &ask("uses", hello(), json!({}))).await.ok();
    let ids: Vec<_> = whole["content"].as_array().unwrap().iter().map(|block| block["id"].as_str()).collect();
    assert_eq!(ids[..2], [None, Some("a")]);
    assert!(ids[2].is_some_and(|id| id.starts_with("call_") && id != given), "an id is of one answer: {ids:?}");
    assert_eq!(whole["stop_reason"], "tool_use");
}

#[tokio::test]
async fn arguments_of_a_tool_are_an_object_or_its_json_and_never_replaced() {
    let asked = |arguments: Value| json!([{ "tool_calls": [{ "id": "t", "function": { "name": "f", "arguments": arguments } }] }]);
    for (arguments, input) in [
        (json!({ "x": 1 }), Some(json!({ "x": 1 }))),
        (json!("{\"x\": 1}"), Some(json!({ "x": 1 }))),
        (json!(""), Some(json!({}))),
        (Value::Null, Some(json!({}))),
        (json!("{\"x\": "), None),
        (json!([1]), None),
    ] {
        let served = Served::start(App::new().mount(pieces("/uses", asked(arguments.clone())))).await;
        let answer = served.post("/v1/messages", &ask("uses", hello(), json!({}))).await;
        match input {
            Some(input) => assert_eq!(answer.ok()["content"][0]["input"], input),
            None => {
                let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
                assert!(
                    answer.status == 500 && message.contains("arguments of a tool that are no JSON object"),
                    "{message}"
                );
            }
        }
        let stream = json!({ "stream": true });
        let events = served.post("/v1/messages", &ask("uses", hello(), stream)).await.named_events();
        let pieces = events.iter().filter_map(|(_, event)| event["delta"]["partial_json"].as_str());
        let sent = match arguments {
            Value::String(text) => text,
            Value::Null => String::new(),
            other => other.to_string(),
        };
        assert_eq!(pieces.collect::<String>(), sent);
    }
}

#[tokio::test]
async fn a_stop_sequence_ends_the_message_and_is_named() {
    let served = Served::start(App::new().mount(pieces("/counts", json!(["1, 2", ", ST", "OP, 3"])))).await;
    for streams in [false, true] {
        let more = json!({ "stop_sequences": ["STOP", "9"], "stream": streams });
        let answer = served.post("/v1/messages", &ask("counts", hello(), more)).await;
        let end = if streams {
            answer.named_events().into_iter().find(|(name, _)| name == "message_delta").unwrap().1["delta"].clone()
        } else {
            let message = answer.ok();
            assert_eq!(message["content"], json!([{ "type": "text", "text": "1, 2, " }]));
            message
        };
        assert_eq!((&end["stop_reason"], &end["stop_sequence"]), (&json!("stop_sequence"), &json!("STOP")));
    }
}

#[tokio::test]
async fn refusals_have_the_form_of_the_api() {
    let failing = Stage::each("fails", |_: &Input| Err::<String, _>(callboard_core::Failure::new("it is broken")));
    let failing = RouteSpec::new("/fails", failing).task(Task::Chat);
    let broken = StreamStage::each("breaks", |_: &Input| {
        stream::iter([Ok("one".to_owned()), Err(callboard_core::Failure::new("it broke"))])
    });
    let broken = RouteSpec::streaming("/breaks", broken).task(Task::Chat);
    let served = Served::start(App::new().mount(mirror()).mount(failing).mount(broken)).await;
    let refused = async |body: Value| {
        let answer = served.post("/v1/messages", &body).await;
        let error = answer.json();
        assert_eq!(error["type"], "error", "{error}");
        let (r#type, message) = (&error["error"]["type"], &error["error"]["message"]);
        (answer.status, r#type.as_str().unwrap().to_owned(), message.as_str().unwrap().to_owned())
    };
    let picture = json!([{ "role": "user", "content": [{ "type": "document", "source": {} }] }]);
    let server_tool = json!({ "tools": [{ "type": "web_search_20250305", "name": "web_search" }] });
    for (body, message) in [
        (json!({ "model": "mirror", "messages": hello() }), "`max_tokens` is required: a whole number from 1"),
        (ask("mirror", json!([]), json!({})), "`messages` must have one message or more"),
        (
            ask("mirror", json!([{ "role": "system", "content": "x" }]), json!({})),
            "`role` of a message must be `user` or `assistant`; instructions go into `system`",
        ),
        (ask("mirror", picture, json!({})), "blocks of type `document` are not offered in messages of users"),
        (
            ask("mirror", hello(), server_tool),
            "a tool needs `input_schema`: tools that the server itself runs are not offered",
        ),
        (
            ask("mirror", hello(), json!({ "tool_choice": { "type": "all" } })),
            "`tool_choice` must be of type `auto`, `any`, `none`, or `tool` with a `name`",
        ),
        (json!([1]), "the body must be an object, not list"),
    ] {
        assert_eq!(refused(body).await, (400, "invalid_request_error".to_owned(), message.to_owned()));
    }
    assert_eq!(refused(ask("absent", hello(), json!({}))).await.0, 404);
    let (status, r#type, message) = refused(ask("fails", hello(), json!({}))).await;
    assert_eq!((status, &*r#type), (500, "api_error"));
    assert!(message.contains("it is broken"), "{message}");
    let answer = served.post("/v1/messages", &ask("fails", hello(), json!({}))).await;
    assert_eq!(answer.headers["x-should-retry"], "false");

    // The id of a refusal is where its clients look for it.
    assert_eq!(answer.headers["request-id"], answer.headers["x-request-id"]);

    // A stream never ends silently.
    let events = served.post("/v1/messages", &ask("breaks", hello(), json!({ "stream": true }))).await.named_events();
    let (name, last) = events.last().unwrap();
    assert_eq!((&**name, &last["error"]["type"]), ("error", &json!("api_error")));
    assert!(events.iter().all(|(name, _)| name != "message_stop"));

    assert_eq!(served.get("/v1/messages").await.status, 405);
    let counting = served.post("/v1/messages/count_tokens", &ask("mirror", hello(), json!({}))).await;
    assert_eq!((counting.status, &counting.json()["error"]["type"]), (404, &json!("not_found_error")));
}

#[tokio::test]
async fn an_answer_tells_what_is_left_of_the_limit_of_its_key() {
    let keys = ApiKeys::parse("ann a-key-that-nobody-guesses 1/h\nbob another-key-nobody-guesses").unwrap();
    let config = HttpConfig { api_keys: Some(keys), ..HttpConfig::default() };
    let served = Served::with(App::new().mount(mirror()), config).await;
    let ask_as = async |key: &str, more: Value| {
        let answer = served.post_with("/v1/messages", &ask("mirror", hello(), more), &[("x-api-key", key)]).await;
        let header = |name: &str| answer.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let left = ["limit", "remaining", "reset"].map(|name| header(&format!("anthropic-ratelimit-requests-{name}")));
        assert_eq!(header("x-ratelimit-limit-requests"), None, "the headers of the other API");
        (answer.status, left, header("retry-after"))
    };
    for status in [200, 429] {
        let (got, left, retry_after) = ask_as("a-key-that-nobody-guesses", json!({})).await;
        let [limit, remaining, reset] = left.map(Option::unwrap);
        assert_eq!((got, &*limit, &*remaining), (status, "1", "0"));
        // `2026-01-31T12:00:00Z`
        let form: String = reset.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(form, "0000-00-00T00:00:00Z");
        assert_eq!(retry_after.is_some(), status == 429, "{retry_after:?}");
    }
    let (status, left, _) = ask_as("another-key-nobody-guesses", json!({ "stream": true })).await;
    assert_eq!((status, left), (200, [None, None, None]));
}
