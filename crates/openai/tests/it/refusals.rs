//! What is refused, in the form that clients of the API read.

use callboard_core::{App, ErrorKind, Failure, RouteSpec, Stage, Task};
use callboard_http::{ApiKeys, HttpConfig};
use serde_json::json;

use crate::edge::{Answer, Served};

fn app() -> App {
    let echo = Stage::each("echo", |text: &String| Ok(text.clone()));
    let plain = Stage::each("plain", |text: &String| Ok(text.clone()));
    App::new().mount(RouteSpec::new("/echo", echo).task(Task::Complete)).route("/plain", plain)
}

#[tokio::test]
async fn models_are_the_routes_with_a_task() {
    let served = Served::start(app()).await;
    let list = served.get("/v1/models").await.ok();
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str()).collect();
    assert_eq!((list["object"].as_str(), ids), (Some("list"), vec![Some("echo")]));
    let model = served.get("/v1/models/echo").await.ok();
    assert_eq!((model["object"].as_str(), model["task"].as_str()), (Some("model"), Some("complete")));
    for id in ["plain", "other", "/echo", "@echo", "%2Fecho"] {
        served.get(&format!("/v1/models/{id}")).await.refused(404, "model_not_found");
    }
}

#[tokio::test]
async fn the_document_has_the_tasks_of_the_routes() {
    let served = Served::start(app()).await;
    let document = served.get("/openapi.json").await.ok();
    let paths = &document["paths"];
    let schema = &paths["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"];
    assert_eq!(schema["properties"]["model"]["enum"], json!(["echo"]));
    assert_eq!((&paths["/v1/embeddings"], paths["/v1/models"].is_object()), (&serde_json::Value::Null, true));
    let reference = paths["/v1/completions"]["post"]["responses"]["default"]["$ref"].as_str().unwrap();
    assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
    let plain = Served::start(App::new().route("/plain", Stage::each("plain", |text: &String| Ok(text.clone())))).await;
    assert_eq!(plain.get("/openapi.json").await.ok()["paths"]["/v1/models"], serde_json::Value::Null);
}

#[tokio::test]
async fn a_wrong_model_is_explained() {
    let served = Served::start(app()).await;
    for (path, model, message) in [
        ("/v1/completions", "ecko", "there is no model `ecko`; did you mean `echo`?"),
        ("/v1/completions", "plain", "there is no model `plain`; `GET /v1/models` lists the models"),
        ("/v1/embeddings", "echo", "model `echo` is called at /v1/completions, not at /v1/embeddings"),
    ] {
        let refused = served.post(path, &json!({ "model": model, "prompt": "a", "input": "a" })).await;
        assert_eq!(refused.refused(404, "model_not_found"), message);
    }
}

#[tokio::test]
async fn an_answer_tells_what_is_left_of_the_limit_of_its_key() {
    let keys = ApiKeys::parse("ann a-key-that-nobody-guesses 3/h\nbob another-key-nobody-guesses").unwrap();
    let served = Served::with(app(), HttpConfig { api_keys: Some(keys), ..HttpConfig::default() }).await;
    let body = json!({ "model": "echo", "prompt": ["a", "b"] });
    let ask = async |key: &str| served.post_with("/v1/completions", &body, &[("x-api-key", key)]).await;
    let left = |answer: &Answer| {
        let names = ["limit", "remaining", "reset"].map(|name| format!("x-ratelimit-{name}-requests"));
        names.map(|name| answer.headers.get(name).map(|value| value.to_str().unwrap().to_owned()))
    };
    // Two prompts are two calls, and one is left, which is too few for the next.
    for status in [200, 429] {
        let answer = ask("a-key-that-nobody-guesses").await;
        let [limit, remaining, reset] = left(&answer).map(Option::unwrap);
        assert_eq!((answer.status, &*limit, &*remaining), (status, "3", if status == 200 { "1" } else { "0" }));
        let about = if status == 200 { ["39m59", "40m0s"] } else { ["59m59", "1h0m0s"] };
        assert!(about.iter().any(|time| reset.starts_with(time)), "{status}: {reset}");
    }
    assert_eq!(left(&ask("another-key-nobody-guesses").await), [None, None, None]);
}

