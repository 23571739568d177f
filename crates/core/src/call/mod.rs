//! One call: its options, its shared state, the context that user code sees, and its reply.

mod answered;
mod attributes;
mod context;
mod extensions;
mod flight;
mod function;
mod isolated;
mod options;
mod origin;
mod reply;
mod response;
mod session;

pub use answered::{AnswerObserver, AnsweredCall, CallEnd};
pub use context::CallContext;
pub use extensions::RequestExtension;
pub use function::FunctionCall;
pub use isolated::InnerCalls;
pub use options::{CallOptions, Priority, is_valid_request_id};
pub use reply::{PayloadReplies, Reply};
pub use response::{DeclaredResponse, ResponseFields};
pub use session::SessionKey;

pub(crate) use context::OuterCall;
pub(crate) use flight::Flight;
pub(crate) use isolated::NodeElsewhere;
pub(crate) use origin::Origin;
