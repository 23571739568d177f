//! From the bytes of a request to a payload: its head, the form of its body, and the body.

pub(crate) mod arguments;
pub(crate) mod body;
pub(crate) mod body_buffer;
pub(crate) mod coding;
mod disposition;
pub(crate) mod form;
pub(crate) mod form_fields;
mod form_schema;
pub(crate) mod head;
pub(crate) mod media;
pub(crate) mod multipart;
pub(crate) mod payload;
pub(crate) mod request_fields;
pub(crate) mod short;
pub(crate) mod urlencoded;
