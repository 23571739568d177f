//! Log lines for refused connections: one line a second for each reason, with the number of refusals since the last
//! one.
//!
//! Strangers may connect at any rate: every refusal is counted, but the log stays short. Text that a peer wrote is
//! quoted and cut.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use callboard_core::log_limit::{LogRate, SharedLogLimit};
use callboard_identity::{JoinDenied, quoted, with_sources};
use parking_lot::Mutex;

use crate::refusal::RefusalReason;
use crate::view::MAX_PEERS;

/// The rate of one kind of line.
const RATE: LogRate = LogRate { lines: 1, bytes: usize::MAX, per: Duration::from_secs(1) };

/// The reason why a connection was refused, with details.
#[derive(Debug)]
pub(super) struct ConnectionRefusal {
    pub(super) reason: RefusalReason,
    /// Details for people.
    details: Cow<'static, str>,
    /// Whether this node failed, not the caller.
    is_own_failure: bool,
}

impl From<RefusalReason> for ConnectionRefusal {
    fn from(reason: RefusalReason) -> Self {
        Self { reason, details: reason.advice().into(), is_own_failure: false }
    }
}

impl From<JoinDenied> for ConnectionRefusal {
    fn from(denied: JoinDenied) -> Self {
        let (details, is_own_failure) = match &denied {
            JoinDenied::Failed(error) => (with_sources(error), true),
            denied => (denied.to_string(), false),
        };
        Self { reason: (&denied).into(), details: details.into(), is_own_failure }
    }
}

/// The kinds of lines, each with its own rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum LineKind {
    Refused(RefusalReason),
    ViewFull,
    UnprovenPort,
}

/// The limit of each kind of line.
#[derive(Debug, Default)]
pub(super) struct RefusalLog(Mutex<HashMap<LineKind, SharedLogLimit>>);

impl RefusalLog {
    /// Logs a refused connection, if a line is due.
    pub(super) fn log(&self, peer: SocketAddr, refusal: &ConnectionRefusal) {
        let ConnectionRefusal { reason, details, is_own_failure } = refusal;
        let Some(more) = self.due(LineKind::Refused(*reason)) else { return };
        let word = reason.as_str();
        if *is_own_failure {
            tracing::error!(%peer, reason = word, more, "could not issue a certificate: {details}");
        } else if *reason == RefusalReason::StaleGeneration {
            // Two live nodes share one identity: the operator must act.
            tracing::warn!(%peer, reason = word, more, "refused a node: {details}");
        } else {
            tracing::info!(%peer, reason = word, more, "refused a connection: {details}");
        }
    }

    /// Logs a peer that is not called because the view is full.
    pub(super) fn log_full_view(&self, peer: SocketAddr) {
        if let Some(more) = self.due(LineKind::ViewFull) {
            tracing::warn!(%peer, more, "a connected node is not called: {MAX_PEERS} nodes are known, the limit");
        }
    }

    /// Logs a peer that is not called because it claims another port than the one it connected from.
    pub(super) fn log_unproven_port(&self, peer: SocketAddr, address: &str) {
        if let Some(more) = self.due(LineKind::UnprovenPort) {
            let says = quoted(address);
            tracing::warn!(%peer, says, more, "a connected node is not called: name it to have it called (quic.join)");
        }
    }

    /// Whether a line is due: then the number of events without one since the last.
    fn due(&self, kind: LineKind) -> Option<u64> {
        let (mut limits, mut more) = (self.0.lock(), 0);
        let limit = limits.entry(kind).or_insert_with(|| SharedLogLimit::new(RATE));
        limit.admits(0, |left_out| more = left_out).then_some(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reason_has_one_line_a_second_that_counts_the_others() {
        let log = RefusalLog::default();
        let due = |reason| log.due(LineKind::Refused(reason));
        assert_eq!(due(RefusalReason::NoHello), Some(0));
        assert_eq!(due(RefusalReason::TooMany), Some(0), "another reason");
        let (start, mut left_out) = (std::time::Instant::now(), 0);
        let counted = loop {
            match due(RefusalReason::NoHello) {
                Some(counted) => break counted,
                None => left_out += 1,
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        assert!(left_out > 0 && start.elapsed() >= RATE.per / 2, "{left_out} in {:?}", start.elapsed());
        assert_eq!((counted, due(RefusalReason::NoHello)), (left_out, None));
    }
}
