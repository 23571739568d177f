//! The time of one request by phase: in its answer, and in the error of a failed call.

use callboard_core::{App, Failure, StreamStage};
use futures_util::stream;
use serde_json::Value;

use crate::support::app::{Hold, app};
use crate::support::{Answer, Server, config};

const JSON: (&str, &str) = ("content-type", "application/json");

fn timeline(answer: &Answer) -> Value {
    let header = answer.header("x-callboard-timeline").unwrap_or_else(|| panic!("no timeline: {answer:?}"));
    assert!(header.is_ascii());
    serde_json::from_str(header).unwrap_or_else(|error| panic!("{error}: {header}"))
}

/// The milliseconds of one metric of `server-timing`.
fn phase_ms(answer: &Answer, metric: &str) -> Option<f64> {
    let timing = answer.header("server-timing").expect("server-timing is present");
    let metrics = timing.split(", ").filter_map(|metric| metric.split_once(";dur="));
    metrics.into_iter().find(|(name, _)| *name == metric).map(|(_, ms)| ms.parse().unwrap())
}

#[tokio::test]
async fn a_timeline_on_request_has_stages_batches_and_times() {
    let server = Server::for_app(app(), config(|_| {})).await;
    let by_header = server.connect().await.post("/mirror", &[JSON, ("x-callboard-explain", "1")], "7").await;
    let by_query = server.post_json("/mirror?a=b&explain=1", "7").await;
    for answer in [by_header, by_query] {
        assert_eq!((answer.status, answer.text()), (200, "7"));
        let explained = timeline(&answer);
        let stage = &explained["stages"][0];
        assert_eq!((&stage["stage"], &stage["attempts"]), (&"mirror".into(), &1.into()), "{explained}");
        let run = &stage["runs"][0];
        assert_eq!(
            (&run["end"], &run["batch"]["size"], &run["batch"]["replica"]),
            (&"done".into(), &1.into(), &0.into())
        );
        assert_eq!(run["batch"]["release"], "full");
        let [queue, batch, compute, total] =
            [&run["queue_ms"], &run["batch_ms"], &run["compute_ms"], &explained["total_ms"]]
                .map(|ms| ms.as_f64().unwrap());
        assert!(queue + batch + compute <= total, "{explained}");
        assert_eq!(
            (Some(queue), Some(compute)),
            (phase_ms(&answer, "queue"), phase_ms(&answer, "compute")),
            "{answer:?}"
        );
    }

    for headers in [&[JSON][..], &[JSON, ("x-callboard-explain", "0")]] {
        assert_eq!(server.connect().await.post("/mirror", headers, "7").await.header("x-callboard-timeline"), None);
    }
    let refused = server.connect().await.post("/mirror", &[JSON, ("x-callboard-explain", "yes")], "7").await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("header `x-callboard-explain` must be `0` or `1`"), "{}", refused.text());
}

