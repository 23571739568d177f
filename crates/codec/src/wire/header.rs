//! The headers: maps, where every field has a default and no header contains its own kind.
//!
//! A field may be added, with a default that keeps the old meaning. No field is renamed or changes its type.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::frame::{self, FrameKind};
use crate::limited::limited;

/// The first frame of the side that opened the connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hello {
    /// The oldest protocol version of the sender.
    pub min_version: u8,
    /// The newest one.
    pub max_version: u8,
    /// The cluster of the sender.
    pub cluster: String,
    /// The name of the node; empty for a client.
    pub node: String,
    /// The generation of that name; the highest one is alive.
    pub generation: u64,
    /// The address for peers; empty if there is none.
    pub address: String,
    /// Its build, for people.
    pub build: String,
    /// What the sender can do beyond its version, by names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// The sender's name in gossip, where its certificate has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub member: String,
}

/// The answer to a hello. Its body is a list of [`Offer`]s.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Welcome {
    /// The version that both sides use.
    pub version: u8,
    /// The name of the node that answers.
    pub node: String,
    /// The generation of that name.
    pub generation: u64,
    /// Its build, for people.
    pub build: String,
    /// The largest body that the node takes.
    pub max_body_bytes: u64,
    /// Whether the node refuses new work.
    pub draining: bool,
    /// The most stages of one call; 0 for a node that runs one at a time.
    #[serde(skip_serializing_if = "is_default")]
    pub max_stages: u32,
    /// The default timeout of a call, in milliseconds; 0 for unknown.
    #[serde(skip_serializing_if = "is_default")]
    pub timeout_millis: u64,
    /// What the node can do beyond the version, by names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// The node's name in gossip, where its certificate has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub member: String,
    /// The address that the hello came from, for nodes that gossip.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub observed: String,
}

/// A route of a node, or a stage or actor that peers may call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Offer {
    /// The route's path, or the name of the stage or actor.
    pub name: String,
    /// Whether the offer is a stage.
    pub stage: bool,
    /// Whether the offer is an actor, with nothing but a name.
    #[serde(skip_serializing_if = "is_default")]
    pub actor: bool,
    /// For a route, the number of the change that opened it; for a stage, its revision.
    pub revision: u64,
    /// Whether it answers one input with many outputs.
    pub streams: bool,
    /// Whether it may run again after an unknown outcome.
    pub idempotent: bool,
    /// The default timeout of a call of this route, in milliseconds; 0 for that of the node.
    #[serde(skip_serializing_if = "is_default")]
    pub timeout_millis: u64,
}

/// One call, or one question to an actor. Its body is the input as an envelope.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Call {
    /// The called route; empty if stages are called or an actor is asked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub route: String,
    /// The called stages, in order, at most [`MAX_STAGES`]; empty if a route is called or an actor is asked.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limited::<_, _, MAX_STAGES>")]
    pub stages: Vec<String>,
    /// The asked actor, instead of a route or stages. Only for nodes with the feature `actors`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ask: Option<Box<Ask>>,
    /// The input is a function-style call: arguments by place and by name.
    #[serde(skip_serializing_if = "is_default")]
    pub function: bool,
    /// The remaining time of the caller, in milliseconds. 0: the node's own default.
    #[serde(skip_serializing_if = "is_default")]
    pub millis_left: u64,
    /// The class in every queue: 1 high, 2 normal, 3 low. 0: the route's own.
    #[serde(skip_serializing_if = "is_default")]
    pub priority: u8,
    /// The session of the call; 0 for none.
    #[serde(skip_serializing_if = "is_default")]
    pub session: u64,
    /// The number of outputs that the reader has room for; 0 for a call with one outcome.
    #[serde(skip_serializing_if = "is_default")]
    pub credit: u32,
    /// The timeout of the first output, in milliseconds; 0: that of the call.
    #[serde(skip_serializing_if = "is_default")]
    pub first_item_millis: u64,
    /// W3C trace context.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub traceparent: String,
    /// The caller's id of the call; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub request_id: String,
    /// What the code of the stages may see of the caller and its request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Box<Origin>>,
    /// The last call of its stream; only cancellations may follow. The node ends the stream after the last answer.
    #[serde(skip_serializing_if = "is_default")]
    pub last: bool,
}

impl Call {
    /// The name of what is called: an actor, the first stage, or a route.
    #[must_use]
    pub fn target(&self) -> &str {
        match &self.ask {
            Some(ask) => &ask.actor,
            None => self.stages.first().unwrap_or(&self.route),
        }
    }
}

