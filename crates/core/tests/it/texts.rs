//! The texts of errors: bounded in length, and with their location.

use std::time::Duration;

use callboard_core::edge::{ErrorParts, MAX_ERROR_CHARS};
use callboard_core::{App, CallError, ErrorKind, Failure, RouteSpec, Stage};

use super::support::{hide_panics, serve};

fn is_cut(text: &str) -> bool {
    text.chars().count() <= MAX_ERROR_CHARS && text.contains("… (") && text.ends_with(" more characters)")
}

#[tokio::test]
async fn a_long_text_of_user_code_is_cut_visibly() {
    let fails = Stage::each("fails", |length: &usize| -> Result<u64, Failure> {
        Err(Failure::new("é".repeat(*length)).with_type("T".repeat(*length)))
    });
    let node = serve(fails).await;
    let error = |length: usize| {
        let client = node.client();
        async move { client.call::<usize, u64>("/route", length).await.unwrap_err() }
    };
    let whole = error(MAX_ERROR_CHARS).await;
    assert_eq!(whole.message().chars().count(), MAX_ERROR_CHARS);
    let cut = error(20_000).await;
    assert!(is_cut(cut.message()), "{} characters", cut.message().chars().count());
    assert!(cut.error_type().unwrap().chars().count() <= 256);
    // A text that another node has cut is not cut again.
    let again = CallError::from(cut.clone().into_parts());
    assert_eq!(again.message(), cut.message());
}

#[tokio::test]
async fn a_long_text_of_a_panic_is_cut_in_message_and_trace() {
    hide_panics();
    let panics = Stage::each("panics", |length: &usize| -> Result<u64, Failure> {
        std::panic::resume_unwind(Box::new("x".repeat(*length)))
    });
    let error = serve(panics).await.client().call::<usize, u64>("/route", 20_000).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WorkerFailed);
    assert!(is_cut(error.message()) && is_cut(error.remote_trace().unwrap()));
    let mut parts = ErrorParts::new(ErrorKind::Failed, "short");
    parts.remote_trace = Some("x".repeat(20_000));
    assert!(is_cut(CallError::from(parts).remote_trace().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn callers_and_routes_cannot_exceed_the_maximum_timeouts() {
    use callboard_core::{CallOptions, Instant, Limits};
    let waits =
        |name: &str| Stage::each_async(name, |_: std::sync::Arc<u64>| std::future::pending::<Result<u64, Failure>>());
    let limits = Limits { max_timeout: Duration::from_secs(5), ..Limits::default() };
    let app = App::new()
        .limits(limits)
        .mount(RouteSpec::new("/node", waits("one")).default_timeout(Duration::from_secs(20)))
        .mount(RouteSpec::new("/route", waits("two")).max_timeout(Duration::from_millis(100)))
        .mount(RouteSpec::new("/lax", waits("three")).max_timeout(Duration::from_secs(60)));
    let node = app.start().await.unwrap();
    for (route, allowed) in [("/node", 5_000), ("/route", 100), ("/lax", 5_000)] {
        for asked in [None, Some(Duration::from_secs(60))] {
            let started = Instant::now();
            let mut options = CallOptions::new();
            if let Some(asked) = asked {
                options = options.with_timeout(asked);
            }
            let error = node.client().call_with::<u64, u64>(route, 1, options).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
            assert_eq!(
                started.elapsed().as_millis().abs_diff(allowed) / 10,
                0,
                "{route}, {asked:?}: {:?}",
                started.elapsed()
            );
        }
    }
}
