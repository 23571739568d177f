//! The exporter with collectors that refuse its spans. `tests/external/` shows that a real collector reads them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use bytes::Bytes;
use callboard_http::{HttpConfig, OtlpConfig, SpanExporter};
use callboard_http_client::Trust;

use crate::support::app::app;
use crate::support::{Server, TEST_TIMEOUT, bind};
use crate::tls::CertificateFiles;

/// A server whose spans go to `collector`, and the exporter that sends them.
async fn traced(collector: String) -> (Server, SpanExporter) {
    traced_to(&OtlpConfig::new(collector.parse().unwrap())).await
}

async fn traced_to(config: &OtlpConfig) -> (Server, SpanExporter) {
    let mut exporter = None;
    let server =
        Server::for_app_with(app(), HttpConfig::default(), |edge| exporter = Some(edge.export_spans(config))).await;
    (server, exporter.unwrap())
}

const EXPORTED: &str = "callboard_http_spans_exported_total";
const DROPPED: &str = "callboard_http_spans_dropped_total";

#[tokio::test]
async fn without_a_collector_spans_are_dropped_and_counted_and_calls_succeed() {
    let closed = bind().await.local_addr().unwrap();
    let (server, exporter) = traced(format!("http://{closed}")).await;
    for _ in 0..3 {
        assert_eq!(server.post_json("/mirror", "7").await.status, 200);
    }
    server.metric_becomes(DROPPED, 12.0).await;
    assert_eq!(server.metric(EXPORTED).await, Some(0.0));
    tokio::time::timeout(TEST_TIMEOUT, exporter.shutdown(TEST_TIMEOUT)).await.expect("nothing is left to be sent");
}

#[tokio::test]
async fn a_busy_collector_is_retried_and_a_refusing_one_is_not() {
    for (first_status, expected_requests, outcome) in [(503, 2, EXPORTED), (400, 1, DROPPED)] {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        let receive = move || async move {
            let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
            StatusCode::from_u16(if is_first { first_status } else { 200 }).unwrap()
        };
        let collector = Router::new().route("/base/v1/traces", post(receive)).layer(DefaultBodyLimit::disable());
        let collector = Server::for_router(collector, HttpConfig::default()).await;
        let (server, exporter) = traced(format!("http://{}/base", collector.address)).await;
        assert_eq!(server.post_json("/mirror", "7").await.status, 200);
        tokio::time::timeout(TEST_TIMEOUT, exporter.shutdown(TEST_TIMEOUT)).await.expect("the collector answers");
        assert_eq!(
            (requests.load(Ordering::SeqCst), server.metric(outcome).await),
            (expected_requests, Some(4.0)),
            "{first_status}"
        );
    }
}

#[tokio::test]
async fn a_silent_collector_does_not_delay_the_shutdown() {
    let silent = bind().await;
    let (server, exporter) = traced(format!("http://{}", silent.local_addr().unwrap())).await;
    assert_eq!(server.post_json("/mirror", "7").await.status, 200);
    // Far below the timeout of an answer.
    let ended = tokio::time::timeout(TEST_TIMEOUT / 4, exporter.shutdown(std::time::Duration::from_millis(50))).await;
    assert!(ended.is_ok());
}

#[tokio::test]
async fn a_collector_over_https_gets_spans_only_if_its_authority_is_trusted() {
    let (files, other_files) = (CertificateFiles::new("otlp"), CertificateFiles::new("otlp-other"));
    files.renew();
    other_files.renew();
    let trust = |files: &CertificateFiles| Some(Trust::from_pem(&std::fs::read(files.certificate()).unwrap()).unwrap());
    for (trust, outcome, expected_requests) in
        [(trust(&files), EXPORTED, 1), (trust(&other_files), DROPPED, 0), (None, DROPPED, 0)]
    {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        let receive = move || async move {
            count.fetch_add(1, Ordering::SeqCst);
        };
        let collector = Router::new().route("/v1/traces", post(receive)).layer(DefaultBodyLimit::disable());
        let collector = Server::for_router(collector, files.config()).await;
        let mut config = OtlpConfig::new(format!("https://localhost:{}", collector.address.port()).parse().unwrap());
        config.trust = trust;
        let (server, exporter) = traced_to(&config).await;
        assert_eq!(server.post_json("/mirror", "7").await.status, 200);
        tokio::time::timeout(TEST_TIMEOUT, exporter.shutdown(TEST_TIMEOUT)).await.expect("the collector answers");
        assert_eq!((server.metric(outcome).await, requests.load(Ordering::SeqCst)), (Some(4.0), expected_requests));
    }
}

#[tokio::test]
async fn headers_timeout_and_attributes_of_the_environment_reach_the_collector() {
    let variables = [
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=one%20two"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1000"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=staging"),
        ("OTEL_SERVICE_NAME", "checkout"),
    ];
    let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
    let messages = Arc::new(std::sync::Mutex::new(Vec::new()));
    let taken = Arc::clone(&messages);
    let take = move |headers: HeaderMap, body: Bytes| async move {
        let is_first = taken.lock().unwrap().is_empty();
        taken.lock().unwrap().push((headers, body));
        if is_first {
            // Beyond the timeout: the message comes again.
            std::future::pending::<()>().await;
        }
    };
    let collector = Router::new().route("/v1/traces", post(take)).layer(DefaultBodyLimit::disable());
    let collector = Server::for_router(collector, HttpConfig::default()).await;
    let config = OtlpConfig::new(format!("http://{}", collector.address).parse().unwrap());
    let (server, exporter) = traced_to(&config.with_env(variable).unwrap()).await;
    assert_eq!(server.post_json("/mirror", "7").await.status, 200);
    tokio::time::timeout(TEST_TIMEOUT, exporter.shutdown(TEST_TIMEOUT)).await.expect("the collector answers");
    assert_eq!(server.metric(EXPORTED).await, Some(4.0));
    let messages = messages.lock().unwrap();
    assert!(messages.len() >= 2, "sent again after a second, not after ten");
    for (headers, body) in messages.iter() {
        assert_eq!(headers["x-tenant"], "one two");
        for text in ["service.name", "checkout", "deployment.environment", "staging"] {
            assert!(body.windows(text.len()).any(|part| part == text.as_bytes()), "{text}");
        }
    }
}
