//! The kinds of errors: the one table of what follows from a kind alone.
//!
//! Statuses, titles, classes and retries are read from [`ErrorKind::TABLE`], by every crate. Crates above this one must
//! not match kinds with a wildcard, which a new kind would fall into: they match [`ErrorOrigin`], or compare with the
//! kinds that they treat apart.

use serde::Serialize;

callboard_codec::words! {
    /// The kind of error of a failed call.
    ///
    /// Litmus tests between look-alikes:
    ///
    /// * The caller can change the request and succeed: [`InvalidInput`](Self::InvalidInput). User code ran and
    ///   refused: [`Failed`](Self::Failed). User code did not survive: [`WorkerFailed`](Self::WorkerFailed). The
    ///   framework has a defect: [`Internal`](Self::Internal).
    /// * Try again a little later, here: [`Overloaded`](Self::Overloaded). Try somewhere else, or much later:
    ///   [`Unavailable`](Self::Unavailable).
    /// * Time ran out: [`DeadlineExceeded`](Self::DeadlineExceeded). The caller left: [`Cancelled`](Self::Cancelled).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "snake_case")]
    #[non_exhaustive]
    pub enum ErrorKind {
        /// The request itself is wrong; sending it again will not help. Names the field and what was expected.
        InvalidInput => "invalid_input",
        /// The caller did not authenticate itself.
        Unauthenticated => "unauthenticated",
        /// The caller is known and may not do this.
        PermissionDenied => "permission_denied",
        /// No such route, stage or function.
        NotFound => "not_found",
        /// A bound was reached, or calls that wait before this one leave it too little time: retry after
        /// [`CallError::retry_after`]. Nothing was started.
        Overloaded => "overloaded",
        /// The caller left. The answer has no reader; it is for logs and metrics.
        Cancelled => "cancelled",
        /// User code returned or raised an error, or gave an outcome that cannot be written. Never retried, not counted
        /// against the worker.
        Failed => "failed",
        /// The worker died, or broke its contract (a wrong number of results). Carries its last message.
        WorkerFailed => "worker_failed",
        /// A defect of this framework; for a caller also an output that it cannot read as the type that it asks for.
        Internal => "internal",
        /// The node is not ready or drains, or the stage has failed. Try another node, or later.
        Unavailable => "unavailable",
        /// The deadline passed before there was an outcome, or it leaves too little time even for the call alone.
        DeadlineExceeded => "deadline_exceeded",
    }
}

/// Where an error comes from: the part of a kind that decides who can do something about it. There is one for each kind
/// of decision, so a new kind seldom needs a new origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorOrigin {
    /// The request, or the right of its caller.
    Request,
    /// The name of a route, stage or function.
    Route,
    /// A bound that other calls have reached.
    Load,
    /// The caller, which has left.
    Caller,
    /// User code, or its worker.
    Code,
    /// The framework, on this side or the other.
    Framework,
    /// A node or stage that is not in service, or the way to it.
    Service,
    /// The deadline.
    Time,
}

/// What follows from a kind of error alone: one row of [`ErrorKind::TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorKindRow {
    /// The kind. Its word is [`ErrorKind::as_str`].
    pub kind: ErrorKind,
    /// The title of a problem document (RFC 9457 §3.1.3: one for each type).
    pub title: &'static str,
    /// The status over HTTP.
    pub http_status: u16,
    /// The number of the status over gRPC. Clients of gRPC repeat 14 (UNAVAILABLE) by themselves: an edge gives it to
    /// calls that were not started, and 13 (INTERNAL) to others.
    pub grpc_status: u8,
    /// Where the error comes from.
    pub origin: ErrorOrigin,
    /// Whether user code may choose another status: an error of the framework has its own.
    pub has_chosen_status: bool,
    /// See [`ErrorKind::is_retryable`].
    pub is_retryable: bool,
    /// Whether a call that a peer did not start counts for the circuit breaker of that peer. Every other error is an
    /// answer, so the peer is alive.
    pub counts_for_breaker: bool,
}

impl ErrorKindRow {
    const fn new(kind: ErrorKind, title: &'static str, statuses: (u16, u8), origin: ErrorOrigin) -> Self {
        let (http_status, grpc_status) = statuses;
        Self {
            kind,
            title,
            http_status,
            grpc_status,
            origin,
            has_chosen_status: false,
            is_retryable: false,
            counts_for_breaker: false,
        }
    }

    const fn with_chosen_status(self) -> Self {
        Self { has_chosen_status: true, ..self }
    }

    const fn retryable(self) -> Self {
        Self { is_retryable: true, ..self }
    }

    const fn counted_by_breaker(self) -> Self {
        Self { counts_for_breaker: true, ..self }
    }
}

