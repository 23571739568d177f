//! Why there is no connection, and which of five things became of a call that did not succeed.

use std::io;
use std::time::Duration;

use callboard_core::{CallError, ErrorKind};

use crate::endpoint::BindError;
use crate::identity::IdentityError;

/// Why a client could not connect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// What was given is no address of nodes.
    #[error("`{url}` is not an address: {reason}")]
    Url {
        /// What was given.
        url: String,
        /// What is expected.
        reason: &'static str,
    },
    /// No name has an address. Not waited for: names do not appear within seconds.
    #[error("`{host}` has no address")]
    Unresolved {
        /// The last of the names.
        host: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// There is nothing to connect to.
    #[error("no address was given")]
    Nowhere,
    /// No identity, or none for that address.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// There is no socket to connect from.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The node is there and does not want us: another cluster, another version, no right. Not waited for.
    #[error("the node at {address} refused: {reason}")]
    Refused {
        /// Which one.
        address: std::net::SocketAddr,
        /// What it says.
        reason: String,
    },
    /// Nobody answered within the start-up wait. Remedy: start the node, or wait longer.
    #[error("no node answered within {waited:?}; the last try: {last}")]
    NobodyThere {
        /// How long it was waited.
        waited: Duration,
        /// What became of the last try.
        last: String,
    },
}

/// What became of a call that did not succeed, from where its caller stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Trouble {
    /// It was never started, and can be made again anywhere: refused, no room, no connection.
    NeverStarted,
    /// The connection was lost after the call was sent: it may have run.
    ConnectionLost,
    /// There is no such route or function.
    NoSuchRoute,
    /// Your code: the function raised, or its worker died. The error has its message.
    Function,
    /// The time was up.
    Deadline,
    /// Your request: not what the route takes, or not permitted.
    Request,
    /// The infrastructure: a defect, or a stage that is out of service in the middle of the pipeline.
    Infrastructure,
}

/// The type of the error of a call whose connection was lost.
pub(super) const CONNECTION_LOST: &str = "connection_lost";

/// The type of an error of a call for which there was no room on a connection, although the node is well.
pub(super) const NO_ROOM: &str = "no_room";

/// Whether nobody knows what became of a call. What a stage has handed on names that stage.
pub(crate) fn is_lost(error: &CallError) -> bool {
    error.kind() == ErrorKind::Unavailable && error.error_type() == Some(CONNECTION_LOST) && error.stage().is_none()
}

/// Whether the call was not sent because its connection was full.
pub(crate) fn had_no_room(error: &CallError) -> bool {
    error.kind() == ErrorKind::Unavailable && error.error_type() == Some(NO_ROOM) && error.stage().is_none()
}

impl Trouble {
    /// Which of them an error is.
    ///
    /// ```
    /// use callboard_core::{CallError, ErrorKind};
    /// use callboard_net::Trouble;
    ///
    /// let error = CallError::new(ErrorKind::Overloaded, "full");
    /// assert_eq!(Trouble::of(&error), Trouble::NeverStarted);
    /// ```
    #[must_use]
    pub fn of(error: &CallError) -> Self {
        match error.kind() {
            ErrorKind::NotFound => Self::NoSuchRoute,
            ErrorKind::DeadlineExceeded => Self::Deadline,
            ErrorKind::Failed | ErrorKind::WorkerFailed => Self::Function,
            ErrorKind::InvalidInput | ErrorKind::Unauthenticated | ErrorKind::PermissionDenied => Self::Request,
            _ if error.is_refusal() => Self::NeverStarted,
            ErrorKind::Unavailable if is_lost(error) => Self::ConnectionLost,
            _ => Self::Infrastructure,
        }
    }
}
