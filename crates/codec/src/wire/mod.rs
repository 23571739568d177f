//! The frames in which nodes and clients talk: what stands on a QUIC stream, byte by byte.
//!
//! A stream is a row of frames. A frame is a prelude of fixed size, a MessagePack map (the *header*) and raw bytes (the
//! *body*: an envelope, where there is one). Both lengths stand in the prelude and are exact, so that a stream that
//! ends early is never taken for a message that is complete.
//!
//! ```text
//!  byte  0       3        4      5      6        8               12             20
//!        ┌───────┬────────┬──────┬──────┬────────┬───────────────┬──────────────┬────────┬──────┐
//!        │ magic │version │ kind │ zero │ entry  │ header bytes  │ body bytes   │ header │ body │
//!        │ CBQ   │   1    │      │      │ u16 LE │ u32 LE        │ u64 LE       │        │      │
//!        └───────┴────────┴──────┴──────┴────────┴───────────────┴──────────────┴────────┴──────┘
//! ```
//!
//! * `entry` says which of a stream's calls the frame belongs to; a stream of several calls is a *pack*. Their answers
//!   come in any order.
//! * A reader passes over fields of a header that it does not know, and fills in what is missing: that is how versions
//!   N and N−1 talk. A frame of a kind, a version or a flag that it does not know is refused as unsupported.
//! * [`FrameReader`] takes chunks of any size and gives heads and pieces of bodies. It holds no more than one head,
//!   checks every length against [`FrameLimits`] before anything is kept for it, and refuses everything after its first
//!   error.
//!
//! ```
//! use callboard_codec::Value;
//! use callboard_codec::wire::{Call, FrameKind, FrameLimits, FramePart, FrameReader, frame_head};
//!
//! let body = Value::from("hello").to_envelope().unwrap();
//! let call = Call { route: "/shout".to_owned(), millis_left: 500, ..Call::default() };
//! let head = frame_head(FrameKind::Call, 0, &call, body.len())?;
//!
//! let mut reader = FrameReader::new(FrameLimits::default());
//! reader.push(head);
//! for part in body.into_parts() {
//!     reader.push(part);
//! }
//! let Some(FramePart::Head(head)) = reader.next_part()? else { panic!("a head comes first") };
//! assert_eq!(head.header::<Call>()?.route, "/shout");
//! assert!(matches!(reader.next_part()?, Some(FramePart::Body { last: true, .. })));
//! # Ok::<(), callboard_codec::wire::WireError>(())
//! ```

mod code;
mod error;
mod frame;
mod header;
mod quick;
mod reader;

pub use code::ResetCode;
pub use error::WireError;
pub use frame::{FrameHead, FrameKind, FrameRun, LooseFrame, PRELUDE_BYTES, VERSION, frame_head};
pub use header::{
    Call, Credit, Done, Fail, Goaway, Hello, Item, Join, Load, MAX_STAGES, Offer, Times, Welcome,
    cancel as cancel_frame,
};
pub use reader::{FrameLimits, FramePart, FrameReader};
