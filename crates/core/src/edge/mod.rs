//! The interface of a node for its edges: permits before the bytes of a call are read, accounts, payloads without a
//! type.
//!
//! Edges receive bodies by the same parts: [`Pace`] decides how slow a body may be, [`BodyReservation`] what its call
//! holds while it arrives, and [`CodecBudget`] on which account and thread it is read.
//!
//! An edge brings calls from outside, such as the HTTP server. As an [`Edge`] it opens and ends with a server. For
//! simple calls it has a [`LocalClient`](crate::LocalClient). To admit a call before its body is read it has
//! [`EdgeHandle`], which [`LocalClient::edge`](crate::LocalClient::edge) returns.

mod actors;
mod calls;
mod lifecycle;
mod pace;
mod reservation;
mod stages;
mod traces;

pub use self::actors::QuestionAdmission;
pub use self::calls::{EdgeHandle, PendingOutcome};
pub use self::lifecycle::{Edge, EdgeDescription, EdgeError, EdgeFuture};
pub use self::pace::{Pace, PaceLimits, TooSlow};
pub use self::reservation::BodyReservation;
pub use self::stages::{OfferedStage, StageAdmission, StageQueue, StageReader};
pub use self::traces::ErrorTraces;

pub use crate::call::{
    AnswerObserver, AnsweredCall, CallEnd, DeclaredResponse, PayloadReplies, RequestExtension, is_valid_request_id,
};
pub use crate::client::{CAPACITY_POLL_INTERVAL, PreparedInput};
pub use crate::containment::{CaughtPanic, contain, contain_future};
pub use crate::error::{ErrorKindRow, ErrorOrigin, ErrorParts, RETRY_AFTER};
pub use crate::gateway::{HeldBytes, PendingBody, RequestBytes};
pub use crate::id::CallId;
pub use crate::metrics::NodeLoad;
pub use crate::offload::{CodecBudget, LARGE_BYTES, off_the_runtime, run_without_node};
pub use crate::router::{Admission, RequestArgument, RequestFields, RequestPlace, Route, RouteData, nearest};
pub use crate::text::{MAX_ERROR_CHARS, limit as limit_text, limit_error_text};
