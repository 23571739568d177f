//! The line of one request while that is under way: what is known at its head is kept until the answer.
//!
//! It is a part of the request's own future and borrows from it: an allocation would cost as much as half of the line. **Cancelled**,
//! which is what becomes of the future when the client leaves, it is written with status 499.

use std::net::IpAddr;

use axum::body::HttpBody;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, Method, Request};
use axum::response::Response;
use callboard_core::{Instant, Route};

use crate::access_log::{AccessLog, AccessRecord};
use crate::ascii::Ascii;
use crate::guard::KeyHolder;
use crate::listener::Origin;
use crate::observe::request_trace::{Observed, shortened};
use crate::observe::server_timing::SERVER_TIMING;
use crate::request_id::RequestId;

/// nginx's word for "the client left before the answer".
const CLIENT_LEFT: u16 = 499;

/// A line that is not written yet.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    log: &'a AccessLog,
    begun: Instant,
    id: &'a RequestId,
    method: Method,
    /// With the query, which is not told, because it shares the head's memory.
    path: Option<PathAndQuery>,
    client: Option<IpAddr>,
    request_bytes: Option<u64>,
    route: Option<&'a Route>,
    observed: Option<&'a Observed>,
    holder: Option<KeyHolder>,
    is_written: bool,
}

impl<'a> Line<'a> {
    /// `None` where nobody wants lines.
    pub(crate) fn begin<B: HttpBody>(
        log: &'a AccessLog,
        begun: Instant,
        id: &'a RequestId,
        request: &Request<B>,
        origin: Option<Origin>,
        route: Option<&'a Route>,
        observed: Option<&'a Observed>,
    ) -> Option<Self> {
        log.is_on().then(|| Self {
            log,
            begun,
            id,
            method: request.method().clone(),
            path: request.uri().path_and_query().cloned(),
            client: origin.map(|origin| origin.client),
            request_bytes: request.body().size_hint().exact(),
            route,
            observed,
            holder: None,
            is_written: false,
        })
    }

    /// Whoever showed a key.
    pub(crate) fn came_from(&mut self, holder: &KeyHolder) {
        self.holder = Some(holder.clone());
    }

    /// Writes it.
    pub(crate) fn end(&mut self, response: &Response) {
        self.is_written = true;
        self.write(response.status().as_u16(), response.body().size_hint().exact(), timing(response.headers()));
    }

    fn write(&self, status: u16, bytes: Option<u64>, timing: Option<&str>) {
        let trace_id = self.observed.and_then(|observed| observed.trace_id());
        let record = AccessRecord {
            method: shortened(self.method.as_str()),
            path: shortened(self.path.as_ref().map_or("", PathAndQuery::path)),
            route: self.route.map(Route::name),
            status,
            elapsed: self.begun.elapsed(),
            timing,
            request_bytes: self.request_bytes,
            bytes,
            client: self.client,
            key: self.holder.as_ref().map(KeyHolder::name),
            request_id: self.id.as_str(),
            trace_id: trace_id.as_ref().map(Ascii::as_str),
        };
        match self.log {
            AccessLog::Off => {}
            AccessLog::Events => record.tell(),
            AccessLog::To(sink) => sink.put(&record),
        }
    }
}

/// The client has left.
impl Drop for Line<'_> {
    fn drop(&mut self) {
        if !self.is_written {
            self.write(CLIENT_LEFT, None, None);
        }
    }
}

fn timing(headers: &HeaderMap) -> Option<&str> {
    // An answer has so few headers that a look at each costs less than the hash of a name, and ours are bytes that are read as text
    // many at once, where `to_str` takes one by one.
    let (_, timing) = headers.iter().find(|(name, _)| **name == SERVER_TIMING)?;
    str::from_utf8(timing.as_bytes()).ok()
}
