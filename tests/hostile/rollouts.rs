//! Callers who try to decide a rollout: they learn which revision their session has, and let the calls of the candidate
//! be late.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::attack::{Attack, Target};
use crate::http1::Request;

const JSON: &str = "application/json";

/// It needs more calls than the attack has, so that no honest call decides either.
const CANARY: &str = "/v1/models/slow/canary?share=0.5&version=2&min_calls=1000000";

/// A call of the model with two versions.
fn call() -> Request {
    Request::post("/slow", JSON, r#"{"x":[0]}"#)
}

/// Two callers look for sessions of the candidate, and give each five calls that are late. Returns how many were.
fn let_calls_be_late(target: &Target) -> usize {
    let late = AtomicUsize::new(0);
    target.run_clients(2, |client| {
        for session in 0.. {
            let session = format!("{client}-{session}");
            let in_session = || call().header("x-callboard-session", &session);
            let Some((_, answer)) = target.ask(&in_session()) else { return };
            if answer.contains("2.0") {
                for _ in 0..5 {
                    let answer = target.ask(&in_session().header("x-request-timeout-ms", "1"));
                    late.fetch_add(usize::from(answer.is_some_and(|(status, _)| status == 504)), Ordering::Relaxed);
                }
            }
        }
    });
    late.into_inner()
}

#[test]
fn callers_that_let_the_calls_of_a_candidate_be_late() {
    let attack = Attack::new("rollout: late calls of the candidate").on_versions().honest_at(call());
    attack.lasting(Duration::from_secs(3)).run(|target| {
        let (status, answer) = target.operator(&Request::post(CANARY, JSON, ""));
        assert_eq!(status, 200, "{answer}");
        let late = let_calls_be_late(target);
        assert!(late > 0, "no call was late");
        let (_, answer) = target.operator(&Request::get("/v1/status"));
        let status: Value = serde_json::from_str(&answer).unwrap();
        let routes = status["node"]["routes"].as_array().unwrap();
        let route = routes.iter().find(|route| route["name"] == "/slow").unwrap();
        assert_eq!(route["rollout"]["state"], "running", "after {late} late calls: {}", route["rollout"]);
    });
}
