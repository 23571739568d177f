//! Callers that the app names, by its private route `@auth`.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::{App, CallContext, Failure, Priority, RouteChange, RouteSpec, Stage};
use callboard_http::{AUTH_ROUTE, ApiInfo, ApiKeys, AuthCaller, AuthRequest, HttpConfig, HttpEdge, RateLimit};

use crate::support::{Answer, Server, TEST_TIMEOUT, config};

/// Says what its code knows of the caller.
fn app(who: Stage<AuthRequest, AuthCaller>) -> App {
    app_within(Duration::from_secs(3600), who)
}

fn app_within(timeout: Duration, who: Stage<AuthRequest, AuthCaller>) -> App {
    let seen = |_: &i64, context: &CallContext| {
        let (caller, tier) = (context.caller().unwrap_or("nobody"), context.tag("tier").unwrap_or("none"));
        Ok(format!("{caller} {tier} {:?}", context.priority()))
    };
    App::new()
        .route("/seen", Stage::each_with_context("seen", seen))
        .mount(RouteSpec::new(AUTH_ROUTE, who).default_timeout(timeout))
}

/// Knows callers by their bearer tokens.
fn by_token() -> Stage<AuthRequest, AuthCaller> {
    Stage::each("who", |request: &AuthRequest| {
        let token = request.headers.get("authorization").and_then(|value| value.strip_prefix("Bearer "));
        match token {
            Some("gold") => {
                let mut caller = AuthCaller::new("ada");
                caller.tags.insert("tier".to_owned(), "gold".to_owned());
                caller.priority = Some(Priority::High);
                Ok(caller)
            }
            Some("batch") => {
                let mut caller = AuthCaller::new("bob");
                caller.priority = Some(Priority::Low);
                Ok(caller)
            }
            Some("head") => {
                let cookie = request.headers.get("cookie").cloned().unwrap_or_default();
                let query: Vec<_> = request.query.iter().map(|(name, values)| format!("{name}={values:?}")).collect();
                let client = request.client.clone().unwrap_or_default();
                Ok(AuthCaller::new(format!(
                    "{} {} {} {cookie} {client}",
                    request.method,
                    request.path,
                    query.join("&")
                )))
            }
            Some("bug") => Err(Failure::new("the password of the database is 1234")),
            Some("long") => Ok(AuthCaller::new("x".repeat(257))),
            Some("panic") => panic!("no such user"),
            Some("forbidden") => Err(Failure::new("not on Sundays").with_status(403)),
            _ => Err(Failure::new("send a token").with_status(401).with_header("www-authenticate", "Bearer")),
        }
    })
}

async fn call(server: &Server, token: &str) -> Answer {
    call_with(server, token, ("x-more", "")).await
}

async fn call_with(server: &Server, token: &str, more: (&str, &str)) -> Answer {
    let bearer = format!("Bearer {token}");
    let headers = [("content-type", "application/json"), ("authorization", &*bearer), more];
    server.connect().await.post("/seen", &headers, "1").await
}

fn hangs() -> Stage<AuthRequest, AuthCaller> {
    Stage::each_async("who", |_: Arc<AuthRequest>| pending::<Result<AuthCaller, Failure>>())
}

#[tokio::test]
async fn the_app_names_the_caller_of_a_request_or_refuses_it() {
    let server = Server::for_app(app(by_token()), HttpConfig::default()).await;
    assert_eq!(call(&server, "gold").await.json(), "ada gold High");
    let refused = server.post_json("/seen", "1").await;
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(refused.problem()["message"], "send a token");
    assert_eq!(refused.problem()["kind"], "unauthenticated");
    let forbidden = call(&server, "forbidden").await;
    assert_eq!(forbidden.status, 403);
    assert_eq!(forbidden.problem()["kind"], "permission_denied");
    for (token, status) in [("bug", 500), ("long", 500), ("panic", 503)] {
        let answer = call(&server, token).await;
        assert_eq!(answer.status, status, "{token}");
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(!text.contains("1234") && !text.contains("user") && text.contains("caller"), "{text}");
    }
    let headers = [("authorization", "Bearer head"), ("cookie", "a=1"), ("cookie", "b=2")];
    let headers = [&[("content-type", "application/json")], &headers[..]].concat();
    let answer = server.connect().await.post("/seen?q=a%20b&q=c&x", &headers, "1").await;
    assert_eq!(answer.json(), "POST /seen q=[\"a b\", \"c\"]&x=[\"\"] a=1; b=2 127.0.0.1 none Normal");
}

