//! The live page of the admin listener, and its stream of events.

use std::time::Duration;

use callboard_core::App;
use callboard_http::{ApiKeys, HttpConfig};
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::admin::AdminServer;
use crate::support::app::app;
use crate::support::{Raw, TEST_TIMEOUT, config};

/// An open stream.
struct Viewer(Raw);

impl Viewer {
    async fn open(run: &AdminServer, headers: &str) -> Self {
        let mut client = Raw::connect(run.address).await;
        client.send(format!("GET /v1/live HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n")).await;
        client.read_past("content-type: text/event-stream\r\n").await;
        client.read_past("\r\n\r\n").await;
        Self(client)
    }

    /// The events of the next chunk.
    async fn samples(&mut self) -> Vec<Value> {
        let chunk = String::from_utf8(self.0.next_chunk().await.expect("the stream goes on")).unwrap();
        let events = chunk.split_terminator("\n\n");
        events.map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap()).collect()
    }
}

#[tokio::test]
async fn each_second_is_an_event_with_its_own_figures() {
    let run = AdminServer::start(app(), HttpConfig::default()).await;
    let mut viewer = Viewer::open(&run, "").await;
    let first = viewer.samples().await.remove(0);
    assert_eq!((&first["state"], &first["in_flight"]), (&"ready".into(), &0.into()), "{first}");
    let row = |sample: &Value, list: &str, name: &str| -> Value {
        sample[list].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap().clone()
    };
    assert_eq!(row(&first, "routes", "/greet")["calls_per_s"], Value::Null, "nothing is known of a second yet");
    let greet = row(&first, "stages", "greet");
    assert_eq!((&greet["state"], &greet["replicas"], &greet["queued"]), (&"ready".into(), &1.into(), &0.into()));

    let client = run.node.client();
    for _ in 0..20 {
        let input = serde_json::json!({ "name": "Ada", "times": 1 });
        client.call::<Value, Value>("/greet", input).await.unwrap();
    }
    let counted = async {
        loop {
            let sample = viewer.samples().await.pop().unwrap();
            let route = row(&sample, "routes", "/greet");
            if route["calls_per_s"].as_f64().is_some_and(|rate| rate > 0.0) {
                break route;
            }
        }
    };
    let counted = timeout(TEST_TIMEOUT, counted).await.expect("a sample counts the calls");
    assert!(counted["p99_ms"].as_f64().is_some() && counted["failed_per_s"] == 0.0, "{counted}");
    let over = async { while row(&viewer.samples().await.pop().unwrap(), "routes", "/greet")["calls_per_s"] != 0.0 {} };
    timeout(TEST_TIMEOUT, over).await.expect("a later sample counts no call");

    // Another one has the past at once.
    assert!(Viewer::open(&run, "").await.samples().await.len() >= 3);
}

#[tokio::test]
async fn the_page_needs_no_key_and_its_stream_does() {
    let keys = ApiKeys::parse("operator a-key-of-the-operator").unwrap();
    let run = AdminServer::start(app(), config(|c| c.api_keys = Some(keys))).await;
    for (path, media_type) in [("/", "text/html"), ("/live.css", "text/css"), ("/live.js", "text/javascript")] {
        let page = run.local(&format!("GET {path}"), "").await;
        assert_eq!(page.status, 200, "{path}");
        assert!(page.header("content-type").unwrap().starts_with(media_type), "{path}");
    }
    let policy = run.local("GET /", "").await.header("content-security-policy").unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{policy}");
    assert_eq!(run.local("GET /v1/live", "").await.status, 401);
    Viewer::open(&run, "authorization: Bearer a-key-of-the-operator\r\n").await.samples().await;
}

#[tokio::test]
async fn a_page_of_another_site_takes_no_place_and_the_places_are_bounded() {
    let run = AdminServer::start(App::new(), HttpConfig::default()).await;
    let foreign = "GET /v1/live HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: cross-site";
    assert_eq!(run.request(foreign, "").await.status, 403);
    let mut viewers = Vec::new();
    for _ in 0..16 {
        viewers.push(Viewer::open(&run, "sec-fetch-site: same-origin\r\n").await);
    }
    let refused = run.local("GET /v1/live", "").await;
    assert_eq!(refused.status, 429);
    assert!(refused.problem()["message"].as_str().unwrap().starts_with("16 viewers look at this node"));
    drop(viewers.pop());
    // The server notices at its next write.
    let admitted = async {
        loop {
            let mut client = Raw::connect(run.address).await;
            client.send("GET /v1/live HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
            let mut status = [0; "HTTP/1.1 200".len()];
            client.socket.read_exact(&mut status).await.unwrap();
            match &status {
                b"HTTP/1.1 200" => break,
                other => assert_eq!(other, b"HTTP/1.1 429"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TEST_TIMEOUT, admitted).await.expect("the permit of the viewer that left is free");
}
