//! The frames of nodes and clients on a QUIC stream, byte by byte.
//!
//! A stream is a sequence of frames. A frame is a prelude of fixed size, a MessagePack map (the *header*) and raw bytes
//! (the *body*: usually an envelope). The prelude has both lengths, so that a stream that ends early is never taken for
//! a complete message.
//!
//! ```text
//!  byte  0       3        4      5      6        8               12             20
//!        ┌───────┬────────┬──────┬──────┬────────┬───────────────┬──────────────┬────────┬──────┐
//!        │ magic │version │ kind │ zero │ entry  │ header bytes  │ body bytes   │ header │ body │
//!        │ CBQ   │   1    │      │      │ u16 LE │ u32 LE        │ u64 LE       │        │      │
//!        └───────┴────────┴──────┴──────┴────────┴───────────────┴──────────────┴────────┴──────┘
//! ```
//!
//! * `entry` is the number of the call on the stream. Several calls may share a stream; their answers come in any
//!   order.
//! * A reader skips unknown fields of a header and uses defaults for missing ones, so that versions N and N−1 can talk.
//!   A frame of an unknown kind, version or flag is refused as unsupported.
//! * [`FrameReader`] takes chunks of any size and returns heads and pieces of bodies. It holds at most one head, checks
//!   every length against [`FrameLimits`] before it keeps anything, and refuses everything after its first error.
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
    Ask, Call, Credit, Done, Fail, Goaway, Hello, Item, Join, Load, MAX_PAIRS, MAX_STAGES, Offer, Origin, ResponseHead,
    Times, Unreachable, Welcome, cancel as cancel_frame,
};
pub use reader::{FrameLimits, FramePart, FrameReader};
