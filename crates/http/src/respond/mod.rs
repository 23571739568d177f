//! From an outcome to the bytes of its answer: which forms a client accepts, and the outcome, or a stream of them, in one.

pub(crate) mod compress_response;
pub(crate) mod compressor;
mod form;
pub(crate) mod frame;
mod parts;
mod plain_msgpack;
pub(crate) mod stream;
mod whole;

pub(crate) use form::{AcceptedForms, ReplyForm, offers};
pub(crate) use whole::whole;

pub use parts::body_of_parts;
pub use whole::ResponseCompression;
