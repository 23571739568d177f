//! The edge as a service in another program's router: its guards hold, and the paths in its pages are correct for
//! clients.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use callboard_core::{App, CallContext, LocalClient, Node, RouteSpec, Stage};
use callboard_http::{ApiInfo, Hosts, HttpConfig, HttpEdge, Problem};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::support::app::app;
use crate::support::{Answer, Raw, Server, bind, config};

/// An edge that `axum::serve` serves.
struct Mounted {
    address: SocketAddr,
    _node: Node,
    serving: JoinHandle<()>,
}

impl Mounted {
    async fn start(config: HttpConfig, mount: impl FnOnce(HttpEdge) -> Router) -> Self {
        let (node, edge) = edge(config).await;
        let listener = bind().await;
        let address = listener.local_addr().unwrap();
        let router = mount(edge);
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, _node: node, serving }
    }

    async fn get(&self, path: &str) -> Answer {
        ask(self.address, &format!("GET {path} HTTP/1.1\r\nhost: localhost:7000")).await
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn edge(config: HttpConfig) -> (Node, HttpEdge) {
    let node = app().start().await.unwrap();
    let edge = HttpEdge::try_new(node.client(), config, ApiInfo::default(), vec![]).unwrap();
    (node, edge)
}

async fn ask(address: SocketAddr, head: &str) -> Answer {
    let mut client = Raw::connect(address).await;
    client.send(format!("{head}\r\nconnection: close\r\n\r\n")).await;
    client.answer().await
}

fn below_api(edge: HttpEdge) -> Router {
    Router::new().nest_service("/api", edge)
}

fn as_fallback(edge: HttpEdge) -> Router {
    Router::new().fallback_service(edge)
}

async fn assert_guards(address: SocketAddr, prefix: &str) {
    for (head, status) in [
        ("GET /livez HTTP/1.1\r\nhost: localhost", 200),
        ("GET /livez HTTP/1.1\r\nhost: 127.0.0.1:8000", 200),
        ("GET /livez HTTP/1.1\r\nhost: evil.example", 403),
        ("GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: evil.example", 400),
        ("POST /mirror HTTP/1.1\r\nhost: localhost\r\norigin: https://evil.example\r\ncontent-length: 0", 403),
    ] {
        let head = head.replacen(" /", &format!(" {prefix}/"), 1);
        assert_eq!(ask(address, &head).await.status, status, "{head}");
    }
}

#[tokio::test]
async fn a_mounted_edge_refuses_foreign_hosts_and_pages() {
    let nested = Mounted::start(HttpConfig::default(), below_api).await;
    assert_guards(nested.address, "/api").await;
    let fallback = Mounted::start(HttpConfig::default(), as_fallback).await;
    assert_guards(fallback.address, "").await;
    let (_node, edge) = edge(HttpConfig::default()).await;
    let own_loop = Server::for_router(as_fallback(edge), HttpConfig::default()).await;
    assert_guards(own_loop.address, "").await;
    // This edge knows that the request came from a socket, on which HTTP/1.1 requires a host.
    assert_eq!(ask(own_loop.address, "GET /livez HTTP/1.1").await.status, 400);
}

#[tokio::test]
async fn a_mounted_edge_answers_the_listed_host_names() {
    let listed = config(|config| config.hosts = Hosts::parse(["models.example.org"]).unwrap());
    let mounted = Mounted::start(listed, below_api).await;
    let status =
        async |host: &str| ask(mounted.address, &format!("GET /api/livez HTTP/1.1\r\nhost: {host}")).await.status;
    assert_eq!(status("models.example.org").await, 200);
    let refused = ask(mounted.address, "GET /api/livez HTTP/1.1\r\nhost: other.example.org").await;
    assert_eq!(refused.status, 403);
    assert!(refused.text().contains("`http.hosts`"), "{refused:?}");
}

#[tokio::test]
async fn paths_in_pages_begin_at_the_mount_point() {
    let mounted = Mounted::start(HttpConfig::default(), below_api).await;
    let index = mounted.get("/api/").await.json();
    assert_eq!(index["pages"][1], "/api/openapi.json");
    let curl = index["routes"].as_array().unwrap().iter().find_map(|route| route["curl"].as_str()).unwrap();
    assert!(curl.contains("http://localhost:7000/api/"), "{curl}");
    // The document's server is relative to the document.
    assert_eq!(mounted.get("/api/openapi.json").await.json()["servers"][0]["url"], ".");
    for (path, hint) in
        [("/api/none", "`GET /api/`"), ("/api/mirror/", "`/api/mirror`"), ("/api/docs/none", "`GET /api/`")]
    {
        let problem = mounted.get(path).await.problem();
        let message = problem["message"].as_str().unwrap();
        assert!(message.contains(hint), "{path}: {message}");
    }
    for (path, link) in [("/api", "href=\"api/docs/\""), ("/api/", "href=\"docs/\"")] {
        let page = ask(mounted.address, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/html")).await;
        assert!(page.text().contains(link), "{path}: {}", page.text());
    }
    let unmounted = Server::for_app(app(), HttpConfig::default()).await;
    assert_eq!(unmounted.get("/").await.json()["pages"][1], "/openapi.json");
}

#[tokio::test]
async fn a_custom_handler_answers_a_failed_call_like_the_edge() {
    let custom = async |State(client): State<LocalClient>, headers: HeaderMap, Json(action): Json<Value>| {
        let outcome = client.call::<_, Value>("/fail", action).await;
        outcome.map(Json).map_err(|error| Problem::from(error).with_request_id(&headers["x-request-id"]))
    };
    let (node, edge) = edge(HttpConfig::default()).await;
    let router = Router::new().route("/own", post(custom)).with_state(node.client()).fallback_service(edge);
    let server = Server::for_router(router, HttpConfig::default()).await;
    let headers = [("content-type", "application/json"), ("x-request-id", "one")];
    for action in ["\"plainly\"", "\"teapot\"", "\"bad_item\""] {
        let ask = async |path| {
            let answer = server.connect().await.post(path, &headers, action).await;
            (answer.status, answer.problem())
        };
        let (custom, of_edge) = (ask("/own").await, ask("/fail").await);
        assert_eq!(custom, of_edge, "{action}");
        assert!(custom.0 >= 400 && custom.1["request_id"] == "one", "{custom:?}");
    }
}

#[derive(Clone)]
struct Tenant(String);

/// A value that the layer shares with its handlers, and with no route.
#[derive(Clone)]
struct Secret;

async fn knows_tenant(mut request: Request, next: Next) -> Response {
    if let Some(tenant) = request.headers().get("x-token") {
        let tenant = Tenant(tenant.to_str().unwrap().to_uppercase());
        request.extensions_mut().insert(tenant);
        request.extensions_mut().insert(Secret);
    }
    next.run(request).await
}

#[tokio::test]
async fn the_extensions_of_a_layer_reach_the_stages_of_a_route_that_lists_them_and_no_others() {
    let tells = |name: &str| {
        Stage::each_with_context(name, |_: &i64, context: &CallContext| {
            let tenant = context.extension::<Tenant>().map(|tenant| tenant.0.clone());
            Ok((tenant, context.extension::<Secret>().is_some()))
        })
    };
    let lists = RouteSpec::new("/lists", tells("lists")).extension::<Tenant>();
    let node = App::new().mount(lists).route("/other", tells("other")).start().await.unwrap();
    let edge = HttpEdge::try_new(node.client(), HttpConfig::default(), ApiInfo::default(), vec![]).unwrap();
    let router = as_fallback(edge).layer(axum::middleware::from_fn(knows_tenant));
    let server = Server::for_router(router, HttpConfig::default()).await;
    let tells = async |path, token: &[(&str, &str)]| {
        let headers = [&[("content-type", "application/json")], token].concat();
        server.connect().await.post(path, &headers, "1").await.json()
    };
    let token = [("x-token", "acme")];
    assert_eq!(tells("/lists", &token).await, json!(["ACME", false]));
    assert_eq!(tells("/lists", &[]).await, json!([null, false]));
    assert_eq!(tells("/other", &token).await, json!([null, false]));
}

/// What a layer around the edge knows of a request is in the log lines of its stages.
#[tokio::test]
async fn the_span_of_a_layer_is_above_the_span_of_a_stage() {
    let (mut log, writer) = std::io::pipe().unwrap();
    let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(Arc::new(writer)).finish();
    // With only one subscriber, a thread of another test without a subscriber decides what is logged.
    let second = tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
    let here = tracing::subscriber::set_default(lines);
    let says = Stage::each("says", |n: &i64| {
        tracing::info!("hello");
        Ok(*n)
    });
    let node = App::new().route("/says", says).start().await.unwrap();
    let edge = HttpEdge::try_new(node.client(), HttpConfig::default(), ApiInfo::default(), vec![]).unwrap();
    let knows_user = |request: Request, next: Next| next.run(request).instrument(tracing::info_span!("app", user = 7));
    let router = as_fallback(edge).layer(axum::middleware::from_fn(knows_user));
    let server = Server::for_router(router, HttpConfig::default()).await;
    let answer = server.connect().await.post("/says", &[("content-type", "application/json")], "1").await;
    assert_eq!(answer.status, 200);
    drop((here, second));
    let mut bytes = vec![0; 4096];
    let length = log.read(&mut bytes).unwrap();
    let text = String::from_utf8_lossy(&bytes[..length]);
    assert!(text.contains("app{user=7}:call{route=\"/says\" stage=\"says\" replica=0 request_id="), "{text}");
}
