//! The reasons for a missing connection, and the classes of failed calls.

use std::time::Duration;

use callboard_core::edge::ErrorOrigin;
use callboard_core::{CallError, ErrorReason};
use callboard_identity::{AddressError, IdentityError};

use crate::endpoint::BindError;

/// The reason why a client could not connect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address is not valid, or its name has no address. The client does not wait: names do not appear within
    /// seconds.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// There is no identity, or none for that address.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// There is no socket to connect from.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The node refuses this client: another cluster, another version, no permission. The client does not wait.
    #[error("the node at {address} refused: {reason}")]
    Refused {
        /// The node.
        address: std::net::SocketAddr,
        /// Its reason.
        reason: String,
    },
    /// No node answered within the start-up wait. Remedy: start the node, or wait longer.
    #[error("no node answered within {waited:?}; the last try: {last}")]
    NoAnswer {
        /// The time of the wait.
        waited: Duration,
        /// The error of the last try.
        last: String,
    },
}

/// The class of a failed call, from its caller's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallFailure {
    /// The call was not started, and can be made again anywhere: refused, no room, no connection.
    NeverStarted,
    /// The connection was lost after the call was sent: it may have run.
    ConnectionLost,
    /// There is no such route or function.
    NoSuchRoute,
    /// User code: the function raised an error, or its worker died. The error has the message.
    Function,
    /// The deadline passed.
    Deadline,
    /// The request: an input that the route does not accept, or no permission.
    Request,
    /// The infrastructure: a defect, an output that cannot be read as the caller's type, or a stage that is out of
    /// service in the middle of the pipeline.
    Infrastructure,
}

/// The error type of a call whose output exceeds the limits of its caller.
pub(super) const REPLY_TOO_LARGE: &str = "reply_too_large";

impl CallFailure {
    /// The class of an error.
    ///
    /// ```
    /// use callboard_core::{CallError, ErrorKind};
    /// use callboard_net::CallFailure;
    ///
    /// let error = CallError::new(ErrorKind::Overloaded, "full");
    /// assert_eq!(CallFailure::classify(&error), CallFailure::NeverStarted);
    /// ```
    #[must_use]
    pub fn classify(error: &CallError) -> Self {
        match error.kind().row().origin {
            ErrorOrigin::Route => Self::NoSuchRoute,
            ErrorOrigin::Time => Self::Deadline,
            ErrorOrigin::Code => Self::Function,
            ErrorOrigin::Request => Self::Request,
            ErrorOrigin::Load | ErrorOrigin::Service if error.is_refusal() => Self::NeverStarted,
            // A stage in the error means that a later node lost the connection.
            ErrorOrigin::Service if error.reason() == Some(ErrorReason::ConnectionLost) && error.stage().is_none() => {
                Self::ConnectionLost
            }
            ErrorOrigin::Load | ErrorOrigin::Service | ErrorOrigin::Caller | ErrorOrigin::Framework => {
                Self::Infrastructure
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use callboard_core::edge::ErrorParts;
    use callboard_core::{ErrorKind, StageName};

    use super::*;

    #[test]
    fn an_error_with_the_type_of_a_lost_connection_is_no_lost_connection() {
        let lost = ErrorParts::connection_lost("lost");
        let later = ErrorParts { stage: Some(StageName::new("far")), ..lost.clone() };
        let forged = ErrorParts { reason: None, ..lost.clone() };
        let classes = [lost, later, forged].map(|parts| CallFailure::classify(&parts.into()));
        assert_eq!(classes, [CallFailure::ConnectionLost, CallFailure::Infrastructure, CallFailure::Infrastructure]);
    }

    #[test]
    fn every_kind_has_its_class() {
        use CallFailure::{Deadline, Function, Infrastructure, NeverStarted, NoSuchRoute, Request};
        let classes = ErrorKind::ALL.map(|kind| CallFailure::classify(&CallError::new(kind, "no")));
        let (requests, of_code) = ([Request, Request, Request, NoSuchRoute], [Function, Function, Infrastructure]);
        assert_eq!(classes[..6], [&requests[..], &[NeverStarted, Infrastructure]].concat());
        assert_eq!(classes[6..], [&of_code[..], &[NeverStarted, Deadline]].concat());
    }
}
