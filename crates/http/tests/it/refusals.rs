//! Every status that is not 200, each reached by a real request.

use std::time::Duration;

use callboard_codec::{Format, Map, Value};
use callboard_core::{App, Limits, Stage};
use callboard_http::{HttpConfig, HttpServeError, serve};

use crate::support::app::{Hold, app};
use crate::support::{Raw, Server, bind};

const JSON: (&str, &str) = ("content-type", "application/json");

async fn server() -> Server {
    Server::for_app(app(), HttpConfig::default()).await
}

#[tokio::test]
async fn status_400_names_the_invalid_header() {
    let server = server().await;
    let mut client = server.connect().await;
    for timeout in ["0", "-5", "soon", ""] {
        let answer = client.post("/mirror", &[JSON, ("x-request-timeout-ms", timeout)], "1").await;
        let problem = answer.problem();
        assert_eq!((answer.status, problem["error_type"].as_str()), (400, Some("bad_header")), "{timeout}");
        let expected = "header `x-request-timeout-ms` must be a whole number of milliseconds, 1 or more";
        assert_eq!(problem["message"], expected);
    }
}

#[tokio::test]
async fn status_400_says_where_json_is_malformed() {
    let server = server().await;
    let deep = "[".repeat(10_000);
    let cases =
        [("/mirror", "{\"a\": [1, NaN]}"), ("/mirror", deep.as_str()), ("/greet", "{\"name\": "), ("/greet", "")];
    for (route, body) in cases {
        let answer = server.post_json(route, body).await;
        let problem = answer.problem();
        assert_eq!((answer.status, problem["kind"].as_str()), (400, Some("invalid_input")), "{route} {problem}");
        assert_eq!(problem["retryable"], false);
    }
}

#[tokio::test]
async fn status_400_for_malformed_forms() {
    let server = server().await;
    let mut client = server.connect().await;
    let form = [("content-type", "multipart/form-data; boundary=xyz")];
    let nameless = "--xyz\r\nContent-Disposition: form-data\r\n\r\nx\r\n--xyz--\r\n";
    let truncated = "--xyz\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nx";
    let encoded = "--xyz\r\nContent-Disposition: form-data; name=\"a\"\r\nContent-Transfer-Encoding: BASE64\r\n\r\nYQ==\r\n--xyz--\r\n";
    for body in [nameless, truncated, encoded, "no form at all"] {
        let answer = client.post("/size", &form, body).await;
        assert_eq!((answer.status, answer.problem()["error_type"].as_str()), (400, Some("bad_multipart")), "{body}");
    }
    let many = "--xyz\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n".repeat(1025) + "--xyz--\r\n";
    let answer = client.post("/size", &form, many).await;
    assert_eq!(answer.problem()["message"], "the form has more than 1024 parts");
}

#[tokio::test]
async fn status_404_for_unknown_routes_and_pages() {
    let server = server().await;
    for (answer, path) in [
        (server.post_json("/nowhere", "1").await, "/nowhere"),
        (server.post_json("/v1/call/nowhere", "{}").await, "/nowhere"),
        (server.get("/docs/none.js").await, "/docs/none.js"),
    ] {
        let problem = answer.problem();
        assert_eq!((answer.status, problem["kind"].as_str()), (404, Some("not_found")));
        assert!(problem["message"].as_str().unwrap().contains(&format!("`{path}`")), "{problem}");
    }
}

#[tokio::test]
async fn status_405_names_the_allowed_methods() {
    let server = server().await;
    let mut client = server.connect().await;
    for method in ["GET", "DELETE", "BREW"] {
        client.send(format!("{method} /greet HTTP/1.1\r\nhost: test\r\n\r\n")).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")), "{method}");
        assert_eq!(answer.problem()["error_type"], "method_not_allowed");
    }
    let page = client.post("/metrics", &[], "").await;
    assert_eq!((page.status, page.header("allow")), (405, Some("GET, HEAD")));
    assert_eq!(page.problem()["status"], 405);
}

