//! `/livez` and `/readyz`, for orchestrators.
//!
//! Live: the process answers; a restart would not help. Ready: traffic may come. A node that drains is live and not ready, so
//! that it is taken out of service and not killed; so is one whose stages run on other nodes while it reaches none that runs them.
//! Not ready is a problem document (503) that names the stages and reasons.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use callboard_codec::Value;
use callboard_core::{ElsewhereHealth, ErrorKind, Health, StageHealth};

use super::Sources;
use crate::error::ApiError;

pub(super) async fn live(State(sources): State<Sources>) -> Response {
    let health = sources.client.health();
    if health.live {
        Json(health).into_response()
    } else {
        unavailable(&health, "the node has ended".to_owned()).into_response()
    }
}

pub(super) async fn ready(State(sources): State<Sources>) -> Response {
    let health = sources.client.health();
    if health.ready {
        return Json(health).into_response();
    }
    let reasons = match health.draining {
        true => "the node is draining".to_owned(),
        false => {
            let elsewhere = health.elsewhere.iter().filter_map(unreachable);
            health.stages.iter().filter_map(reason).chain(elsewhere).collect::<Vec<_>>().join("; ")
        }
    };
    unavailable(&health, reasons).into_response()
}

fn unavailable(health: &Health, message: String) -> ApiError {
    ApiError::of_kind(ErrorKind::Unavailable, message).with_details(Value::from_serialize(health).ok())
}

/// Why this stage keeps the node from being ready, if it does.
fn reason(stage: &StageHealth) -> Option<String> {
    let StageHealth { name, state, reason, .. } = stage;
    match (state, reason) {
        _ if stage.ready => None,
        (_, Some(reason)) => Some(format!("stage `{name}` is {}: {reason}", state.as_str())),
        (_, None) => Some(format!("stage `{name}` is {}", state.as_str())),
    }
}

/// Why a stage that runs on other nodes only keeps the node from being ready, if it does.
pub(crate) fn unreachable(stage: &ElsewhereHealth) -> Option<String> {
    let ElsewhereHealth { name, reason, .. } = stage;
    reason.as_ref().map(|reason| format!("stage `{name}` runs elsewhere: {reason}"))
}
