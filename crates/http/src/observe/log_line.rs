//! The access record of a request in progress: the head is kept until the response.
//!
//! It is a part of the request's own future and borrows from it: an allocation would cost half as much as the record.
//! **Cancelled** with that future when the client leaves, it is written with status 499. A stream has [its record at
//! its end](super::stream_log).

use std::net::IpAddr;
use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, Method, Request};
use axum::response::Response;
use callboard_core::Instant;
use callboard_core::edge::Route;
use callboard_telemetry::{AccessLog, AccessRecord, StackText, truncate_for_log};

use super::request_trace::RequestTrace;
use super::server_timing::SERVER_TIMING;
use super::stream_log::{LoggedBody, StreamRecord, StreamedItems};
use crate::guard::KeyHolder;
use crate::mounted::original_uri;
use crate::request_id::RequestId;

/// nginx's status for a client that left before the response.
pub(super) const CLIENT_LEFT: u16 = 499;

/// The route that a protocol has called, as an extension of its response: the path does not name it.
#[derive(Clone, Debug)]
pub struct CalledRoute(pub Arc<Route>);

/// A record that is not written yet.
#[derive(Debug)]
pub(crate) struct PendingLogLine<'a> {
    log: &'a AccessLog,
    start: Instant,
    id: &'a RequestId,
    method: Method,
    /// Shares the memory of the head. Its query is not logged.
    path: Option<PathAndQuery>,
    client: Option<IpAddr>,
    request_bytes: Option<u64>,
    route: Option<&'a Route>,
    /// The protocol that was asked.
    door: Option<&'static str>,
    /// The route that a protocol has called.
    called: Option<String>,
    trace: Option<&'a RequestTrace>,
    key_holder: Option<KeyHolder>,
    is_written: bool,
}

impl<'a> PendingLogLine<'a> {
    /// `None` if the log is off.
    pub(crate) fn begin<B: HttpBody>(
        log: &'a AccessLog,
        start: Instant,
        id: &'a RequestId,
        request: &Request<B>,
        client: impl FnOnce() -> Option<IpAddr>,
        route: Option<&'a Route>,
        trace: Option<&'a RequestTrace>,
    ) -> Option<Self> {
        log.is_on().then(|| Self {
            log,
            start,
            id,
            method: request.method().clone(),
            path: original_uri(request.uri(), request.extensions()).path_and_query().cloned(),
            client: client(),
            request_bytes: request.body().size_hint().exact(),
            route,
            door: None,
            called: None,
            trace,
            key_holder: None,
            is_written: false,
        })
    }

    /// The same for a request to a protocol.
    pub(crate) fn by_door(mut self, door: Option<&'static str>) -> Self {
        self.door = door;
        self
    }

    pub(crate) fn set_key_holder(&mut self, holder: &KeyHolder) {
        self.key_holder = Some(holder.clone());
    }

    /// Writes the record of this response, or hands it to the body of a stream. `failed` is the route of its error.
    pub(crate) fn end(&mut self, response: &mut Response, failed: Option<String>) {
        self.is_written = true;
        let called = response.extensions_mut().remove::<CalledRoute>().map(|called| called.0.name().to_owned());
        self.called = failed.or(called);
        if let Some(items) = response.extensions_mut().remove::<StreamedItems>() {
            return self.end_with_stream(items, response);
        }
        let bytes = response.body().size_hint().exact();
        let grpc_status = failed_grpc_status(response.headers());
        self.write(response.status().as_u16(), grpc_status, bytes, timing(response.headers()));
    }

    fn route_name(&self) -> Option<&str> {
        self.route.map(Route::name).or(self.called.as_deref())
    }

    fn end_with_stream(&mut self, items: StreamedItems, response: &mut Response) {
        let record = StreamRecord {
            log: self.log.clone(),
            start: self.start,
            id: self.id.clone(),
            method: self.method.clone(),
            path: self.path.take(),
            client: self.client,
            request_bytes: self.request_bytes,
            route: self.route_name().map(str::to_owned),
            door: self.door,
            trace_id: self.trace.and_then(|trace| trace.trace_id()).map(|id| id.as_str().to_owned()),
            key_holder: self.key_holder.take(),
            status: response.status().as_u16(),
            grpc_status: None,
            timing: timing(response.headers()).map(str::to_owned),
            items,
        };
        let body = std::mem::take(response.body_mut());
        *response.body_mut() = Body::new(LoggedBody::new(body, record));
    }

    fn write(&self, status: u16, grpc_status: Option<u8>, bytes: Option<u64>, timing: Option<&str>) {
        let trace_id = self.trace.and_then(|trace| trace.trace_id());
        let method = truncate_for_log(self.method.as_str());
        let path = truncate_for_log(self.path.as_ref().map_or("", PathAndQuery::path));
        let mut record = AccessRecord::new(method, path, status, self.start.elapsed(), self.id.as_str());
        record.route = self.route_name();
        record.door = self.door;
        record.grpc_status = grpc_status;
        record.timing = timing;
        record.request_bytes = self.request_bytes;
        record.bytes = bytes;
        record.client = self.client;
        record.key = self.key_holder.as_ref().map(KeyHolder::name);
        record.trace_id = trace_id.as_ref().map(StackText::as_str);
        self.log.write(&record);
    }
}

/// A line that is still pending means that the client left.
impl Drop for PendingLogLine<'_> {
    fn drop(&mut self) {
        if !self.is_written {
            self.write(CLIENT_LEFT, None, None, None);
        }
    }
}

/// The status of gRPC of a response, or of the trailers at its end, that is not OK.
pub(super) fn failed_grpc_status(headers: &HeaderMap) -> Option<u8> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok().filter(|status| *status != 0)
}

fn timing(headers: &HeaderMap) -> Option<&str> {
    // A response has few headers: comparing each name costs less than one hash. Our values are UTF-8, which is checked
    // faster than `to_str` checks for visible ASCII.
    let (_, timing) = headers.iter().find(|(name, _)| **name == SERVER_TIMING)?;
    str::from_utf8(timing.as_bytes()).ok()
}
