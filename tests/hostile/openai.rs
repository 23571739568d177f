//! OpenAI's API: many choices and entries of large requests, and bodies that name no model.

use crate::attack::Attack;
use crate::http1::Request;
use crate::payloads::MIB;

const CHAT: &str = "/v1/chat/completions";
const EMBEDDINGS: &str = "/v1/embeddings";
const JSON: &str = "application/json";

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
