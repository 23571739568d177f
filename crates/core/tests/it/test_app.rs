//! An app in its own tests: fakes in the place of stages, and no waiting for time.

use std::sync::Arc;
use std::time::Duration;

use callboard_core::testing::TestApp;
use callboard_core::{App, Batch, ErrorKind, Failure, Pipeline, Replica, Stage, StreamStage, Worker};
use futures_util::{StreamExt, stream};
use tokio::time::Instant;

struct Doubler;

impl Worker for Doubler {
    type In = u64;
    type Out = u64;

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        batch.iter().map(|n| Ok(n * 2)).collect()
    }
}

/// A stage on threads, shared by two routes.
fn app() -> App {
    let double = Stage::worker("double", |_: &Replica| Ok(Doubler)).timeout(Duration::from_secs(60));
    let next = Stage::each("next", |n: &u64| Ok(n + 1));
    App::new().route("/double", double.clone()).route("/both", Pipeline::from(double).then(next))
}

#[tokio::test(start_paused = true)]
async fn a_fake_replaces_its_stage_in_every_route_and_no_other_stage() {
    let node = TestApp::new(app()).replace(Stage::each("double", |_: &u64| Ok(7_u64))).start().await.unwrap();
    let client = node.client();
    assert_eq!(client.call::<u64, u64>("/double", 1).await.unwrap(), 7);
    assert_eq!(client.call::<u64, u64>("/both", 1).await.unwrap(), 8);
    assert_eq!(node.describe().stages.len(), 2, "the routes share the fake");
}

#[tokio::test(start_paused = true)]
async fn a_thread_stage_runs_as_a_task_so_that_no_timeout_fires_while_it_works() {
    let node = TestApp::new(app()).start().await.unwrap();
    for n in 0..100 {
        assert_eq!(node.client().call::<u64, u64>("/both", n).await.unwrap(), n * 2 + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_minute_of_waiting_takes_no_time_and_a_crash_is_a_fake_that_panics() {
    super::support::hide_panics();
    let started = std::time::Instant::now();
    let hangs = Stage::each_async("double", |_: Arc<u64>| std::future::pending::<Result<u64, Failure>>());
    let node = TestApp::new(app()).replace(hangs.timeout(Duration::from_secs(20))).start().await.unwrap();
    let virtually = Instant::now();
    let error = node.client().call::<u64, u64>("/double", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert!(virtually.elapsed() >= Duration::from_secs(20) && started.elapsed() < Duration::from_secs(10));
    let crashes = Stage::each("double", |_: &u64| panic!("meant to panic"));
    let node = TestApp::new(app()).replace::<u64, u64>(crashes).start().await.unwrap();
    let error = node.client().call::<u64, u64>("/double", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WorkerFailed);
}

#[tokio::test]
async fn a_streaming_stage_has_a_streaming_fake() {
    let letters = StreamStage::each("letters", |text: &String| {
        stream::iter(text.chars().map(|letter| Ok(letter.to_string())).collect::<Vec<_>>())
    });
    let app = App::new().route_streaming("/letters", letters);
    let fake = StreamStage::each("letters", |_: &String| stream::iter([Ok("x".to_owned())]));
    let node = TestApp::new(app).replace_streaming(fake).start().await.unwrap();
    let replies = node.client().replies::<_, String>("/letters", "abc".to_owned()).unwrap();
    assert_eq!(replies.map(Result::unwrap).collect::<Vec<_>>().await, ["x"]);
}

#[test]
#[should_panic(expected = "no route has a stage `triple`")]
fn a_fake_of_an_unknown_stage_is_an_error() {
    _ = TestApp::new(app()).replace(Stage::each("triple", |n: &u64| Ok(*n)));
}

#[test]
#[should_panic(expected = "stage `double` turns `u64` to `u64`, and its fake `u64` to `alloc::string::String`")]
fn a_fake_of_other_types_is_an_error() {
    _ = TestApp::new(app()).replace(Stage::each("double", |n: &u64| Ok(n.to_string())));
}
