//! One call by HTTP, as an outline: what may be refused is refused before the body is read, and the cheapest check comes
//! first.
//!
//! Dropping the future, which hyper does when the client leaves, cancels the call wherever it is.

use std::sync::Arc;

use axum::body::HttpBody;
use axum::http::{Method, Request};
use axum::response::Response;
use bytes::Bytes;
use callboard_codec::{Map, Payload, Value};
use callboard_core::{CallOptions, Client, Route};
use tower::BoxError;

use crate::config::HttpConfig;
use crate::convert;
use crate::error::ApiError;
use crate::request::body::{self, BodyLimits, Incoming};
use crate::request::head::Head;
use crate::request::media::BodyForm;
use crate::request::multipart;
use crate::respond::{self, Accepted};
use crate::server_timing::{SERVER_TIMING, server_timing};

/// Answers one request to a user's route.
pub(crate) async fn call<B>(
    client: &Client,
    route: &Arc<Route>,
    config: &HttpConfig,
    request: &mut Request<B>,
) -> Result<Response, ApiError>
where
    B: HttpBody<Data = Bytes> + Send + Unpin,
    B::Error: Into<BoxError>,
{
    if request.method() != Method::POST {
        return Err(ApiError::method_not_allowed(request.method(), "POST"));
    }
    let head = Head::read(request.headers())?;
    let form = BodyForm::of(head.content_type, route.input())?;
    let accepted = Accepted::of(head.accept.as_ref(), route.output())?;

    // The length by the message's framing, which is what Content-Length says where there is one.
    let announced = request.body().size_hint().exact();
    if announced.is_some_and(|bytes| bytes > config.max_body_bytes) {
        return Err(ApiError::body_too_large(config.max_body_bytes));
    }
    let admission = body::admit(client, route, announced)?;
    let deadline = admission.deadline(head.timeout);

    let limits = BodyLimits { max_bytes: config.max_body_bytes, pace: config.pace(deadline) };
    let options = CallOptions::new().with_deadline(deadline);
    let options = head.priority.into_iter().fold(options, CallOptions::with_priority);
    let body = Incoming::new(request.body_mut(), announced, &admission, limits);
    let payload = read_payload(route, form, body, config).await?;
    let reply = client.submit(admission, payload, options).await?;

    let mut response = respond::whole(reply.payload, accepted).await?;
    response.headers_mut().insert(SERVER_TIMING, server_timing(&reply.timing));
    Ok(response)
}

async fn read_payload<B>(
    route: &Arc<Route>,
    form: BodyForm<'_>,
    body: Incoming<'_, B>,
    config: &HttpConfig,
) -> Result<Payload, ApiError>
where
    B: HttpBody<Data = Bytes> + Send + Unpin,
    B::Error: Into<BoxError>,
{
    let value = match form {
        BodyForm::Encoded(format) => {
            return convert::decode(route, format, body.collect().await?, &config.decode).await;
        }
        // Boxed, because it is large and seldom: as a part of this future it would be moved with each request.
        BodyForm::Multipart(boundary) => Box::pin(multipart::read(body, boundary, &config.decode)).await?,
        BodyForm::Raw(field) => raw_value(field, body.collect().await?),
        BodyForm::Text => Value::Str(convert::text(body.collect().await?)?),
        BodyForm::Bytes => Value::Bytes(body.collect().await?),
    };
    convert::from_value(route, value).await
}

fn raw_value(field: &str, bytes: Bytes) -> Value {
    Value::Map(Map::from_iter([(field.to_owned(), Value::Bytes(bytes))]))
}
