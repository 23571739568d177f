//! From an outcome to the bytes of its answer: which forms a client accepts, and the outcome in one of them.

mod form;
mod parts;
mod whole;

pub(crate) use form::{Accepted, offers};
pub(crate) use whole::whole;