#[tokio::test]
async fn status_406_when_nothing_fits() {
    let server = server().await;
    let answer = server.connect().await.post("/mirror", &[JSON, ("accept", "text/html")], "1").await;
    assert_eq!(answer.status, 406);
    let message = answer.problem()["message"].to_string();
    assert!(message.contains("application/json, application/msgpack"), "{message}");
}

#[tokio::test]
async fn status_415_lists_the_accepted_types() {
    let server = server().await;
    let mut client = server.connect().await;
    let form = [("content-type", "application/x-www-form-urlencoded")];
    // The default of curl's `-d`.
    for body in [r#"{"name": "Ada=Bob"}"#, "Ada"] {
        let answer = client.post("/greet", &form, body).await;
        let message = answer.problem()["message"].to_string();
        assert_eq!(answer.status, 415);
        assert!(
            message.ends_with("the body is not one; for JSON add -H 'content-type: application/json'\""),
            "{message}"
        );
    }
    let charset = [("content-type", "application/x-www-form-urlencoded; charset=latin1")];
    let latin = client.post("/greet", &charset, "name=Ada").await;
    assert_eq!(
        (latin.status, latin.problem()["message"].as_str()),
        (415, Some("charset `latin1` is not supported; send UTF-8"))
    );
    let untyped = client.post("/greet", &[], "{}").await;
    let csv = client.post("/greet", &[("content-type", "text/csv")], "name").await;
    for (answer, reason) in [
        (untyped, "the request has no content-type; for JSON add -H 'content-type: application/json'; "),
        (csv, "content-type `text/csv` is not supported here; accepted: "),
    ] {
        assert_eq!(answer.status, 415);
        let message = answer.problem()["message"].to_string();
        assert!(message.contains(reason), "{message}");
        let accepted = "accepted: application/json, application/msgpack, application/vnd.callboard.envelope, multipart/form-data, \
             application/x-www-form-urlencoded";
        assert!(message.contains(accepted), "{message}");
    }
    let compressed = client.post("/greet", &[JSON, ("content-encoding", "br")], "{}").await;
    assert_eq!((compressed.status, compressed.header("accept-encoding")), (415, Some("gzip, deflate, zstd")));
}

