//! Serve functions and models: batched, supervised, over HTTP and in process.

pub mod prelude;

pub use callboard_codec::Value;
pub use callboard_core::*;

/// Values, tensors, payloads and their encodings.
pub mod codec {
    pub use callboard_codec::*;
}
