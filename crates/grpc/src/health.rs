//! `grpc.health.v1.Health`: the readiness of the server and of its models.
//!
//! The empty name, `readiness` and the names of the services stand for the readiness of the server, `liveness` for its
//! life; every other name is that of a model.

use std::sync::Arc;
use std::time::Duration;

use callboard_core::{ErrorKind, LocalClient};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, RequestContext};
use callboard_oip::InferenceProtocol;
use callboard_oip::parts::unready;
use prost::Message as _;
use tokio::sync::Semaphore;

use crate::answer::{message, message_before};
use crate::framing::framed_plain;
use crate::proto::health::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
use crate::{SERVICES, stream};

/// The most watchers of a node. They need no key, and each looks at the state again and again.
pub(crate) const MAX_WATCHERS: usize = 256;

/// How often a watched state is looked at.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

/// The state of a service.
///
/// # Errors
///
/// There is no such service.
pub(crate) fn check(
    client: &LocalClient,
    inference: &InferenceProtocol,
    request: &HealthCheckRequest,
) -> Result<HealthCheckResponse, ApiError> {
    let health = client.health();
    let is_serving = match request.service.as_str() {
        "" | "readiness" => health.ready,
        "liveness" => health.live,
        name if SERVICES.iter().any(|service| service.strip_prefix('/') == Some(name)) => health.ready,
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
/// Enough others watch.
pub(crate) fn watch(
    context: RequestContext<'_>,
    inference: &Arc<InferenceProtocol>,
    watchers: &Arc<Semaphore>,
    request: HealthCheckRequest,
) -> Result<Response, ApiError> {
    let permit = Arc::clone(watchers).try_acquire_owned().map_err(|_full| {
        let message = format!("{MAX_WATCHERS} clients watch the health of this node, and no more can");
        ApiError::new(ErrorKind::Overloaded, message)
    })?;
    let (client, life, inference) = (context.client.clone(), Arc::clone(context.life), Arc::clone(inference));
    Ok(stream::respond(context, None, None, |outlet| async move {
        let _permit = permit;
        let mut sent = None;
        loop {
            let state = check(&client, &inference, &request).unwrap_or(answer(ServingStatus::ServiceUnknown));
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
