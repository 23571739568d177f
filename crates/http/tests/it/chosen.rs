//! What user code chooses of a successful response: status, headers, media type.

use bytes::Bytes;
use callboard_codec::{Media, Value};
use callboard_core::edge::DeclaredResponse;
use callboard_core::{
    App, CacheSettings, CallContext, Failure, Pipeline, ResponseFields, RouteSpec, Stage, StreamStage,
};
use callboard_http::HttpConfig;
use futures_util::{StreamExt as _, stream};
use serde_json::json;

use crate::support::{Answer, Raw, Server};

const JSON: (&str, &str) = ("content-type", "application/json");

fn fields() -> ResponseFields {
    ResponseFields::new()
}

/// A stage that chooses these fields, and answers with a value.
fn choosing(fields: ResponseFields, value: impl Into<Value>) -> Stage<Value, Value> {
    named("choosing", fields, value)
}

fn named(name: &str, fields: ResponseFields, value: impl Into<Value>) -> Stage<Value, Value> {
    let value = value.into();
    Stage::each_with_context(name, move |_: &Value, context: &CallContext| {
        context.set_response(fields.clone());
        Ok(value.clone())
    })
}

async fn server(route: App) -> (Server, Raw) {
    let server = Server::for_app(route, HttpConfig::default()).await;
    let client = server.connect().await;
    (server, client)
}

async fn answer(fields: ResponseFields, value: impl Into<Value>, accept: &str) -> Answer {
    let (_server, mut client) = server(App::new().route("/r", choosing(fields, value))).await;
    client.post("/r", &[JSON, ("accept", accept)], "null").await
}

#[tokio::test]
async fn code_chooses_the_status_and_headers_of_its_answer() {
    let cookies = fields().with_header("Set-Cookie", "a=1").with_header("set-cookie", "b=2; HttpOnly");
    let chosen = cookies.with_status(201).with_header("location", "/items/7").with_header("x-model", "m1");
    let created = answer(chosen, 7, "*/*").await;
    assert_eq!((created.status, created.text()), (201, "7"));
    assert_eq!(created.header("content-type"), Some("application/json"));
    assert_eq!((created.header("location"), created.header("x-model")), (Some("/items/7"), Some("m1")));
    let lines = created.head.lines().filter(|line| line.to_lowercase().starts_with("set-cookie"));
    assert_eq!(lines.collect::<Vec<_>>(), ["set-cookie: a=1", "set-cookie: b=2; HttpOnly"]);
    assert!(created.header("server-timing").is_some() && created.header("x-request-id").is_some());
}

#[tokio::test]
async fn a_status_without_a_body_has_none() {
    for status in [204, 205, 304] {
        let chosen =
            fields().with_status(status).with_header("content-type", "text/plain").with_header("etag", "\"1\"");
        let (_server, mut client) = server(App::new().route("/r", choosing(chosen, "text"))).await;
        for _ in 0..2 {
            let empty = client.post("/r", &[JSON], "null").await;
            assert_eq!((empty.status, empty.body.len(), empty.header("etag")), (status, 0, Some("\"1\"")));
            assert_eq!(empty.header("content-type"), None, "{empty:?}");
        }
    }
}

#[tokio::test]
async fn a_redirect_or_empty_answer_has_no_media_type() {
    for (status, media_type) in [(303, Some("text/html")), (303, None), (204, Some("text/html")), (304, None)] {
        let chosen = fields().with_status(status).with_header("location", "/login");
        let chosen = media_type.into_iter().fold(chosen, |chosen, name| chosen.with_header("content-type", name));
        for accept in ["*/*", "application/json"] {
            let empty = answer(chosen.clone(), Value::Null, accept).await;
            assert_eq!((empty.status, empty.body.len()), (status, 0), "{accept}: {empty:?}");
            assert_eq!((empty.header("location"), empty.header("content-type")), (Some("/login"), None));
        }
    }
    let moved = answer(fields().with_status(302).with_header("content-type", "text/html"), "<p>", "*/*").await;
    assert_eq!((moved.status, moved.text()), (302, "<p>"));
}

/// The values of a header in all its lines.
fn all<'a>(answer: &'a Answer, name: &str) -> Vec<&'a str> {
    let lines = answer.head.lines().filter_map(|line| line.split_once(": "));
    lines.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
}

