//! Serve functions and models: batched, supervised, over HTTP and in process.

#[cfg(feature = "cli")]
pub mod build;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
pub mod config;
pub mod prelude;

#[cfg(feature = "cli")]
pub use cli::cli;

pub use callboard_codec::Value;
pub use callboard_core::*;

/// Values, tensors, payloads and their encodings.
pub mod codec {
    pub use callboard_codec::*;
}
