//! One request to a mounted app: checks come before the body is read.

use std::sync::Arc;

use axum::http::header::{TRANSFER_ENCODING, UPGRADE};
use axum::http::{Method, Request, StatusCode};
use axum::response::Response;
use callboard_codec::Payload;
use callboard_core::Deadline;
use callboard_core::edge::Route;

use super::head::{Origin, request_of, text_bytes};
use super::{asgi_path, streamed};
use crate::call::RequestContext;
use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::listener::PeerInfo;
use crate::request::body::{BodyLimits, IncomingBody, PendingAdmission, RequestBody, announced_length};
use crate::request::head::RequestHead;
use crate::upgrade::tokens;

/// Answers one request to the app of this route.
pub(crate) async fn answer<B: RequestBody>(
    context: RequestContext<'_>,
    route: &Arc<Route>,
    request: &mut Request<B>,
    peer: Option<PeerInfo>,
) -> Result<Response, ApiError> {
    let RequestContext { client, config, start, .. } = context;
    let app = asgi_path(route.name()).unwrap_or_default();
    let not_implemented = |message| Err(ApiError::with_status(StatusCode::NOT_IMPLEMENTED, "not_implemented", message));
    if request.method() == Method::CONNECT {
        return not_implemented(format!("the app at `{app}` is no proxy"));
    }
    if tokens(request.headers(), TRANSFER_ENCODING).any(|coding| !coding.eq_ignore_ascii_case("chunked")) {
        return not_implemented("a `transfer-encoding` other than chunked cannot be read".to_owned());
    }
    if tokens(request.headers(), UPGRADE).any(|name| name.eq_ignore_ascii_case("websocket")) {
        let message = format!("the app at `{app}` has no WebSockets here: it is asked by plain requests only");
        return Err(ApiError::with_status(StatusCode::NOT_IMPLEMENTED, "no_websocket", message));
    }
    // All other headers are the app's.
    let head = RequestHead::of_call_alone(request.headers())?;
    let max_bytes = config.max_body_bytes_of(route.name());
    let announced = announced_length(request.body(), max_bytes)?;
    let mut arrival = PendingAdmission::new(client, route, start, head.session);
    let head_by = arrival.deadline(head.timeout);
    // A client that says how long it waits means the whole answer.
    let deadline = if head.timeout.is_some() { head_by } else { Deadline::never(start) };
    let origin = origin_of(config, request, peer);
    let parts = (request.uri(), request.headers(), request.extensions());
    let options = context.call_options(route, parts, deadline, &head)?;
    let options = options.with_first_item_timeout(client.edge().timeout_of(route, head.timeout));

    let limits = BodyLimits { max_bytes, pace: config.body_pace(head_by) };
    let body = IncomingBody::new(request.body_mut(), announced, &mut arrival, limits)?.collect().await?;
    let admission = arrival.into_admission()?;
    let budget = client.edge().codec_budget(admission.account(), head_by);
    let asked = request_of(request, app, &origin, body);
    budget.charge(options.attribute_bytes() + text_bytes(&asked))?;
    // The revision that answers, which may be another one by now.
    let route = Arc::clone(admission.route());
    let replies = client.edge().submit_open_ended(admission, Payload::new(asked), options);
    streamed::begin(replies, context, &route, request.method()).await
}

fn origin_of<B>(config: &HttpConfig, request: &Request<B>, peer: Option<PeerInfo>) -> Origin {
    let proxies = &config.trusted_proxies;
    let is_forwarded = |peer: &PeerInfo| {
        let scheme = request.headers().get("x-forwarded-proto");
        proxies.contains(peer.address) && scheme.is_some_and(|scheme| scheme == "https")
    };
    Origin {
        client: peer.map(|peer| proxies.client(peer.address, request.headers())),
        is_secure: peer.is_some_and(|peer| peer.is_secure || is_forwarded(&peer)),
    }
}
