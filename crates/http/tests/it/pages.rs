//! The fixed pages: health, metrics, the OpenAPI document, the documentation, the index.

use std::collections::BTreeMap;
use std::sync::Arc;

use callboard_codec::{DataType, RawBody, Value as CodecValue};
use callboard_core::{App, Failure, Replica, RouteSpec, Stage};
use callboard_http::{ApiInfo, HttpConfig, HttpEdge, serve_edge};
use callboard_oip::InferenceProtocol;
use serde_json::{Value, json};

use crate::support::app::{Hold, app};
use crate::support::{Raw, Server, bind};

async fn server() -> Server {
    Server::for_app(app(), HttpConfig::default()).await
}

#[tokio::test]
async fn a_node_that_serves_is_live_and_ready() {
    let server = server().await;
    for page in ["/livez", "/readyz"] {
        let answer = server.get(page).await;
        assert_eq!(answer.status, 200);
        let health = answer.json();
        assert_eq!((&health["live"], &health["ready"]), (&true.into(), &true.into()));
        assert_eq!(health["stages"].as_array().unwrap().len(), 6);
    }
}

#[tokio::test]
async fn a_node_that_drains_is_live_but_not_ready() {
    let server = server().await;
    server.drain().await;
    let answer = server.get("/readyz").await;
    let problem = answer.problem();
    assert_eq!((answer.status, problem["message"].as_str()), (503, Some("the node is draining")));
    assert_eq!(problem["details"]["draining"], true);
    assert_eq!(server.get("/livez").await.status, 200);
}

