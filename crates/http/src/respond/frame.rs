//! Frames of an envelope stream: eight bytes with the kind and the length, then an envelope.
//!
//! ```text
//!  byte 0        1       4             8
//!       ┌────────┬───────┬─────────────┬───────────
//!       │ kind   │ 3 × 0 │ length, u32 │ envelope …
//!       └────────┴───────┴─────────────┴───────────
//! ```

use std::collections::VecDeque;

use bytes::Bytes;
use callboard_codec::{DecodeLimits, EncodeError, Envelope, Format, Value};
use callboard_core::edge::CodecBudget;

use crate::error::ApiError;

/// The bytes before each envelope.
pub(crate) const HEAD_BYTES: usize = 8;

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    /// An outcome, or the arguments of a call.
    Value = 0,
    /// The end of the stream, without an envelope.
    Error = 1,
    /// Nothing more comes; it has no envelope.
    End = 2,
}

/// A frame to be sent.
#[derive(Debug)]
pub(crate) struct Frame {
    kind: FrameKind,
    envelope: Option<Envelope>,
}

impl Frame {
    /// The last frame of a stream.
    pub(crate) const END: Self = Self { kind: FrameKind::End, envelope: None };

    /// # Errors
    ///
    /// An envelope longer than the length field allows.
    pub(crate) fn try_new(kind: FrameKind, envelope: Envelope) -> Result<Self, EncodeError> {
        if u32::try_from(envelope.len()).is_err() {
            return Err(serde::ser::Error::custom("an outcome beyond the 32-bit length of a frame"));
        }
        Ok(Self { kind, envelope: Some(envelope) })
    }

    /// An error as its problem document.
    pub(crate) fn from_problem(error: &ApiError, request_id: &str, sends_trace: bool) -> Self {
        let problem = Bytes::from(error.to_problem(request_id, sends_trace));
        let value = Value::decode(Format::Json, &problem, &DecodeLimits::default()).unwrap_or(Value::Null);
        // A JSON document always fits an envelope.
        value.to_envelope().and_then(|envelope| Self::try_new(FrameKind::Error, envelope)).unwrap_or(Self::END)
    }

    /// The bytes that share an outcome's memory.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.envelope.as_ref().map_or(0, Envelope::len)
    }

    /// The same frame, which keeps the account until it is sent.
    pub(crate) fn held(self, budget: &CodecBudget<'_>) -> Self {
        let envelope = self.envelope.map(|envelope| envelope.map_parts(|part| budget.charged(part)));
        Self { envelope, ..self }
    }

    /// Appends the frame's pieces; those of the envelope share its memory.
    pub(crate) fn write(self, out: &mut VecDeque<Bytes>) {
        let length = self.envelope.as_ref().map_or(0, Envelope::len) as u32;
        let mut head = Vec::with_capacity(HEAD_BYTES + if length < SMALL { length as usize } else { 0 });
        head.extend_from_slice(&[self.kind as u8, 0, 0, 0]);
        head.extend_from_slice(&length.to_le_bytes());
        match self.envelope {
            Some(envelope) if length >= SMALL => {
                out.push_back(head.into());
                out.extend(envelope.into_parts());
            }
            envelope => {
                envelope.iter().flat_map(Envelope::parts).for_each(|part| head.extend_from_slice(part));
                out.push_back(head.into());
            }
        }
    }
}

/// A smaller envelope is copied after its head: one piece is sent faster than two.
const SMALL: u32 = 16 * 1024;
