//! An app in its own tests: fakes in the place of stages, and no waiting for time.

use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::Duration;

use callboard_core::testing::TestApp;
use callboard_core::{
    App, Batch, ErrorKind, Failure, Outputs, Pipeline, Replica, Stage, StreamStage, StreamWorker, Worker,
};
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

/// Its code takes longer than code may hold a runtime's thread in a program.
#[tokio::test(start_paused = true)]
async fn a_thread_stage_runs_as_a_task_so_that_no_timeout_fires_while_it_works() {
    let slow = Stage::each("slow", |_: &u64| {
        work_for(Duration::from_millis(40));
        Ok(std::thread::current().id() == TEST_THREAD.get().copied().unwrap())
    });
    TEST_THREAD.set(std::thread::current().id()).unwrap();
    let app = App::new().route("/slow", slow.on_threads().timeout(Duration::from_millis(20)));
    let node = TestApp::new(app).start().await.unwrap();
    for n in 0..5 {
        assert!(node.client().call::<u64, bool>("/slow", n).await.unwrap(), "call {n} ran on a thread");
    }
}

#[expect(clippy::disallowed_methods, reason = "real time has to pass, and a sleep of the runtime is virtual")]
fn work_for(time: Duration) {
    std::thread::sleep(time);
}

static TEST_THREAD: OnceLock<ThreadId> = OnceLock::new();

/// Counts up, and takes real time for each number.
struct SlowCounter;

impl StreamWorker for SlowCounter {
    type In = u64;
    type Out = u64;

    fn call(&mut self, batch: Batch<u64>, outputs: &mut Outputs<u64>) {
        for n in 0..batch[0] {
            work_for(Duration::from_millis(10));
            if outputs.emit(0, n).is_err() {
                return;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_clock_stands_still_while_a_streaming_worker_works_and_not_while_it_waits() {
    let count = StreamStage::worker("count", |_: &Replica| Ok(SlowCounter)).credit(1);
    let node = TestApp::new(App::new().route_streaming("/count", count)).start().await.unwrap();
    for pause in [Duration::ZERO, Duration::from_secs(2)] {
        let began = Instant::now();
        let mut replies = node.client().replies::<u64, u64>("/count", 8).unwrap();
        for n in 0..8 {
            assert_eq!(replies.next().await.unwrap().unwrap(), n);
            tokio::time::sleep(pause).await;
        }
        assert!(replies.next().await.is_none());
        assert_eq!(began.elapsed().as_secs(), pause.as_secs() * 8);
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
