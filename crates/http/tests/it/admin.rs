//! The admin listener, next to a node that serves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::actor::Question;
use callboard_core::keyed::{Answers, KeyContext, KeyedSpec, Stored};
use callboard_core::testing::MemoryStore;
use callboard_core::{App, Batch, Failure, Node, Replica, Rollout, RouteSpec, Stage, Worker};
use callboard_http::{Admin, ApiInfo, ApiKeys, HttpConfig, HttpEdge, serve_admin};
use callboard_oip::InferenceProtocol;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::app::app;
use crate::support::{Answer, Raw, TEST_TIMEOUT, bind, config};

/// A node with an admin listener.
pub(crate) struct AdminServer {
    pub(crate) node: Node,
    admin: Admin,
    pub(crate) address: SocketAddr,
    _stop: oneshot::Sender<()>,
    _serving: JoinHandle<()>,
}

impl AdminServer {
    pub(crate) async fn start(app: App, config: HttpConfig) -> Self {
        let node = app.start().await.unwrap();
        let edge = HttpEdge::try_new(
            node.client(),
            HttpConfig::default(),
            ApiInfo::default(),
            vec![Arc::new(InferenceProtocol::new())],
        )
        .unwrap();
        let admin = Admin::new(node.handle(), &edge);
        let listener = bind().await;
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async {
            _ = stopped.await;
            Duration::ZERO
        };
        let serving = serve_admin(listener, admin.clone(), config, shutdown);
        let serving = tokio::spawn(async { serving.await.unwrap() });
        Self { node, admin, address, _stop: stop, _serving: serving }
    }

