//! Embeddings, reranking and moderation: each entry is an item of a batch.

use std::time::Duration;

use base64::Engine as _;
use callboard_codec::Value as Input;
use callboard_core::{App, Batch, Contract, Failure, RouteSpec, Stage, Task};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::edge::Served;

/// The length of a text, and the size of the batch that it was in.
fn lengths() -> RouteSpec {
    let lengths = Stage::batch("lengths", |texts: Batch<String>| {
        let together = texts.len() as f32;
        texts.iter().map(|text| Ok(vec![text.len() as f32, together])).collect()
    });
    // A full batch does not wait.
    let lengths = lengths.max_batch_size(3).max_delay(Duration::from_secs(30));
    RouteSpec::new("/lengths", lengths).task(Task::Embed)
}

#[tokio::test]
async fn entries_of_one_request_are_one_batch() {
    let served = Served::start(App::new().mount(lengths())).await;
    let body = json!({ "model": "lengths", "input": ["a", "bb", "ccc"], "user": "u" });
    let list = served.post("/v1/embeddings", &body).await.ok();
    let data = list["data"].as_array().unwrap();
    let first: Vec<_> = data.iter().map(|entry| (entry["index"].as_u64(), entry["embedding"][0].as_f64())).collect();
    assert_eq!(first, [(Some(0), Some(1.0)), (Some(1), Some(2.0)), (Some(2), Some(3.0))]);
    assert!(data.iter().all(|entry| entry["embedding"][1] == 3.0), "{data:?}");
    assert_eq!((list["object"].as_str(), &list["usage"]["total_tokens"]), (Some("list"), &json!(0)));

    let body = json!({ "model": "lengths", "input": ["four", "b", "c"], "encoding_format": "base64" });
    let list = served.post("/v1/embeddings", &body).await.ok();
    let bytes = base64::engine::general_purpose::STANDARD.decode(list["data"][0]["embedding"].as_str().unwrap());
    assert_eq!(bytes.unwrap()[..4], 4f32.to_le_bytes());
}

#[tokio::test]
async fn a_request_of_which_some_items_ran_is_not_repeated_unless_they_may() {
    for contract in [Contract::AtMostOnce, Contract::Pure] {
        let strict = Stage::each("strict", |text: &String| Ok(vec![text.len() as f64]));
        // It waits for more in vain, and for so long its queue is full.
        let strict = strict.contract(contract).queue(1).max_batch_size(2).max_delay(Duration::from_millis(1));
        let route = RouteSpec::new("/strict", strict).task(Task::Embed);
        let served = Served::start(App::new().mount(route)).await;
        // The first runs then, and the second finds no room in the queue.
        let refused = served.post("/v1/embeddings", &json!({ "model": "strict", "input": ["a", "b"] })).await;
        refused.refused(429, "rate_limit_exceeded");
        let retry = refused.headers.get("x-should-retry").map(|value| value.to_str().unwrap());
        assert_eq!(retry, (!contract.may_run_again()).then_some("false"), "{contract}");
    }
}