#[tokio::test]
async fn every_mistake_names_its_field() {
    let served = Served::start(app()).await;
    let with = |name: &str, value: serde_json::Value| {
        let mut body = json!({ "model": "echo", "prompt": "a" });
        body[name] = value;
        body
    };
    for (body, message) in [
        (json!({ "prompt": "a" }), "`model` is required: `GET /v1/models` lists the models"),
        (json!([]), "the body must be an object, not list"),
        (with("model", json!(3)), "`model` must be a text, not int"),
        (with("prompt", json!(null)), "`prompt` is required"),
        (with("prompt", json!([])), "`prompt` must have one entry or more"),
        (with("n", json!(0)), "`n` must be a whole number from 1 to 128"),
        (with("n", json!(129)), "`n` must be a whole number from 1 to 128"),
        (with("n", json!("two")), "`n` must be a whole number from 1 to 128"),
        (with("stream", json!(1)), "`stream` must be true or false, not int"),
        (with("stop", json!("")), "`stop` must be a text or up to 16 texts, each of 1 to 256 bytes"),
        (with("stop", json!(vec!["a"; 17])), "`stop` must be a text or up to 16 texts, each of 1 to 256 bytes"),
        (with("stop", json!("a".repeat(257))), "`stop` must be a text or up to 16 texts, each of 1 to 256 bytes"),
        (with("prompt", json!(vec!["a"; 129])), "129 prompts with `n` = 1 are more than 128 choices"),
    ] {
        assert_eq!(served.post("/v1/completions", &body).await.refused(400, "invalid_value"), message);
    }
    served.send("POST", "/v1/completions", "{").await.refused(400, "malformed_body");
    served.send("POST", "/v1/completions", "").await.refused(400, "malformed_body");
    let form = served.send_as("application/x-www-form-urlencoded", "{}").await;
    assert!(form.refused(415, "unsupported_media_type").contains("for JSON add"), "{form:?}");
    served.send("GET", "/v1/completions", "").await.refused(405, "method_not_allowed");
    served.send("POST", "/v1/models", "").await.refused(405, "method_not_allowed");
    let missing = served.post("/v1/images/edits", &json!({})).await;
    assert_eq!(
        missing.refused(404, "not_found"),
        "this server does not offer edits and variations of images: generations are offered"
    );
    served.get("/v1/chat/unknown").await.refused(404, "not_found");
}

#[tokio::test]
async fn a_body_has_the_limits_of_every_body() {
    let config = HttpConfig { max_body_bytes: 1000, ..HttpConfig::default() };
    let served = Served::with(app(), config).await;
    let body = json!({ "model": "echo", "prompt": "a".repeat(1000) });
    served.post("/v1/completions", &body).await.refused(413, "body_too_large");
    assert_eq!(served.node.client().edge().charged_bytes(), 0);
    // That of the route holds as well, once the route is known.
    let limits = [("/echo".to_owned(), 100)].into_iter().collect();
    let config = HttpConfig { max_body_bytes_by_route: limits, ..HttpConfig::default() };
    let strict = Served::with(app(), config).await;
    strict.post("/v1/completions", &body).await.refused(413, "body_too_large");
    let deep = format!("{}{}", "[".repeat(400), "]".repeat(400));
    served.send("POST", "/v1/completions", deep).await.refused(400, "decode_limit_exceeded");
}

#[tokio::test]
async fn a_status_of_the_code_is_the_status_and_its_type_the_code() {
    let long = Stage::each("long", |_: &String| -> Result<String, Failure> {
        Err(Failure::invalid_input("9 tokens are more than 8").with_type("context_length_exceeded").with_status(400))
    });
    let served = Served::start(App::new().mount(RouteSpec::new("/long", long).task(Task::Complete))).await;
    let refused = served.post("/v1/completions", &json!({ "model": "long", "prompt": "a" })).await;
    assert_eq!(refused.refused(400, "context_length_exceeded"), "9 tokens are more than 8");
    assert!(!refused.headers.contains_key("x-should-retry"));
}

#[tokio::test]
async fn an_answer_that_is_none_of_the_task_is_an_error_of_the_route() {
    let number = Stage::each("number", |_: &String| Ok(7));
    let served = Served::start(App::new().mount(RouteSpec::new("/number", number).task(Task::Complete))).await;
    let refused = served.post("/v1/completions", &json!({ "model": "number", "prompt": "a" })).await;
    let message = refused.refused(500, ErrorKind::Internal.as_str());
    assert!(message.starts_with("route `/number` answered int, where its task needs a text"), "{message}");
}
