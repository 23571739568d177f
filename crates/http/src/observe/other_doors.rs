//! Calls that came by the node's other edges: they are counted on the same page, and written to the same log.

use std::net::Ipv6Addr;
use std::sync::Arc;

use axum::http::StatusCode;
use callboard_core::edge::{AnswerObserver, AnsweredCall, CallEnd};
use callboard_telemetry::{AccessLog, AccessRecord, truncate_for_log};

use super::log_line::CLIENT_LEFT;
use super::metrics::EdgeMetrics;
use crate::error::http_status;

/// The method of these records: the calls have none.
const METHOD: &str = "CALL";

/// The metrics and the log of an edge, for the node's other edges.
#[derive(Debug)]
pub(crate) struct OtherDoors {
    metrics: Arc<EdgeMetrics>,
    log: AccessLog,
}

impl OtherDoors {
    pub(crate) fn new(metrics: Arc<EdgeMetrics>, log: AccessLog) -> Self {
        Self { metrics, log }
    }

    fn count(&self, call: &AnsweredCall<'_>, status: StatusCode) {
        self.metrics.responded(call.door, status);
        if let (CallEnd::Failed(_), Some(route)) = (call.end, call.route) {
            self.metrics.answered_with(call.door, route, status);
        }
    }
}

impl AnswerObserver for OtherDoors {
    fn answered(&self, call: &AnsweredCall<'_>) {
        let status = match call.end {
            CallEnd::Answered => Some(StatusCode::OK),
            CallEnd::Failed(error) => Some(http_status(error)),
            CallEnd::CallerLeft => None,
        };
        if let Some(status) = status {
            self.count(call, status);
        }
        if !self.log.is_on() {
            return;
        }
        let (status, target) = (status.map_or(CLIENT_LEFT, |status| status.as_u16()), truncate_for_log(call.target));
        let id = call.request_id.unwrap_or_default();
        let mut record = AccessRecord::new(METHOD, target, status, call.elapsed, id);
        record.route = call.route;
        record.door = Some(call.door);
        record.request_bytes = Some(call.request_bytes);
        record.bytes = call.bytes;
        record.items = call.items;
        record.client = call.client.map(|client| Ipv6Addr::from(client).to_canonical());
        record.key = call.caller;
        record.trace_id = call.trace_id;
        self.log.write(&record);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use callboard_core::{CallError, ErrorKind};
    use callboard_telemetry::AccessSink;

    use super::*;
    use crate::observe::metrics::QUIC;

    #[derive(Debug, Default)]
    struct Lines(Mutex<Vec<u8>>);

    impl AccessSink for Lines {
        fn put(&self, record: &AccessRecord<'_>) {
            record.write_line(&mut self.0.lock().unwrap());
        }
    }

    #[test]
    fn a_call_by_another_door_is_counted_and_logged() {
        let (metrics, lines) = (Arc::new(EdgeMetrics::new(&[])), Arc::new(Lines::default()));
        let doors = OtherDoors::new(Arc::clone(&metrics), AccessLog::To(Arc::clone(&lines) as Arc<dyn AccessSink>));
        let failed = CallError::new(ErrorKind::Overloaded, "full");
        let call = AnsweredCall {
            door: QUIC,
            target: "/a",
            route: Some("/a"),
            end: CallEnd::Answered,
            elapsed: Duration::from_millis(1),
            request_bytes: 3,
            bytes: Some(4),
            items: None,
            client: None,
            caller: Some("node-1"),
            request_id: None,
            trace_id: None,
        };
        doors.answered(&call);
        doors.answered(&AnsweredCall { end: CallEnd::Failed(&failed), request_id: Some("r-1"), bytes: None, ..call });
        doors.answered(&AnsweredCall { end: CallEnd::CallerLeft, target: "a → b", route: None, bytes: None, ..call });
        let page = metrics.encode();
        for line in [
            "callboard_http_responses_total{door=\"quic\",status=\"200\"} 1\n",
            "callboard_http_responses_total{door=\"quic\",status=\"429\"} 1\n",
            "callboard_http_errors_total{door=\"quic\",route=\"/a\",status=\"429\"} 1\n",
        ] {
            assert!(page.contains(line), "{line} in {page}");
        }
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let fields: Vec<&str> = text.lines().map(|line| line.split_once("access: ").unwrap().1).collect();
        let expected = [
            "method=\"CALL\" path=\"/a\" route=\"/a\" door=\"quic\" status=200 milliseconds=1.000 request_bytes=3 \
             bytes=4 key=\"node-1\"",
            "method=\"CALL\" path=\"/a\" route=\"/a\" door=\"quic\" status=429 milliseconds=1.000 request_bytes=3 \
             key=\"node-1\" request_id=\"r-1\"",
            "method=\"CALL\" path=\"a → b\" door=\"quic\" status=499 milliseconds=1.000 request_bytes=3 key=\"node-1\"",
        ];
        assert_eq!(fields, expected);
    }
}