    pub(crate) async fn request(&self, head: &str, body: &str) -> Answer {
        let mut client = Raw::connect(self.address).await;
        client.send(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
        client.answer().await
    }

    pub(crate) async fn local(&self, line: &str, body: &str) -> Answer {
        self.request(&format!("{line} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json"), body).await
    }
}

#[tokio::test]
async fn the_status_describes_the_node() {
    let run = AdminServer::start(app(), HttpConfig::default()).await;
    let status = run.local("GET /v1/status", "").await;
    assert_eq!(status.status, 200);
    let status = status.json();
    assert_eq!(status["health"]["ready"], true);
    let stages: Vec<_> = status["node"]["stages"].as_array().unwrap().iter().map(|stage| &stage["name"]).collect();
    assert!(stages.contains(&&"greet".into()), "{stages:?}");
    assert_eq!(status["node"]["stages"][0]["replicas"].as_array().unwrap().len(), 1);

    let metrics = run.local("GET /metrics", "").await;
    assert!(metrics.text().contains("callboard_in_flight") && metrics.text().contains("callboard_http_panics"));
    assert_eq!(run.local("GET /readyz", "").await.status, 200);
    for line in ["GET /v1/status", "GET /nowhere", "GET /v2/repository/none"] {
        assert_eq!(run.local(line, "").await.header("x-content-type-options"), Some("nosniff"), "{line}");
    }
}

#[tokio::test]
async fn a_stage_can_be_scaled_and_a_route_closed() {
    let run = AdminServer::start(app(), HttpConfig::default()).await;
    let scaled = run.local("POST /v1/stages/greet/replicas", r#"{"replicas": 3}"#).await;
    assert_eq!((scaled.status, scaled.json()["replicas"].as_u64()), (200, Some(3)));
    assert_eq!(run.node.describe().stages[0].replicas.len(), 3);

    let closed = run.local("DELETE /v1/routes/greet", "").await;
    assert_eq!((closed.status, closed.json()["route"].as_str()), (200, Some("/greet")));
    assert!(run.node.client().route("/greet").is_none());
    let repeated = run.local("DELETE /v1/routes/greet", "").await;
    assert_eq!((repeated.status, repeated.problem()["message"].as_str()), (404, Some("there is no route `/greet`")));
}

#[tokio::test]
async fn an_invalid_change_is_refused_with_a_reason_and_changes_nothing() {
    let run = AdminServer::start(app(), HttpConfig::default()).await;
    let refused = async |line: &str, body: &str| {
        let answer = run.local(line, body).await;
        (answer.status, answer.problem()["kind"].as_str().unwrap().to_owned())
    };
    let status = |status: u16, kind: &str| (status, kind.to_owned());
    let replicas = "POST /v1/stages/greet/replicas";
    assert_eq!(refused(replicas, r#"{"replicas": 0}"#).await, status(400, "invalid_input"));
    assert_eq!(refused(replicas, r#"{"replicas": -1}"#).await, status(400, "invalid_input"));
    assert_eq!(refused(replicas, r#"{"replica": 1}"#).await, status(400, "invalid_input"));
    assert_eq!(refused(replicas, "").await, status(400, "invalid_input"));
    assert_eq!(refused("POST /v1/stages/none/replicas", r#"{"replicas": 1}"#).await, status(404, "not_found"));
    assert_eq!(refused("GET /nowhere", "").await, status(404, "not_found"));
    assert_eq!(refused("DELETE /v1/status", "").await, status(405, "invalid_input"));
    let form = "POST /v1/stages/greet/replicas HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain";
    assert_eq!(run.request(form, r#"{"replicas": 2}"#).await.status, 415);
    assert_eq!(run.node.describe().stages[0].replicas.len(), 1);
}

#[tokio::test]
async fn a_stage_keeps_its_replicas_if_new_replicas_do_not_start() {
    let started = AtomicUsize::new(0);
    let stage = Stage::worker("once", move |_: &Replica| match started.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(SingleStart),
        _ => Err(Failure::new("no second one")),
    });
    let run = AdminServer::start(App::new().route("/once", stage), HttpConfig::default()).await;
    let refused = run.local("POST /v1/stages/once/replicas", r#"{"replicas": 2}"#).await;
    assert_eq!((refused.status, refused.problem()["kind"].as_str()), (500, Some("failed")));
    assert!(refused.problem()["message"].as_str().unwrap().contains("no second one"));
    assert_eq!(run.node.describe().stages[0].replicas.len(), 1);
}

/// A worker that starts only once.
struct SingleStart;

impl Worker for SingleStart {
    type In = u8;
    type Out = u8;

    fn call(&mut self, batch: Batch<u8>) -> Vec<Result<u8, Failure>> {
        batch.iter().map(|number| Ok(*number)).collect()
    }
}

#[tokio::test]
async fn a_rollout_is_promoted_and_rolled_back_by_requests() {
    let numbered = |number: u8| Stage::each("add", move |n: &u8| Ok(n + number));
    let run = AdminServer::start(App::new().route("/sums/add", numbered(1)), HttpConfig::default()).await;
    let refused = run.local("POST /v1/routes/sums/add/promote", "").await;
    assert_eq!(refused.status, 400);
    assert!(refused.problem()["message"].as_str().unwrap().contains("no rollout is running"));
    assert_eq!(run.local("POST /v1/routes/none/rollback", "").await.status, 404);
    assert_eq!(run.local("POST /v1/routes/sums/add/other", "").await.status, 404);

    run.node.roll_out(RouteSpec::new("/sums/add", numbered(2)), Rollout::canary(0.1)).await.unwrap();
    let promoted = run.local("POST /v1/routes/sums/add/promote", "").await;
    assert_eq!((promoted.status, &promoted.json()["rollout"]["state"]), (200, &json!("promoted")));
    assert_eq!(run.node.client().call::<u8, u8>("/sums/add", 0).await.unwrap(), 2);
    let back = run.local("POST /v1/routes/sums/add/rollback", "").await;
    assert_eq!((back.status, &back.json()["rollout"]["reason"]), (200, &json!("by order")));
    assert_eq!(run.node.client().call::<u8, u8>("/sums/add", 0).await.unwrap(), 1);
}

#[tokio::test]
async fn a_drain_request_is_passed_to_the_program() {
    let run = AdminServer::start(app(), HttpConfig::default()).await;
    assert_eq!(run.local("POST /v1/drain", "").await.status, 202);
    tokio::time::timeout(TEST_TIMEOUT, run.admin.drain_asked()).await.expect("the request is passed on");
}

#[tokio::test]
async fn web_pages_and_foreign_host_names_are_refused() {
    let run = AdminServer::start(app(), HttpConfig::default()).await;
    for head in [
        "POST /v1/drain HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost:8001",
        "POST /v1/drain HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: cross-site",
        "POST /v1/drain HTTP/1.1\r\nhost: rebound.example.org:8001",
        "GET /v1/status HTTP/1.1\r\nhost: rebound.example.org",
    ] {
        let answer = run.request(head, "").await;
        assert_eq!((answer.status, answer.problem()["kind"].as_str()), (403, Some("permission_denied")), "{head}");
    }
}

#[tokio::test]
async fn the_admin_listener_may_have_its_own_keys() {
    let keys = ApiKeys::parse("operator a-key-of-the-operator").unwrap();
    let run = AdminServer::start(app(), config(|c| c.api_keys = Some(keys))).await;
    assert_eq!(run.local("GET /v1/status", "").await.status, 401);
    assert_eq!(run.local("POST /v1/drain", "").await.status, 401);
    let head = "GET /v1/status HTTP/1.1\r\nhost: localhost\r\nx-api-key: a-key-of-the-operator";
    assert_eq!(run.request(head, "").await.status, 200);
}

#[tokio::test]
async fn every_invalid_request_is_answered_with_a_problem_document() {
    let run = AdminServer::start(app(), config(|c| c.body_progress_timeout = Duration::from_millis(200))).await;
    let replicas = "POST /v1/stages/greet/replicas";
    assert_eq!(run.local("POST /v1/stages/%ff/replicas", "{}").await.problem()["status"], 404);
    assert_eq!(run.local("DELETE /v1/routes/%ff", "").await.problem()["status"], 404);
    assert_eq!(run.local(replicas, &" ".repeat(100_000)).await.problem()["status"], 413);
    for (line, allowed) in [
        ("DELETE /v1/status", "GET, HEAD"),
        ("GET /v1/stages/greet/replicas", "POST"),
        ("GET /v1/routes/greet", "DELETE, POST"),
        ("GET /v1/drain", "POST"),
    ] {
        let answer = run.local(line, "").await;
        assert_eq!((answer.problem()["status"].as_u64(), answer.header("allow")), (Some(405), Some(allowed)), "{line}");
    }
    let mut client = Raw::connect(run.address).await;
    let head = "host: localhost\r\ncontent-type: application/json\r\ncontent-length: 20";
    client.send(format!("{replicas} HTTP/1.1\r\n{head}\r\n\r\n{{")).await;
    assert_eq!(client.answer().await.problem()["status"], 408, "the body does not arrive");
    // A body that changes nothing is not waited for.
    for (path, status) in [("/v2/repository/nowhere", 404), ("/v2/repository/models/greet/load", 400)] {
        let mut client = Raw::connect(run.address).await;
        client.send(format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20\r\n\r\n{{")).await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.json()["error"].is_string()), (status, true), "{path}: {answer:?}");
    }
}

/// Adds to the total of a key.
#[derive(Serialize, Deserialize)]
struct Add(u64);

impl Question for Add {
    const NAME: &str = "add";
    type Answer = u64;
}

impl Answers<Add> for Stored<u64> {
    async fn answer(&mut self, Add(by): Add, _: &KeyContext) -> Result<u64, Failure> {
        **self += by;
        if by == 0 { Err(Failure::new("nothing").with_status(409)) } else { Ok(**self) }
    }
}

#[tokio::test]
async fn keyed_actors_are_listed_asked_and_ended() {
    let totals = KeyedSpec::new("total", Arc::new(MemoryStore::new()), |_, total: Stored<u64>| async { Ok(total) });
    let run = AdminServer::start(app().keyed(totals.accepts::<Add>()), HttpConfig::default()).await;
    let add = "POST /v1/actors/total/ask?key=a%2Fb&question=add";
    for expected in [3, 6] {
        let asked = run.local(add, "3").await;
        assert_eq!((asked.status, asked.json()["answer"].as_u64()), (200, Some(expected)), "{asked:?}");
    }
    let kinds = run.local("GET /v1/actors", "").await.json();
    assert_eq!((&kinds["kinds"][0]["kind"], &kinds["kinds"][0]["active_keys"]), (&json!("total"), &json!(1)));
    assert_eq!(run.local("GET /v1/actors/total", "").await.json()["keys"], json!(["a/b"]));

    for verb in ["passivate", "release"] {
        let end = format!("POST /v1/actors/total/{verb}?key=a%2Fb");
        assert_eq!(run.local(&end, "").await.json()["was_active"], true, "{verb}");
        let ending = async { while run.local("GET /v1/actors/total", "").await.json()["active_keys"] != 0 {} };
        tokio::time::timeout(TEST_TIMEOUT, ending).await.expect("the key ends");
        assert_eq!(run.local(&end, "").await.json()["was_active"], false, "{verb}");
        assert_eq!(run.local(add, "1").await.status, 200, "it was saved");
    }
    assert_eq!(run.local(add, "1").await.json()["answer"], 9);

    let forgotten = run.local("POST /v1/actors/total/forget?key=a%2Fb", "").await;
    assert_eq!((forgotten.status, forgotten.json()["forgotten"].as_bool()), (200, Some(true)), "{forgotten:?}");
    assert_eq!(run.local(add, "1").await.json()["answer"], 1);

    let in_form = run.local("POST /v1/actors/total/ask?%6bey=b+c&question=add", "1").await;
    assert_eq!(in_form.status, 200, "{in_form:?}");
    assert_eq!(run.local("POST /v1/actors/total/passivate?key=b%20c", "").await.json()["was_active"], true);

    let long = format!("POST /v1/actors/total/release?key={}", "k".repeat(513));
    for (line, body, status) in [
        (long.as_str(), "", 400),
        ("POST /v1/actors/total/release?key=", "", 400),
        ("POST /v1/actors/total/passivate?key=%ff", "", 400),
        ("GET /v1/actors/none", "", 404),
        ("GET /v1/actors/total?limit=0", "", 400),
        ("POST /v1/actors/total/remove?key=a", "", 404),
        ("POST /v1/actors/total/forget", "", 400),
        ("POST /v1/actors/total/ask?key=a", "1", 400),
        ("POST /v1/actors/total/ask?key=a&question=nothing", "1", 400),
        ("POST /v1/actors/total/ask?key=a&question=add", "{", 400),
        ("POST /v1/actors/total/ask?key=a&question=add", "\"three\"", 400),
        ("POST /v1/actors/total/ask?key=a&question=add", "0", 409),
        ("GET /v1/actors/total/ask", "", 405),
        ("POST /v1/actors", "", 405),
    ] {
        let answer = run.local(line, body).await;
        assert_eq!(answer.problem()["status"], status, "{line}: {answer:?}");
    }
}
