//! The `image` stage: from the bytes of a picture to the tensor that a model takes.
//!
//! ```text
//!  bytes ──► decode ──► orient ──► grey or rgb ──► resize ──► (x · scale − mean) / std ──► layout
//!             │
//!             └─ no picture, cut short, too many pixels: InvalidInput that says so
//! ```
//!
//! An item is the bytes, or a map with the bytes (or their base64) under [`ImageConfig::field`]. The result is one
//! sample without a batch axis: `[channels, height, width]` and so on, see [`Layout`].
//!
//! * **Hostile input:** the header is read first, and a picture that declares more than [`ImageConfig::max_pixels`] is
//!   refused before anything is allocated for its pixels. Memory per picture is at worst 12 bytes per declared pixel,
//!   and what the configured size needs.
//! * **Threads:** it runs on threads of its own. A small icon takes microseconds, but a photograph takes a tenth of a
//!   second, and the sender chooses which.
//! * **Transparency** is dropped, and 16 bits per channel become 8. Only the first frame of an animation counts.

mod complete;
mod config;
mod decode;
mod input;
mod pixels;
mod resize;
mod stage;

pub use config::{Color, ImageConfig, Layout, PixelType, Resize};
pub use stage::{input_type, output_type, stage};

#[cfg(test)]
mod tests;
