//! The Rust types of a stage: to check a stage that replaces it, and to read an input that arrives for the stage alone.

use std::any::{TypeId, type_name};
use std::fmt;

use callboard_codec::{Data, DecodeError, EnvelopeDecoder, Payload};

/// The types of a stage's input and output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageTypes {
    input: (TypeId, &'static str),
    output: (TypeId, &'static str),
    /// Reads an input for its workers.
    pub(crate) read: ReadFn,
    /// Whether its workers take and give [`Encoded`](callboard_codec::Encoded) payloads.
    pub(crate) is_encoded: bool,
}

/// Reads a received envelope.
pub(crate) type ReadFn = fn(EnvelopeDecoder) -> Result<Payload, DecodeError>;

impl StageTypes {
    pub(super) fn for_types<In: Data, Out: Data>() -> Self {
        Self {
            input: (TypeId::of::<In>(), type_name::<In>()),
            output: (TypeId::of::<Out>(), type_name::<Out>()),
            read: |decoder| decoder.finish_as::<In>().map(Payload::new),
            is_encoded: false,
        }
    }

    /// Of a stage whose workers take and give encoded payloads.
    pub(crate) fn encoded<In: Data, Out: Data>() -> Self {
        Self::for_types::<In, Out>().with_encoded(true)
    }

    /// The same types for other workers.
    pub(crate) fn with_encoded(mut self, is_encoded: bool) -> Self {
        if is_encoded {
            self.read = |decoder| decoder.finish_encoded().map(Payload::new);
        }
        Self { is_encoded, ..self }
    }
}

impl PartialEq for StageTypes {
    fn eq(&self, other: &Self) -> bool {
        (self.input.0, self.output.0) == (other.input.0, other.output.0)
    }
}

impl fmt::Display for StageTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` to `{}`", self.input.1, self.output.1)
    }
}
