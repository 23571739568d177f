//! `callboard.v1.Inference`: calls of routes, with bodies in the forms that these have over HTTP.
//!
//! `Call` is the request to the route's path that its message describes, answered by the same code. `Stream` is a call
//! of a route that streams: each output is a message in the form of the input, or in the one that `accept` names.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use callboard_codec::{Format, MediaType};
use callboard_core::edge::{HeldBytes, LARGE_BYTES, Route};
use callboard_core::{Deadline, ErrorKind};
use callboard_http::axum::body::Body;
use callboard_http::axum::http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, TE,
};
use callboard_http::axum::http::request::Parts;
use callboard_http::axum::http::{HeaderMap, Request, Uri};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{
    ApiError, CodecBudget, ContentCoding, RequestContext, RequestHead, SERVER_TIMING, decode_value, from_value,
    next_reply,
};
use callboard_oip::parts::shown;
use futures_util::TryStreamExt;
use prost::encoding::encode_varint;

use crate::framing::{framed, unimplemented};
use crate::reader::{Message, invalid};
use crate::wire::{Fields, Malformed};
use crate::{answer, stream};

/// The most options of a call.
const MAX_OPTIONS: usize = 32;

/// The most fields of a message: those that are declared, and some of a later version.
const MAX_FIELDS: usize = 2 * MAX_OPTIONS;

const X_REQUEST_PRIORITY: &str = "x-request-priority";

impl From<Malformed> for ApiError {
    fn from(malformed: Malformed) -> Self {
        invalid(format!("the message cannot be read: {malformed}"))
    }
}

/// One call whose message was read.
pub(crate) struct RouteCall<'a> {
    context: RequestContext<'a>,
    request: &'a RequestHead<'a>,
    head: &'a Parts,
    coding: Option<ContentCoding>,
    pub(crate) route: Arc<Route>,
    /// Those of the same request over HTTP.
    headers: HeaderMap,
    body: Bytes,
    account: Arc<HeldBytes>,
}

impl<'a> RouteCall<'a> {
    /// Reads the message, and finds its route.
    pub(crate) fn read(
        context: RequestContext<'a>,
        head: &'a Parts,
        request: &'a RequestHead<'a>,
        coding: Option<ContentCoding>,
        message: Message,
    ) -> Result<Self, ApiError> {
        let Message { bytes, account } = message;
        let (mut name, mut content_type, mut body, mut options) = (String::new(), None, Bytes::new(), Vec::new());
        for (index, field) in Fields::new(bytes).enumerate() {
            match field? {
                _ if index == MAX_FIELDS => return Err(invalid("a call has more fields than it can have")),
                (1, value) => name = value.text()?,
                (2, value) => content_type = Some(value.text()?).filter(|text| !text.is_empty()),
                (3, value) => body = value.bytes()?,
                (4, _) if options.len() == MAX_OPTIONS => {
                    return Err(invalid(format!("a call has at most {MAX_OPTIONS} options")));
                }
                (4, value) => options.push(option(value.bytes()?)?),
                _ => {}
            }
        }
        let client = context.client;
        let route = client.route(&name).or_else(|| client.route(&format!("/{name}")));
        let route = route.ok_or_else(|| client.no_route(&shown(&name)))?;
        let own_limit = context.config.max_body_bytes_of(route.name());
        if body.len() as u64 > own_limit {
            return Err(ApiError::body_too_large(own_limit).about(route.name()));
        }
        let content_type = content_type.as_deref().unwrap_or(Format::Json.media_type());
        let headers = headers_of(&head.headers, &route, content_type, options)?;
        Ok(Self { context, request, head, coding, route, headers, body, account })
    }

    /// Makes the call as a request to its path does, and answers with its body.
    pub(crate) async fn call(self) -> Result<Response, ApiError> {
        let Self { context, coding, route, headers, body, account, request, .. } = self;
        if route.streams() {
            return Err(unimplemented(format!("route `{}` answers with a stream: use Stream", route.name())));
        }
        let mut inner = Request::new(Body::from(body));
        *inner.uri_mut() = path_of(&route);
        *inner.headers_mut() = headers;
        inner.extensions_mut().extend(self.head.extensions.clone());
        let response = context.call_route(&route, inner).await?;
        // The input is gone, and the outcome has its own account.
        drop(account);
        let (head, body) = response.into_parts();
        let body: Vec<Bytes> =
            body.into_data_stream().try_collect().await.map_err(|error| {
                ApiError::new(ErrorKind::Internal, format!("the answer could not be read: {error}"))
            })?;
        let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let edge = context.client.edge();
        let deadline = Deadline::after(context.start, edge.timeout_of(&route, request.timeout));
        let budget = edge.codec_budget(Arc::new(edge.held_bytes()), deadline);
        let pieces = reply(content_type, head.status.as_u16(), body);
        let pieces = framed(pieces, coding, context.config.compress_from_bytes, &budget).await?;
        let mut response = answer::unary(pieces, coding);
        if let Some(timing) = head.headers.get(SERVER_TIMING) {
            response.headers_mut().insert(SERVER_TIMING, timing.clone());
        }
        Ok(response)
    }

