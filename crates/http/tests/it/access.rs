//! Access control: keys, limits per key, other origins, and body limits per route.

use std::sync::{Arc, Mutex};

use callboard_codec::DataType;
use callboard_core::edge::{RequestArgument, RequestPlace};
use callboard_core::{App, CallContext, RouteSpec, Stage};
use callboard_http::{ApiKeys, Cors, Hosts, HttpConfig, RateLimit};
use tracing::field::{Field, Visit};
use tracing::span;

use crate::support::app::app;
use crate::support::{Answer, Server, config};

const KEY: &str = "a-key-that-nobody-guesses";
const LIMITED_KEY: &str = "another-key-nobody-guesses";

fn with_keys(change: impl FnOnce(&mut HttpConfig)) -> HttpConfig {
    config(|c| {
        c.api_keys = Some(ApiKeys::parse(&format!("web {KEY}\nslow {LIMITED_KEY} 2/h")).unwrap());
        change(c);
    })
}

async fn mirror(server: &Server, headers: &[(&str, &str)]) -> Answer {
    let headers = [&[("content-type", "application/json")], headers].concat();
    server.connect().await.post("/mirror", &headers, "1").await
}

#[tokio::test]
async fn a_call_without_a_valid_key_is_401() {
    let server = Server::for_app(app(), with_keys(|_| {})).await;
    let answer = mirror(&server, &[]).await;
    assert_eq!((answer.status, answer.problem()["kind"].as_str()), (401, Some("unauthenticated")));
    assert_eq!(answer.problem()["error_type"], "no_key");
    assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"callboard\""));

    let answer = mirror(&server, &[("authorization", "Bearer a-key-that-nobody-guesseS")]).await;
    assert_eq!((answer.status, answer.problem()["error_type"].as_str()), (401, Some("invalid_key")));
    assert_eq!(answer.header("www-authenticate"), Some("Bearer realm=\"callboard\", error=\"invalid_token\""));

    let bearer = format!("Bearer {KEY}");
    assert_eq!(mirror(&server, &[("authorization", &bearer)]).await.status, 200);
    assert_eq!(mirror(&server, &[("x-api-key", KEY)]).await.status, 200);
}

#[tokio::test]
async fn health_and_documentation_need_no_key_but_metrics_do() {
    let server = Server::for_app(app(), with_keys(|_| {})).await;
    for open in ["/", "/livez", "/readyz", "/openapi.json", "/docs/"] {
        assert_eq!(server.get(open).await.status, 200, "{open}");
    }
    for closed in ["/metrics", "/metrics/load", "/mirror", "/no-such-route"] {
        assert_eq!(server.get(closed).await.status, 401, "{closed}");
    }
    // The load alone, where a picker reads it.
    let server = Server::for_app(app(), with_keys(|c| c.open_load = true)).await;
    assert_eq!(server.get("/metrics/load").await.status, 200);
    for closed in ["/metrics", "/metrics/", "/mirror"] {
        assert_eq!(server.get(closed).await.status, 401, "{closed}");
    }
}

#[tokio::test]
async fn the_document_says_that_a_key_is_needed() {
    let server = Server::for_app(app(), with_keys(|_| {})).await;
    let greet = &server.get("/").await.json()["routes"][0]["curl"];
    assert!(greet.as_str().unwrap().ends_with(" -H \"x-api-key: $API_KEY\""), "{greet}");
    let document = server.get("/openapi.json").await.json();
    assert_eq!(document["components"]["securitySchemes"]["header"]["name"], "x-api-key");
    assert_eq!(document["security"].as_array().unwrap().len(), 2);
    let responses = &document["paths"]["/mirror"]["post"]["responses"];
    assert_eq!(responses["default"]["$ref"], "#/components/responses/Problem");
    assert!(document["components"]["schemas"]["Problem"]["description"].as_str().unwrap().contains("401"));
    assert_eq!(document["paths"]["/livez"]["get"]["security"], serde_json::json!([]));

    let document = Server::for_app(app(), HttpConfig::default()).await.get("/openapi.json").await.json();
    assert_eq!(document["security"], serde_json::json!([]), "no key is needed");
    assert!(document["components"].get("securitySchemes").is_none());
}

