//! What stands in the headers: flat maps, every field with a default, none that contains its own kind.
//!
//! A field may be added, with a default that means what its absence meant before. None is renamed, none changes its
//! type.

use std::fmt;

use bytes::Bytes;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::frame::{self, FrameKind};

/// Who opened the connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hello {
    /// The oldest version of this protocol that it speaks.
    pub min_version: u8,
    /// The newest one.
    pub max_version: u8,
    /// The cluster that it means.
    pub cluster: String,
    /// Its name, empty for a client that is no node.
    pub node: String,
    /// Which incarnation of that name it is; the highest is the living one.
    pub generation: u64,
    /// Where peers reach it, if they can.
    pub address: String,
    /// Its build, for people.
    pub build: String,
}

/// The answer to a hello. Its body is a list of [`Offer`]s.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Welcome {
    /// The version that both speak.
    pub version: u8,
    /// The name of the node that answers.
    pub node: String,
    /// Which incarnation of that name it is.
    pub generation: u64,
    /// Its build, for people.
    pub build: String,
    /// The largest body that it takes.
    pub max_body_bytes: u64,
    /// It takes no new work.
    pub draining: bool,
    /// How many stages one call may name; 0 for a node that runs one at a time.
    #[serde(skip_serializing_if = "is_default")]
    pub max_stages: u32,
    /// How long a call may take whose caller does not say, in milliseconds; 0 for unknown.
    #[serde(skip_serializing_if = "is_default")]
    pub timeout_millis: u64,
}

/// One thing that a node offers: a route, or a stage that peers may call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Offer {
    /// The route's path, or the stage's name.
    pub name: String,
    /// It is a stage.
    pub stage: bool,
    /// Of a route, the number of the change that opened it; of a stage, which revision it is.
    pub revision: u64,
    /// It answers one input with many outputs.
    pub streams: bool,
    /// It may be run again when its outcome is not known.
    pub idempotent: bool,
    /// How long a call of this route may take whose caller does not say, in milliseconds, where it is not as for all; 0
    /// otherwise.
    #[serde(skip_serializing_if = "is_default")]
    pub timeout_millis: u64,
}

/// One call. Its body is the input as an envelope.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Call {
    /// The route that is called; empty where stages are.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub route: String,
    /// The stages that are called, one after the other, at most [`MAX_STAGES`]; empty where a route is.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "few")]
    pub stages: Vec<String>,
    /// The input is a function-style call: arguments by place and by name.
    #[serde(skip_serializing_if = "is_default")]
    pub function: bool,
    /// How long the caller will still wait, in milliseconds. 0: the node's own default.
    #[serde(skip_serializing_if = "is_default")]
    pub millis_left: u64,
    /// The class in every queue: 1 high, 2 normal, 3 low. 0: the route's own.
    #[serde(skip_serializing_if = "is_default")]
    pub priority: u8,
    /// What calls of one session have in common; 0 for none.
    #[serde(skip_serializing_if = "is_default")]
    pub session: u64,
    /// How many outputs the reader has room for; 0 for a call with one outcome.
    #[serde(skip_serializing_if = "is_default")]
    pub credit: u32,
    /// How long the first output may take, in milliseconds; 0: as long as the call.
    #[serde(skip_serializing_if = "is_default")]
    pub first_item_millis: u64,
    /// W3C trace context.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub traceparent: String,
    /// By which its caller knows the call; empty for no name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// No call follows it on its stream; what may still come gives calls up. The node ends the stream behind the last
    /// answer.
    #[serde(skip_serializing_if = "is_default")]
    pub last: bool,
}

/// A successful outcome.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Done {
    /// How many of the call's stages ran, where the next one had no room; 0 for all of them.
    #[serde(skip_serializing_if = "is_default")]
    pub stages: u32,
    /// Where the time went.
    #[serde(skip_serializing_if = "is_default")]
    pub times: Times,
    /// How the node does.
    #[serde(skip_serializing_if = "is_default")]
    pub load: Load,
}

/// One output of a streaming call. Its body is the output as an envelope.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Item {}

/// An outcome that is an error. Its body is what user code attached, as an envelope; empty for nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fail {
    /// The class of the error, by its one word.
    pub kind: String,
    /// What happened, for people.
    pub message: String,
    /// User code may have run: taken for granted where it is not said. Otherwise the same call may be made elsewhere.
    #[serde(default = "taken_for_granted")]
    pub started: bool,
    /// If it was started, it may run once more all the same.
    #[serde(skip_serializing_if = "is_default")]
    pub may_repeat: bool,
    /// The type of the error that user code raised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// The HTTP-like status that user code chose; 0 for none.
    #[serde(skip_serializing_if = "is_default")]
    pub status: u16,
    /// When a retry may fit, in milliseconds; 0 for unknown.
    #[serde(skip_serializing_if = "is_default")]
    pub retry_after_millis: u64,
    /// The worker's last words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_trace: Option<String>,
    /// The stage in which it happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// How the node does.
    #[serde(skip_serializing_if = "is_default")]
    pub load: Load,
}

/// Room for more outputs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Credit {
    /// How many more.
    pub items: u32,
}

/// No new work is taken on this connection; what is in hand is finished.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Goaway {
    /// Why, for people.
    pub reason: String,
}

/// A wish for a certificate, by who has none yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Join {
    /// The cluster whose token it is.
    pub cluster: String,
    /// Which token.
    pub token: String,
    /// What the member would like to be called; empty for any name.
    pub name: String,
    /// That it has the token, in this very connection: a signature in hexadecimal digits.
    pub proof: String,
}

/// Where a call's time went, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Times {
    /// In queues.
    pub queue: u64,
    /// From the forming of a batch until user code began.
    pub batch: u64,
    /// In user code.
    pub compute: u64,
}

/// How a node does, as its peers weigh it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Calls that it has in flight.
    pub in_flight: u32,
    /// Entries that wait in the stages of this call.
    #[serde(skip_serializing_if = "is_default")]
    pub queued: u32,
}

/// The frame that gives up one call of a pack.
#[must_use]
pub fn cancel(entry: u16) -> Bytes {
    frame::bare(FrameKind::Cancel, entry)
}

/// More stages than this are no call: a name of one byte would have room for 24 made. What a node takes is less, and
/// said in its [`Welcome`].
pub const MAX_STAGES: usize = 64;

fn few<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    deserializer.deserialize_seq(Few)
}

struct Few;

impl<'de> Visitor<'de> for Few {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX_STAGES} names of stages")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<Vec<String>, A::Error> {
        let mut few = Vec::new();
        while let Some(name) = names.next_element()? {
            if few.len() == MAX_STAGES {
                return Err(A::Error::invalid_length(few.len() + 1, &self));
            }
            few.push(name);
        }
        Ok(few)
    }
}

fn taken_for_granted() -> bool {
    true
}

fn is_default<T: Default + PartialEq>(field: &T) -> bool {
    *field == T::default()
}
