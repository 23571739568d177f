//! `grpc.health.v1.Health`: the readiness of the server and of its models.
//!
//! The empty name, `readiness` and the names of the services stand for the readiness of the server, `liveness` for its
//! life; every other name is that of a model.

use std::sync::Arc;
use std::time::Duration;

use callboard_core::{ErrorKind, Instant, LocalClient};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, RequestContext};
use callboard_oip::InferenceProtocol;
use callboard_oip::parts::unready;
use prost::Message as _;

use crate::answer::{message, message_before};
use crate::framing::framed_plain;
use crate::proto::health::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
use crate::watchers::Watcher;
use crate::{SERVICES, stream};

/// How often a watched state is looked at.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// The state of a service.
///
/// # Errors
///
/// There is no such service, or it is a model and the request has no key.
pub(crate) fn check(
    context: RequestContext<'_>,
    inference: &InferenceProtocol,
    request: &HealthCheckRequest,
) -> Result<HealthCheckResponse, ApiError> {
    check_may_know(context, request)?;
    state(context.client, inference, request)
}

/// Whether this service is the server, and none of its models.
fn is_server(service: &str) -> bool {
    ["", "readiness", "liveness"].contains(&service)
        || SERVICES.iter().any(|path| path.strip_prefix('/') == Some(service))
}

/// Refuses to tell strangers of models: a request for the health shows no key.
fn check_may_know(context: RequestContext<'_>, request: &HealthCheckRequest) -> Result<(), ApiError> {
    let needs_key = context.config.api_keys.is_some() || context.config.auth;
    if needs_key && !is_server(&request.service) {
        let message = "the service of health tells of the server alone: ask ModelReady for a model, with a key";
        return Err(ApiError::new(ErrorKind::Unauthenticated, message));
    }
    Ok(())
}

fn state(
    client: &LocalClient,
    inference: &InferenceProtocol,
    request: &HealthCheckRequest,
) -> Result<HealthCheckResponse, ApiError> {
    let health = client.health();
    let is_serving = match request.service.as_str() {
        "liveness" => health.live,
        name if is_server(name) => health.ready,
        name => {
            let (route, _) = inference.model(client, name, None)?;
            unready(&health, &route).is_none()
        }
    };
    Ok(answer(if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing }))
}

/// The answer of a node that is starting: it lives, and serves nothing. A watcher comes back, because its stream ends.
pub(crate) fn while_starting(method: &str, request: HealthCheckRequest) -> Option<Response> {
    let state = answer(if request.service == "liveness" { ServingStatus::Serving } else { ServingStatus::NotServing });
    match method {
        "Check" => Some(message(&state)),
        "Watch" => {
            let end = ApiError::new(ErrorKind::Unavailable, "the node is starting");
            Some(message_before(&state, &end))
        }
        _ => None,
    }
}

const fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}

/// Answers with the state of a service, and with each state that follows. It ends when callers are to use another node:
/// that state is not serving.
///
/// # Errors
///
/// As [`check`], but an unknown model is a state.
pub(crate) fn watch(
    context: RequestContext<'_>,
    inference: &Arc<InferenceProtocol>,
    watcher: Watcher,
    request: HealthCheckRequest,
) -> Result<Response, ApiError> {
    check_may_know(context, &request)?;
    let (client, life, inference) = (context.client.clone(), Arc::clone(context.life), Arc::clone(inference));
    Ok(stream::respond(context, None, None, |outlet| async move {
        let mut sent = None;
        loop {
            watcher.used(Instant::now())?;
            let state = state(&client, &inference, &request).unwrap_or(answer(ServingStatus::ServiceUnknown));
            if sent != Some(state.status) {
                sent = Some(state.status);
                outlet.send(vec![framed_plain(&state.encode_to_vec())]).await;
            }
            if let Err(withdrawn) = life.unless_withdrawn(tokio::time::sleep(WATCH_INTERVAL)).await {
                let last = answer(ServingStatus::NotServing);
                if sent != Some(last.status) {
                    outlet.send(vec![framed_plain(&last.encode_to_vec())]).await;
                }
                return Err(withdrawn);
            }
        }
    }))
}