#[tokio::test]
async fn a_key_over_its_limit_is_429_and_others_are_served() {
    let server = Server::for_app(app(), with_keys(|c| c.rate_limit = Some(RateLimit::parse("1000/s").unwrap()))).await;
    for _ in 0..2 {
        assert_eq!(mirror(&server, &[("x-api-key", LIMITED_KEY)]).await.status, 200);
    }
    let refused = mirror(&server, &[("x-api-key", LIMITED_KEY)]).await;
    assert_eq!((refused.status, refused.problem()["error_type"].as_str()), (429, Some("rate_limited")));
    assert_eq!(refused.problem()["message"], "key `slow` is over its limit of 2/h");
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=1800).contains(&seconds), "{seconds}");
    assert_eq!(mirror(&server, &[("x-api-key", KEY)]).await.status, 200);
}

#[tokio::test]
async fn a_rate_limit_without_keys_is_refused() {
    let limited = config(|c| c.rate_limit = Some(RateLimit::parse("1/s").unwrap()));
    assert_eq!(limited.validate().unwrap_err().to_string(), "`rate_limit` has no effect without `api_keys`");
}

#[tokio::test]
async fn a_listed_origin_may_call_and_read_and_another_may_not() {
    let cors = Cors::parse(["https://app.example.org"]).unwrap();
    let server = Server::for_app(app(), with_keys(|c| c.cors = Some(cors))).await;
    let preflight = |origin: &'static str| {
        let server = &server;
        async move {
            let mut client = server.connect().await;
            let head = "OPTIONS /mirror HTTP/1.1\r\nhost: test\r\naccess-control-request-method: POST\r\n";
            client.send(format!("{head}access-control-request-headers: x-api-key\r\norigin: {origin}\r\n\r\n")).await;
            client.answer().await
        }
    };
    // A browser asks without the key before it sends it.
    let allowed = preflight("https://app.example.org").await;
    assert_eq!((allowed.status, allowed.header("access-control-allow-origin")), (204, Some("https://app.example.org")));
    assert_eq!(allowed.header("access-control-allow-methods"), Some("GET, HEAD, POST, PUT, PATCH, DELETE"));
    assert!(allowed.header("access-control-allow-headers").unwrap().contains("x-api-key"));
    let refused = preflight("https://other.example.org").await;
    assert_eq!((refused.status, refused.header("access-control-allow-origin")), (204, None));
    assert_eq!(refused.header("access-control-allow-methods"), None);

    let page = ("origin", "https://app.example.org");
    let read = mirror(&server, &[page, ("x-api-key", KEY)]).await;
    assert_eq!((read.status, read.header("access-control-allow-origin")), (200, Some("https://app.example.org")));
    let readable: Vec<&str> = read.header("access-control-expose-headers").unwrap().split(", ").collect();
    for name in ["server-timing", "x-request-id", "x-should-retry", "retry-after", "retry-after-ms"] {
        assert!(readable.contains(&name), "{name}: {readable:?}");
    }
    assert_eq!(read.header("vary"), Some("origin"));
    let error = mirror(&server, &[page]).await;
    assert_eq!(error.status, 401);
    assert!(error.header("access-control-allow-origin").is_some(), "a page may read the reason");
    let unread = mirror(&server, &[("origin", "https://other.example.org"), ("x-api-key", KEY)]).await;
    assert_eq!((unread.status, unread.header("access-control-allow-origin")), (403, None));
    assert_eq!(unread.header("vary"), Some("origin"));
}

#[tokio::test]
async fn without_cors_a_preflight_is_a_wrong_method() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let mut client = server.connect().await;
    client
        .send(
            "OPTIONS /mirror HTTP/1.1\r\nhost: test\r\naccess-control-request-method: POST\r\n\
             origin: https://a\r\n\r\n",
        )
        .await;
    let answer = client.answer().await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (405, None));
}

