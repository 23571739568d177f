//! `callboard.v1.Inference`: calls of routes, with bodies in the forms that these have over HTTP.
//!
//! A call is the request to the route's path that its message describes, read and answered by the same code. `Stream`
//! has a message for each output of a route that streams.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use callboard_codec::Format;
use callboard_core::edge::{HeldBytes, Route};
use callboard_core::{Deadline, ErrorKind, LocalClient};
use callboard_http::axum::body::Body;
use callboard_http::axum::http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, TE,
};
use callboard_http::axum::http::request::Parts;
use callboard_http::axum::http::{HeaderMap, Request, Uri};
use callboard_http::axum::response::Response;
use callboard_http::protocol::{ApiError, ContentCoding, RequestContext, RequestHead, SERVER_TIMING};
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

const X_CALLBOARD_SESSION: &str = "x-callboard-session";

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
        // They become headers.
        let (mut option_bytes, max_option_bytes) = (0, context.config.max_header_bytes);
        for (index, field) in Fields::new(bytes).enumerate() {
            match field? {
                _ if index == MAX_FIELDS => return Err(invalid(format!("a call has at most {MAX_FIELDS} fields"))),
                (1, value) => name = value.short_text()?,
                (2, value) => content_type = Some(value.short_text()?).filter(|text| !text.is_empty()),
                (3, value) => body = value.bytes()?,
                (4, _) if options.len() == MAX_OPTIONS => {
                    return Err(invalid(format!("a call has at most {MAX_OPTIONS} options")));
                }
                (4, value) => {
                    let entry = value.bytes()?;
                    option_bytes += entry.len();
                    if option_bytes > max_option_bytes {
                        return Err(invalid(format!("the options of a call have at most {max_option_bytes} bytes")));
                    }
                    options.push(option(entry)?);
                }
                _ => {}
            }
        }
        let client = context.client;
        let public = |name: &str| client.route(name).filter(|route| !route.is_private());
        let route = public(&name).or_else(|| public(&format!("/{name}")));
        let route = route.ok_or_else(|| client.no_route(&shown(&name)))?;
        let own_limit = context.config.max_body_bytes_of(route.name());
        if body.len() as u64 > own_limit {
            return Err(ApiError::body_too_large(own_limit).about(route.name()));
        }
        let content_type = content_type.as_deref().unwrap_or(Format::Json.media_type());
        let headers = headers_of(&head.headers, &route, content_type, options)?;
        Ok(Self { context, request, head, coding, route, headers, body, account })
    }

    /// The request to the path of the route that this call describes. The account pays for its body.
    fn into_request(self) -> (Request<Body>, Arc<HeldBytes>) {
        let mut request = Request::new(Body::from(self.body));
        *request.uri_mut() = path_of(&self.route);
        *request.headers_mut() = self.headers;
        request.extensions_mut().extend(self.head.extensions.clone());
        (request, self.account)
    }

    /// Makes the call as a request to its path does, and answers with its body.
    pub(crate) async fn call(self) -> Result<Response, ApiError> {
        let (context, coding, route) = (self.context, self.coding, Arc::clone(&self.route));
        if route.streams() {
            return Err(unimplemented(format!("route `{}` answers with a stream: use Stream", route.name())));
        }
        let deadline = Deadline::after(context.start, context.client.edge().timeout_of(&route, self.request.timeout));
        let (request, account) = self.into_request();
        let mut answered = context.call_route(&route, request).await?;
        // The input is gone, and the outcome has its own account.
        drop(account);
        let timing = answered.headers_mut().remove(SERVER_TIMING);
        let frame = Frame { client: context.client, coding, from_bytes: context.config.compress_from_bytes, deadline };
        let mut response = answer::unary(frame.reply(answered).await?, coding);
        response.headers_mut().extend(timing.map(|timing| (SERVER_TIMING, timing)));
        Ok(response)
    }

    /// Makes the call and answers with each of its outputs.
    pub(crate) async fn stream(self) -> Result<Response, ApiError> {
        let (context, coding, route) = (self.context, self.coding, Arc::clone(&self.route));
        let (request, account) = self.into_request();
        let mut outputs = context.stream_route(&route, request).await?;
        // The call has its own account.
        drop(account);
        let (client, from_bytes) = (context.client.clone(), context.config.compress_from_bytes);
        Ok(stream::respond(context, Some(route.name()), coding, |outlet| async move {
            let frame = Frame { client: &client, coding, from_bytes, deadline: outputs.deadline() };
            while let Some(output) = outputs.next().await {
                outlet.send(frame.reply(output?).await?).await;
            }
            Ok(())
        }))
    }
}

/// How replies are framed.
struct Frame<'a> {
    client: &'a LocalClient,
    coding: Option<ContentCoding>,
    from_bytes: usize,
    deadline: Deadline,
}

impl Frame<'_> {
    /// The response of a route as a `CallReply`.
    async fn reply(&self, response: Response) -> Result<Vec<Bytes>, ApiError> {
        let (head, body) = response.into_parts();
        let body: Vec<Bytes> =
            body.into_data_stream().try_collect().await.map_err(|error| {
                ApiError::new(ErrorKind::Internal, format!("the answer could not be read: {error}"))
            })?;
        let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let edge = self.client.edge();
        let budget = edge.codec_budget(Arc::new(edge.held_bytes()), self.deadline);
        framed(reply(content_type, head.status.as_u16(), body), self.coding, self.from_bytes, &budget).await
    }
}

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
        let is_own = [ACCEPT.as_str(), X_REQUEST_PRIORITY, X_CALLBOARD_SESSION].contains(&name.as_str());
        if !is_own && !is_listed() {
            return Err(invalid(format!(
                "option `{}` is not read by route `{}`: there are `accept`, `{X_REQUEST_PRIORITY}`, \
                 `{X_CALLBOARD_SESSION}` and its headers",
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
    route.path().parse().unwrap_or_else(|_| Uri::from_static("/"))
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