#[tokio::test]
async fn metrics_cover_the_node_and_the_edge() {
    let server = server().await;
    assert_eq!(server.post_json("/mirror", "1").await.status, 200);
    assert_eq!(server.post_json("/nowhere", "1").await.status, 404);
    let page = server.get("/metrics").await;
    assert_eq!(page.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = page.text();
    for line in [
        "# TYPE callboard_requests_total counter",
        "callboard_requests_total{route=\"/mirror\",outcome=\"ok\"} 1",
        "callboard_http_responses_total{door=\"http\",status=\"200\"} 1",
        "callboard_http_responses_total{door=\"http\",status=\"404\"} 1",
        "callboard_http_connections_open ",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    assert_eq!(text.matches("# EOF").count(), 0);

    let prometheus = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4,*/*;q=0.1";
    let head = format!("GET /metrics HTTP/1.1\r\nhost: test\r\naccept: {prometheus}\r\n\r\n");
    let mut client = server.connect().await;
    client.send(&head).await;
    let page = client.answer().await;
    assert!(page.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    assert!(page.text().contains("# TYPE callboard_requests counter\n"), "{}", page.text());
    assert_eq!(page.text().matches("# EOF").count(), 1);
}

/// Each gauge is one series under the names of three kinds of servers, because a picker takes one of several.
#[tokio::test]
async fn the_load_is_a_short_page_of_single_gauges_that_agree_with_the_state() {
    let (app, hold) = Hold::with_queue(4).split();
    let server = Server::for_app(app, HttpConfig::default()).await;
    let load = async || {
        let page = server.get("/metrics/load").await;
        assert_eq!(page.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
        assert!(page.body.len() < 1_024, "{}", page.text());
        let lines = page.text().lines().filter(|line| !line.starts_with('#')).map(|line| line.split_once(' ').unwrap());
        lines.map(|(name, value)| (name.to_owned(), value.parse::<f64>().unwrap())).collect::<BTreeMap<_, _>>()
    };
    let names = |queued: f64, running: f64, saturation: f64| {
        let expected = [
            ("callboard_queued", queued),
            ("vllm:num_requests_waiting", queued),
            ("nv_inference_pending_request_count", queued),
            ("callboard_running", running),
            ("vllm:num_requests_running", running),
            ("nv_inference_exec_count", running),
            ("callboard_saturation", saturation),
            ("vllm:kv_cache_usage_perc", saturation),
        ];
        expected.map(|(name, value)| (name.to_owned(), value)).into_iter().collect::<BTreeMap<_, _>>()
    };
    assert_eq!(load().await, names(0.0, 0.0, 0.0));

    let calls = (0..4).map(|_| server.post_json("/hold", "\"held\""));
    let calling = futures_util::future::join_all(calls);
    let looking = async {
        hold.wait_until_held().await;
        server.metric_becomes("callboard_queued", 3.0).await;
        assert_eq!(load().await, names(3.0, 1.0, 0.75));
        assert_eq!(server.metric("callboard_running").await, Some(1.0));
        assert_eq!(server.metric("callboard_saturation").await, Some(0.75));
        // The only replica is busy all the time, and should be for 70 % of it.
        assert_eq!(server.metric("callboard_nodes_wanted").await, Some(1.0 / 0.7));
        (0..4).for_each(|_| hold.release());
    };
    let (answers, ()) = futures_util::future::join(calling, looking).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert_eq!(load().await, names(0.0, 0.0, 0.0));
}

#[tokio::test]
async fn the_openapi_document_has_a_concrete_schema_per_route() {
    let answer = server().await.get("/openapi.json").await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let document = answer.json();
    assert_eq!(document["openapi"], "3.1.0");

    let greet = &document["paths"]["/greet"]["post"];
    assert_eq!(greet["summary"], "Greets by name");
    let content = &greet["requestBody"]["content"];
    assert_eq!(content["application/json"]["schema"]["$ref"], "#/components/schemas/Greet");
    assert_eq!(content["application/json"]["example"], json!({ "name": "text" }));
    let also = content["application/json"]["x-callboard-media-types"].as_array().unwrap();
    assert!(also.contains(&json!("application/msgpack")) && also.contains(&json!("multipart/form-data")), "{also:?}");
    assert_eq!(content.as_object().unwrap().len(), 1, "one format, so that clients get one type: {content}");
    assert_eq!(greet["responses"]["200"]["content"].as_object().unwrap().len(), 1, "{greet}");
    assert_eq!(document["components"]["schemas"]["Greet"]["properties"]["name"]["type"], "string");
    assert_eq!(
        greet["responses"]["200"]["content"]["application/json"]["schema"]["$ref"],
        "#/components/schemas/Greeting"
    );

    let form = &document["paths"]["/size"]["post"]["requestBody"]["content"];
    assert!(
        form["application/json"]["x-callboard-media-types"].as_array().unwrap().contains(&json!("image/*")),
        "{form}"
    );
    assert_eq!(form.as_object().unwrap().len(), 1, "{form}");
    let shown = server().await.get("/openapi.json?forms").await.json();
    let form = &shown["paths"]["/size"]["post"]["requestBody"]["content"]["multipart/form-data"];
    let form = shown.pointer(form["schema"]["$ref"].as_str().unwrap().trim_start_matches('#')).unwrap();
    assert_eq!(form["properties"]["image"]["format"], "binary");
}

#[tokio::test]
async fn every_reference_of_the_openapi_document_resolves() {
    let document = server().await.get("/openapi.json").await.json();
    let mut references = Vec::new();
    collect_references(&document, &mut references);
    assert!(references.len() > 20);
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference} does not resolve");
    }
}

fn collect_references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(object) => object.iter().for_each(|(key, value)| match value {
            Value::String(target) if key == "$ref" => found.push(target),
            other => collect_references(other, found),
        }),
        Value::Array(items) => items.iter().for_each(|item| collect_references(item, found)),
        _ => {}
    }
}

#[tokio::test]
async fn every_operation_has_a_unique_id_and_servers_are_relative() {
    let echo = |name: &str| Stage::each(name, |x: &i64| Ok(*x));
    let app = App::new().route("/na-me", echo("one")).route("/na_me", echo("two"));
    let document = Server::for_app(app, HttpConfig::default()).await.get("/openapi.json").await.json();
    assert_eq!(document["paths"]["/na-me"]["post"]["operationId"], "post_na_me");
    assert_eq!(document["paths"]["/na_me"]["post"]["operationId"], "post_na_me_2");
    assert_eq!(document["servers"], json!([{ "url": "." }]));
    // With a default, every generated client would send the header and override the route's own priority.
    let priority = &document["components"]["parameters"]["Priority"];
    assert_eq!((&priority["name"], priority["schema"].get("default")), (&json!("x-request-priority"), None));
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test]
async fn a_very_long_example_is_left_out() {
    let long = RouteSpec::new("/long", Stage::each("long", |text: &String| Ok(text.len())));
    let picture = RouteSpec::described(
        "/picture",
        Stage::each("picture", |value: &CodecValue| Ok(value.clone())),
        DataType::value().with_raw_body(RawBody { field: "image".to_owned(), media_types: vec!["image/*".to_owned()] }),
        DataType::value(),
    );
    let example = CodecValue::from("x".repeat(100_000));
    let app = App::new().mount(long.example(example.clone())).mount(picture.example(example));
    let server = Server::for_app(app, HttpConfig::default()).await;
    assert!(server.get("/openapi.json").await.body.len() < 50_000);
    let index = server.get("/").await.json();
    assert_eq!(index["routes"][0]["curl"], Value::Null);
    assert_eq!(index["routes"][1]["curl"], "curl -F image=@FILE http://test/picture");
}

#[tokio::test]
async fn a_starting_node_is_live_not_ready_and_refuses_calls() {
    let listener = bind().await;
    let address = listener.local_addr().unwrap();
    let edge = HttpEdge::starting(HttpConfig::default(), ApiInfo::default(), vec![Arc::new(InferenceProtocol::new())])
        .unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(serve_edge(listener, edge.clone(), async {
        _ = stopped.await;
        crate::support::TEST_TIMEOUT
    }));

    let mut client = Raw::connect(address).await;
    let live = client.get("/livez").await;
    assert_eq!((live.status, &live.json()["ready"]), (200, &false.into()));
    let ready = client.get("/readyz").await;
    assert_eq!((ready.status, ready.problem()["message"].as_str()), (503, Some("the node is starting")));
    assert_eq!(client.get("/metrics").await.status, 200);
    let called = client.post("/mirror", &[("content-type", "application/json")], "1").await;
    assert_eq!((called.status, called.header("retry-after")), (503, Some("1")));
    let mut large = Raw::connect(address).await;
    large.send("POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-length: 100000\r\n\r\n").await;
    let refused = large.answer().await;
    assert_eq!((refused.status, refused.header("connection")), (503, Some("close")), "its body is not read");

    let node = app().start().await.unwrap();
    edge.open(node.client()).unwrap();
    assert_eq!(client.get("/readyz").await.status, 200);
    assert_eq!(client.post("/mirror", &[("content-type", "application/json")], "1").await.status, 200);
    assert!(edge.open(node.client()).is_err(), "an edge has one node");
    drop((client, stop));
    serving.await.unwrap();
}

#[tokio::test]
async fn a_path_that_is_not_utf8_is_404() {
    let answer = server().await.get("/docs/%ff").await;
    assert_eq!((answer.status, answer.problem()["kind"].as_str()), (404, Some("not_found")));
}

#[tokio::test]
async fn the_documentation_comes_with_its_assets() {
    let server = server().await;
    let redirect = server.get("/docs").await;
    assert_eq!((redirect.status, redirect.header("location")), (308, Some("docs/")));
    let page = server.get("/docs/").await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html")));
    let script = async |accept: &str| {
        let head =
            format!("GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nhost: test\r\naccept-encoding: {accept}\r\n\r\n");
        let mut client = server.connect().await;
        client.send(&head).await;
        client.answer().await
    };
    let packed = script("gzip, br").await;
    assert_eq!((packed.status, packed.header("content-encoding")), (200, Some("gzip")));
    assert!(packed.body.len() > 100_000);
    for accept in ["identity", "gzip;q=0"] {
        let plain = script(accept).await;
        assert_eq!((plain.status, plain.header("content-encoding")), (200, None), "{accept}");
        assert!(plain.body.len() > 2 * packed.body.len() && plain.text().contains("function"), "{accept}");
        assert_eq!(plain.header("vary"), Some("accept-encoding"));
    }
    let initializer = server.get("/docs/swagger-initializer.js").await;
    assert!(initializer.text().contains("../openapi.json"), "{}", initializer.text());
}

/// A browser takes each answer as its declared type, and shows the pages in no foreign frame.
#[tokio::test]
async fn answers_have_security_headers_for_browsers() {
    let server = server().await;
    let mut answers = Vec::new();
    for path in ["/", "/livez", "/readyz", "/metrics", "/openapi.json", "/docs", "/docs/", "/docs/index.css"] {
        answers.push((path, server.get(path).await));
    }
    for path in ["/nowhere", "/v2", "/v2/models/none", "/docs/none.js"] {
        answers.push((path, server.get(path).await));
    }
    for (path, json) in
        [("/mirror", "1"), ("/mirror", "{"), ("/fail", "\"by_panic\""), ("/v2/models/mirror/infer", "1")]
    {
        answers.push((path, server.post_json(path, json).await));
    }
    for (path, answer) in answers {
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}: {answer:?}");
    }
    let mut client = server.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: test\r\naccept: text/html\r\n\r\n").await;
    for page in [client.answer().await, server.get("/docs/").await, server.get("/docs/index.html").await] {
        assert!(page.header("content-type").unwrap().starts_with("text/html"));
        let policy = page.header("content-security-policy").unwrap_or_default();
        for part in ["default-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"] {
            assert!(policy.contains(part), "{part}: {policy}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
        assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(page.header("x-frame-options"), Some("DENY"));
    }
}

#[tokio::test]
async fn the_index_is_json_for_programs_and_a_page_for_people() {
    let server = server().await;
    let index = server.get("/").await.json();
    let routes = index["routes"].as_array().unwrap();
    assert_eq!(routes[0]["path"], "/greet");
    assert_eq!(routes[0]["stages"], json!(["greet"]));
    assert_eq!(routes[1]["curl"], "curl -F image=@FILE http://test/size");

    let mut client = server.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: test\r\naccept: text/html,application/xhtml+xml,*/*;q=0.8\r\n\r\n").await;
    let page = client.answer().await;
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.text().contains("POST /greet"), "{}", page.text());
}

#[tokio::test]
async fn the_curl_lines_of_the_index_work() {
    let server = server().await;
    let index = server.get("/").await.json();
    let line = index["routes"][0]["curl"].as_str().unwrap();
    let body = line.split("-d '").nth(1).unwrap().trim_end_matches('\'');
    assert_eq!(server.post_json("/greet", body).await.status, 200);
}

#[tokio::test]
async fn pages_answer_head_as_they_answer_get() {
    let server = server().await;
    let mut client = server.connect().await;
    client.send("HEAD /livez HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").await;
    let answer = String::from_utf8(client.closed().await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
}

/// HAProxy sends OPTIONS if no method is configured.
#[tokio::test]
async fn health_answers_options_like_get() {
    let server = server().await;
    let pages = ["/livez", "/readyz", "/v2/health/live", "/v2/health/ready", "/v2/models/mirror/ready"];
    let mut client = server.connect().await;
    let mut options = async |page: &str| {
        client.send(format!("OPTIONS {page} HTTP/1.1\r\nhost: test\r\n\r\n")).await;
        client.answer().await.status
    };
    for page in pages {
        assert_eq!(options(page).await, 200, "{page}");
    }
    for page in ["/metrics", "/v2", "/v2/models/mirror"] {
        assert_eq!(options(page).await, 405, "{page}");
    }
    server.drain().await;
    for page in ["/readyz", "/v2/health/ready", "/v2/models/mirror/ready"] {
        assert_eq!(options(page).await, 503, "{page}");
    }
}

#[tokio::test]
async fn a_failed_stage_is_named_with_its_reason() {
    let stage = Stage::worker("fragile", |replica: &Replica| match replica.generation() {
        0 => Ok(Fragile),
        _ => Err(Failure::new("its file is gone")),
    });
    let server = Server::for_app(App::new().route("/fragile", stage), HttpConfig::default()).await;
    let crash = async { while server.post_json("/fragile", "1").await.status != 503 {} };
    tokio::time::timeout(crate::support::TEST_TIMEOUT, crash).await.expect("the stage gives up");
    let problem = server.get("/readyz").await.problem();
    let message = problem["message"].as_str().unwrap();
    assert!(message.starts_with("stage `fragile` is failed"), "{message}");
    let refused = server.post_json("/fragile", "1").await;
    assert_eq!((refused.status, refused.problem()["kind"].as_str()), (503, Some("unavailable")));
}

/// A model that panics on its first batch.
struct Fragile;

impl callboard_core::Worker for Fragile {
    type In = i64;
    type Out = i64;

    fn call(&mut self, _batch: callboard_core::Batch<i64>) -> Vec<Result<i64, Failure>> {
        panic!("too fragile")
    }
}

/// Whole pages are compressed as the client asks, like the answers of routes.
#[tokio::test]
async fn pages_and_statistics_are_compressed_on_request() {
    let server = server().await;
    for path in ["/metrics", "/openapi.json", "/v2/models/stats", "/"] {
        let plain = server.get(path).await;
        assert_eq!((plain.status, plain.header("content-encoding")), (200, None), "{path}");
        assert!(plain.body.len() > 1024, "{path}");
        let mut client = server.connect().await;
        client.send(&format!("GET {path} HTTP/1.1\r\nhost: test\r\naccept-encoding: gzip\r\n\r\n")).await;
        let packed = client.answer().await;
        assert_eq!((packed.status, packed.header("content-encoding")), (200, Some("gzip")), "{path}");
        assert_eq!(packed.header("vary"), Some("accept-encoding"), "{path}");
        assert_eq!(packed.header("content-type"), plain.header("content-type"), "{path}");
        let mut unpacked = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&packed.body[..]), &mut unpacked).unwrap();
        assert!(unpacked.len() > packed.body.len(), "{path}");
        if path == "/openapi.json" {
            assert_eq!(unpacked, plain.body);
        }
    }
    let mut client = server.connect().await;
    client.send("GET /livez HTTP/1.1\r\nhost: test\r\naccept-encoding: gzip\r\n\r\n").await;
    assert_eq!(client.answer().await.header("content-encoding"), None, "short answers are not compressed");
}