#[tokio::test]
async fn status_422_names_the_wrong_field() {
    let server = server().await;
    let cases =
        [(r#"{"times": 1}"#, "name"), (r#"{"name": 7}"#, "$.name"), (r#"{"name": "Ada", "times": 300}"#, "$.times")];
    for (body, field) in cases {
        let answer = server.post_json("/greet", body).await;
        let problem = answer.problem();
        assert_eq!((answer.status, problem["error_type"].as_str()), (422, Some("schema_mismatch")), "{problem}");
        assert!(problem["message"].as_str().unwrap().contains(field), "{problem}");
        let fields = problem["details"]["fields"].as_array().unwrap();
        assert!(fields.len() == 1 && fields[0]["path"].as_str().unwrap().starts_with('$'), "{problem}");
    }
}

#[tokio::test]
async fn status_422_lists_every_wrong_field_in_every_format() {
    let server = server().await;
    let wrong = Value::from(Map::from_iter([("name", Value::from(7)), ("times", Value::from(300))]));
    let form = "--xyz\r\nContent-Disposition: form-data; name=\"name\"\r\nContent-Type: application/json\r\n\r\n7\r\n\
                --xyz\r\nContent-Disposition: form-data; name=\"times\"\r\n\r\nmany\r\n--xyz--\r\n";
    let bodies = [
        ("application/json", wrong.encode(Format::Json).unwrap()),
        ("application/msgpack", wrong.encode(Format::Msgpack).unwrap()),
        ("application/vnd.callboard.envelope", wrong.encode(Format::Envelope).unwrap()),
        ("multipart/form-data; boundary=xyz", form.into()),
    ];
    for (content_type, body) in bodies {
        let answer = server.connect().await.post("/greet", &[("content-type", content_type)], body).await;
        let problem = answer.problem();
        assert_eq!((answer.status, problem["error_type"].as_str()), (422, Some("schema_mismatch")), "{problem}");
        let fields = problem["details"]["fields"].as_array().unwrap();
        let paths: Vec<_> = fields.iter().map(|field| field["path"].as_str().unwrap()).collect();
        assert_eq!(paths, ["$.name", "$.times"], "{content_type}");
        assert!(problem["message"].as_str().unwrap().ends_with("; 1 more in `details.fields`"), "{problem}");
    }
}

#[tokio::test]
async fn a_failure_of_user_code_is_500_or_its_own_status() {
    let server = server().await;
    let plain = server.post_json("/fail", r#""plainly""#).await.problem();
    assert_eq!((&plain["status"], &plain["kind"]), (&500.into(), &"failed".into()));
    assert_eq!(plain["error_type"], "core::num::error::ParseIntError");
    assert_eq!(plain["stage"], "fail");

    let chosen = server.post_json("/fail", r#""teapot""#).await.problem();
    assert_eq!((&chosen["status"], &chosen["kind"]), (&418.into(), &"failed".into()));
    assert_eq!((&chosen["error_type"], &chosen["details"]), (&"Teapot".into(), &7.into()));

    let item = server.post_json("/fail", r#""bad_item""#).await.problem();
    assert_eq!((&item["status"], &item["kind"]), (&400.into(), &"invalid_input".into()));
}

#[tokio::test]
async fn status_500_with_the_panic_message_of_a_worker() {
    let server = server().await;
    let answer = server.post_json("/fail", r#""by_panic""#).await;
    let problem = answer.problem();
    assert_eq!((answer.status, problem["kind"].as_str()), (500, Some("worker_failed")));
    assert!(problem["remote_trace"].as_str().unwrap().contains("the worker panics"), "{problem}");
}

#[tokio::test]
async fn status_500_when_the_edge_panics_and_the_connection_stays_open() {
    let server = server().await;
    let mut client = server.connect().await;
    let answer = client.post("/explode", &[JSON], "1").await;
    assert_eq!((answer.status, answer.problem()["kind"].as_str()), (500, Some("internal")));
    assert_eq!(client.post("/mirror", &[JSON], "1").await.status, 200);
    assert_eq!(server.metric("callboard_http_panics_total").await, Some(1.0));
}

#[tokio::test]
async fn a_panic_on_a_large_body_is_counted_like_any_other() {
    let server = server().await;
    let answer = server.post_json("/explode", &format!("[{}1]", " ".repeat(300_000))).await;
    assert_eq!((answer.status, answer.problem()["kind"].as_str()), (500, Some("internal")));
    assert_eq!(server.metric("callboard_http_panics_total").await, Some(1.0));
}

#[tokio::test]
async fn status_400_names_the_malformed_part_of_a_form() {
    let server = server().await;
    let part = "--xyz\r\nContent-Disposition: form-data; name=\"deep\"\r\nContent-Type: application/json\r\n\r\n";
    for length in [1_000, 300_000] {
        let form = format!("{part}{}\r\n--xyz--\r\n", "[".repeat(length));
        let mut client = server.connect().await;
        let answer = client.post("/size", &[("content-type", "multipart/form-data; boundary=xyz")], form).await;
        let message = answer.problem()["message"].as_str().unwrap().to_owned();
        assert!(answer.status == 400 && message.starts_with("part `deep`: "), "{message}");
    }
}

#[tokio::test]
async fn status_400_for_repeated_single_valued_headers() {
    let server = server().await;
    let mut client = server.connect().await;
    for name in ["x-request-timeout-ms", "x-request-priority", "x-callboard-session"] {
        let value = if name.ends_with("ms") { "5000" } else { "high" };
        let answer = client.post("/mirror", &[JSON, (name, value), (name, value)], "1").await;
        assert_eq!((answer.status, answer.problem()["error_type"].as_str()), (400, Some("bad_header")), "{name}");
    }
    let accepted = client.post("/mirror", &[JSON, ("accept", "text/html"), ("accept", "application/json")], "1").await;
    assert_eq!(accepted.status, 200, "several lines are one list");
}

#[tokio::test]
async fn status_400_without_a_host() {
    let server = server().await;
    for hosts in ["", "host: a\r\nhost: b\r\n"] {
        let mut client = server.connect().await;
        client.send(format!("GET /livez HTTP/1.1\r\n{hosts}\r\n")).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.problem()["error_type"].as_str()), (400, Some("bad_header")));
    }
}

#[tokio::test]
async fn a_refusal_before_the_body_announces_the_end_of_the_connection() {
    let server = server().await;
    for (path, status) in [("/mirror", 413), ("/nowhere", 404)] {
        let mut client = server.connect().await;
        client
            .send(format!(
                "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n\
                 content-length: 1073741824\r\n\r\n"
            ))
            .await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.header("connection")), (status, Some("close")));
    }
}

#[tokio::test]
async fn status_429_has_retry_after_and_is_sent_before_the_body_is_read() {
    let (app, hold) = Hold::with_queue(8).split();
    let limits = Limits { max_in_flight: 1, ..Limits::default() };
    let server = Server::for_app(app.limits(limits), HttpConfig::default()).await;
    let mut first = server.connect().await;
    let holding = tokio::spawn(async move { first.post("/hold", &[JSON], r#""first""#).await });
    hold.wait_until_held().await;

    let mut second = server.connect().await;
    second
        .send("POST /hold HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n")
        .await;
    let refused = second.answer().await;
    let problem = refused.problem();
    assert_eq!((refused.status, problem["kind"].as_str()), (429, Some("overloaded")));
    assert_eq!(problem["retryable"], true);
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);

    hold.release();
    assert_eq!(holding.await.unwrap().status, 200);
}

#[tokio::test]
async fn status_429_when_other_calls_hold_the_bytes_of_the_node_and_413_for_a_call_that_needs_more_than_all() {
    let limits = Limits { max_in_flight_bytes: 1000, ..Limits::default() };
    let server = Server::for_app(app().limits(limits), HttpConfig::default()).await;
    let mut announced = server.connect().await;
    announced
        .send("POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 1001\r\n\r\n")
        .await;
    assert_eq!(announced.answer().await.status, 413, "it can never fit");

    let mut chunked = server.connect().await;
    chunked
        .send(
            "POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n\
             transfer-encoding: chunked\r\n\r\n",
        )
        .await;
    chunked.send(format!("3e8\r\n{}\r\n", " ".repeat(1000))).await;
    chunked.send("1\r\n1\r\n").await;
    let refused = chunked.answer().await;
    let problem = refused.problem();
    assert_eq!((refused.status, &problem["retryable"]), (413, &false.into()), "it can never fit either");
    assert_eq!(problem["detail"], "the call needs 1001 bytes, more than max_in_flight_bytes = 1000");
    assert_eq!(refused.header("retry-after"), None);

    let others = server.node().client().edge().held_bytes();
    others.grow(500).unwrap();
    let refused = server.post_json("/mirror", &" ".repeat(600)).await;
    assert_eq!((refused.status, &refused.problem()["retryable"]), (429, &true.into()), "it fits later");
    drop(others);
    assert_eq!(server.post_json("/mirror", "1").await.status, 200, "all permits are returned");
}

/// The call has run, and a client that sent it again would run it twice.
#[tokio::test]
async fn an_outcome_without_memory_is_not_retryable() {
    let long = Stage::each("long", |bytes: &usize| Ok("x".repeat(*bytes)));
    let limits = Limits { max_in_flight_bytes: 4 << 20, ..Limits::default() };
    let server = Server::for_app(app().route("/long", long).limits(limits), HttpConfig::default()).await;
    let others = server.node().client().edge().held_bytes();
    others.grow(4_000_000).unwrap();
    let refused = server.post_json("/long", "1000000").await;
    let problem = refused.problem();
    assert_eq!((refused.status, problem["kind"].as_str()), (429, Some("overloaded")), "{problem}");
    assert_eq!((&problem["retryable"], &problem["error_type"]), (&false.into(), &"no_memory_for_outcome".into()));
    assert_eq!(refused.header("retry-after"), None, "clients send it again after that time");
    drop(others);
    server.metric_becomes("callboard_in_flight_bytes", 0.0).await;
    assert_eq!(server.post_json("/long", "1000000").await.status, 200);

    let refused = server.post_json("/long", "5000000").await;
    let problem = refused.problem();
    assert_eq!((refused.status, &problem["retryable"]), (500, &false.into()), "it never has memory: {problem}");
    assert!(
        problem["detail"].as_str().unwrap().contains("more memory than max_in_flight_bytes = 4194304"),
        "{problem}"
    );
}

/// Bodies that stop after their first byte leave half of the permits to complete calls.
#[tokio::test]
async fn status_429_when_half_of_the_calls_wait_for_their_bodies() {
    let limits = Limits { max_in_flight: 4, ..Limits::default() };
    let server = Server::for_app(app().limits(limits), HttpConfig::default()).await;
    let head = "POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n1";
    let mut waiting = [server.connect().await, server.connect().await];
    for (count, client) in (1..).zip(&mut waiting) {
        client.send(head).await;
        server.metric_becomes("callboard_in_flight", f64::from(count)).await;
    }
    let mut third = server.connect().await;
    third.send(head).await;
    let refused = third.answer().await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{refused:?}");
    assert!(
        refused.problem()["detail"].as_str().unwrap().contains("2 calls in flight are still waiting"),
        "{refused:?}"
    );
    assert_eq!(server.post_json("/mirror", "1").await.status, 200);

    for client in &mut waiting {
        client.send("2").await;
        assert_eq!(client.answer().await.status, 200);
    }
    server.metric_becomes("callboard_in_flight", 0.0).await;
}

#[tokio::test]
async fn status_503_while_the_node_drains() {
    let server = server().await;
    server.drain().await;
    let answer = server.post_json("/mirror", "1").await;
    let problem = answer.problem();
    assert_eq!((answer.status, problem["kind"].as_str()), (503, Some("unavailable")));
    assert_eq!(problem["retryable"], true);
}

#[tokio::test]
async fn status_504_when_a_call_exceeds_the_timeout_of_its_client() {
    let (app, hold) = Hold::with_queue(8).split();
    let server = Server::for_app(app, HttpConfig::default()).await;
    let mut client = server.connect().await;
    for timeout in [("x-request-timeout-ms", "50"), ("grpc-timeout", "50m")] {
        let answer = client.post("/hold", &[JSON, timeout], r#""late""#).await;
        assert_eq!((answer.status, answer.problem()["kind"].as_str()), (504, Some("deadline_exceeded")), "{timeout:?}");
        let (_, total) = answer.header("server-timing").and_then(|timing| timing.split_once("total;dur=")).unwrap();
        assert!(total.parse::<f64>().unwrap() >= 50.0, "{total}");
    }
    hold.release();
}

#[tokio::test]
async fn status_504_by_the_default_timeout_of_the_node() {
    let (app, hold) = Hold::with_queue(8).split();
    let limits = Limits { default_timeout: Duration::from_millis(50), ..Limits::default() };
    let server = Server::for_app(app.limits(limits), HttpConfig::default()).await;
    assert_eq!(server.post_json("/hold", r#""late""#).await.status, 504);
    hold.release();
}

#[tokio::test]
async fn routes_may_not_take_the_paths_of_the_edge() {
    let node = App::new().route("/docs/mine", Stage::each("x", |x: &i64| Ok(*x))).start().await.unwrap();
    let refused = serve(bind().await, node.client(), HttpConfig::default(), std::future::pending()).await;
    assert!(matches!(refused, Err(HttpServeError::ReservedRoute(refused)) if refused.route == "/docs/mine"));
}

#[tokio::test]
async fn a_refusal_keeps_the_connection_usable() {
    let server = server().await;
    let mut client: Raw = server.connect().await;
    for (path, body, status) in
        [("/greet", "{}", 422), ("/nowhere", "{}", 404), ("/mirror", "[", 400), ("/mirror", "1", 200)]
    {
        assert_eq!(client.post(path, &[JSON], body).await.status, status);
    }
}
