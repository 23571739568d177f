//! Calls that succeed: every form a body and an answer can have.

use callboard_codec::{DecodeLimits, Format, Value};
use callboard_core::{App, CacheSettings, CallContext, Rollout, RouteSpec, SessionKey, Stage};
use callboard_http::HttpConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::support::app::app;
use crate::support::{Server, config};

const JSON: (&str, &str) = ("content-type", "application/json");

async fn server() -> Server {
    Server::for_app(app(), HttpConfig::default()).await
}

#[tokio::test]
async fn json_in_json_out() {
    let answer = server().await.post_json("/greet", r#"{"name": "Ada", "times": 2}"#).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.json(), json!({ "text": "hello Ada and Ada" }));
}

/// As `curl -X POST` asks, or without an announced length as `curl -X POST -H 'transfer-encoding: chunked'`.
#[tokio::test]
async fn a_route_that_needs_no_input_needs_no_body() {
    #[derive(Clone, Serialize, Deserialize, JsonSchema)]
    struct Page {
        size: Option<u8>,
    }
    let page = Stage::each("page", |page: &Page| Ok(page.size.unwrap_or(10)));
    let item = Stage::each("item", |_: &Value| Ok(3));
    let declared = RouteSpec::new("/items/{id}", item).methods(["POST", "PUT"]);
    let server = Server::for_app(app().route("/page", page).mount(declared), HttpConfig::default()).await;
    const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
    const CHUNKED: (&str, &str) = ("transfer-encoding", "chunked");
    for (path, headers, body, status, text) in [
        ("/page", &[][..], "", 200, "10"),
        ("/page", &[CHUNKED], "0\r\n\r\n", 200, "10"),
        ("/page", &[("content-encoding", "gzip")], "", 200, "10"),
        ("/page", &[CHUNKED, ("content-encoding", "deflate")], "0\r\n\r\n", 200, "10"),
        ("/page", &[FORM], "", 200, "10"),
        ("/page", &[FORM, CHUNKED], "0\r\n\r\n", 200, "10"),
        ("/page", &[JSON], r#"{"size": 7}"#, 200, "7"),
        ("/page", &[JSON], "", 400, "the body is empty"),
        ("/page", &[JSON, CHUNKED], "0\r\n\r\n", 400, "the body is empty"),
        ("/page", &[], r#"{"size": 7}"#, 415, "content-type"),
        ("/page", &[CHUNKED], "2\r\n{}\r\n0\r\n\r\n", 415, "content-type"),
        ("/v1/call/page", &[], "", 200, "10"),
        ("/v1/call/page", &[CHUNKED], "0\r\n\r\n", 200, "10"),
        ("/v1/call/page", &[FORM], "", 200, "10"),
        ("/v1/call/page", &[JSON], r#"{"kwargs": {"size": 7}}"#, 200, "7"),
        ("/v1/call/page", &[], "{}", 415, "content-type"),
        ("/items/7", &[], "", 200, "3"),
        ("/items/7", &[CHUNKED], "0\r\n\r\n", 200, "3"),
        ("/items/7", &[FORM], "", 200, "3"),
        // These have a field that is required.
        ("/greet", &[], "", 415, "content-type"),
        ("/greet", &[CHUNKED], "0\r\n\r\n", 415, "content-type"),
        ("/v1/call/greet", &[], "", 415, "content-type"),
    ] {
        let mut client = server.connect().await;
        let answer = if headers.contains(&CHUNKED) {
            let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            client.send(format!("POST {path} HTTP/1.1\r\nhost: test\r\n{lines}\r\n{body}")).await;
            client.answer().await
        } else {
            client.post(path, headers, body).await
        };
        assert_eq!(answer.status, status, "{path} {headers:?} {body} {}", answer.text());
        assert!(answer.text().contains(text), "{path} {headers:?} {}", answer.text());
    }
}

#[tokio::test]
async fn msgpack_in_msgpack_out() {
    let body = Value::from_serialize(&json!({ "name": "Ada" })).unwrap().encode(Format::Msgpack).unwrap();
    let headers = [("content-type", "application/msgpack"), ("accept", "application/msgpack")];
    let answer = server().await.connect().await.post("/greet", &headers, &body).await;
    assert_eq!(answer.header("content-type"), Some("application/msgpack"));
    let reply = Value::decode(Format::Msgpack, &answer.body.into(), &DecodeLimits::default()).unwrap();
    assert_eq!(reply.get("text"), Some(&Value::from("hello Ada")));
}

#[tokio::test]
async fn each_part_of_a_form_is_read_by_its_declared_type() {
    let body = "--xyz\r\n\
        Content-Disposition: form-data; name=\"image\"; filename=\"seven.png\"\r\n\
        Content-Type: image/png\r\n\r\n\
        \x01\x02\x03\r\n--xyz\r\n\
        Content-Disposition: form-data; name=\"title\"\r\n\r\n\
        a seven\r\n--xyz\r\n\
        Content-Disposition: form-data; name=\"options\"\r\n\
        Content-Type: application/json\r\n\r\n\
        {\"top_k\": 3}\r\n--xyz\r\n\
        Content-Disposition: form-data; name=\"tag\"\r\n\r\n\
        one\r\n--xyz\r\n\
        Content-Disposition: form-data; name=\"tag\"\r\n\r\n\
        two\r\n--xyz--\r\n";
    let headers = [("content-type", "multipart/form-data; boundary=xyz")];
    let answer = server().await.connect().await.post("/size", &headers, body).await;
    let expected = json!({
        "image": "3 bytes", "title": "a seven", "options": { "top_k": 3 }, "tag": ["one", "two"],
    });
    assert_eq!(answer.json(), expected);
}

#[tokio::test]
async fn a_raw_body_becomes_the_raw_field_of_its_route() {
    let server = server().await;
    let mut client = server.connect().await;
    for content_type in ["image/png", "IMAGE/jpeg", "application/octet-stream"] {
        let answer = client.post("/size", &[("content-type", content_type)], [0; 10]).await;
        assert_eq!(answer.json(), json!({ "image": "10 bytes" }), "{content_type}");
    }
    let untyped = client.post("/size", &[], [0; 10]).await;
    assert_eq!(untyped.json(), json!({ "image": "10 bytes" }), "without a type it is octet-stream");
}

#[tokio::test]
async fn chunked_bodies_are_read_to_their_end() {
    let server = server().await;
    let mut client = server.connect().await;
    client
        .send(
            "POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n\
             transfer-encoding: chunked\r\n\r\n",
        )
        .await;
    for chunk in ["[1", ",2,", "3]"] {
        client.send(format!("{:x}\r\n{chunk}\r\n", chunk.len())).await;
    }
    client.send("0\r\n\r\n").await;
    assert_eq!(client.answer().await.text(), "[1,2,3]");
}

#[tokio::test]
async fn large_bodies_are_answered_whole() {
    let server = server().await;
    let numbers = serde_json::to_string(&(0..300_000).collect::<Vec<u32>>()).unwrap();
    assert!(numbers.len() > 1024 * 1024);
    assert_eq!(server.post_json("/mirror", &numbers).await.text(), numbers);
}

#[tokio::test]
async fn expect_100_continue_is_answered_before_the_body() {
    let server = server().await;
    let mut client = server.connect().await;
    client
        .send(
            "POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\
             expect: 100-continue\r\n\r\n",
        )
        .await;
    assert_eq!(client.answer().await.status, 100);
    client.send("{}").await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = server().await;
    let mut client = server.connect().await;
    let request = |body: &str| {
        let length = body.len();
        format!(
            "POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
    };
    client.send(["1", "22", "333"].map(request).concat()).await;
    for expected in ["1", "22", "333"] {
        assert_eq!(client.answer().await.text(), expected);
    }
}

#[tokio::test]
async fn every_answer_has_the_request_id_of_its_client_or_a_new_one() {
    let server = server().await;
    let mut client = server.connect().await;
    let given = client.post("/mirror", &[JSON, ("x-request-id", "my-id/1")], "1").await;
    assert_eq!(given.header("x-request-id"), Some("my-id/1"));

    let generated = client.post("/mirror", &[JSON], "1").await;
    let refused = client.get("/nowhere").await;
    assert_eq!(refused.problem()["request_id"], refused.header("x-request-id").unwrap());
    assert_ne!(generated.header("x-request-id"), refused.header("x-request-id"));

    let invalid = client.post("/mirror", &[JSON, ("x-request-id", "two words")], "1").await;
    assert_ne!(invalid.header("x-request-id"), Some("two words"));
}

#[tokio::test]
async fn replies_state_their_time_by_phase() {
    let answer = server().await.post_json("/mirror", "1").await;
    let timing = answer.header("server-timing").unwrap();
    let durations: Vec<_> = timing
        .split(", ")
        .map(|metric| metric.split_once(";dur=").map(|(name, ms)| (name, ms.parse::<f64>().unwrap())).unwrap())
        .collect();
    assert_eq!(durations.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["queue", "batch", "compute"]);
    assert!(durations.iter().all(|(_, ms)| (0.0..10_000.0).contains(ms)), "{timing}");
}

#[tokio::test]
async fn the_answer_of_a_stage_with_a_cache_tells_whether_it_was_kept() {
    let square = Stage::each("square", |x: &u32| Ok(x * x)).pure().cache(CacheSettings::new(1 << 20));
    let server = Server::for_app(App::new().route("/square", square), HttpConfig::default()).await;
    for (input, expected) in [("3", "callboard; fwd=miss"), ("3", "callboard; hit"), ("4", "callboard; fwd=miss")] {
        assert_eq!(server.post_json("/square", input).await.header("cache-status"), Some(expected));
    }
}

#[tokio::test]
async fn a_body_as_long_as_the_limit_is_accepted() {
    let server = Server::for_app(app(), config(|c| c.max_body_bytes = 10)).await;
    assert_eq!(server.post_json("/mirror", r#""12345678""#).await.status, 200);
    assert_eq!(server.post_json("/mirror", r#""123456789""#).await.status, 413);
}

#[tokio::test]
async fn only_the_body_limit_bounds_the_length_of_a_body() {
    let change = |c: &mut HttpConfig| {
        c.max_body_bytes = 100;
        c.decode.max_bytes = 10;
    };
    let server = Server::for_app(app(), config(change)).await;
    assert_eq!(server.post_json("/mirror", r#""longer than ten bytes""#).await.status, 200);
}

#[tokio::test]
async fn a_session_stays_on_one_revision_of_a_rollout() {
    let numbered = |number: u64| RouteSpec::new("/number", Stage::each("number", move |_: &u64| Ok(number)));
    let server = Server::for_app(App::new().mount(numbered(1)), HttpConfig::default()).await;
    let rollout = Rollout::canary(0.5).min_calls(u64::MAX);
    server.node().roll_out(numbered(2), rollout).await.unwrap();
    let mut client = server.connect().await;
    let mut seen = [false; 3];
    for session in 0..20 {
        let session = format!("session {session}");
        let headers = [JSON, ("x-callboard-session", &session)];
        let first = client.post("/number", &headers, "0").await.json();
        for _ in 0..5 {
            assert_eq!(client.post("/number", &headers, "0").await.json(), first);
        }
        seen[first.as_u64().unwrap() as usize] = true;
    }
    assert_eq!(seen, [false, true, true], "both revisions have sessions");
}

#[tokio::test]
async fn calls_of_one_session_have_the_key_of_its_name() {
    let session = Stage::each_with_context("session", |_: &u64, context: &CallContext| {
        Ok(context.session() == Some(SessionKey::new("zo\u{eb} 1")))
    });
    let server = Server::for_app(App::new().route("/session", session), HttpConfig::default()).await;
    let header = ("x-callboard-session", "zo\u{eb} 1");
    for (headers, body, path) in [
        (&[JSON, header][..], "7", "/session"),
        (&[JSON, header], "{\"args\": [7]}", "/v1/call/session"),
        (&[JSON], "7", "/session"),
        (&[JSON, ("x-callboard-session", "another")], "7", "/session"),
    ] {
        let answer = server.connect().await.post(path, headers, body).await;
        assert_eq!((answer.status, answer.json()), (200, json!(headers.contains(&header))), "{path} {headers:?}");
    }
    let refused = server.connect().await.post("/session", &[JSON, ("x-callboard-session", "")], "7").await;
    let message = "header `x-callboard-session` must be a text of 1 to 128 bytes in UTF-8";
    assert!(refused.status == 400 && refused.text().contains(message), "{}", refused.text());
}

#[tokio::test]
async fn a_route_takes_the_paths_and_the_methods_that_it_declares() {
    let tells = |name: &str| {
        let own = name.to_owned();
        Stage::each_with_context(name, move |input: &Value, context: &CallContext| {
            Ok(format!("{own} {} {}", context.path().unwrap_or_default(), input.is_null()))
        })
    };
    let app = App::new()
        .mount(RouteSpec::new("/items/{id}", tells("item")).methods(["get"]))
        .mount(RouteSpec::new("/items/latest", tells("latest")).methods(["GET", "POST"]))
        .mount(RouteSpec::new("/{page}", tells("page")).methods(["PUT"]));
    let server = Server::for_app(app, HttpConfig::default()).await;
    for (method, path, expected) in [
        ("GET", "/items/7", "item /items/7 true"),
        ("GET", "/items/a%2Fb", "item /items/a%2Fb true"),
        ("GET", "/items/latest", "latest /items/latest true"),
        ("POST", "/items/latest", "latest /items/latest true"),
        ("PUT", "/other", "page /other true"),
    ] {
        let answer = server.connect().await.request(method, path, &[], "").await;
        assert_eq!((answer.status, answer.json()), (200, json!(expected)), "{method} {path}");
    }
    let answer = server.connect().await.request("PUT", "/other", &[JSON], "5").await;
    assert_eq!(answer.json(), json!("page /other false"));
    for (method, path, allow) in
        [("POST", "/items/7", "GET, HEAD"), ("DELETE", "/items/latest", "GET, POST, HEAD"), ("GET", "/other", "PUT")]
    {
        let answer = server.connect().await.request(method, path, &[], "").await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some(allow)), "{method} {path}");
    }
    // A function's arguments have the parameters of the name that was called.
    for path in ["/v1/call/items/7", "/v1/call/items%2F7"] {
        let answer = server.connect().await.request("POST", path, &[JSON], "{\"args\": [5]}").await;
        assert_eq!(answer.json(), json!("item /items/7 false"), "{path}");
    }
    // Pages are not hidden, and an empty segment is none.
    assert_eq!(server.get("/livez").await.status, 200);
    assert_ne!(server.get("/favicon.ico").await.status, 405);
    assert_eq!(server.get("/items/").await.status, 404);
}

#[tokio::test]
async fn a_page_of_another_site_starts_no_call_by_a_safe_method_on_loopback() {
    let item = Stage::each("item", |_: &Value| Ok(7));
    let app = App::new().mount(RouteSpec::new("/items/{id}", item).methods(["GET"]));
    let server = Server::for_app(app, HttpConfig::default()).await;
    for (headers, status) in [
        (&[][..], 200),
        (&[("sec-fetch-site", "none")], 200),
        (&[("sec-fetch-site", "same-origin")], 200),
        (&[("origin", "http://test")], 200),
        (&[("sec-fetch-site", "cross-site")], 403),
        (&[("sec-fetch-site", "same-site")], 403),
        (&[("origin", "https://evil.example.org"), ("sec-fetch-site", "cross-site")], 403),
    ] {
        let answer = server.connect().await.request("GET", "/items/7", headers, "").await;
        assert_eq!(answer.status, status, "{headers:?}");
    }
}

#[tokio::test]
async fn a_declared_route_over_a_file_is_not_called_without_one() {
    let size = Stage::each("size", |file: &callboard_codec::Media| Ok(file.bytes().len() as u64));
    let app = App::new().mount(RouteSpec::new("/size/{name}", size).methods(["POST"]));
    let server = Server::for_app(app, HttpConfig::default()).await;
    let mut client = server.connect().await;
    assert_eq!(client.post("/size/a", &[], "").await.status, 415);
    assert_eq!(client.post("/size/a", &[("content-type", "application/octet-stream")], "abc").await.text(), "3");
}