#[tokio::test]
async fn a_route_has_its_own_limit_for_bodies() {
    let server = Server::for_app(
        app(),
        config(|c| {
            c.max_body_bytes = 100;
            c.max_body_bytes_by_route = [("/mirror".to_owned(), 10), ("/size".to_owned(), 1000)].into();
        }),
    )
    .await;
    let json = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    assert_eq!(server.post_json("/mirror", &json(10)).await.status, 200);
    let refused = server.post_json("/mirror", &json(11)).await;
    assert_eq!(
        (refused.status, refused.problem()["message"].as_str()),
        (413, Some("the body exceeds the limit of 10 bytes"))
    );
    let large = server.connect().await.post("/size", &[("content-type", "image/png")], vec![0; 1000]).await;
    assert_eq!(large.status, 200, "{large:?}");
    assert_eq!(server.post_json("/greet", &json(101)).await.status, 413);
}

/// Collects the text of every event and span.
#[derive(Clone, Default)]
pub(crate) struct LogText(Arc<Mutex<String>>);

impl LogText {
    /// The characters of the longest text in one event.
    pub(crate) fn longest_text(&self) -> usize {
        let values = |line: &str| line.split_once('=').map_or(0, |(_, text)| text.trim_matches('"').chars().count());
        self.0.lock().unwrap().lines().map(values).max().unwrap_or_default()
    }

    /// The count of this text.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.0.lock().unwrap().matches(text).count()
    }
}

impl tracing::Subscriber for LogText {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
        span.record(&mut self.clone());
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, values: &span::Record<'_>) {
        values.record(&mut self.clone());
    }

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl Visit for LogText {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push_str(&format!("{field}={value:?}\n"));
    }
}

/// Runs on one thread, so that the test collects all log lines.
#[tokio::test]
async fn no_key_gets_into_a_log_at_any_level() {
    let log = LogText::default();
    // With only one dispatcher, `tracing` lets a thread without a dispatcher decide which events are enabled.
    let _second = tracing::Dispatch::new(LogText::default());
    let _subscriber = tracing::subscriber::set_default(log.clone());
    let server = Server::for_app(app(), with_keys(|_| {})).await;
    let wrong = "Bearer a-mistyped-key";
    assert_eq!(mirror(&server, &[("authorization", wrong)]).await.status, 401);
    assert_eq!(mirror(&server, &[("x-api-key", KEY), ("cookie", "session=a-cookie")]).await.status, 200);
    for _ in 0..3 {
        mirror(&server, &[("authorization", &format!("Bearer {LIMITED_KEY}"))]).await;
    }
    let log = log.0.lock().unwrap();
    assert!(log.contains("request_id"), "the log is collected");
    for secret in [KEY, LIMITED_KEY, "a-mistyped-key", "a-cookie"] {
        assert!(!log.contains(secret), "`{secret}` is in the log");
    }
}

/// Requests that a browser sends for any page without a preflight.
#[tokio::test]
async fn a_foreign_page_cannot_call_a_server_on_loopback() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let ask = async |line: &str, headers: &str| {
        let mut client = server.connect().await;
        let body = "--xyz\r\nContent-Disposition: form-data; name=\"name\"\r\n\r\nAda\r\n--xyz--\r\n";
        let form = format!("content-type: multipart/form-data; boundary=xyz\r\ncontent-length: {}", body.len());
        client.send(format!("{line} HTTP/1.1\r\n{headers}\r\n{form}\r\n\r\n{body}")).await;
        client.answer().await
    };
    let own = format!("host: localhost:{0}\r\norigin: http://localhost:{0}", server.address.port());
    for path in ["/greet", "/v1/call/greet"] {
        let line = format!("POST {path}");
        let other = ask(&line, "host: localhost\r\norigin: https://evil.example.org").await;
        assert_eq!((other.status, other.problem()["kind"].as_str()), (403, Some("permission_denied")));
        let hidden = ask(&line, "host: localhost\r\norigin: null").await;
        assert_eq!(hidden.status, 403);
        let rebound = ask(&line, "host: evil.example.org\r\norigin: http://evil.example.org").await;
        assert_eq!(rebound.status, 403);
        assert_eq!(ask(&line, &own).await.status, 200, "own pages");
        assert_eq!(ask(&line, "host: 127.0.0.1").await.status, 200, "programs");
    }
    let model = ask("POST /v2/models/greet/infer", "host: localhost\r\norigin: https://evil.example.org").await;
    assert_eq!((model.status, model.json()["error"].is_string()), (403, true));
    // CORS decides which answers a page may read. Under its own host name it could read every answer.
    assert_eq!(ask("GET /livez", "host: localhost\r\norigin: https://evil.example.org").await.status, 200);
    assert_eq!(ask("GET /metrics", "host: evil.example.org").await.status, 403);
    server.metric_becomes("callboard_in_flight", 0.0).await;
}