#[tokio::test]
async fn caches_learn_that_an_answer_depends_on_the_accepted_form() {
    for (name, value) in [("content-type", "text/csv"), ("cache-control", "max-age=9"), ("etag", "\"1\"")] {
        let chosen = fields().with_header(name, value).with_header("vary", "cookie");
        for accept in ["*/*", "application/vnd.callboard.envelope"] {
            assert_eq!(all(&answer(chosen.clone(), "a", accept).await, "vary"), ["cookie", "accept"], "{name}");
        }
    }
    assert_eq!(all(&answer(fields().with_header("x-a", "1"), "a", "*/*").await, "vary"), [""; 0]);
}

#[tokio::test]
async fn a_chosen_header_replaces_that_of_the_edge() {
    let stage = StreamStage::each_with_context("early", |_: &u64, context: &CallContext| {
        context
            .set_response(fields().with_header("cache-control", "max-age=9").with_header("cache-control", "private"));
        stream::iter([Ok::<_, Failure>(1)])
    });
    let (_server, mut client) = server(App::new().route_streaming("/r", stage)).await;
    let streamed = client.post("/r", &[JSON], "1").await;
    assert_eq!(all(&streamed, "cache-control"), ["max-age=9", "private"]);
    assert_eq!(all(&streamed, "x-accel-buffering"), ["no"]);
}

#[tokio::test]
async fn a_text_or_bytes_are_sent_in_the_chosen_media_type_if_the_request_accepts_it() {
    let csv = || {
        fields().with_header("content-type", "text/csv; charset=utf-8").with_header("content-disposition", "attachment")
    };
    for value in [Value::from("a,b\n"), Value::Bytes(Bytes::from_static(b"a,b\n"))] {
        for accept in ["*/*", "application/json, text/plain, */*"] {
            let raw = answer(csv(), value.clone(), accept).await;
            assert_eq!((raw.status, raw.text()), (200, "a,b\n"), "{accept}");
            assert_eq!(raw.header("content-type"), Some("text/csv; charset=utf-8"));
            assert_eq!(raw.header("content-disposition"), Some("attachment"));
        }
        let enveloped = answer(csv(), value, "application/vnd.callboard.envelope").await;
        assert_eq!(enveloped.header("content-type"), Some("application/vnd.callboard.envelope"));
        assert_eq!(enveloped.header("content-disposition"), None);
    }
    let typed = answer(
        fields().with_header("content-type", "application/geo+json"),
        Value::from_serialize(&json!({"a": 1})).unwrap(),
        "*/*",
    )
    .await;
    assert_eq!((typed.text(), typed.header("content-type")), ("{\"a\":1}", Some("application/geo+json")));
    let wrong = answer(csv(), 7, "*/*").await;
    assert_eq!((wrong.status, wrong.problem()["kind"].clone()), (500, json!("failed")));
    assert!(wrong.text().contains("`text/csv; charset=utf-8`") || wrong.text().contains("text/csv; charset=utf-8"));
}

#[tokio::test]
async fn a_file_whose_type_names_no_media_type_is_sent_in_that_which_its_code_chooses() {
    let file = |name: &str, chosen: Option<&'static str>| {
        Stage::each_with_context(name, move |_: &Value, context: &CallContext| {
            chosen
                .into_iter()
                .for_each(|media_type| context.set_response(fields().with_header("content-type", media_type)));
            Ok(Media::new(Bytes::from_static(b"a,b")))
        })
    };
    let app = App::new().route("/csv", file("csv", Some("text/csv"))).route("/any", file("any", None));
    let (_server, mut client) = server(app).await;
    let csv = client.post("/csv", &[JSON, ("accept", "text/csv")], "null").await;
    assert_eq!((csv.status, csv.text(), csv.header("content-type")), (200, "a,b", Some("text/csv")));
    for path in ["/csv", "/any"] {
        let refused = client.post(path, &[JSON, ("accept", "text/html")], "null").await;
        assert_eq!((refused.status, refused.problem()["error_type"].clone()), (406, json!("not_acceptable")), "{path}");
    }
}

#[tokio::test]
async fn a_header_of_the_server_or_of_no_http_fails_the_call_by_its_name() {
    for (name, value, words) in [
        ("content-length", "7", "the header `content-length` is the server's own: an answer cannot choose it"),
        ("Transfer-Encoding", "chunked", "the header `transfer-encoding` is the server's own"),
        ("Cache-Status", "other; hit", "the header `cache-status` is the server's own"),
        ("X-Accel-Buffering", "yes", "the header `x-accel-buffering` is the server's own"),
        ("X-Content-Type-Options", "none", "the header `x-content-type-options` is the server's own"),
        ("x-a", "b\r\nset-cookie: c", "has characters that HTTP does not allow"),
        ("x a", "b", "has characters that HTTP does not allow"),
    ] {
        let (server, mut client) = server(App::new().route("/r", choosing(fields().with_header(name, value), 1))).await;
        let failed = client.post("/r", &[JSON], "null").await;
        assert_eq!(failed.status, 500);
        assert!(failed.problem()["message"].as_str().unwrap().contains(words), "{failed:?}");
        let failed = "callboard_requests_total{route=\"/r\",outcome=\"failed\"}";
        assert_eq!(server.metric(failed).await, Some(1.0));
    }
}

