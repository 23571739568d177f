//! The messages of OTLP that spans need, from `opentelemetry/proto/trace/v1/trace.proto` of OpenTelemetry's protocol 1.
//! Fields that are never set are left out.

use std::time::{SystemTime, UNIX_EPOCH};

use callboard_core::timeline::SpanId;

use crate::spans::{Attribute, Span};

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<SpanMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SpanMessage {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    /// 1 is internal, 2 a server.
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, repeated, tag = "13")]
    links: Vec<LinkMessage>,
    #[prost(uint32, tag = "14")]
    dropped_links_count: u32,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    /// The sampled flag of the trace context.
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LinkMessage {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
    /// 2 is an error.
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AnyValue {
    #[prost(oneof = "OneValue", tags = "1, 3")]
    value: Option<OneValue>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum OneValue {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

impl ExportRequest {
    /// A message with the spans of one service.
    pub(super) fn new(service: &str, further: &[(String, String)], spans: Vec<Span>) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        let further = further.iter().map(|(key, text)| (key.as_str(), text.as_str()));
        let mut about = vec![("service.name", service), ("service.version", version)];
        about.retain(|(key, _)| !further.clone().any(|(other, _)| other == *key));
        let attributes = about.into_iter().chain(further);
        let attributes = attributes.map(|(key, text)| key_value(key, OneValue::Text(text.to_owned()))).collect();
        let scope = Scope { name: "callboard".to_owned(), version: version.to_owned() };
        let spans = spans.into_iter().map(SpanMessage::from_span).collect();
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
        Self { resource_spans: vec![ResourceSpans { resource: Some(Resource { attributes }), scope_spans }] }
    }
}

impl SpanMessage {
    fn from_span(span: Span) -> Self {
        let (trace_id, span_id) = bytes_of(span.id);
        let attribute = |(key, value): (&'static str, Attribute)| {
            let value = match value {
                Attribute::Text(text) => OneValue::Text(text.into_owned()),
                Attribute::Number(number) => OneValue::Number(number),
            };
            key_value(key, value)
        };
        let link = |id: &SpanId| {
            let (trace_id, span_id) = bytes_of(*id);
            LinkMessage { trace_id, span_id }
        };
        Self {
            trace_id,
            span_id,
            parent_span_id: span.parent.map(|parent| parent.to_be_bytes().to_vec()).unwrap_or_default(),
            name: span.name,
            kind: if span.is_server { 2 } else { 1 },
            start_time_unix_nano: nanos(span.start),
            end_time_unix_nano: nanos(span.end),
            attributes: span.attributes.into_iter().map(attribute).collect(),
            links: span.links.iter().map(link).collect(),
            dropped_links_count: u32::try_from(span.omitted_links).unwrap_or(u32::MAX),
            status: span.error.map(|message| Status { message: message.into_owned(), code: 2 }),
            flags: 1,
        }
    }
}

fn bytes_of(id: SpanId) -> (Vec<u8>, Vec<u8>) {
    (id.trace.to_be_bytes().to_vec(), id.span.to_be_bytes().to_vec())
}

fn key_value(key: &str, value: OneValue) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn nanos(date: SystemTime) -> u64 {
    let since = date.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
