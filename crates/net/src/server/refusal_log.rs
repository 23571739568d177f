//! Log lines for refused connections: one line a second for each reason, with the number of refusals since the last
//! one.
//!
//! Strangers may connect at any rate: every refusal is counted, but the log stays short. Text that a peer wrote is
//! quoted and cut.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use callboard_identity::{JoinDenied, quoted, with_sources};
use parking_lot::Mutex;

use crate::refusal::RefusalReason;
use crate::view::MAX_PEERS;

/// The time between two lines of one reason.
const LINE_EVERY: Duration = Duration::from_secs(1);

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

/// The last line of each kind.
#[derive(Debug, Default)]
pub(super) struct RefusalLog(Mutex<HashMap<LineKind, LastLine>>);

#[derive(Debug)]
struct LastLine {
    at: Instant,
    /// Events without a line since then.
    more: u64,
}

impl RefusalLog {
    /// Logs a refused connection, if a line is due.
    pub(super) fn log(&self, peer: SocketAddr, refusal: &ConnectionRefusal, now: Instant) {
        let ConnectionRefusal { reason, details, is_own_failure } = refusal;
        let Some(more) = self.due(LineKind::Refused(*reason), now) else { return };
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
    pub(super) fn log_full_view(&self, peer: SocketAddr, now: Instant) {
        if let Some(more) = self.due(LineKind::ViewFull, now) {
            tracing::warn!(%peer, more, "a connected node is not called: {MAX_PEERS} nodes are known, the limit");
        }
    }

    /// Logs a peer that is not called because it claims another port than the one it connected from.
    pub(super) fn log_unproven_port(&self, peer: SocketAddr, address: &str, now: Instant) {
        if let Some(more) = self.due(LineKind::UnprovenPort, now) {
            let says = quoted(address);
            tracing::warn!(%peer, says, more, "a connected node is not called: name it to have it called (quic.join)");
        }
    }

    /// Whether a line is due: then the number of events without one since the last.
    fn due(&self, kind: LineKind, now: Instant) -> Option<u64> {
        let mut lines = self.0.lock();
        let Some(last) = lines.get_mut(&kind) else {
            lines.insert(kind, LastLine { at: now, more: 0 });
            return Some(0);
        };
        if now.saturating_duration_since(last.at) < LINE_EVERY {
            last.more += 1;
            return None;
        }
        last.at = now;
        Some(std::mem::take(&mut last.more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_has_one_line_a_second_that_counts_the_others() {
        let (log, start) = (RefusalLog::default(), Instant::now());
        let after = |reason, millis| log.due(LineKind::Refused(reason), start + Duration::from_millis(millis));
        assert_eq!(after(RefusalReason::NoHello, 0), Some(0));
        assert_eq!(after(RefusalReason::TooMany, 0), Some(0), "another reason");
        for millis in 0..999 {
            assert_eq!(after(RefusalReason::NoHello, millis), None);
        }
        assert_eq!(after(RefusalReason::NoHello, 1000), Some(999));
        assert_eq!(after(RefusalReason::TooMany, 5000), Some(0));
        assert_eq!(after(RefusalReason::NoHello, 2000), Some(0));
    }
}
