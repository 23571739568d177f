//! From a request's bytes to a payload: what its head asks for, which form its body has, and the body itself.

pub(crate) mod arguments;
pub(crate) mod body;
pub(crate) mod body_buffer;
pub(crate) mod codec_budget;
pub(crate) mod coding;
pub(crate) mod form_fields;
pub(crate) mod head;
pub(crate) mod media;
pub(crate) mod multipart;
pub(crate) mod pace;
pub(crate) mod payload;
pub(crate) mod short;