impl ErrorKind {
    /// All kinds in the order of [`ALL`](Self::ALL), each with its title, its statuses over HTTP and gRPC, and its
    /// origin. 499 is nginx's status for a client that left before the response; only metrics have it.
    pub const TABLE: [ErrorKindRow; Self::ALL.len()] = {
        use ErrorOrigin::{Caller, Code, Framework, Load, Request, Route, Service, Time};
        [
            ErrorKindRow::new(Self::InvalidInput, "Invalid input", (400, 3), Request).with_chosen_status(),
            ErrorKindRow::new(Self::Unauthenticated, "Unauthenticated", (401, 16), Request),
            ErrorKindRow::new(Self::PermissionDenied, "Permission denied", (403, 7), Request),
            ErrorKindRow::new(Self::NotFound, "Not found", (404, 5), Route),
            ErrorKindRow::new(Self::Overloaded, "Overloaded", (429, 8), Load).retryable(),
            ErrorKindRow::new(Self::Cancelled, "Cancelled", (499, 1), Caller),
            ErrorKindRow::new(Self::Failed, "Failed", (500, 2), Code).with_chosen_status(),
            ErrorKindRow::new(Self::WorkerFailed, "Worker failed", (500, 13), Code),
            ErrorKindRow::new(Self::Internal, "Internal error", (500, 13), Framework),
            ErrorKindRow::new(Self::Unavailable, "Unavailable", (503, 14), Service).retryable().counted_by_breaker(),
            ErrorKindRow::new(Self::DeadlineExceeded, "Deadline exceeded", (504, 4), Time),
        ]
    };

    /// The row of this kind.
    #[must_use]
    pub const fn row(self) -> &'static ErrorKindRow {
        // The rows are in the order of the kinds, as checked below.
        &Self::TABLE[self as usize]
    }

    /// The kind of this word.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Whether such an error is always of a call that may have run: by user code, its loss, or a defect.
    #[must_use]
    pub const fn comes_after_start(self) -> bool {
        matches!(self.row().origin, ErrorOrigin::Code | ErrorOrigin::Framework)
    }

    /// Whether the same request may succeed if it is sent again unchanged.
    ///
    /// With `Overloaded` and `Unavailable` the answering stage has started nothing;
    /// [`CallError::was_started`](crate::CallError::was_started) tells whether an earlier one has. `WorkerFailed` says
    /// nothing about side effects: it is retryable only for callers who know that the stage is idempotent, and so it is
    /// not marked here.
    #[must_use]
    pub const fn is_retryable(self) -> bool {
        self.row().is_retryable
    }
}

/// Each kind has its row at its own place: checked by the compiler.
const _: () = {
    let mut place = 0;
    while place < ErrorKind::ALL.len() {
        assert!(ErrorKind::TABLE[place].kind as usize == place, "the rows are in the order of the kinds");
        place += 1;
    }
};

/// The reason of an error, where its kind is not precise enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorReason {
    /// The input is larger than a limit that waiting does not change: with [`ErrorKind::InvalidInput`].
    TooLarge,
    /// An inner call came back to a stage that its outer call is in: with [`ErrorKind::Failed`].
    LoopDetected,
    /// The call was sent, and its connection was lost: with [`ErrorKind::Unavailable`]. Only the side that lost the
    /// connection has this reason. [`CallError::is_retryable`](crate::CallError::is_retryable) says whether the call
    /// may be made again.
    ConnectionLost,
}

impl ErrorReason {
    const ALL: [Self; 3] = [Self::TooLarge, Self::LoopDetected, Self::ConnectionLost];

    /// The kind of errors with this reason, and the status over HTTP, if it is not that of the kind.
    const fn row(self) -> (ErrorKind, Option<u16>) {
        match self {
            Self::TooLarge => (ErrorKind::InvalidInput, Some(413)),
            Self::LoopDetected => (ErrorKind::Failed, Some(508)),
            Self::ConnectionLost => (ErrorKind::Unavailable, None),
        }
    }

    /// The status over HTTP, if it is not that of the kind.
    #[must_use]
    pub const fn http_status(self) -> Option<u16> {
        self.row().1
    }

    /// The reason that an error of this kind with this status has: peers and child processes send the status alone.
    #[must_use]
    pub fn from_status(kind: ErrorKind, status: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.row() == (kind, Some(status)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn words_and_titles_tell_the_kinds_apart() {
        let words: HashSet<_> = ErrorKind::ALL.map(ErrorKind::as_str).into();
        let titles: HashSet<_> = ErrorKind::TABLE.map(|row| row.title).into();
        assert_eq!((words.len(), titles.len()), (ErrorKind::ALL.len(), ErrorKind::ALL.len()));
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_name(kind.as_str()), Some(kind));
        }
    }

    #[test]
    fn statuses_are_those_of_errors() {
        for row in ErrorKind::TABLE {
            assert!((400..600).contains(&row.http_status) && (1..=16).contains(&row.grpc_status), "{row:?}");
        }
    }

    #[test]
    fn a_reason_is_known_by_its_status_with_its_kind_only() {
        for reason in ErrorReason::ALL {
            let (kind, status) = reason.row();
            let Some(status) = status else { continue };
            assert_eq!(ErrorReason::from_status(kind, status), Some(reason));
            assert_eq!(ErrorReason::from_status(ErrorKind::Internal, status), None);
        }
    }
}
