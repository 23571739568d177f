//! `grpc.health.v1.Health`.

use callboard_core::{App, Stage};
use callboard_http::ApiKeys;

use crate::client::{Server, config};
use crate::messages::{Named, State};

const CHECK: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;
const SERVICE_UNKNOWN: i32 = 3;

fn app() -> App {
    App::new().route("/double", Stage::each("double", |number: &f64| Ok(number * 2.0)))
}

fn service(name: &str) -> Named {
    Named { name: name.to_owned(), version: String::new() }
}

#[tokio::test]
async fn services_and_models_are_checked_without_a_key() {
    let keys = ApiKeys::parse("web a-key-that-nobody-guesses").unwrap();
    let server = Server::with(app(), config(|config| config.api_keys = Some(keys))).await;
    let client = server.connect().await;
    for name in ["", "readiness", "liveness", "inference.GRPCInferenceService", "grpc.health.v1.Health"] {
        assert_eq!(client.call(CHECK, &service(name)).await.message::<State>().state, SERVING, "{name}");
    }
    // Names of models are for callers with a key, known or not.
    for name in ["double", "triple"] {
        for method in [CHECK, WATCH] {
            assert!(client.call(method, &service(name)).await.refused(16).contains("ModelReady"));
        }
    }
    assert!(client.ask("ModelReady", &service("double")).await.refused(16).contains("key"));
}

#[tokio::test]
async fn without_keys_anyone_may_check_a_model() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    assert_eq!(client.call(CHECK, &service("double")).await.message::<State>().state, SERVING);
    client.call(CHECK, &service("triple")).await.refused(5);
}

#[tokio::test]
async fn watchers_are_bounded() {
    let server = Server::with(app(), config(|config| config.max_concurrent_streams = 1_000)).await;
    let client = server.connect().await;
    let mut watchers = Vec::new();
    for _ in 0..64 {
        let mut watch = client.open(WATCH);
        watch.send(&service("")).await;
        watch.close();
        assert_eq!(watch.next::<State>().await.unwrap().state, SERVING);
        watchers.push(watch);
    }
    client.call(WATCH, &service("")).await.refused(8);
    drop(watchers.pop());
    let mut last = client.open(WATCH);
    last.send(&service("")).await;
    last.close();
    // The server sees the reset before the next request of the connection.
    assert_eq!(last.next::<State>().await.unwrap().state, SERVING);
}

#[tokio::test]
async fn a_watcher_sees_the_drain_and_its_end() {
    let server = Server::start(app()).await;
    let client = server.connect().await;
    let mut watch = client.open(WATCH);
    watch.send(&service("")).await;
    watch.close();
    assert_eq!(watch.next::<State>().await.unwrap().state, SERVING);
    let mut unknown = client.open(WATCH);
    unknown.send(&service("triple")).await;
    unknown.close();
    assert_eq!(unknown.next::<State>().await.unwrap().state, SERVICE_UNKNOWN);
    server.node.withdraw();
    assert_eq!(watch.next::<State>().await.unwrap().state, NOT_SERVING);
    server.edge.withdraw();
    assert_eq!(watch.status().await.0, 14);
}

/// A probe of the life of a node does not end it while it loads its models.
#[tokio::test]
async fn a_node_that_starts_lives_and_is_not_ready() {
    let keys = ApiKeys::parse("web a-key-that-nobody-guesses").unwrap();
    let node = app().start().await.unwrap();
    let server = Server::starting(node, config(|config| config.api_keys = Some(keys))).await;
    let client = server.connect().await;
    for (name, state) in [("liveness", SERVING), ("", NOT_SERVING), ("readiness", NOT_SERVING), ("double", NOT_SERVING)]
    {
        assert_eq!(client.call(CHECK, &service(name)).await.message::<State>().state, state, "{name}");
        let mut watch = client.open(WATCH);
        watch.send(&service(name)).await;
        watch.close();
        assert_eq!(watch.next::<State>().await.unwrap().state, state, "{name}");
        assert_eq!(watch.status().await, (14, "the node is starting".to_owned()));
    }
    client.send(CHECK, vec![0; 70_000]).await.refused(14);
    client.send(CHECK, "").await.refused(14);
    server.edge.open(server.node.client()).unwrap();
    assert_eq!(client.call(CHECK, &service("")).await.message::<State>().state, SERVING);
}