#[tokio::test]
async fn an_inference_request_and_a_function_call_have_timelines() {
    let server = Server::for_app(app(), config(|_| {})).await;
    let call = server.post_json("/v1/call/mirror?explain=1", r#"{"args": [1]}"#).await;
    assert_eq!((call.status, &timeline(&call)["stages"][0]["stage"]), (200, &"mirror".into()));
    let refused = server.post_json("/v2/models/mirror/infer?explain=1", "{").await;
    assert_eq!((refused.status, timeline(&refused)["stages"].as_array().unwrap().len()), (400, 0));
}

#[tokio::test]
async fn an_expired_request_shows_its_time_by_phase() {
    let (app, holding) = Hold::with_queue(4).split();
    let server = Server::for_app(app, config(|_| {})).await;
    let headers = [JSON, ("x-request-timeout-ms", "60"), ("x-callboard-explain", "1")];
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    let running = async {
        let answer = first.post("/hold", &headers, "\"x\"").await;
        assert_eq!(answer.status, 504);
        let run = &timeline(&answer)["stages"][0]["runs"][0];
        assert!(run["compute_ms"].as_f64().unwrap() > 0.0 && run["end"].is_null(), "{run}");
        assert!(phase_ms(&answer, "compute").unwrap() > 0.0 && phase_ms(&answer, "total").unwrap() >= 60.0);
    };
    running.await;
    holding.wait_until_held().await;

    // The thread is still busy with the first call.
    let answer = second.post("/hold", &headers, "\"y\"").await;
    assert_eq!(answer.status, 504);
    let explained = timeline(&answer);
    let stage = &explained["stages"][0];
    assert_eq!((&stage["attempts"], &stage["runs"][0]["batch"]), (&0.into(), &Value::Null), "{explained}");
    assert!(phase_ms(&answer, "queue").unwrap() > 0.0, "{answer:?}");
    assert_eq!(phase_ms(&answer, "compute"), Some(0.0));
    holding.release();
}

#[tokio::test]
async fn every_error_has_its_total_time_and_a_failed_call_its_phases() {
    let server = Server::for_app(app(), config(|_| {})).await;
    let failed = server.post_json("/fail", "\"plainly\"").await;
    assert_eq!((failed.status, failed.header("x-callboard-timeline")), (500, None));
    assert!(phase_ms(&failed, "compute").unwrap() <= phase_ms(&failed, "total").unwrap());
    let unknown = server.post_json("/nowhere", "1").await;
    assert_eq!((unknown.status, phase_ms(&unknown, "compute")), (404, None));
    assert!(phase_ms(&unknown, "total").is_some());
}

#[tokio::test]
async fn a_timeline_request_is_ignored_if_timelines_are_off() {
    let server = Server::for_app(app(), config(|c| c.explain_requests = false)).await;
    let answer = server.connect().await.post("/mirror?explain=1", &[JSON, ("x-callboard-explain", "1")], "7").await;
    assert_eq!((answer.status, answer.header("x-callboard-timeline")), (200, None));
}

/// Returns the numbers below its input, and fails after the second.
fn counting() -> App {
    let count = StreamStage::each("count", |below: &u64| {
        stream::iter((0..*below).map(|n| if n < 2 { Ok(n) } else { Err(Failure::new("beyond two")) }))
    });
    App::new().route_streaming("/count", count)
}

#[tokio::test]
async fn an_event_stream_has_its_whole_timeline_before_its_last_event() {
    let server = Server::for_app(counting(), config(|_| {})).await;
    for (below, last_event, end) in [("2", "event: end\n", "done"), ("3", "event: error\n", "failed")] {
        let answer = server.post_json("/count?explain=1", below).await;
        let events: Vec<&str> = answer.text().split_terminator("\n\n").collect();
        assert_eq!((events.len(), &events[0][..5], &events[1][..5]), (4, "id: 0", "id: 1"), "{answer:?}");
        assert!(events[3].starts_with(last_event), "{answer:?}");
        let explained = events[2].strip_prefix("event: timeline\ndata: ").unwrap_or_else(|| panic!("{answer:?}"));
        let explained: Value = serde_json::from_str(explained).unwrap();
        let run = &explained["stages"][0]["runs"][0];
        assert_eq!((&explained["stages"][0]["stage"], &run["end"]), (&"count".into(), &end.into()), "{explained}");
        let head = timeline(&answer);
        assert!(head["total_ms"].as_f64().unwrap() <= explained["total_ms"].as_f64().unwrap(), "{head} {explained}");
    }
}

#[tokio::test]
async fn streams_in_other_formats_or_without_a_timeline_request_have_only_items() {
    let server = Server::for_app(counting(), config(|_| {})).await;
    assert!(!server.post_json("/count", "2").await.text().contains("timeline"));
    let headers = [JSON, ("accept", "application/x-ndjson")];
    let lines = server.connect().await.post("/count?explain=1", &headers, "2").await;
    assert_eq!(lines.text(), "0\n1\n");
    timeline(&lines);
    let off = Server::for_app(counting(), config(|c| c.explain_requests = false)).await;
    assert!(!off.post_json("/count?explain=1", "2").await.text().contains("timeline"));
}
