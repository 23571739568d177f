//! One call over HTTP, as an outline: checks come before the body is read, cheap ones first.
//!
//! Dropping the future, as hyper does when the client leaves, cancels the call at any point.

mod context;
pub(crate) mod events;
pub(crate) mod functions;
pub(crate) mod method;
mod outputs;

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use axum::http::{Method, Request};
use axum::response::Response;
use bytes::Bytes;
use callboard_codec::{DataType, Format, Map, Payload, Value};
use callboard_core::edge::{Admission, CodecBudget, Route};
use callboard_core::{CallOptions, Deadline};

pub use self::context::{CallOrigin, RequestContext};
use self::functions::CallStyle;
pub use self::outputs::RouteOutputs;
use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::observe::cache_status::insert_cache_status;
use crate::observe::server_timing::{SERVER_TIMING, first, server_timing};
use crate::request::arguments;
use crate::request::body::{BodyLimits, IncomingBody, PendingAdmission, RequestBody, announced_length};
use crate::request::form::ReceivedForm;
use crate::request::head::RequestHead;
use crate::request::media::{BodyForm, accepted, is_file, is_open_file};
use crate::request::multipart;
use crate::request::payload;
use crate::request::urlencoded::UrlEncodedForm;
use crate::respond::stream::{self, StreamForm};
use crate::respond::{self, AcceptedForms, ResponseCompression};

/// Answers one request to a user's route.
pub(crate) async fn call<B: RequestBody>(
    context: RequestContext<'_>,
    route: &Arc<Route>,
    style: CallStyle,
    request: &mut Request<B>,
) -> Result<Response, ApiError> {
    let RequestContext { client, config, start, .. } = context;
    let decide = |head: &RequestHead<'_>, form: &BodyForm<'_>| {
        let compression = ResponseCompression::new(head.accept_encoding.as_deref(), config);
        let kind = ResponseKind::new(head.accept.as_ref(), head.content_type, route, style, form)?;
        Ok((compression, kind))
    };
    let ((compression, response_kind), arrived) = arrive(context, route, style, request, decide).await?;
    let ArrivedCall { admission, payload, options, deadline, budget } = arrived;
    match response_kind {
        ResponseKind::Whole(accepted) => {
            let submitted = client.edge().submit_unwritten_of(admission, payload, options, context.is_alone);
            let (reply, unwritten) = submitted.await?;
            let response = match unwritten.response() {
                None => respond::whole(reply.payload, accepted, &compression, &budget).await,
                // Boxed: keeps the future of calls without it small.
                Some(fields) => {
                    let headers = request.headers();
                    Box::pin(respond::chosen(&fields, reply.payload, accepted, headers, &compression, &budget)).await
                }
            };
            let cache_use = unwritten.cache_use();
            unwritten.end(response.as_ref().map(|_| ()).map_err(ApiError::kind));
            let mut response = response?;
            response.headers_mut().insert(SERVER_TIMING, server_timing(&reply.timing));
            insert_cache_status(response.headers_mut(), cache_use);
            Ok(response)
        }
        // Boxed: keeps the future of calls without a stream small.
        ResponseKind::Stream(form) => {
            let replies = client.edge().submit_streaming(admission, payload, options);
            let streamed = context.stream_context(form, route, &compression, deadline);
            let mut response = Box::pin(stream::begin(replies, streamed)).await?;
            response.headers_mut().insert(SERVER_TIMING, first(start.elapsed()));
            Ok(response)
        }
    }
}

/// A call whose input was read.
struct ArrivedCall<'a> {
    admission: Admission,
    payload: Payload,
    options: CallOptions,
    deadline: Deadline,
    budget: CodecBudget<'a>,
}

