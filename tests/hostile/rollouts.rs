//! Callers who try to decide a rollout: they learn which revision their session has, and let the calls of one revision
//! be late.

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

/// Two callers look for sessions that get this answer, and give each five calls that are late.
fn let_calls_be_late(target: &Target, wanted: &str) {
    target.run_clients(2, |client| {
        for session in 0.. {
            let session = format!("{client}-{session}");
            let in_session = || call().header("x-callboard-session", &session);
            let Some((_, answer)) = target.ask(&in_session()) else { return };
            if answer.contains(wanted) {
                (0..5).for_each(|_| _ = target.ask(&in_session().header("x-request-timeout-ms", "1")));
            }
        }
    });
}

#[test]
fn callers_that_let_the_calls_of_one_revision_be_late() {
    for (name, wanted) in [("rollout: late calls of the candidate", "2.0"), ("rollout: late calls of the other", "1.0")]
    {
        let attack = Attack::new(name).on_versions().honest_at(call()).lasting(Duration::from_secs(3));
        attack.run(|target| {
            let (status, answer) = target.operator(&Request::post(CANARY, JSON, ""));
            assert_eq!(status, 200, "{answer}");
            let_calls_be_late(target, wanted);
            let (_, answer) = target.operator(&Request::get("/v1/status"));
            let status: Value = serde_json::from_str(&answer).unwrap();
            let routes = status["node"]["routes"].as_array().unwrap();
            let route = routes.iter().find(|route| route["name"] == "/slow").unwrap();
            assert_eq!(route["rollout"]["state"], "running", "{}", route["rollout"]);
        });
    }
}
