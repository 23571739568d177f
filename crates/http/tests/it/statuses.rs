//! Reaches each row of `docs/errors.md`: each status of each kind, by a real request, and no others.

use std::collections::BTreeSet;
use std::time::Duration;

use callboard_codec::Value;
use callboard_core::{Failure, Limits, Stage};
use callboard_http::{ApiKeys, HttpConfig};

use crate::support::app::{Hold, app};
use crate::support::{Answer, Server, config};

const JSON: (&str, &str) = ("content-type", "application/json");

/// A kind and a status; without a problem document the kind is empty.
type KindStatus = (String, u16);

#[tokio::test]
async fn every_documented_status_is_reached_and_no_other() {
    let page = include_str!("../../../../docs/errors.md");
    let reached = reached().await;
    let mut documented: BTreeSet<KindStatus> = BTreeSet::new();
    for line in page.lines() {
        let Some((kind, rest)) = line.strip_prefix("| `").and_then(|line| line.split_once("` | ")) else { continue };
        let statuses = rest.split(" | ").next().unwrap();
        for status in numbers(statuses) {
            assert!(reached.contains(&(kind.to_owned(), status)), "no request ends as `{kind}` with {status}");
            documented.insert((kind.to_owned(), status));
        }
        for (range, from) in [("4xx", 400), ("5xx", 501)] {
            if statuses.contains(range) {
                let chosen = reached
                    .iter()
                    .find(|(reached_kind, status)| reached_kind == kind && (from..from + 99).contains(status));
                documented.insert(chosen.unwrap_or_else(|| panic!("no request ends as `{kind}` with {range}")).clone());
            }
        }
    }
    assert!(documented.len() >= 14, "the table is found: {documented:?}");

    let other_statuses = page
        .split("\n\n")
        .filter(|paragraph| paragraph.starts_with("The HTTP edge itself") || paragraph.starts_with("Under `/v2`"));
    let other_statuses: BTreeSet<u16> = other_statuses.flat_map(numbers).collect();
    assert!(other_statuses.is_superset(&[405, 406, 408, 413, 415, 431, 501].into()), "{other_statuses:?}");
    for status in &other_statuses {
        assert!(reached.iter().any(|(_, reached)| reached == status), "no request ends with {status}");
    }
    for pair in reached {
        assert!(documented.contains(&pair) || other_statuses.contains(&pair.1), "{pair:?} is not on the page");
    }
}

/// The statuses in this text.
fn numbers(text: &str) -> Vec<u16> {
    let numbers = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| word.len() == 3);
    numbers.filter_map(|word| word.parse().ok()).collect()
}

/// The kind and status of every kind of failed request.
async fn reached() -> BTreeSet<KindStatus> {
    let chosen = Stage::each("chosen", |status: &u16| Err::<u8, _>(Failure::new("as you like").with_status(*status)));
    let double = Stage::each("double", |number: &f64| Ok(number * 2.0));
    let limits = config(|c| {
        c.max_body_bytes = 1_000;
        c.body_progress_timeout = Duration::from_millis(200);
    });
    let server = Server::for_app(app().route("/chosen", chosen).route("/double", double), limits).await;
    let mut answers = Vec::new();
    for (path, json) in [
        ("/mirror", "{"),
        ("/greet", r#"{"name": 7}"#),
        ("/nowhere", "1"),
        ("/fail", r#""plainly""#),
        ("/fail", r#""by_panic""#),
        ("/explode", "1"),
        ("/chosen", "418"),
        ("/chosen", "507"),
    ] {
        answers.push(server.post_json(path, json).await);
    }
    let mut client = server.connect().await;
    answers.push(client.get("/mirror").await);
    answers.push(client.post("/mirror", &[JSON, ("accept", "text/html")], "1").await);
    answers.push(client.post("/mirror", &[("content-type", "text/html")], "1").await);
    answers.push(client.post("/mirror", &[JSON, ("origin", "https://evil.example.org")], "1").await);
    let shared =
        r#"{"inputs":[{"name":"input","datatype":"FP64","shape":[1],"parameters":{"shared_memory_region":"r"}}]}"#;
    answers.push(client.post("/v2/models/double/infer", &[], shared).await);
    answers.push(server.post_json("/mirror", &" ".repeat(1_001)).await);
    answers.push(server.connect().await.post("/mirror", &[("x-long", &"x".repeat(70_000))], "1").await);
    let mut stalled = server.connect().await;
    stalled
        .send("POST /mirror HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n[")
        .await;
    answers.push(stalled.answer().await);
    server.drain().await;
    answers.push(server.post_json("/mirror", "1").await);

    let keys = ApiKeys::parse("web a-key-that-nobody-guesses").unwrap();
    let closed = Server::for_app(app(), config(|c| c.api_keys = Some(keys))).await;
    answers.push(closed.post_json("/mirror", "1").await);
    let mut reached: BTreeSet<KindStatus> = answers.iter().map(kind_and_status).collect();
    reached.extend(held().await);
    reached
}

/// The answers that need another request in progress, and the outcome of a cancelled call.
async fn held() -> [KindStatus; 3] {
    let (app, hold) = Hold::with_queue(8).split();
    let server =
        Server::for_app(app.limits(Limits { max_in_flight: 2, ..Limits::default() }), HttpConfig::default()).await;
    let mut leaving = server.connect().await;
    let request =
        "POST /hold HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n\"a\"";
    leaving.send(request).await;
    hold.wait_until_held().await;
    let mut client = server.connect().await;
    let expired = client.post("/hold", &[JSON, ("x-request-timeout-ms", "50")], "\"b\"").await;
    let mut waiting = server.connect().await;
    waiting.send(request).await;
    server.metric_becomes("callboard_in_flight", 2.0).await;
    let refused = server.post_json("/hold", "\"c\"").await;
    drop(leaving);
    server.metric_becomes("callboard_requests_total{route=\"/hold\",outcome=\"cancelled\"}", 1.0).await;
    hold.release();
    hold.wait_until_held().await;
    hold.release();
    assert_eq!(waiting.answer().await.status, 200);
    [kind_and_status(&expired), kind_and_status(&refused), ("cancelled".to_owned(), 499)]
}

fn kind_and_status(answer: &Answer) -> KindStatus {
    let problem = Value::decode(callboard_codec::Format::Json, &answer.body.clone().into(), &Default::default()).ok();
    let kind = problem.as_ref().and_then(|problem| problem.get("kind")?.as_str()).unwrap_or_default();
    (kind.to_owned(), answer.status)
}
