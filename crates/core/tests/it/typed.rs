//! A route with its types: looked up by them, and called as a tower service with a permit.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use callboard_core::{App, CallError, CallOptions, Caller, Drained, ErrorKind, Limits, Stage};
use tokio::sync::Semaphore;
use tower::{Service, ServiceExt};

use super::support::until;

fn one_call() -> Limits {
    Limits { max_in_flight: 1, ..Limits::default() }
}

#[tokio::test]
async fn a_handle_of_other_types_or_of_an_unknown_route_is_refused_by_name() {
    let node = App::new().route("/half", Stage::each("half", |n: &i64| Ok(*n as f64 / 2.0))).start().await.unwrap();
    let client = node.client();
    let half = client.typed::<i64, f64>("/half").unwrap();
    assert_eq!((half.name(), half.call(3).await.unwrap(), half.clone().call(4).await.unwrap()), ("/half", 1.5, 2.0));
    let refused = |error: CallError| (error.kind(), error.message().to_owned());
    let input = refused(client.typed::<u8, f64>("/half").unwrap_err());
    assert_eq!(input, (ErrorKind::InvalidInput, "route `/half` takes `i64`, not `u8`".to_owned()));
    let output = refused(client.typed::<i64, u8>("/half").unwrap_err());
    assert_eq!(output, (ErrorKind::InvalidInput, "route `/half` gives `f64`, not `u8`".to_owned()));
    assert_eq!(client.typed::<i64, f64>("/other").unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_call_that_reads_another_type_names_the_route_and_both_types_however_it_is_made() {
    let node = App::new().route("/half", Stage::each("half", |n: &i64| Ok(*n as f64 / 2.0))).start().await.unwrap();
    let client = node.client();
    let expected = "route `/half` gives `f64`, which cannot be read as `alloc::string::String`: ";
    let check = |outcome: Option<Result<String, CallError>>| {
        let error = outcome.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.was_started()), (ErrorKind::Internal, true));
        let reason = error.message().strip_prefix(expected);
        assert!(reason.is_some_and(|reason| !reason.is_empty()), "{error}");
    };
    check(Some(client.call("/half", 3_i64).await));
    check(Some(client.call_prepared(client.prepare("/half", 3_i64).unwrap(), CallOptions::new()).await));
    check(client.stream("/half", [3_i64]).unwrap().next().await);
    check(client.replies("/half", 3_i64).unwrap().next().await);
}

#[tokio::test(start_paused = true)]
async fn a_service_is_ready_when_it_has_a_permit_and_waits_for_one_on_a_full_node() {
    let release = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&release);
    let echo = Stage::each("echo", |n: &i64| Ok(*n));
    let hold = Stage::each_async("hold", move |n: Arc<i64>| {
        let held = Arc::clone(&held);
        async move {
            held.acquire().await?.forget();
            Ok(*n)
        }
    });
    let node = App::new().route("/echo", echo).route("/hold", hold).limits(one_call()).start().await.unwrap();
    let client = node.client();
    let mut service = client.service::<i64, i64>("/echo").unwrap();

    service.ready().await.unwrap();
    assert_eq!(client.in_flight(), 1, "it holds a permit");
    let mut clone = service.clone();
    assert!(tokio::time::timeout(Duration::from_secs(1), clone.ready()).await.is_err(), "a clone has none");
    assert_eq!(service.call(7).await.unwrap(), 7);
    assert_eq!(client.in_flight(), 0);

    let calling = tokio::spawn({
        let client = client.clone();
        async move { client.call::<i64, i64>("/hold", 1).await }
    });
    until("the node is full", || client.in_flight() == 1).await;
    assert_eq!(service.call(8).await.unwrap_err().kind(), ErrorKind::Overloaded, "without a readiness check");
    let ready = tokio::spawn(async move {
        service.ready().await.unwrap();
        service.call(9).await
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!ready.is_finished());
    release.add_permits(1);
    assert_eq!(calling.await.unwrap().unwrap(), 1);
    assert_eq!(ready.await.unwrap().unwrap(), 9);
    assert_eq!(client.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_timeout_of_a_service_starts_with_its_call_and_a_dropped_service_returns_its_permit() {
    let slow = Stage::each_async("slow", |n: Arc<i64>| async move {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok(*n)
    });
    let timeout = Duration::from_secs(30);
    let limits = Limits { default_timeout: timeout, max_timeout: timeout, ..one_call() };
    let node = App::new().route("/slow", slow).limits(limits).start().await.unwrap();
    let client = node.client();
    let mut service = client.service::<i64, i64>("/slow").unwrap();
    service.ready().await.unwrap();
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert_eq!(service.call(3).await.unwrap(), 3);
    service.ready().await.unwrap();
    drop(service);
    assert_eq!(client.in_flight(), 0);
}

#[tokio::test]
async fn a_service_of_a_draining_node_or_of_a_removed_route_is_an_error() {
    let node = App::new().route("/echo", Stage::each("echo", |n: &i64| Ok(*n))).start().await.unwrap();
    let client = node.client();
    let mut service = client.service::<i64, i64>("/echo").unwrap();
    assert_eq!(client.service::<i64, i64>("/other").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(node.shutdown(Duration::from_secs(1)).await, Drained::Completely);
    let error = poll_fn(|cx| service.poll_ready(cx)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NotFound), "{error}");
}