/// Reads the input of one call. `decide` sees the head before that.
async fn arrive<'a, B: RequestBody, T>(
    context: RequestContext<'a>,
    route: &Arc<Route>,
    style: CallStyle,
    request: &mut Request<B>,
    decide: impl FnOnce(&RequestHead<'_>, &BodyForm<'_>) -> Result<T, ApiError>,
) -> Result<(T, ArrivedCall<'a>), ApiError> {
    let RequestContext { client, config, start, .. } = context;
    let head = RequestHead::read(request.headers())?;
    let input = if style == CallStyle::Function { arguments::arguments() } else { route.input() };
    let may_be_absent = head.content_type.is_none() && request.body().size_hint().lower() == 0;
    let default = if may_be_absent { value_without_body(route, style) } else { None };
    let form = BodyForm::for_content_type(head.content_type, input)
        .or_else(|refusal| default.clone().map(BodyForm::Absent).ok_or(refusal))?;
    let decided = decide(&head, &form)?;

    let max_bytes = config.max_body_bytes_of(route.name());
    let announced = announced_length(request.body(), max_bytes)?;
    let mut arrival = PendingAdmission::new(client, route, start, head.session);
    let deadline = arrival.deadline(head.timeout);

    let limits = BodyLimits { max_bytes, pace: config.body_pace(deadline) };
    // What is not there has no coding.
    let coding = head.coding.filter(|_| !matches!(form, BodyForm::Absent(_)));
    let parts = (request.uri(), request.headers(), request.extensions());
    let options = context.call_options(route, parts, deadline, &head)?;
    let options = method::with_method_and_client(options, route, style, request);
    let read = {
        let mut body = IncomingBody::new(request.body_mut(), announced, &mut arrival, limits)?.decoded(coding);
        read_body(form, default, input, &mut body).await?
    };
    let admission = arrival.into_admission()?;
    let budget = client.edge().codec_budget(admission.account(), deadline);
    budget.charge(options.attribute_bytes())?;
    let (admission, payload) = match style {
        CallStyle::Function => Box::pin(read_arguments(&budget, admission, route, read, config)).await?,
        CallStyle::Route | CallStyle::Declared | CallStyle::Asgi => {
            read_payload(&budget, admission, route, read, config).await?
        }
    };
    Ok((decided, ArrivedCall { admission, payload, options, deadline, budget }))
}

/// Answers a request to a route whose paths or methods are declared. The body of a safe method is not read.
pub(crate) async fn call_declared<B: RequestBody>(
    context: RequestContext<'_>,
    route: &Arc<Route>,
    request: &mut Request<B>,
) -> Result<Response, ApiError> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return call(context, route, CallStyle::Declared, request).await;
    }
    let mut empty = Request::new(Body::empty());
    *empty.method_mut() = request.method().clone();
    *empty.uri_mut() = request.uri().clone();
    *empty.headers_mut() = request.headers().clone();
    *empty.extensions_mut() = request.extensions().clone();
    empty.headers_mut().remove(CONTENT_ENCODING);
    empty.headers_mut().remove(CONTENT_TYPE);
    call(context, route, CallStyle::Declared, &mut empty).await
}

/// The JSON that a request without a body stands for: no arguments, the input of a call without one or, of a declared
/// route, null. `None` for a route that needs a body.
fn value_without_body(route: &Route, style: CallStyle) -> Option<Bytes> {
    let input = route.input();
    match (style, input.default_json()) {
        (CallStyle::Function, Some(_)) => Some(Bytes::from_static(b"{}")),
        (_, Some(default)) => Some(default.to_string().into()),
        // Null is no file: without one the request is refused as by any other route.
        (CallStyle::Declared, None) if input.raw_body().is_none() && !is_file(input.schema()) => {
            Some(Bytes::from_static(b"null"))
        }
        (_, None) => None,
    }
}

/// Whether a response is whole or streamed, and its forms.
#[derive(Debug)]
pub(crate) enum ResponseKind {
    Whole(AcceptedForms),
    Stream(StreamForm),
}

impl ResponseKind {
    /// The forms that `accept` allows, or a 406 that lists the available ones.
    ///
    /// Without a decisive `accept` a function answers in the format of its arguments: a client that sends envelopes
    /// reads them.
    fn new(
        accept: Option<&Cow<'_, HeaderValue>>,
        content_type: Option<&HeaderValue>,
        route: &Route,
        style: CallStyle,
        form: &BodyForm<'_>,
    ) -> Result<Self, ApiError> {
        match (route.streams(), style, form) {
            (true, ..) => StreamForm::from_accept(accept, route.output()).map(Self::Stream),
            (false, CallStyle::Function, BodyForm::Encoded(format))
                if accept.is_none_or(|accept| **accept == "*/*") =>
            {
                let media_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
                Ok(Self::Whole(AcceptedForms::as_asked(*format, media_type)))
            }
            (false, ..) => {
                let refused =
                    |refusal| if may_choose(route, accept) { Ok(AcceptedForms::OF_CODE) } else { Err(refusal) };
                AcceptedForms::from_accept(accept, route.output()).or_else(refused).map(Self::Whole)
            }
        }
    }
}

