//! `/livez` and `/readyz`, for orchestrators.
//!
//! Live: the process answers, and a restart would not help. Ready: the node accepts traffic. A draining node is live
//! and not ready, so it is taken out of service but not killed; so is a node without any peer for its remote stages,
//! and one with keyed actors that has not seen its cluster yet. A node that is not ready answers with a problem
//! document (503) that names the stages and reasons.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use callboard_codec::Value;
use callboard_core::ErrorKind;
use callboard_core::description::Health;

use super::PageState;
use crate::error::ApiError;
use crate::observe::health::{down_reason, joining_reason, not_ready_reason, unreachable_reason};

pub(super) async fn live(State(sources): State<PageState>) -> Response {
    let health = sources.client.health();
    if health.live {
        Json(health).into_response()
    } else {
        unavailable(&health, "the node has ended".to_owned()).into_response()
    }
}

pub(super) async fn ready(State(sources): State<PageState>) -> Response {
    let health = sources.client.health();
    if health.ready {
        return Json(health).into_response();
    }
    let reasons = if health.draining {
        "the node is draining".to_owned()
    } else {
        let actors = health.down_actors.iter().map(down_reason);
        let remote = health.remote_stages.iter().filter_map(unreachable_reason);
        let joining = health.joining.iter().map(|reason| joining_reason(reason));
        let stages = health.stages.iter().filter_map(not_ready_reason);
        stages.chain(remote).chain(actors).chain(joining).collect::<Vec<_>>().join("; ")
    };
    unavailable(&health, reasons).into_response()
}

fn unavailable(health: &Health, message: String) -> ApiError {
    ApiError::new(ErrorKind::Unavailable, message).with_details(Value::from_serialize(health).ok())
}
