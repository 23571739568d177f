//! OpenAI's, Anthropic's and Cohere's APIs: many choices, entries and copies of large requests, requests that become
//! larger ones, and bodies that name no model.

use std::time::Duration;

use crate::attack::Attack;
use crate::http1::Request;
use crate::payloads::MIB;

const CHAT: &str = "/v1/chat/completions";
const EMBEDDINGS: &str = "/v1/embeddings";
const JSON: &str = "application/json";

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

/// An attack by a client for each of these requests.
fn attack(name: &'static str, requests: &[Request]) {
    Attack::new(name)
        .on_types()
        .lasting(Duration::from_secs(4))
        .run(|target| target.run_clients(6, |index| target.repeat(&requests[index % requests.len()], 1)));
}

#[test]
fn many_choices_of_a_large_conversation() {
    let text = "a".repeat(4 * MIB);
    let body = |n: u32| format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}],"n":{n},"model":"chat"}}"#);
    let requests = [body(1), body(128)].map(|body| Request::post(CHAT, JSON, body));
    Attack::new("openai: 128 choices of 4 MiB")
        .on_types()
        .run(|target| target.run_clients(4, |index| target.repeat(&requests[index % 2], 1)));
}

#[test]
fn a_large_field_that_every_entry_has() {
    let entries = vec![r#""a""#; 2048].join(",");
    let body = format!(r#"{{"model":"length","input":[{entries}],"more":"{}"}}"#, "b".repeat(4 * MIB));
    let request = Request::post(EMBEDDINGS, JSON, body);
    Attack::new("openai: 2,048 entries, each with 4 MiB more")
        .on_types()
        .run(|target| target.run_clients(4, |_| target.repeat(&request, 1)));
}

#[test]
fn large_bodies_that_name_no_model() {
    let values = vec!["0"; 2 * MIB].join(",");
    let requests = [
        format!(r#"{{"messages":[{values}]}}"#),
        format!(r#"{{"messages":[{values}],"model":"{}"}}"#, "m".repeat(MIB)),
        format!(r#"{{"model":{}1{}}}"#, "[".repeat(100_000), "]".repeat(100_000)),
        format!(r#"{{"model":"chat","stop":[{}]}}"#, vec![r#""a""#; 100_000].join(",")),
    ]
    .map(|body| Request::post(CHAT, JSON, body));
    Attack::new("openai: bodies without a model, or with a deep or long one")
        .on_types()
        .run(|target| target.run_clients(4, |index| target.repeat(&requests[index], 1)));
}

/// Each text of a conversation is copied into one text, and each short item becomes an object with more fields.
#[test]
fn requests_that_become_larger_ones() {
    needs_binary!();
    let parts = |kind: &str| vec![format!(r#"{{"type":"{kind}","text":"{}"}}"#, "a".repeat(1000)); 16_000].join(",");
    let call = r#"{"type":"function_call","call_id":"","name":""}"#;
    let calls = vec![call; 300_000].join(",");
    let picture = format!(r#"{{"type":"base64","media_type":"image/png","data":"{}"}}"#, "a".repeat(32 * MIB));
    let arguments = format!(r#"{{"x":"{}"}}"#, r"\u0001".repeat(2 * MIB));
    let message = |role: &str, content: &str| {
        format!(r#"{{"model":"chat","max_tokens":1,"messages":[{{"role":"{role}","content":[{content}]}}]}}"#)
    };
    let image = message("user", &format!(r#"{{"type":"image","source":{picture}}}"#));
    let used = message("assistant", &format!(r#"{{"type":"tool_use","id":"","name":"","input":{arguments}}}"#));
    let uses = message("assistant", &vec![r#"{"type":"tool_use","id":"","name":""}"#; 300_000].join(","));
    let input = format!(r#"[{{"role":"user","content":[{}]}}]"#, parts("input_text"));
    attack(
        "openai, anthropic: parts, calls and pictures of a conversation",
        &[
            Request::post(RESPONSES, JSON, format!(r#"{{"model":"chat","input":{input}}}"#)),
            Request::post(RESPONSES, JSON, format!(r#"{{"model":"chat","input":[{calls}]}}"#)),
            Request::post(MESSAGES, JSON, message("user", &parts("text"))),
            Request::post(MESSAGES, JSON, image),
            Request::post(MESSAGES, JSON, used),
            Request::post(MESSAGES, JSON, uses),
        ],
    );
}

#[test]
fn deep_and_wide_conversations() {
    needs_binary!();
    let deep = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    let wide: String = (0..500_000).map(|key| format!(r#""k{key}":0,"#)).collect();
    let requests = [RESPONSES, MESSAGES].into_iter().flat_map(|path| {
        let tools = format!(r#"{{"model":"chat","max_tokens":1,"input":"a","messages":[],"tools":[{deep}]}}"#);
        let metadata = format!(r#"{{"model":"chat","max_tokens":1,"input":"a",{wide}"metadata":{{}}}}"#);
        let nulls = vec!["null"; 1_000_000].join(",");
        let items = format!(r#"{{"model":"chat","max_tokens":1,"input":[{nulls}],"messages":[{nulls}]}}"#);
        [tools, metadata, items].map(|body| Request::post(path, JSON, body))
    });
    attack("openai, anthropic: deep and wide conversations", &requests.collect::<Vec<_>>());
}

#[test]
fn copies_of_a_prompt_and_of_documents() {
    needs_binary!();
    let text = "a".repeat(16 * MIB);
    let documents = vec![r#""b""#; 2048].join(",");
    let images = format!(r#"{{"model":"picture","prompt":"{text}","n":10}}"#);
    let rerank = format!(r#"{{"model":"scores","query":"{text}","documents":[{documents}]}}"#);
    attack(
        "openai, cohere: ten pictures and 2,048 documents of 16 MiB",
        &[
            Request::post("/v1/images/generations", JSON, images),
            Request::post("/v1/rerank", JSON, rerank.clone()),
            Request::post("/v2/rerank", JSON, rerank),
            Request::post("/v1/audio/speech", JSON, format!(r#"{{"model":"said","voice":"v","input":"{text}"}}"#)),
        ],
    );
}

#[test]
fn forms_of_recordings() {
    needs_binary!();
    let part = |name: &str, content: &str| {
        format!("--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{content}\r\n")
    };
    let file = |bytes: usize| {
        let head = "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n";
        format!("{head}{}\r\n", "x".repeat(bytes))
    };
    let many: String = (0..100_000).map(|index| part(&format!("n{index}"), "x")).collect();
    let stops = part("timestamp_granularities[]", "word").repeat(100_000);
    let model = part("model", "heard");
    let requests = [
        format!("{model}{}", file(48 * MIB)),
        format!("{}{}", file(48 * MIB), part("model", &"m".repeat(8 * MIB))),
        format!("{model}{many}{}", file(10)),
        format!("{model}{stops}{}", file(10)),
    ];
    let form = "multipart/form-data; boundary=b";
    let requests = requests.map(|parts| Request::post("/v1/audio/transcriptions", form, format!("{parts}--b--\r\n")));
    attack("openai: forms of 48 MiB, and of 100,000 parts", &requests);
}