#[tokio::test]
async fn a_request_is_refused_before_its_body_has_come() {
    let server = Server::for_app(app(by_token()), HttpConfig::default()).await;
    let mut raw = server.connect().await;
    raw.send("POST /seen HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 9999\r\n\r\n")
        .await;
    assert_eq!(raw.answer().await.status, 401);
}

#[tokio::test]
async fn what_is_open_without_a_key_is_open_and_all_else_is_not() {
    let server = Server::for_app(app(by_token()), HttpConfig::default()).await;
    for open in ["/", "/livez", "/readyz", "/openapi.json", "/docs/"] {
        assert_eq!(server.get(open).await.status, 200, "{open}");
    }
    for closed in ["/metrics", "/seen", "/no-such-route", "/v1/call/seen", "/@auth", "/v1/call/@auth", "/v1/call/auth"]
    {
        assert_eq!(server.get(closed).await.status, 401, "{closed}");
    }
}

#[tokio::test]
async fn no_edge_serves_or_shows_the_route() {
    let server = Server::for_app(app(by_token()), HttpConfig::default()).await;
    let mut raw = server.connect().await;
    for path in ["/@auth", "/v1/call/@auth", "/v1/call/auth", "/auth"] {
        let headers = [("content-type", "application/json"), ("authorization", "Bearer gold")];
        assert_eq!(raw.post(path, &headers, "{}").await.status, 404, "{path}");
    }
    let document = server.get("/openapi.json").await;
    assert!(!String::from_utf8_lossy(&document.body).contains("@auth"));
    assert!(document.json()["components"]["securitySchemes"].is_object());
    let names: Vec<_> = server.node().client().routes().iter().map(|route| route.name().to_owned()).collect();
    assert_eq!(names, ["/seen"]);
}

#[tokio::test]
async fn a_function_that_hangs_is_503_after_its_timeout_and_never_lets_in() {
    let server = Server::for_app(app_within(Duration::from_millis(200), hangs()), HttpConfig::default()).await;
    let answer = call(&server, "gold").await;
    assert_eq!((answer.status, answer.problem()["message"].as_str()), (503, Some("the caller cannot be checked now")));
}

#[tokio::test]
async fn the_function_is_asked_no_longer_than_the_client_waits_or_the_edge_serves() {
    let mut server = Server::for_app(app(hangs()), config(|c| c.shutdown_grace = Duration::ZERO)).await;
    let answer = call_with(&server, "gold", ("x-request-timeout-ms", "50")).await;
    assert_eq!((answer.status, answer.problem()["message"].as_str()), (503, Some("the caller cannot be checked now")));
    let mut raw = server.connect().await;
    raw.send("POST /seen HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n1").await;
    // The page of metrics has a caller, too.
    let asked = async {
        while server.node().client().in_flight() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, asked).await.expect("the function is asked");
    server.begin_shutdown();
    assert_eq!(raw.answer().await.status, 503);
    server.ended().await;
}

#[tokio::test]
async fn a_request_has_the_priority_of_its_caller_or_a_lower_one() {
    let server = Server::for_app(app(by_token()), HttpConfig::default()).await;
    for (token, asked, expected) in [
        ("batch", "high", "bob none Low"),
        ("batch", "low", "bob none Low"),
        ("gold", "high", "ada gold High"),
        ("gold", "low", "ada gold Low"),
        ("head", "high", "POST /seen   127.0.0.1 none High"),
    ] {
        let answer = call_with(&server, token, ("x-request-priority", asked)).await;
        assert_eq!(answer.json(), expected, "{token} {asked}");
    }
    let body = r#"{"input":1,"parameters":{"priority":1}}"#;
    let headers = [("content-type", "application/json"), ("authorization", "Bearer batch")];
    let answer = server.connect().await.post("/v2/models/seen/generate", &headers, body).await;
    assert!(String::from_utf8_lossy(&answer.body).contains("Low"), "{}", String::from_utf8_lossy(&answer.body));
}

