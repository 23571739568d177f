//! From an outcome to the bytes of its answer: which forms a client accepts, and the outcome, or a stream of them, in one.

mod form;
pub(crate) mod frame;
pub(crate) mod pack;
pub(crate) mod packed;
mod parts;
mod plain_msgpack;
pub(crate) mod stream;
mod whole;

pub(crate) use form::{Accepted, ReplyForm, offers};
pub(crate) use parts::body_of_parts;
pub(crate) use whole::{Packing, whole};
