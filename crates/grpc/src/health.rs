//! `grpc.health.v1.Health`: the readiness of the server and of its models.
//!
//! The empty name, `readiness` and the names of the services stand for the readiness of the server, `liveness` for its
//! life; every other name is that of a model.

use std::time::Duration;

use callboard_core::LocalClient;
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, RequestContext};
use callboard_oip::InferenceProtocol;
use callboard_oip::parts::unready;
use prost::Message as _;
use std::sync::Arc;

use crate::framing::framed_plain;
use crate::proto::health::{HealthCheckRequest, HealthCheckResponse, ServingStatus};
use crate::{SERVICES, stream};

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

const fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}

/// Answers with the state of a service, and with each state that follows. It ends when callers are to use another node:
/// that state is not serving.
pub(crate) fn watch(
    context: RequestContext<'_>,
    inference: &Arc<InferenceProtocol>,
    request: HealthCheckRequest,
) -> Response {
    let (client, life, inference) = (context.client.clone(), Arc::clone(context.life), Arc::clone(inference));
    stream::respond(context, None, None, |outlet| async move {
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
    })
}
