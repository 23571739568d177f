//! A user's app in a seeded simulation: all faults happen, and a broken promise is found.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::testing::{Chance, Simulation, SimulationRun, TestApp};
use callboard_core::{App, AsyncWorker, Batch, CallError, ErrorKind, Failure, Limits, Pipeline, Replica, Stage};
use futures_util::{FutureExt, stream};

use super::support::hide_panics;

struct Doubler;

impl AsyncWorker for Doubler {
    type In = u64;
    type Out = u64;

    async fn call(&self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        tokio::time::sleep(Duration::from_millis(3)).await;
        batch.iter().map(|n| Ok(n * 2)).collect()
    }
}

/// A stage of each form, with bounds that bursts reach.
fn app() -> App {
    let double = Stage::async_worker("double", |_: &Replica| Ok(Doubler)).max_batch_size(4).concurrency(2).queue(20);
    let next = Stage::each("next", |n: &u64| Ok(n + 1)).replicas(2).queue(20).pure();
    let limits = Limits { max_in_flight: 60, ..Limits::default() };
    App::new().limits(limits).route("/double", double.clone()).route("/both", Pipeline::from(double).then(next))
}

fn number(chance: &mut Chance) -> u64 {
    chance.within(0..1_000)
}

fn with_all_faults(app: App, seed: u64) -> Simulation {
    let expect = |expected: fn(u64) -> u64| {
        move |n: &u64, outcome: &Result<u64, CallError>| {
            if let Ok(answer) = outcome {
                assert_eq!(*answer, expected(*n), "another call's answer");
            }
        }
    };
    TestApp::new(app)
        .simulate(seed)
        .calls("/double", 80, number, expect(|n| n * 2))
        .calls("/both", 80, number, expect(|n| n * 2 + 1))
        .crashes("double", 15)
        .crashes("next", 15)
        .delays("double", Duration::from_millis(30))
        .delays("next", Duration::from_millis(10))
        .callers_leave(8)
}

fn paused<T>(play: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(play)
}

/// The message of the test of a broken app.
fn complaint(simulation: Simulation) -> String {
    hide_panics();
    paused(complaint_of(simulation))
}

async fn complaint_of(simulation: Simulation) -> String {
    let panic = AssertUnwindSafe(simulation.run()).catch_unwind().await.expect_err("a promise was broken");
    panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap()
}

#[test]
fn all_faults_happen_and_every_promise_holds() {
    let runs: Vec<SimulationRun> = paused(async { stream_of(0..60).await.into_iter().collect() });
    let sum = |count: &dyn Fn(&SimulationRun) -> usize| runs.iter().map(count).sum::<usize>();
    let failed = |kind| sum(&|run| run.failed(kind));
    let failed_calls = [ErrorKind::Overloaded, ErrorKind::DeadlineExceeded, ErrorKind::WorkerFailed].map(failed);
    assert!(failed_calls.iter().all(|count| *count > 50), "{failed_calls:?}");
    assert!(
        sum(&SimulationRun::answered) > 3_000 && sum(&SimulationRun::left) > 50 && sum(&SimulationRun::crashes) > 100
    );
    let ended = sum(&SimulationRun::answered) + sum(&SimulationRun::left) + failed_calls.iter().sum::<usize>();
    assert_eq!(ended, 60 * 160, "each call has one outcome");
}

async fn stream_of(seeds: std::ops::Range<u64>) -> Vec<SimulationRun> {
    let mut runs = Vec::new();
    for seed in seeds {
        runs.push(with_all_faults(app(), seed).run().await);
    }
    runs
}

/// Also after other seeds on the same runtime, so that a failed seed can run alone.
#[test]
fn the_same_seed_gives_the_same_trace() {
    let first = paused(stream_of(0..30));
    let mut traces = BTreeSet::new();
    for (seed, run) in first.iter().enumerate() {
        let alone = paused(with_all_faults(app(), seed as u64).run());
        assert_eq!(run.to_string(), alone.to_string(), "seed {seed}");
        traces.insert(alone.to_string());
    }
    assert_eq!(traces.len(), 30, "each seed has its own trace");
}

#[test]
fn an_answer_that_its_check_rejects_fails_the_run_with_the_seed() {
    let wrong = Stage::each("double", |n: &u64| Ok(if *n == 0 { 1 } else { n * 2 }));
    let simulation = TestApp::new(App::new().route("/double", wrong)).simulate(7).calls(
        "/double",
        200,
        |chance| chance.within(0..20),
        |n: &u64, outcome: &Result<u64, CallError>| assert_eq!(outcome.as_ref().ok(), Some(&(n * 2)), "of {n}"),
    );
    let complaint = complaint(simulation);
    assert!(complaint.starts_with("seed 7 broke") && complaint.contains("of 0"), "{complaint}");
    assert!(complaint.contains("again: `TestApp::simulate(7)`") && complaint.contains("/double"), "{complaint}");
}

