//! One call by HTTP, as an outline: what may be refused is refused before the body is read, and the cheapest check comes
//! first.
//!
//! Dropping the future, which hyper does when the client leaves, cancels the call wherever it is.

pub(crate) mod functions;

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::header::HeaderValue;
use axum::http::{HeaderMap, Method, Request};
use axum::response::Response;
use bytes::Bytes;
use callboard_codec::{Format, Map, Payload, Value};
use callboard_core::{Admission, CallOptions, Deadline, LocalClient, Priority, Recorder, Route};

use self::functions::Way;
use crate::config::HttpConfig;
use crate::error::ApiError;
use crate::guard::KeyHolder;
use crate::observe::metrics::EdgeMetrics;
use crate::observe::server_timing::{SERVER_TIMING, first, server_timing};
use crate::request::body::{Arrival, BodyLimits, Incoming, RequestBody};
use crate::request::head::Head;
use crate::request::media::BodyForm;
use crate::request::multipart::{self, Form};
use crate::request::payload::{self, Expense};
use crate::request_id::{NAMING, RequestId};
use crate::respond::stream::{self, StreamForm, Streamed};
use crate::respond::{self, Accepted, Packing};
use crate::runtime::shutdown::Closing;
use crate::spans::RequestSpan;
use crate::trace::{TRACEPARENT, TraceContext};

/// What is around a call: the edge that makes it, and the request that asks for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around<'a> {
    pub(crate) client: &'a LocalClient,
    pub(crate) config: &'a HttpConfig,
    pub(crate) metrics: &'a EdgeMetrics,
    /// Calls are waited for no longer.
    pub(crate) aborting: &'a Arc<Closing>,
    pub(crate) id: &'a RequestId,
    /// What the record of its calls is written with.
    pub(crate) recorder: Option<&'a Recorder>,
    /// Whether its client wants to read it.
    pub(crate) is_explained: bool,
    /// Where it is sampled.
    pub(crate) span: Option<&'a Arc<RequestSpan>>,
    /// Whether its client may have named a trace.
    pub(crate) has_trace: bool,
    /// The owner of the key that the request has shown, where keys are asked for.
    pub(crate) holder: Option<&'a KeyHolder>,
}

/// Answers one request to a user's route.
pub(crate) async fn call<B: RequestBody>(
    around: Around<'_>,
    route: &Arc<Route>,
    way: Way,
    request: &mut Request<B>,
) -> Result<Response, ApiError> {
    let Around { client, config, .. } = around;
    if request.method() != Method::POST {
        return Err(ApiError::method_not_allowed(request.method(), "POST"));
    }
    let head = Head::read(request.headers())?;
    let input = if way == Way::Function { functions::arguments() } else { route.input() };
    let form = BodyForm::of(head.content_type, input)?;
    let packing = Packing::new(head.accept_encoding.as_deref(), config);
    let wanted = Wanted::of(head.accept.as_ref(), head.content_type, route, way, &form)?;

    // The length by the message's framing, which is what Content-Length says where there is one.
    let announced = request.body().size_hint().exact();
    let max_bytes = config.max_body_bytes_of(route.name());
    if announced.is_some_and(|bytes| bytes > max_bytes) {
        return Err(ApiError::body_too_large(max_bytes));
    }
    let mut arrival = Arrival::new(client, route);
    let deadline = arrival.deadline(head.timeout);

    let limits = BodyLimits { max_bytes, pace: config.pace(deadline) };
    let coding = head.coding;
    let options = around.options(route, request.headers(), deadline, head.priority);
    let body = Incoming::new(request.body_mut(), announced, &mut arrival, limits)?.unpacked(coding);
    let read = read_body(form, body).await?;
    let admission = arrival.into_admission()?;
    let expense = Expense::of(client, &admission, deadline);
    let told = options.header_bytes();
    if told > 0 {
        expense.charge(told)?;
    }
    let (admission, payload) = match way {
        Way::Route => read_payload(&expense, admission, route, read, config).await?,
        Way::Function => Box::pin(read_arguments(&expense, admission, route, read, config)).await?,
    };
    match wanted {
        Wanted::Whole(accepted) => {
            let (reply, unwritten) = client.submit_unwritten(admission, payload, options).await?;
            let written = respond::whole(reply.payload, accepted, &packing, &expense).await;
            unwritten.end(written.as_ref().map(|_| ()).map_err(ApiError::kind));
            let mut response = written?;
            response.headers_mut().insert(SERVER_TIMING, server_timing(&reply.timing));
            Ok(response)
        }
        // Boxed for the sake of those that do not stream, whose future it would enlarge.
        Wanted::Stream(form) => {
            let begun = admission.admitted_at();
            let replies = client.submit_streaming(admission, payload, options);
            let streamed = around.streamed(form, route, &packing, deadline);
            let mut response = Box::pin(stream::begin(replies, streamed)).await?;
            response.headers_mut().insert(SERVER_TIMING, first(begun.elapsed()));
            Ok(response)
        }
    }
}

/// How a request wants to be answered.
#[derive(Debug)]
pub(crate) enum Wanted {
    Whole(Accepted),
    Stream(StreamForm),
}

