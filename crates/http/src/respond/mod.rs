//! From an outcome to the bytes of a response: its form, whole or streamed, and its compression.

mod chosen;
pub(crate) mod compress_response;
pub(crate) mod compressor;
mod form;
pub(crate) mod frame;
mod parts;
mod plain_msgpack;
pub(crate) mod stream;
mod whole;

pub(crate) use chosen::{ChosenResponse, WITHOUT_BODY, accepts};
pub(crate) use form::{AcceptedForms, ReplyForm, offers};
pub(crate) use whole::{chosen, whole};

pub use parts::body_of_parts;
pub use whole::ResponseCompression;