#[tokio::test]
async fn each_caller_that_the_app_names_has_the_rate_limit() {
    let limit = config(|c| c.rate_limit = Some(RateLimit::parse("2/h").unwrap()));
    let server = Server::for_app(app(by_token()), limit).await;
    for status in [200, 200, 429] {
        let answer = call(&server, "gold").await;
        assert_eq!((answer.status, answer.header("retry-after").is_some()), (status, status == 429));
    }
    assert_eq!(call(&server, "batch").await.status, 200, "another caller has a count of its own");
    assert_eq!(call(&server, "stranger").await.status, 401);
}

#[tokio::test]
async fn a_request_with_a_valid_key_is_not_asked_about() {
    let keys = ApiKeys::parse("web a-key-that-nobody-guesses").unwrap();
    let server = Server::for_app(app(by_token()), config(|c| c.api_keys = Some(keys))).await;
    assert_eq!(call(&server, "a-key-that-nobody-guesses").await.json(), "web none Normal");
    assert_eq!(call(&server, "gold").await.json(), "ada gold High");
    assert_eq!(server.post_json("/seen", "1").await.status, 401);
}

#[tokio::test]
async fn ten_thousand_requests_are_asked_about_one_by_one_and_counted() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let who = Stage::each("who", move |request: &AuthRequest| {
        let number = counted.fetch_add(1, Ordering::Relaxed);
        let is_known = request.headers.contains_key("authorization");
        if is_known { Ok(AuthCaller::new(number.to_string())) } else { Err(Failure::new("who?").with_status(401)) }
    });
    let server = Server::for_app(app(who), HttpConfig::default()).await;
    let mut raw = server.connect().await;
    for number in 0..10_000 {
        let token = if number % 2 == 0 { "authorization" } else { "x-none" };
        let answer = raw.post("/seen", &[("content-type", "application/json"), (token, "x")], "1").await;
        assert_eq!(answer.status, if number % 2 == 0 { 200 } else { 401 });
    }
    assert_eq!(asked.load(Ordering::Relaxed), 10_000);
    assert_eq!(server.node().client().in_flight(), 0);
    let metrics = server.node().metrics();
    for line in ["{route=\"@auth\",outcome=\"ok\"} 5000", "{route=\"@auth\",outcome=\"failed\"} 5000"] {
        assert!(metrics.contains(line), "{line}");
    }
}

#[tokio::test]
async fn an_edge_knows_from_its_start_whether_callers_are_named() {
    let node = app(by_token()).start().await.unwrap();
    let edge = HttpEdge::starting(HttpConfig::default(), ApiInfo::default(), Vec::new()).unwrap();
    let error = edge.open(node.client()).unwrap_err().to_string();
    assert_eq!(error, "the setting `auth` of the http edge is false, and the app has the route `@auth`");
    let plain = App::new().route("/x", Stage::each("x", |x: &i64| Ok(*x))).start().await.unwrap();
    let edge = HttpEdge::starting(config(|c| c.auth = true), ApiInfo::default(), Vec::new()).unwrap();
    let error = edge.open(plain.client()).unwrap_err().to_string();
    assert_eq!(error, "the setting `auth` of the http edge is true, and the app has no route `@auth`");
    let later = plain.change(RouteChange::new().add_route(RouteSpec::new(AUTH_ROUTE, by_token()))).await;
    assert!(later.unwrap_err().to_string().contains("can only be declared before the node starts"));
    // Without the function nobody is let in.
    let server = Server::for_app(app(by_token()), HttpConfig::default()).await;
    server.node().change(RouteChange::new().remove_route(AUTH_ROUTE)).await.unwrap();
    assert_eq!(call(&server, "gold").await.status, 503);
}
