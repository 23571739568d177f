//! The access record of a streamed response: written at its end, with the number of items and bytes and the whole time.
//!
//! The [body](LoggedBody) owns the record, because the request's future is over by then. **Broken**: a body that is cut
//! by an error keeps its status, with the bytes until then. **Cancelled**: if it is dropped before its end, the client
//! left, and the record has status 499.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::Method;
use axum::http::uri::PathAndQuery;
use bytes::Bytes;
use callboard_core::Instant;
use callboard_telemetry::{AccessLog, AccessRecord, truncate_for_log};
use hyper::body::{Frame, SizeHint};

use super::log_line::{CLIENT_LEFT, failed_grpc_status};
use crate::guard::KeyHolder;
use crate::request_id::RequestId;

/// Counts the items of a streamed response. As an extension of the response it asks for a record at the end.
#[derive(Clone, Debug, Default)]
pub struct StreamedItems(Arc<AtomicU64>);

impl StreamedItems {
    /// One more item.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The fields of a record.
#[derive(Debug)]
pub(super) struct StreamRecord {
    pub(super) log: AccessLog,
    pub(super) start: Instant,
    pub(super) id: RequestId,
    pub(super) method: Method,
    pub(super) path: Option<PathAndQuery>,
    pub(super) client: Option<IpAddr>,
    pub(super) request_bytes: Option<u64>,
    pub(super) route: Option<String>,
    pub(super) door: Option<&'static str>,
    pub(super) trace_id: Option<String>,
    pub(super) key_holder: Option<KeyHolder>,
    pub(super) status: u16,
    pub(super) grpc_status: Option<u8>,
    pub(super) timing: Option<String>,
    pub(super) items: StreamedItems,
}

impl StreamRecord {
    fn write(&self, status: u16, bytes: u64) {
        let method = truncate_for_log(self.method.as_str());
        let path = truncate_for_log(self.path.as_ref().map_or("", PathAndQuery::path));
        let mut record = AccessRecord::new(method, path, status, self.start.elapsed(), self.id.as_str());
        record.route = self.route.as_deref();
        record.door = self.door;
        record.grpc_status = self.grpc_status;
        record.timing = self.timing.as_deref();
        record.request_bytes = self.request_bytes;
        record.bytes = Some(bytes);
        record.items = Some(self.items.0.load(Ordering::Relaxed));
        record.client = self.client;
        record.key = self.key_holder.as_ref().map(KeyHolder::name);
        record.trace_id = self.trace_id.as_deref();
        self.log.write(&record);
    }
}

/// A body whose end is logged.
pub(super) struct LoggedBody {
    body: Body,
    bytes: u64,
    /// `None` once it is written.
    record: Option<Box<StreamRecord>>,
}

impl LoggedBody {
    pub(super) fn new(body: Body, record: StreamRecord) -> Self {
        Self { body, bytes: 0, record: Some(Box::new(record)) }
    }

    fn ended(&mut self) {
        if let Some(record) = self.record.take() {
            record.write(record.status, self.bytes);
        }
    }
}

impl HttpBody for LoggedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(sent))) = &frame {
            self.bytes += sent.data_ref().map_or(0, |data| data.len() as u64);
            if let (Some(trailers), Some(record)) = (sent.trailers_ref(), &mut self.record) {
                record.grpc_status = failed_grpc_status(trailers);
            }
        }
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) || self.body.is_end_stream() {
            self.ended();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for LoggedBody {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            record.write(CLIENT_LEFT, self.bytes);
        }
    }
}
