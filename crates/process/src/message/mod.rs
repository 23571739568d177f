//! The heads of frames.

use std::collections::BTreeMap;
use std::iter;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::{Map, Value, limited};
use callboard_core::edge::ErrorParts;
use callboard_core::{Contract, ErrorKind, Replica, ResponseFields};
use serde::de::Error as _;
use serde::{Deserialize, Serialize};

use crate::config::ProcessConfig;
use crate::details;
use crate::samples::MetricsMessage;

/// The version of the protocol.
pub(crate) const PROTOCOL: u32 = 1;

/// The most items of a frame: their heads fit into the head of a frame.
pub(crate) const MAX_ITEMS: usize = 4_096;

/// The outputs of one item that a child with several open batches may send ahead of their reader.
pub(crate) const CREDIT: usize = 16;

/// The most outputs of one call that a child may have asked for and not received.
pub(crate) const MAX_CREDIT: usize = 1_024;

/// The bytes of unread outputs of one call that a child in Rust takes.
pub(crate) const CREDIT_BYTES: u64 = 8 * 1024 * 1024;

/// The batches ahead of a child with one batch at a time, so that it does not wait for the next.
pub(crate) const AHEAD: usize = 1;

/// The status of an input that does not have the service's type.
pub(crate) const INVALID_STATUS: u16 = 422;

/// The most bytes of an error's details: a head has at most 4 MiB.
const MAX_DETAILS_BYTES: usize = 1024 * 1024;

/// The most levels of a head.
const MAX_DEPTH: usize = 64;

/// From the node to its child.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ToChild {
    Start(Start),
    Batch {
        id: u64,
        /// The method whose items these are, if it is not that of the stage.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        method: Option<String>,
        items: Vec<CallHead>,
    },
    Cancel {
        id: u64,
        item: usize,
    },
    Credit {
        id: u64,
        item: usize,
        outputs: usize,
    },
    Result {
        id: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<ItemError>,
    },
    CallOutput {
        id: u64,
    },
    Ping,
    Stop {
        /// When the node kills a child that has not ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
    },
}

impl ToChild {
    pub(crate) fn stop(within: Duration) -> Self {
        Self::Stop { timeout_ms: u64::try_from(within.as_millis()).ok() }
    }
}

/// The facts that a child needs before it loads.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) protocol: u32,
    pub(crate) stage: String,
    pub(crate) replica: usize,
    pub(crate) generation: u64,
    pub(crate) max_batch_size: usize,
    pub(crate) max_bytes: u64,
    /// Whether frames may lie in shared memory, in either direction.
    #[serde(default)]
    pub(crate) shared_memory: bool,
    pub(crate) settings: Map,
    /// How many batches may be open at once, if more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_batches: Option<u32>,
    /// How many batches more may come before their turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ahead: Option<usize>,
    /// How many outputs of an item may be sent before `credit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) credit: Option<usize>,
    /// The hosts from which files may be fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) files: Option<Files>,
    /// Whether the child may say what it does until it is ready.
    #[serde(default)]
    pub(crate) progress: bool,
    /// Whether the child may send `metrics` once it is ready.
    #[serde(default)]
    pub(crate) metrics: bool,
    /// The methods that it runs beside that of its stage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) methods: Vec<String>,
    /// The contract of its stage, and then those of the stages of `methods`. A child in Rust runs no batch twice.
    #[serde(skip_deserializing)]
    pub(crate) contracts: Vec<Contract>,
}

/// See [`FilesConfig`](crate::config::FilesConfig).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Files {
    hosts: Vec<String>,
    max_bytes: u64,
    timeout_ms: u64,
}

impl Start {
    pub(crate) fn new(config: &ProcessConfig, replica: &Replica) -> Self {
        Self {
            protocol: PROTOCOL,
            stage: replica.stage().to_string(),
            replica: replica.index(),
            generation: replica.generation(),
            max_batch_size: replica.max_batch_size(),
            max_bytes: config.max_batch_bytes,
            settings: replica.settings().clone(),
            max_batches: None,
            ahead: None,
            credit: None,
            files: (!config.files.hosts.is_empty()).then(|| Files {
                hosts: config.files.hosts.clone(),
                max_bytes: config.files.max_bytes,
                timeout_ms: u64::try_from(config.files.timeout.as_millis()).unwrap_or(u64::MAX),
            }),
            shared_memory: false,
            progress: true,
            metrics: true,
            methods: config.methods.values().map(|method| method.name.clone()).collect(),
            contracts: iter::once(replica.contract())
                .chain(config.methods.values().map(|method| method.contract))
                .collect(),
        }
    }
}

/// The call of an item.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct CallHead {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) remaining_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) request_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) traceparent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) caller: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) route: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<u64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) query: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) method: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tags: BTreeMap<String, String>,
}

/// From a child to its node.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum FromChild {
    Ready(ReadyMessage),
    Failed(FailedMessage),
    Starting(StartingMessage),
    Output(OutputMessage),
    Call(CallMessage),
    CancelCall(CancelCallMessage),
    CallCredit(CallCreditMessage),
    Outcomes(OutcomesMessage),
    Pong,
    Log(LogMessage),
    Metrics(MetricsMessage),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReadyMessage {
    pub(crate) protocol: u32,
    #[serde(default)]
    pub(crate) worker: String,
    /// Whether it reads frames from shared memory, if the node can.
    #[serde(default)]
    pub(crate) shared_memory: bool,
    /// How many batches it works on at once.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(crate) max_batches: usize,
    /// How many batches it takes before their turn.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) ahead: usize,
    /// Whether it runs the methods that the start has named.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) methods: bool,
    /// What operators should know of its stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FailedMessage {
    pub(crate) message: String,
    pub(crate) trace: Option<String>,
}