    /// Makes the call and answers with each of its outputs.
    pub(crate) async fn stream(self) -> Result<Response, ApiError> {
        let Self { context, request, coding, route, headers, body, account, .. } = self;
        let (client, config) = (context.client.clone(), context.config);
        let edge = client.edge();
        let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let input = format_of(content_type)?;
        let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).filter(|accept| *accept != "*/*");
        let output = accept.map_or(Ok(input), format_of)?;
        let deadline = Deadline::after(context.start, edge.timeout_of(&route, request.timeout));
        let uri = path_of(&route);
        let parts = (&uri, &headers, &self.head.extensions);
        let options = context.call_options(&route, parts, deadline, RequestHead::read(&headers)?.priority)?;
        let admission = edge.admit_arrived(&route, 0, context.start)?;
        let payload = {
            let budget = edge.codec_budget(Arc::clone(&account) as _, deadline);
            budget.charge(options.attribute_bytes())?;
            let (admission, value) = decode_value(&budget, admission, input, body, &config.decode).await?;
            from_value(&budget, admission, &route, value).await
        };
        let (admission, payload) = payload?;
        let mut replies = edge.submit_streaming(admission, payload, options);
        let (client, life, compress_from) = (client.clone(), Arc::clone(context.life), config.compress_from_bytes);
        Ok(stream::respond(context, Some(route.name()), coding, |outlet| async move {
            // Pays for the input, as long as its call may wait.
            let _account = account;
            while let Some(payload) = next_reply(&mut replies, &life).await {
                let payload = payload?;
                let edge = client.edge();
                let budget: CodecBudget<'_> = edge.codec_budget(Arc::new(edge.held_bytes()), deadline);
                let bytes = payload.size_up_to(LARGE_BYTES);
                let encoded = budget.run_outcome(bytes, move || payload.encode(output)).await?;
                let body = encoded.map_err(ApiError::unencodable)?;
                let pieces = reply(output.media_type(), OK, vec![body]);
                outlet.send(framed(pieces, coding, compress_from, &budget).await?).await;
            }
            Ok(())
        }))
    }
}

/// The status of an output of a stream.
const OK: u16 = 200;

/// The headers of the same request over HTTP: those of this one, and its options.
fn headers_of(
    outer: &HeaderMap,
    route: &Route,
    content_type: &str,
    options: Vec<(String, String)>,
) -> Result<HeaderMap, ApiError> {
    let mut headers = outer.clone();
    for own in [ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, TE] {
        headers.remove(own);
    }
    let refused = |name: &str| invalid(format!("option `{}` has characters that a header cannot have", shown(name)));
    headers.insert(CONTENT_TYPE, HeaderValue::from_str(content_type).map_err(|_| refused("content_type"))?);
    for (name, value) in options {
        let name = name.to_ascii_lowercase();
        let is_listed = || route.request_fields().is_some_and(|fields| fields.has_header(&name));
        if name != ACCEPT.as_str() && name != X_REQUEST_PRIORITY && !is_listed() {
            return Err(invalid(format!(
                "option `{}` is not read by route `{}`: there are `accept`, `{X_REQUEST_PRIORITY}` and its headers",
                shown(&name),
                route.name()
            )));
        }
        let header: HeaderName = name.parse().map_err(|_| refused(&name))?;
        headers.insert(header, HeaderValue::from_str(&value).map_err(|_| refused(&name))?);
    }
    Ok(headers)
}

/// One entry of the options.
fn option(entry: Bytes) -> Result<(String, String), Malformed> {
    let (mut key, mut text) = (String::new(), String::new());
    for field in Fields::new(entry) {
        match field? {
            (1, value) => key = value.text()?,
            (2, value) => text = value.text()?,
            _ => {}
        }
    }
    Ok((key, text))
}

/// The path of a route, as a request has it.
fn path_of(route: &Route) -> Uri {
    route.name().parse().unwrap_or_else(|_| Uri::from_static("/"))
}

fn format_of(content_type: &str) -> Result<Format, ApiError> {
    let name = MediaType::without_parameters(content_type);
    Format::from_media_type(name).ok_or_else(|| {
        let accepted: Vec<&str> = Format::all().map(Format::media_type).collect();
        unimplemented(format!("`{}` is no form of a stream; accepted: {}", shown(name), accepted.join(", ")))
    })
}

/// The pieces of a `CallReply`. Its body is shared.
fn reply(content_type: &str, status: u16, body: Vec<Bytes>) -> Vec<Bytes> {
    let mut head = BytesMut::new();
    head.put_u8(1 << 3 | 2);
    encode_varint(content_type.len() as u64, &mut head);
    head.put_slice(content_type.as_bytes());
    head.put_u8(3 << 3);
    encode_varint(status.into(), &mut head);
    head.put_u8(2 << 3 | 2);
    encode_varint(body.iter().map(|piece| piece.len() as u64).sum(), &mut head);
    std::iter::once(head.freeze()).chain(body).collect()
}