/// Two pages differ only in their counts.
#[tokio::test]
async fn series_of_metrics_have_a_stable_order() {
    let server = server().await;
    for route in ["/mirror", "/greet", "/nowhere"] {
        server.post_json(route, "1").await;
    }
    let names = async || -> Vec<String> {
        let page = server.get("/metrics").await;
        let series = page.text().lines().filter(|line| !line.starts_with('#'));
        series.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect()
    };
    let requests: Vec<String> =
        names().await.into_iter().filter(|name| name.starts_with("callboard_requests_total")).collect();
    let mut sorted = requests.clone();
    sorted.sort();
    assert!(requests.len() > 2 && requests == sorted, "{requests:#?}");
}

#[tokio::test]
async fn a_page_of_metrics_stays_valid_where_a_program_names_a_family_as_another_one() {
    let server = Server::for_app(app(), HttpConfig::default()).await;
    let node = server.node();
    node.show_metrics_of(|| "# TYPE mine counter\nmine_total 1\n# TYPE callboard_in_flight gauge\n".to_owned());
    node.show_metrics_of(|| "# TYPE mine counter\nmine_total 2\n# TYPE yours gauge\nyours 3\n".to_owned());
    for accept in ["application/openmetrics-text", "text/plain"] {
        let mut client = server.connect().await;
        client.send(format!("GET /metrics HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\n\r\n")).await;
        let page = client.answer().await;
        let mut types: Vec<_> = page.text().lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let families = types.len();
        types.sort_unstable();
        types.dedup_by_key(|line| line.split(' ').next());
        assert_eq!(types.len(), families, "{}", page.text());
        assert!(page.text().contains("mine_total 1\n") && page.text().contains("yours 3\n"), "{}", page.text());
    }
}