/// Whether the code of a route may choose a media type that the request accepts.
fn may_choose(route: &Route, accept: Option<&Cow<'_, HeaderValue>>) -> bool {
    let declared = route.response();
    match declared.and_then(|response| response.media_type.as_deref()) {
        Some(declared) => respond::accepts(accept.map(|accept| &**accept), declared),
        None => declared.is_some_and(|response| response.chooses_media_type) || is_open_file(route.output()),
    }
}

/// A body that was read.
enum BodyContent {
    Encoded(Format, Bytes),
    Form(ReceivedForm),
    Text(Bytes),
    Value(Value),
}

/// Reads a whole body without decoding it. Without a body there is the default, if there is one.
async fn read_body<B: RequestBody>(
    form: BodyForm<'_>,
    default: Option<Bytes>,
    input: &DataType,
    body: &mut IncomingBody<'_, PendingAdmission<'_>, B>,
) -> Result<BodyContent, ApiError> {
    Ok(match form {
        BodyForm::Encoded(format) => match body.collect().await? {
            // No format writes a value without bytes.
            bytes if bytes.is_empty() => return Err(ApiError::empty_body(format)),
            bytes => BodyContent::Encoded(format, bytes),
        },
        // Boxed, because it is large and rare: this future moves with each request.
        BodyForm::Multipart(boundary) => {
            let form = Box::pin(multipart::read(body, boundary)).await?;
            BodyContent::Form(ReceivedForm::Multipart(form))
        }
        BodyForm::UrlEncoded => {
            let form = UrlEncodedForm::try_new(body.collect().await?)?;
            BodyContent::Form(ReceivedForm::UrlEncoded(form))
        }
        BodyForm::Raw(field) => match (body.collect().await?, default) {
            (bytes, Some(default)) if bytes.is_empty() => BodyContent::Encoded(Format::Json, default),
            (bytes, _) => BodyContent::Value(raw_value(field, bytes)),
        },
        BodyForm::Text => BodyContent::Text(body.collect().await?),
        BodyForm::Bytes => BodyContent::Value(Value::Bytes(body.collect().await?)),
        BodyForm::Absent(value) => match body.chunk().await? {
            None => BodyContent::Encoded(Format::Json, value),
            Some(_) => return Err(ApiError::unsupported_media_type(None, &accepted(input).join(", "))),
        },
    })
}

async fn read_payload(
    budget: &CodecBudget<'_>,
    admission: Admission,
    route: &Arc<Route>,
    body: BodyContent,
    config: &HttpConfig,
) -> Result<(Admission, Payload), ApiError> {
    match body {
        BodyContent::Encoded(format, bytes) => {
            payload::decode(budget, admission, route, format, bytes, &config.decode).await
        }
        BodyContent::Form(form) => {
            let read = |route: &Arc<Route>, fields| payload::of_fields(route.input(), fields);
            Box::pin(payload::decode_form(budget, admission, route, form, &config.decode, read)).await
        }
        BodyContent::Text(bytes) => payload::from_text(budget, admission, route, bytes).await,
        BodyContent::Value(value) => payload::from_value(budget, admission, route, value).await,
    }
}

async fn read_arguments(
    budget: &CodecBudget<'_>,
    admission: Admission,
    route: &Arc<Route>,
    body: BodyContent,
    config: &HttpConfig,
) -> Result<(Admission, Payload), ApiError> {
    match body {
        BodyContent::Encoded(format, bytes) => {
            payload::decode_call(budget, admission, route, format, bytes, &config.decode).await
        }
        BodyContent::Form(form) => {
            payload::decode_form(budget, admission, route, form, &config.decode, arguments::from_form).await
        }
        BodyContent::Text(_) | BodyContent::Value(_) => Err(ApiError::bad_form("arguments need names")),
    }
}

fn raw_value(field: &str, bytes: Bytes) -> Value {
    Value::Map(Map::from_iter([(field.to_owned(), Value::Bytes(bytes))]))
}