#[test]
fn a_panic_of_the_app_is_distinguished_from_a_simulated_one() {
    let dies = Stage::each("dies", |n: &u64| match *n {
        13 => panic!("unlucky"),
        n => Ok(n),
    });
    let simulation = TestApp::new(App::new().route("/dies", dies)).simulate(1);
    let calls = |simulation: Simulation| {
        simulation.calls("/dies", 300, |chance| chance.within(0..40), |_: &u64, _: &Result<u64, _>| ())
    };
    let text = complaint(calls(simulation).crashes("dies", 10));
    let violations = text.lines().take_while(|line| !line.starts_with("the last events"));
    let violations: Vec<&str> = violations.skip(1).collect();
    assert!(!violations.is_empty() && violations.iter().all(|line| line.contains("unlucky")), "{text}");
}

#[test]
fn a_stage_that_stays_unavailable_is_found() {
    let calls = Arc::new(AtomicUsize::new(0));
    // From the fiftieth call on it fails.
    let tires = Stage::each("tires", move |n: &u64| match calls.fetch_add(1, Ordering::SeqCst) {
        0..50 => Ok(*n),
        _ => Err(Failure::unavailable("tired")),
    });
    let simulation = || TestApp::new(App::new().route("/tires", tires.clone())).simulate(1);
    let calls = |simulation: Simulation| simulation.calls("/tires", 100, number, |_: &u64, _: &Result<u64, _>| ());
    let text = complaint(calls(simulation()));
    assert!(text.contains("unavailable: tired"), "{text}");
    let run = paused(calls(simulation()).allow(ErrorKind::Unavailable).run());
    assert!(run.failed(ErrorKind::Unavailable) >= 50, "{run}");
}

#[test]
fn a_call_that_panics_is_found() {
    let echo = Stage::each("echo", |n: &u64| Ok(*n));
    let input = |chance: &mut Chance| match number(chance) {
        n if n < 20 => panic!("meant to panic"),
        n => n,
    };
    let simulation = TestApp::new(App::new().route("/echo", echo)).simulate(1);
    let text = complaint(simulation.calls("/echo", 200, input, |_: &u64, _: &Result<u64, _>| ()));
    assert!(text.contains("a call has no end") && text.contains("meant to panic"), "{text}");
    assert!(text.contains("200 calls were made, and "), "{text}");
}

/// Here, the call after the faults is the only call of each run.
#[test]
fn the_call_after_the_faults_is_also_checked() {
    let echo = Stage::each("echo", |n: &u64| Ok(*n));
    let simulation = TestApp::new(App::new().route("/echo", echo)).simulate(1);
    let refused = |_: &u64, _: &Result<u64, CallError>| panic!("meant to panic");
    let text = complaint(simulation.calls("/echo", 0, number, refused));
    assert!(text.contains("/echo after the faults: meant to panic"), "{text}");

    let never = Stage::each_async("never", |_: Arc<u64>| std::future::pending::<Result<u64, Failure>>());
    let simulation = TestApp::new(App::new().route("/never", never)).simulate(1);
    let text = complaint(simulation.calls("/never", 0, number, |_: &u64, _: &Result<u64, _>| ()));
    assert!(text.contains("/never does not serve after the faults: deadline_exceeded"), "{text}");
}

/// A worker that dies after its work is done: if the contract lets it run again, effects double.
#[test]
fn a_crash_may_come_after_the_effect() {
    let effects = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&effects);
    let note = Stage::each("note", move |_: &u64| Ok(counted.fetch_add(1, Ordering::SeqCst))).idempotent();
    let simulation = TestApp::new(App::new().route("/note", note)).simulate(3).crashes("note", 5);
    let run = paused(simulation.calls("/note", 100, number, |_: &u64, _: &Result<usize, _>| ()).run());
    assert!(effects.load(Ordering::SeqCst) > run.answered() + 1, "{run}");
    assert!(run.trace().iter().any(|line| line.contains("dies after its code runs")), "{run}");
}

#[test]
fn errors_in_the_setup_of_a_simulation_are_reported() {
    let unknown = complaint(TestApp::new(app()).simulate(0).crashes("triple", 3));
    assert!(unknown.contains("no route has a stage [\"triple\"]"), "{unknown}");
    let running = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let text = running.block_on(complaint_of(TestApp::new(app()).simulate(0)));
    assert!(text.contains("needs a paused clock"), "{text}");
}

#[test]
fn a_streaming_route_does_not_prevent_a_simulation() {
    let letters = callboard_core::StreamStage::each("letters", |text: &String| {
        stream::iter(text.chars().map(|letter| Ok(letter.to_string())).collect::<Vec<_>>())
    });
    let first = Stage::each("first", |n: &u64| Ok(n + 1));
    let app = App::new().route_streaming("/letters", letters).route("/first", first);
    let simulation = TestApp::new(app).simulate(0).crashes("letters", 4).crashes("first", 4);
    let run = paused(simulation.calls("/first", 50, number, |_: &u64, _: &Result<u64, _>| ()).run());
    assert!(run.answered() > 0, "{run}");
}