#[tokio::test]
async fn a_host_name_that_a_proxy_forwards_may_be_listed() {
    let hosts = Hosts::parse(["models.example.org"]).unwrap();
    let server = Server::for_app(app(), config(|c| c.hosts = hosts)).await;
    let ask = async |host: &str| {
        let mut client = server.connect().await;
        client.send(format!("GET /livez HTTP/1.1\r\nhost: {host}\r\n\r\n")).await;
        client.answer().await.status
    };
    assert_eq!((ask("models.example.org").await, ask("other.example.org").await), (200, 403));
}

#[tokio::test]
async fn keys_of_a_file_are_read_again_when_it_changes() {
    let file = std::env::temp_dir().join(format!("callboard-keys-{}", std::process::id()));
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write(&format!("web {KEY}\nslow {LIMITED_KEY} 2/h\n"));
    let limits = config(|c| {
        c.api_keys = Some(ApiKeys::read(&file).unwrap());
        c.api_keys_reload_interval = std::time::Duration::from_millis(20);
    });
    let server = Server::for_app(app(), limits).await;
    let status = async |key: &str| mirror(&server, &[("x-api-key", key)]).await.status;
    let becomes = async |key: &str, expected: u16| {
        let becoming = async { while status(key).await != expected {} };
        tokio::time::timeout(crate::support::TEST_TIMEOUT, becoming)
            .await
            .unwrap_or_else(|_| panic!("{key}: {expected}"));
    };
    assert_eq!((status(LIMITED_KEY).await, status(LIMITED_KEY).await, status(LIMITED_KEY).await), (200, 200, 429));

    let new = "a-new-key-that-nobody-guesses";
    write(&format!("new {new}\nslow {LIMITED_KEY} 2/h\n"));
    becomes(new, 200).await;
    assert_eq!(
        (status(KEY).await, status(LIMITED_KEY).await),
        (401, 429),
        "one key is removed, the other keeps its count"
    );

    // A mistake in the file locks no client out. The log does not show the invalid key.
    write("new short\n");
    write(&format!("new {new}\nlast {KEY}\n"));
    becomes(KEY, 200).await;
    assert_eq!(status(new).await, 200);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(status(new).await, 200);
}

#[tokio::test]
async fn user_code_sees_the_request_id_the_caller_and_the_listed_headers() {
    let stage = Stage::each_with_context("tells", |_: &u64, context: &CallContext| {
        let headers = ["x-city", "cookie", "x-other", "x-api-key"].map(|name| context.header(name).map(str::to_owned));
        let (id, caller) = (context.request_id().map(str::to_owned), context.caller().map(str::to_owned));
        Ok((id, caller, context.traceparent(), headers))
    });
    let route = RouteSpec::new("/tells", stage).headers(["X-City", "cookie"]);
    let server = Server::for_app(App::new().mount(route), with_keys(|_| {})).await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let headers = [
        ("content-type", "application/json"),
        ("x-api-key", KEY),
        ("x-request-id", "r-1"),
        ("traceparent", trace),
        ("X-City", "Lima"),
        ("x-city", "Oslo"),
        // HTTP/2 sends each cookie by itself.
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("x-other", "secret"),
    ];
    let answer = server.connect().await.post("/tells", &headers, "1").await;
    let expected = serde_json::json!(["r-1", "web", trace, ["Lima, Oslo", "a=1; b=2", null, null]]);
    assert_eq!((answer.status, answer.json()), (200, expected));
    // Without a client id, the request is known by the id in its answer.
    let headers = [("content-type", "application/json"), ("x-api-key", KEY)];
    let answer = server.connect().await.post("/tells", &headers, "1").await;
    assert_eq!(answer.json()[0].as_str(), answer.header("x-request-id"));
    assert_eq!((answer.json()[2].is_null(), answer.json()[3][0].is_null()), (true, true));
}