impl Wanted {
    /// What `accept` allows of what the route gives, or a 406 that lists that.
    ///
    /// A function is answered in the format of its arguments where `accept` does not decide: whoever sends envelopes reads them.
    fn of(
        accept: Option<&Cow<'_, HeaderValue>>,
        content_type: Option<&HeaderValue>,
        route: &Route,
        way: Way,
        form: &BodyForm<'_>,
    ) -> Result<Self, ApiError> {
        match (route.streams(), way, form) {
            (true, ..) => StreamForm::of(accept).map(Self::Stream),
            (false, Way::Function, BodyForm::Encoded(format)) if accept.is_none_or(|accept| **accept == "*/*") => {
                let asked = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
                Ok(Self::Whole(Accepted::as_asked(*format, asked)))
            }
            (false, ..) => Accepted::of(accept, route.output()).map(Self::Whole),
        }
    }
}

impl Around<'_> {
    /// How its calls are made.
    pub(crate) fn options(
        self,
        route: &Route,
        headers: &HeaderMap,
        deadline: Deadline,
        priority: Option<Priority>,
    ) -> CallOptions {
        let options = CallOptions::new().with_deadline(deadline);
        let options = priority.into_iter().fold(options, CallOptions::with_priority);
        self.telling(options, route, headers)
    }

    /// The same options, with what the code behind the route may know of the request: of its headers, those that the
    /// route wants.
    pub(crate) fn telling(self, options: CallOptions, route: &Route, headers: &HeaderMap) -> CallOptions {
        let mut options = self.recorder.cloned().into_iter().fold(options, CallOptions::with_recorder);
        if NAMING {
            options = options.with_request_id(self.id.as_str());
        }
        if let Some(holder) = self.holder {
            options = options.with_caller(holder.name());
        }
        if self.has_trace
            && let Some(parent) = headers.get(TRACEPARENT)
            && TraceContext::from_client(parent).is_some()
        {
            options = options.with_traceparent(parent.to_str().unwrap_or_default());
        }
        for name in route.wanted_headers() {
            let lines: Vec<_> = headers.get_all(&**name).iter().filter_map(|line| line.to_str().ok()).collect();
            if !lines.is_empty() {
                options = options.with_header(name.clone(), lines.join(", "));
            }
        }
        options
    }

    /// What a stream keeps of its request.
    pub(crate) fn streamed(self, form: StreamForm, route: &Route, packing: &Packing, deadline: Deadline) -> Streamed {
        Streamed {
            form,
            client: self.client.clone(),
            deadline,
            aborting: Arc::clone(self.aborting),
            id: self.id.clone(),
            span: self.span.cloned(),
            explained: self.recorder.filter(|_| self.is_explained).cloned(),
            route: route.name().to_owned(),
            abandoned: self.metrics.abandoned.clone(),
            panics: self.metrics.panics.clone(),
            heartbeat: self.config.stream_heartbeat,
            coding: packing.of_stream(),
        }
    }
}

/// A body that is there, and what it is.
enum ReadBody {
    Encoded(Format, Bytes),
    Form(Form),
    Text(Bytes),
    Value(Value),
}

/// Reads all of a body. Nothing of it is looked at yet.
async fn read_body<B: RequestBody>(form: BodyForm<'_>, body: Incoming<'_, '_, B>) -> Result<ReadBody, ApiError> {
    Ok(match form {
        BodyForm::Encoded(format) => ReadBody::Encoded(format, body.collect().await?),
        // Boxed, because it is large and seldom: as a part of this future it would be moved with each request.
        BodyForm::Multipart(boundary) => ReadBody::Form(Box::pin(multipart::read(body, boundary)).await?),
        BodyForm::Raw(field) => ReadBody::Value(raw_value(field, body.collect().await?)),
        BodyForm::Text => ReadBody::Text(body.collect().await?),
        BodyForm::Bytes => ReadBody::Value(Value::Bytes(body.collect().await?)),
    })
}

async fn read_payload(
    expense: &Expense<'_>,
    admission: Admission,
    route: &Arc<Route>,
    body: ReadBody,
    config: &HttpConfig,
) -> Result<(Admission, Payload), ApiError> {
    match body {
        ReadBody::Encoded(format, bytes) => {
            payload::decode(expense, admission, route, format, bytes, &config.decode).await
        }
        ReadBody::Form(form) => {
            let read = |route: &Arc<Route>, fields| payload::payload_of_form(route.input(), Value::Map(fields));
            Box::pin(payload::decode_form(expense, admission, route, form, &config.decode, read)).await
        }
        ReadBody::Text(bytes) => payload::from_text(expense, admission, route, bytes).await,
        ReadBody::Value(value) => payload::from_value(expense, admission, route, value).await,
    }
}

async fn read_arguments(
    expense: &Expense<'_>,
    admission: Admission,
    route: &Arc<Route>,
    body: ReadBody,
    config: &HttpConfig,
) -> Result<(Admission, Payload), ApiError> {
    match body {
        ReadBody::Encoded(format, bytes) => {
            payload::decode_call(expense, admission, route, format, bytes, &config.decode).await
        }
        ReadBody::Form(form) => {
            payload::decode_form(expense, admission, route, form, &config.decode, functions::from_form).await
        }
        ReadBody::Text(_) | ReadBody::Value(_) => Err(ApiError::bad_multipart("arguments have names")),
    }
}

fn raw_value(field: &str, bytes: Bytes) -> Value {
    Value::Map(Map::from_iter([(field.to_owned(), Value::Bytes(bytes))]))
}