/// The phase of a child that is not ready yet.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StartingMessage {
    pub(crate) phase: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OutputMessage {
    pub(crate) id: u64,
    pub(crate) item: usize,
    /// What its code has chosen for the answer, with the first output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) response: Option<ResponseHead>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CallMessage {
    pub(crate) id: u64,
    pub(crate) batch: u64,
    pub(crate) item: Option<usize>,
    pub(crate) route: String,
    /// How many outputs may come before `call_credit`, if the route streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) credit: Option<usize>,
    /// The bytes of unread outputs that it takes; a child that does not say it takes any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) credit_bytes: Option<u64>,
    /// The longest time of the call, within that of its item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_ms: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CancelCallMessage {
    pub(crate) id: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CallCreditMessage {
    pub(crate) id: u64,
    pub(crate) outputs: usize,
    /// The bytes of the outputs that it has read.
    #[serde(default)]
    pub(crate) bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OutcomesMessage {
    pub(crate) id: u64,
    #[serde(deserialize_with = "limited::<_, _, MAX_ITEMS>")]
    pub(crate) items: Vec<Option<ItemError>>,
    /// What the code of each item has chosen for its answer; empty if none of them chose anything.
    #[serde(default, deserialize_with = "limited::<_, _, MAX_ITEMS>", skip_serializing_if = "Vec::is_empty")]
    pub(crate) responses: Vec<Option<ResponseHead>>,
    /// The child ends by itself after this.
    #[serde(default)]
    pub(crate) last: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct LogMessage {
    #[serde(default)]
    pub(crate) level: String,
    #[serde(default)]
    pub(crate) target: String,
    pub(crate) message: String,
    pub(crate) request_id: Option<String>,
}

impl FromChild {
    /// Reads a head: first its type, then the keys of that type. In one pass serde would keep all values, also those of
    /// unknown keys, which take many times their bytes.
    pub(crate) fn decode(head: &Bytes) -> Result<Self, rmp_serde::decode::Error> {
        #[derive(Deserialize)]
        struct Tag<'h> {
            #[serde(rename = "type")]
            kind: &'h str,
        }
        details::begin_head();
        let Tag { kind } = decode(head)?;
        Ok(match kind {
            "ready" => Self::Ready(decode(head)?),
            "failed" => Self::Failed(decode(head)?),
            "starting" => Self::Starting(decode(head)?),
            "output" => Self::Output(decode(head)?),
            "call" => Self::Call(decode(head)?),
            "cancel_call" => Self::CancelCall(decode(head)?),
            "call_credit" => Self::CallCredit(decode(head)?),
            "outcomes" => Self::Outcomes(decode(head)?),
            "pong" => Self::Pong,
            "log" => Self::Log(decode(head)?),
            "metrics" => Self::Metrics(decode(head)?),
            other => return Err(rmp_serde::decode::Error::unknown_variant(other, &[])),
        })
    }
}

/// The status and headers of a successful answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ResponseHead {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(default, deserialize_with = "details::read_headers", skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(String, String)>,
}

impl From<ResponseHead> for ResponseFields {
    fn from(head: ResponseHead) -> Self {
        let fields = head.status.into_iter().fold(Self::new(), Self::with_status);
        head.headers.into_iter().fold(fields, |fields, (name, value)| fields.with_header(name, value))
    }
}

impl From<ResponseFields> for ResponseHead {
    fn from(fields: ResponseFields) -> Self {
        Self { status: fields.status(), headers: fields.headers().to_vec() }
    }
}

/// The failure of one item, or of one call of a child.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ItemError {
    pub(crate) message: String,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) invalid: bool,
    /// The name of the kind, of the error of a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stage: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) error_type: Option<String>,
    #[serde(default, deserialize_with = "details::read", skip_serializing_if = "Option::is_none")]
    pub(crate) details: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_ms: Option<u64>,
    /// Whether the same call may be made again, of the error of a call.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) retryable: bool,
    /// HTTP headers: names and values.
    #[serde(default, deserialize_with = "details::read_headers", skip_serializing_if = "Vec::is_empty")]
    pub(crate) headers: Vec<(String, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trace: Option<String>,
}

impl From<ErrorParts> for ItemError {
    fn from(parts: ErrorParts) -> Self {
        let fits = |details: &Value| encode(details).is_ok_and(|written| written.len() <= MAX_DETAILS_BYTES);
        Self {
            message: parts.message,
            invalid: parts.kind == ErrorKind::InvalidInput,
            // A failure of this worker's own code needs no name. One of a call has its stage.
            kind: (parts.kind != ErrorKind::Failed || parts.stage.is_some()).then(|| parts.kind.as_str().to_owned()),
            stage: parts.stage.map(|stage| stage.to_string()),
            // A child knows no reasons.
            status: parts.status.or_else(|| parts.reason?.http_status()),
            error_type: parts.error_type,
            details: parts.details.filter(fits),
            retry_after_ms: parts.retry_after.and_then(|after| u64::try_from(after.as_millis()).ok()),
            retryable: false,
            headers: parts.headers,
            trace: parts.remote_trace,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

fn one() -> usize {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_one(number: &usize) -> bool {
    *number == 1
}

/// Writes a head.
pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    rmp_serde::to_vec_named(message)
}

/// Reads a head.
pub(crate) fn decode<'h, T: Deserialize<'h>>(head: &'h Bytes) -> Result<T, rmp_serde::decode::Error> {
    let mut decoder = rmp_serde::Deserializer::from_read_ref(head);
    decoder.set_max_depth(MAX_DEPTH);
    T::deserialize(&mut decoder)
}

#[cfg(test)]
mod tests;