/// A route that gets only bad requests is not idle.
#[tokio::test]
async fn errors_are_counted_by_route_even_without_a_call() {
    let server = server().await;
    assert_eq!(server.post_json("/greet", "1").await.status, 422);
    assert_eq!(server.post_json("/greet", "{").await.status, 400);
    assert_eq!(server.post_json("/greet", "{").await.status, 400);
    assert_eq!(server.post_json("/v2/models/greet/infer", "{}").await.status, 400);
    assert_eq!(server.post_json("/nowhere", "1").await.status, 404);
    let page = server.get("/metrics").await;
    let metrics = page.text();
    for line in [
        "callboard_http_errors_total{door=\"http\",route=\"/greet\",status=\"422\"} 1",
        "callboard_http_errors_total{door=\"http\",route=\"/greet\",status=\"400\"} 2",
        "callboard_http_errors_total{door=\"oip\",route=\"/greet\",status=\"400\"} 1",
        "callboard_http_responses_total{door=\"oip\",status=\"400\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }
    assert!(!metrics.contains("nowhere"), "a path from a client is no label");
}

#[tokio::test]
async fn a_path_similar_to_a_route_gets_a_suggestion() {
    let server = server().await;
    for near in ["/greet/", "//greet", "/%67reet"] {
        let answer = server.post_json(near, "{}").await;
        assert_eq!(answer.status, 404, "{near}");
        let message = answer.problem()["message"].as_str().unwrap().to_owned();
        assert!(message.ends_with("did you mean `/greet`?"), "{near}: {message}");
    }
    let message = server.post_json("/nowhere/", "{}").await.problem()["message"].as_str().unwrap().to_owned();
    assert!(message.ends_with("`GET /` lists what there is"), "{message}");
}

#[tokio::test]
async fn browsers_get_an_icon() {
    let server = server().await;
    let icon = server.get("/favicon.ico").await;
    assert_eq!((icon.status, icon.header("content-type")), (200, Some("image/svg+xml")));
}

/// One line per route, which shows the parallel stages.
#[tokio::test]
async fn the_index_shows_the_graph_of_a_route() {
    let echo = |name: &str| callboard_core::Pipeline::from(Stage::each(name, |x: &i64| Ok(*x)));
    let both = callboard_core::Pipeline::ensemble((echo("one"), echo("two")));
    let server = Server::for_app(App::new().route("/both", both), HttpConfig::default()).await;
    let route = server.get("/").await.json()["routes"][0].clone();
    assert_eq!(route["stages"], json!(["one", "two"]));
    let pipeline = route["pipeline"].as_str().unwrap();
    assert!(pipeline.contains('|'), "{pipeline}");
}