/// The actor of a question.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ask {
    /// The name of the actor.
    pub actor: String,
    /// The name of the question.
    pub question: String,
    /// The message is only told: the answer says that it is in the mailbox.
    #[serde(skip_serializing_if = "is_default")]
    pub tell: bool,
    /// The key, if the actor is a kind of keyed actors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Facts of a caller and its request, for user code: names with their values, at most [`MAX_PAIRS`] of a kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    /// The authenticated name of the caller; empty for none. Only nodes may say it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub caller: String,
    /// The path of its request; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// The method of its request; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub method: String,
    /// The address of the request's client; empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client: String,
    /// Headers of its request.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limited::<_, _, MAX_PAIRS>")]
    pub headers: Vec<(String, String)>,
    /// Query parameters of its request.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limited::<_, _, MAX_PAIRS>")]
    pub query: Vec<(String, String)>,
    /// Tags that it attached.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limited::<_, _, MAX_PAIRS>")]
    pub tags: Vec<(String, String)>,
}

/// A successful outcome.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Done {
    /// The number of stages that ran, if the next one had no room; 0 for all.
    #[serde(skip_serializing_if = "is_default")]
    pub stages: u32,
    /// The times of the call.
    #[serde(skip_serializing_if = "is_default")]
    pub times: Times,
    /// The load of the node.
    #[serde(skip_serializing_if = "is_default")]
    pub load: Load,
    /// What user code chose for the answer of its edge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<Box<ResponseHead>>,
}

/// The status and headers that user code chose for a successful answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResponseHead {
    /// The HTTP-like status; 0 for none.
    #[serde(skip_serializing_if = "is_default")]
    pub status: u16,
    /// Names and values, at most [`MAX_PAIRS`].
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "limited::<_, _, MAX_PAIRS>")]
    pub headers: Vec<(String, String)>,
}

/// One output of a streaming call. Its body is the output as an envelope.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Item {}

/// An outcome that is an error. Its body has the details from user code, as an envelope; empty for none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fail {
    /// The name of the error's kind.
    pub kind: String,
    /// The message, for people.
    pub message: String,
    /// Whether user code may have run; true if missing. If false, the same call may be made on another node.
    #[serde(default = "taken_for_granted")]
    pub started: bool,
    /// Whether the call may run again although it was started.
    #[serde(skip_serializing_if = "is_default")]
    pub may_repeat: bool,
    /// The type of the error that user code raised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// The HTTP-like status that user code chose; 0 for none.
    #[serde(skip_serializing_if = "is_default")]
    pub status: u16,
    /// A hint when to retry, in milliseconds; 0 for unknown.
    #[serde(skip_serializing_if = "is_default")]
    pub retry_after_millis: u64,
    /// The HTTP headers that user code chose: names and values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// The last message of the worker: a panic, or a traceback of another process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_trace: Option<String>,
    /// The stage that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// The load of the node.
    #[serde(skip_serializing_if = "is_default")]
    pub load: Load,
}

/// Room for more outputs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Credit {
    /// The number of outputs.
    pub items: u32,
}

/// The node takes no new work on this connection and finishes its calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Goaway {
    /// The reason, for people.
    pub reason: String,
}

/// The node cannot connect to the address at which the caller says that it listens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unreachable {
    /// That address.
    pub address: String,
    /// What failed, for people.
    pub reason: String,
}

/// A request for a certificate by a new member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Join {
    /// The cluster of the token.
    pub cluster: String,
    /// The id of the token.
    pub token: String,
    /// The requested name of the member; empty for any name.
    pub name: String,
    /// Proof of possession of the token, bound to this connection: a signature in hexadecimal digits.
    pub proof: String,
}

/// The times of a call, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Times {
    /// In queues.
    pub queue: u64,
    /// From the formation of a batch to the start of user code.
    pub batch: u64,
    /// In user code.
    pub compute: u64,
}

/// The load of a node, for its peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// Calls in flight on the node.
    pub in_flight: u32,
    /// Entries that wait in the stages of this call.
    #[serde(skip_serializing_if = "is_default")]
    pub queued: u32,
}

/// A frame that cancels one call of a stream that several calls share.
#[must_use]
pub fn cancel(entry: u16) -> Bytes {
    frame::bare(FrameKind::Cancel, entry)
}

/// The most stages of a call: 24 bytes are allocated for each name, even if it has one byte. A node takes fewer; its
/// [`Welcome`] has the number.
pub const MAX_STAGES: usize = 64;

/// The most pairs of a kind in an [`Origin`] or a [`ResponseHead`]: 48 bytes are allocated for each, even if it has
/// three bytes.
pub const MAX_PAIRS: usize = 64;

fn taken_for_granted() -> bool {
    true
}

fn is_default<T: Default + PartialEq>(field: &T) -> bool {
    *field == T::default()
}