#[tokio::test]
async fn the_last_stage_that_chooses_wins() {
    let first = choosing(fields().with_status(202).with_header("x-a", "1").with_header("x-b", "1"), 1);
    let last = named("last", fields().with_status(201).with_header("X-B", "2"), 2);
    let pipeline = Pipeline::from(first).then(last).then(Stage::each("same", |n: &Value| Ok(n.clone())));
    let (_server, mut client) = server(App::new().route("/r", pipeline)).await;
    let last = client.post("/r", &[JSON], "null").await;
    assert_eq!((last.status, last.header("x-a"), last.header("x-b")), (201, Some("1"), Some("2")));
}

#[tokio::test]
async fn an_answer_with_a_choice_of_its_own_is_not_kept() {
    let chosen = choosing(fields().with_status(201), 1).pure().cache(CacheSettings::new(1 << 20));
    let (_server, mut client) = server(App::new().route("/r", chosen)).await;
    for _ in 0..2 {
        assert_eq!(client.post("/r", &[JSON], "null").await.status, 201);
    }
}

#[tokio::test]
async fn an_answer_is_kept_if_an_earlier_stage_has_chosen() {
    let kept = Stage::each("kept", |value: &Value| Ok(value.clone())).pure().cache(CacheSettings::new(1 << 20));
    let both = Pipeline::from(choosing(fields().with_status(201), 1)).then(kept);
    let (_server, mut client) = server(App::new().route("/r", both)).await;
    for found in ["callboard; fwd=", "callboard; hit"] {
        let answer = client.post("/r", &[JSON], "null").await;
        let status = answer.header("cache-status").unwrap_or_default();
        assert!(answer.status == 201 && status.starts_with(found), "{answer:?}");
    }
}

/// A route that declares this status and media type.
fn declaring(stage: Stage<Value, Value>, status: Option<u16>, media_type: Option<&str>) -> App {
    let chooses_media_type = media_type.is_none();
    let media_type = media_type.map(str::to_owned);
    let declared = DeclaredResponse { status, media_type, chooses_media_type, ..DeclaredResponse::default() };
    App::new().mount(RouteSpec::new("/r", stage).response(declared))
}

#[tokio::test]
async fn an_answer_has_what_its_route_declares_and_is_kept() {
    let kept = Stage::each("kept", |value: &Value| Ok(value.clone())).pure().cache(CacheSettings::new(1 << 20));
    let (_server, mut client) = server(declaring(kept, Some(201), Some("text/csv"))).await;
    for found in ["callboard; fwd=", "callboard; hit"] {
        let answer = client.post("/r", &[JSON, ("accept", "text/csv")], "\"a,b\"").await;
        let status = answer.header("cache-status").unwrap_or_default();
        assert!(status.starts_with(found), "{answer:?}");
        assert_eq!((answer.status, answer.text(), answer.header("content-type")), (201, "a,b", Some("text/csv")));
    }
    let null = client.post("/r", &[JSON], "null").await;
    let seen = (null.status, null.text(), null.header("content-type"));
    assert_eq!(seen, (201, "null", Some("application/json")), "a declared media type is for a text or bytes");
    let refused = client.post("/r", &[JSON, ("accept", "text/csv")], "null").await;
    let message = "the outcome cannot be sent as `accept` of the request asks";
    assert!(refused.status == 406 && refused.text().contains(message), "{refused:?}");
}

#[tokio::test]
async fn what_code_chooses_goes_before_what_its_route_declares() {
    let chosen = choosing(fields().with_status(404).with_header("Content-Type", "text/html"), "<p>");
    let (_server, mut client) = server(declaring(chosen, Some(201), Some("text/csv"))).await;
    let answer = client.post("/r", &[JSON], "null").await;
    assert_eq!((answer.status, answer.text(), answer.header("content-type")), (404, "<p>", Some("text/html")));
}