#[tokio::test]
async fn the_document_has_what_a_route_reads_of_a_request_as_parameters() {
    let stage = Stage::each("same", |n: &u64| Ok(*n));
    let argument = |place, name: &str, schema| RequestArgument {
        place,
        name: name.to_owned(),
        is_required: true,
        data_type: DataType::value().with_schema(schema),
    };
    let list = serde_json::json!({ "type": "array", "items": { "type": "integer" } });
    let text = serde_json::json!({ "type": "string" });
    let route = RouteSpec::new("/same", stage).headers(["X-City", "X-Request-Priority"]).query(["top"]);
    let route = route.request_argument(argument(RequestPlace::Query, "tags", list.clone()));
    let route = route.request_argument(argument(RequestPlace::Cookie, "theme", text.clone()));
    let server = Server::for_app(App::new().mount(route), HttpConfig::default()).await;
    let document = server.get("/openapi.json").await.json();
    let parameters = &document["paths"]["/same"]["post"]["parameters"];
    let plain =
        |place: &str, name: &str| serde_json::json!({ "name": name, "in": place, "required": false, "schema": text });
    let shared = |name: &str| serde_json::json!({ "$ref": format!("#/components/parameters/{name}") });
    let expected = serde_json::json!([
        { "name": "tags", "in": "query", "required": true, "schema": list, "style": "form", "explode": false },
        { "name": "theme", "in": "cookie", "required": true, "schema": text },
        plain("header", "x-city"),
        // One of all routes that code reads is there once.
        plain("header", "x-request-priority"),
        plain("query", "top"),
        shared("Timeout"),
        shared("Session"),
        shared("RequestId"),
    ]);
    assert_eq!(*parameters, expected);
}

#[tokio::test]
async fn user_code_sees_the_listed_query_parameters_and_the_path_and_no_others() {
    let tells_as = |name: &str| {
        Stage::each_with_context(name, |_: &u64, context: &CallContext| {
            let query = context.query_pairs().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
            Ok((context.path().map(str::to_owned), query))
        })
    };
    let route = RouteSpec::new("/tells", tells_as("tells")).query(["city", "a b"]).headers(["x-large"]);
    let app = App::new().mount(route).route("/plain", tells_as("plain"));
    let server = Server::for_app(app, HttpConfig::default()).await;
    let json = [("content-type", "application/json")];
    let target = "/tells?city=S%C3%A3o+Paulo&key=secret&a%20b=%26&&x";
    let answer = server.connect().await.post(target, &json, "1").await;
    let expected = serde_json::json!(["/tells", ["city=São Paulo", "a b=&"]]);
    assert_eq!((answer.status, answer.json()), (200, expected));
    let answer = server.connect().await.post("/plain?city=Lima", &json, "1").await;
    assert_eq!(answer.json(), serde_json::json!([null, []]));

    let answer = server.connect().await.post("/tells?city=1&city=2", &json, "1").await;
    assert_eq!((answer.status, answer.json()["kind"].as_str()), (400, Some("invalid_input")));
    let once = "query parameter `city` must be given once; a list is written `city=a,b`";
    assert_eq!(answer.json()["message"], once);
    let large = "x".repeat(33_000);
    let headers = [("content-type", "application/json"), ("x-large", large.as_str())];
    let answer = server.connect().await.post("/tells", &headers, "1").await;
    assert_eq!((answer.status, answer.json()["kind"].as_str()), (400, Some("invalid_input")));
    assert!(
        answer.json()["message"].as_str().unwrap().starts_with("the call's headers exceed the limit"),
        "{}",
        answer.json()
    );
}

#[tokio::test]
async fn a_listed_page_may_set_the_headers_that_a_route_reads() {
    let same = RouteSpec::new("/same", Stage::each("same", |n: &u64| Ok(*n))).headers(["X-City"]);
    let cors = config(|config| config.cors = Some(Cors::parse(["https://app.example.org"]).unwrap()));
    let server = Server::for_app(App::new().mount(same), cors).await;
    let mut client = server.connect().await;
    let head = "OPTIONS /same HTTP/1.1\r\nhost: test\r\norigin: https://app.example.org\r\n";
    client.send(format!("{head}access-control-request-method: POST\r\n\r\n")).await;
    let allowed = client.answer().await;
    let names: Vec<&str> = allowed.header("access-control-allow-headers").unwrap().split(", ").collect();
    assert!(names.contains(&"x-city") && names.contains(&"x-api-key"), "{names:?}");
}
