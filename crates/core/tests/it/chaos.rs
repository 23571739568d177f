//! Many calls with random cancels, deadlines, failures and panics: one outcome each, and everything returns to zero.
//!
//! `CHAOS_CALLS` sets the number of calls (default 100,000), `CHAOS_SEED` repeats a run's choices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use callboard_core::description::StageState;
use callboard_core::testing::env_number;
use callboard_core::{App, CallOptions, ErrorKind, Failure, Pipeline, Stage};

use super::support::{hide_panics, until};

/// The number of a call decides its nature, so that the same seed makes the same calls.
fn nature(n: u64) -> u64 {
    fastrand::Rng::with_seed(n).u64(..)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_call_of_a_storm_has_one_outcome_and_nothing_leaks() {
    hide_panics();
    let calls = env_number("CHAOS_CALLS", 100_000);
    let seed = env_number("CHAOS_SEED", u64::from(std::process::id()));
    println!("CHAOS_SEED={seed} CHAOS_CALLS={calls}");

    let ran = Arc::new(AtomicU64::new(0));
    let first = Stage::each("first", {
        let ran = Arc::clone(&ran);
        move |n: &u64| {
            ran.fetch_add(1, Ordering::Relaxed);
            match nature(*n) % 1000 {
                0 => panic!("meant to panic"),
                1..20 => Err(Failure::new("no")),
                _ => Ok(*n),
            }
        }
    })
    .max_batch_size(16)
    .replicas(2);
    let second = Stage::each("second", |n: &u64| Ok(*n + 1)).max_batch_size(32).replicas(2).on_threads();
    let node = App::new().route("/storm", Pipeline::from(first).then(second)).start().await.unwrap();

    let callers = 128;
    let per_caller = calls.div_ceil(callers);
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let client = node.client();
            tokio::spawn(async move {
                let mut outcomes = [0u64; 4];
                for step in 0..per_caller {
                    let n = seed.wrapping_mul(31).wrapping_add(caller * per_caller + step);
                    let call = client.call_with::<u64, u64>("/storm", n, options(n));
                    let outcome = if nature(n) % 16 == 7 {
                        // A caller that leaves at a random point of the call.
                        let patience = Duration::from_micros(nature(n) % 300);
                        match tokio::time::timeout(patience, call).await {
                            Ok(outcome) => outcome,
                            Err(_) => {
                                outcomes[3] += 1;
                                continue;
                            }
                        }
                    } else {
                        call.await
                    };
                    match outcome {
                        Ok(m) => {
                            assert_eq!(m, n + 1);
                            outcomes[0] += 1;
                        }
                        Err(error) if error.kind() == ErrorKind::Failed => outcomes[1] += 1,
                        Err(error) => {
                            // Calls with a short deadline may be refused before they queue.
                            let expected =
                                [ErrorKind::WorkerFailed, ErrorKind::DeadlineExceeded, ErrorKind::Overloaded];
                            assert!(expected.contains(&error.kind()), "{error}");
                            outcomes[2] += 1;
                        }
                    }
                }
                outcomes
            })
        })
        .collect();
    let mut outcomes = [0u64; 4];
    for task in tasks {
        for (sum, count) in outcomes.iter_mut().zip(task.await.unwrap()) {
            *sum += count;
        }
    }
    println!("ok, failed, lost or late, cancelled: {outcomes:?}");
    assert_eq!(outcomes.iter().sum::<u64>(), callers * per_caller);
    assert!(outcomes.iter().all(|count| *count > 0), "some outcome is missing: {outcomes:?}");

    until("queues are empty and workers free", || {
        node.describe().stages.iter().all(|stage| {
            stage.queued == 0 && stage.health.state == StageState::Ready && stage.replicas.iter().all(|r| !r.busy)
        })
    })
    .await;
    let description = node.describe();
    assert_eq!((description.in_flight, description.in_flight_bytes), (0, 0));
    assert_eq!(description.admitted, callers * per_caller);
    assert_eq!(description.outcomes, description.admitted, "every admitted call has one outcome");
    assert!(ran.load(Ordering::Relaxed) <= description.admitted, "nothing ran twice");
}

fn options(n: u64) -> CallOptions {
    if nature(n) % 32 == 3 {
        CallOptions::new().with_timeout(Duration::from_micros(nature(n) % 500))
    } else {
        CallOptions::new()
    }
}