#[tokio::test]
async fn a_route_with_a_limit_serves_more_items_than_that() {
    let one = Stage::each("one", |text: &String| Ok(vec![text.len() as f64]));
    let served = Served::start(App::new().mount(RouteSpec::new("/one", one).task(Task::Embed).max_in_flight(2))).await;
    let body = json!({ "model": "one", "input": vec!["a"; 50] });
    assert_eq!(served.post("/v1/embeddings", &body).await.ok()["data"].as_array().unwrap().len(), 50);
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Tokens {
    input: Vec<i64>,
    dimensions: Option<usize>,
}

#[tokio::test]
async fn token_ids_and_dimensions_reach_a_route_that_takes_them() {
    let ids = Stage::each("ids", |tokens: &Tokens| Ok(vec![tokens.input.len() as f64; tokens.dimensions.unwrap_or(1)]));
    let app = App::new().mount(RouteSpec::new("/ids", ids).task(Task::Embed)).mount(lengths());
    let served = Served::start(app).await;
    for (input, rows) in [(json!([1, 2, 3]), 1), (json!([[1, 2, 3], [4, 5, 6]]), 2)] {
        let list =
            served.post("/v1/embeddings", &json!({ "model": "ids", "input": input, "dimensions": 2 })).await.ok();
        assert_eq!(list["data"].as_array().unwrap().len(), rows);
        assert_eq!(list["data"][0]["embedding"], json!([3.0, 3.0]));
    }
    let refused = served.post("/v1/embeddings", &json!({ "model": "lengths", "input": "a", "dimensions": 2 })).await;
    assert_eq!(
        refused.refused(400, "invalid_value"),
        "model `lengths` has a fixed number of dimensions: leave out `dimensions`"
    );
    let refused = served.post("/v1/embeddings", &json!({ "model": "lengths", "input": [[1]] })).await;
    let message = refused.refused(400, "invalid_value");
    assert!(message.contains("check_embedding_ctx_length=False"), "{message}");
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Pair {
    query: String,
    document: String,
}

#[tokio::test]
async fn documents_are_ranked_the_best_first() {
    let common = Stage::each("common", |pair: &Pair| {
        Ok(pair.document.split(' ').filter(|word| pair.query.split(' ').any(|asked| asked == *word)).count() as f64)
    });
    let served = Served::start(App::new().mount(RouteSpec::new("/common", common).task(Task::Rerank))).await;
    let documents = json!(["nothing", "a b", { "text": "a b c" }]);
    let body =
        json!({ "model": "common", "query": "a b c", "documents": documents, "top_n": 2, "return_documents": true });
    let ranking = served.post("/v1/rerank", &body).await.ok();
    let expected = json!([
        { "index": 2, "relevance_score": 3.0, "document": { "text": "a b c" } },
        { "index": 1, "relevance_score": 2.0, "document": { "text": "a b" } },
    ]);
    assert_eq!(ranking["results"], expected);
}

#[tokio::test]
async fn each_dialect_of_ranking_has_its_path_and_its_answer() {
    let common = Stage::each("common", |pair: &Pair| match pair.document.as_str() {
        "broken" => Err(Failure::new("it broke")),
        "refused" => Err(Failure::new("no").with_status(404).with_header("x-should-retry", "true")),
        document => Ok(document.split(' ').filter(|word| pair.query.contains(word)).count() as f64),
    });
    let served = Served::start(App::new().mount(RouteSpec::new("/common", common).task(Task::Rerank))).await;
    let body = |documents: Value| json!({ "model": "common", "query": "a b", "documents": documents, "top_n": 1 });
    let ranked = body(json!(["c", "a b"]));
    let best = json!([{ "index": 1, "relevance_score": 2.0 }]);
    for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
        let answer = served.post(path, &ranked).await.ok();
        assert_eq!((&answer["results"], answer["id"].is_string()), (&best, true), "{path}");
        let (model, version) = (&answer["model"], &answer["meta"]["api_version"]["version"]);
        let expected =
            if path == "/v2/rerank" { (&Value::Null, &json!("2")) } else { (&json!("common"), &Value::Null) };
        assert_eq!((model, version), expected, "{path}");
    }
    let document = served.get("/openapi.json").await.ok();
    let id = |path: &str| document["paths"][path]["post"]["operationId"].as_str().unwrap().to_owned();
    assert_eq!(["/rerank", "/v1/rerank"].map(id), ["openai_rerank_short", "openai_rerank"]);
    let broken = body(json!(["broken", "a"]));
    assert_eq!(served.post("/rerank", &broken).await.status, 500);
    // Cohere's libraries repeat every 5xx.
    let failed = served.post("/v2/rerank", &broken).await;
    assert_eq!((failed.status, failed.json()), (424, json!({ "message": "it broke" })));
    // A header of user code says nothing of its status.
    let refused = served.post("/v2/rerank", &body(json!(["refused"]))).await;
    assert_eq!((refused.status, refused.headers.get("x-should-retry")), (404, None));
    assert!(!failed.headers.contains_key("x-should-retry"));
    let absent = served.post("/v2/rerank", &json!({ "model": "absent", "query": "", "documents": ["a"] })).await;
    assert_eq!(absent.status, 404);
    assert_eq!(served.get("/v2/rerank").await.status, 405);
}

#[tokio::test]
async fn a_model_has_other_names() {
    let spec = |path: &str| {
        RouteSpec::new(path, Stage::each(path.trim_start_matches('/'), |text: &String| Ok(text.clone())))
            .task(Task::Complete)
    };
    let served = Served::start(App::new().mount(spec("/echo").aliases(["gpt-4o-mini", "team/echo"]))).await;
    let list = served.get("/v1/models").await.ok();
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["echo", "gpt-4o-mini", "team/echo"]);
    assert_eq!(served.get("/v1/models/team/echo").await.ok()["id"], "team/echo");
    for id in ids {
        let answer = served.post("/v1/completions", &json!({ "model": id, "prompt": "a" })).await.ok();
        assert_eq!((&answer["model"], &answer["choices"][0]["text"]), (&json!(id), &json!("a")));
    }
    let near = served.post("/v1/completions", &json!({ "model": "gpt-4o-min", "prompt": "a" })).await;
    assert!(near.refused(404, "model_not_found").contains("did you mean `gpt-4o-mini`?"));
    let document = served.get("/openapi.json").await.ok();
    let request = &document["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"];
    assert_eq!(request["schema"]["properties"]["model"]["enum"], json!(["echo", "gpt-4o-mini", "team/echo"]));
    let one = &document["paths"]["/v1/models/{model}"]["get"];
    assert_eq!(one["parameters"][0]["schema"]["enum"], json!(["echo", "gpt-4o-mini", "team/echo"]));
}

#[tokio::test]
async fn texts_are_moderated_with_what_the_route_knows() {
    let rude = Stage::each("rude", |text: &String| Ok(Input::from(text.contains("bad"))));
    let sorted = Stage::each("sorted", |text: &String| {
        Ok(Input::from_serialize(&json!({ "categories": { "rude": text.contains("bad") } })).unwrap())
    });
    let app = App::new().mount(RouteSpec::new("/rude", rude).task(Task::Moderate));
    let served = Served::start(app.mount(RouteSpec::new("/sorted", sorted).task(Task::Moderate))).await;
    for model in ["rude", "sorted"] {
        let body = json!({ "model": model, "input": ["good", "bad"] });
        let results = served.post("/v1/moderations", &body).await.ok()["results"].clone();
        let flagged: Vec<&Value> = results.as_array().unwrap().iter().map(|result| &result["flagged"]).collect();
        assert_eq!(flagged, [&json!(false), &json!(true)], "{model}");
        assert!(results[0]["category_scores"].is_object());
    }
}