#[tokio::test]
async fn a_stream_has_the_status_that_its_route_declares() {
    let count = StreamStage::each("count", |count: &u64| stream::iter(0..*count).map(Ok::<_, Failure>));
    let declared = DeclaredResponse { status: Some(203), ..DeclaredResponse::default() };
    let (_server, mut client) = server(App::new().mount(RouteSpec::streaming("/r", count).response(declared))).await;
    for count in ["0", "3"] {
        assert_eq!(client.post("/r", &[JSON], count).await.status, 203);
    }
}

#[tokio::test]
async fn a_route_whose_code_chooses_its_media_type_takes_any_accept() {
    let page = choosing(fields().with_header("content-type", "text/html"), "<p>");
    let (_page, mut client) = server(declaring(page, None, None)).await;
    let html = client.post("/r", &[JSON, ("accept", "text/html")], "null").await;
    assert_eq!((html.status, html.text(), html.header("content-type")), (200, "<p>", Some("text/html")));
    let (_none, mut client) = server(declaring(choosing(fields(), "text"), None, None)).await;
    for (accept, status) in [("text/html", 406), ("text/plain", 200)] {
        let answer = client.post("/r", &[JSON, ("accept", accept)], "null").await;
        assert_eq!(answer.status, status, "{accept}: its code has chosen none");
    }
}

#[tokio::test]
async fn a_stream_has_the_status_and_headers_that_were_chosen_before_its_first_output() {
    let early = StreamStage::each_with_context("early", |count: &u64, context: &CallContext| {
        context.set_response(fields().with_status(203).with_header("x-model", "m1"));
        stream::iter(0..*count).map(Ok::<_, Failure>)
    });
    let (_server, mut client) = server(App::new().route_streaming("/r", early)).await;
    for count in [0, 3] {
        let streamed = client.post("/r", &[JSON], count.to_string()).await;
        assert_eq!((streamed.status, streamed.header("x-model")), (203, Some("m1")), "{streamed:?}");
        assert!(streamed.text().ends_with(&format!("{{\"items\":{count}}}\n\n")));
    }
}

/// `/tokens` yields each letter of a text, and fails at `!`.
fn tokens() -> App {
    let letters = StreamStage::each("letters", |text: &String| {
        let letter = |letter: char| match letter {
            '!' => Err(Failure::new("enough")),
            letter => Ok(letter.to_string()),
        };
        stream::iter(text.chars().map(letter).collect::<Vec<_>>())
    });
    App::new().route_streaming("/tokens", letters)
}

#[tokio::test]
async fn texts_of_a_stream_are_written_as_they_are() {
    let (_server, mut client) = server(tokens()).await;
    let accept = ("accept", "text/plain");
    let whole = client.post("/tokens", &[JSON, accept], "\"a \\nb\\u00e9\"").await;
    assert_eq!((whole.status, whole.header("content-type")), (200, Some("text/plain; charset=utf-8")));
    assert_eq!(whole.text(), "a \nbé");
    let lines = client.post("/tokens", &[JSON, ("accept", "application/x-ndjson")], "\"ab\"").await;
    assert_eq!(lines.text(), "\"a\"\n\"b\"\n");
    let events = client.post("/tokens", &[JSON, ("accept", "text/*")], "\"a\"").await;
    assert_eq!(events.header("content-type"), Some("text/event-stream"));
    let refused = client.post("/tokens", &[JSON, accept], "\"!\"").await;
    assert_eq!((refused.status, refused.problem()["message"].clone()), (500, json!("enough")));
}

#[tokio::test]
async fn a_stream_of_text_that_fails_is_cut() {
    let (server, mut client) = server(tokens()).await;
    let head = "POST /tokens HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\naccept: text/plain\r\n";
    client.send(format!("{head}content-length: 5\r\n\r\n\"ab!\"")).await;
    let received = client.closed().await;
    let received = String::from_utf8_lossy(&received);
    assert!(received.starts_with("HTTP/1.1 200") && received.contains('b'), "{received}");
    assert!(!received.ends_with("0\r\n\r\n"), "without the last chunk its client knows that it is cut: {received}");
    server.metric_becomes("callboard_in_flight", 0.0).await;
    assert_eq!(server.metric("callboard_http_abandoned_requests_total").await, Some(0.0));
}

#[tokio::test]
async fn only_a_stream_that_may_have_texts_is_offered_as_text() {
    let numbers = StreamStage::each("numbers", |n: &u64| stream::iter([Ok::<_, Failure>(*n)]));
    let (_server, mut client) = server(App::new().route_streaming("/n", numbers)).await;
    assert_eq!(client.post("/n", &[JSON, ("accept", "text/plain")], "1").await.status, 406);
}
