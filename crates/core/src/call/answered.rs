//! What an edge tells of a call that has ended, for the metrics and the access log of the node.

use std::fmt;
use std::time::Duration;

use crate::error::CallError;

/// Counts and logs the calls of those edges of a node that have no page of metrics and no log of their own.
pub trait AnswerObserver: fmt::Debug + Send + Sync + 'static {
    /// A call has ended. Called before its caller has the outcome: it must be quick, and neither block nor panic.
    fn answered(&self, call: &AnsweredCall<'_>);
}

/// A call that has ended.
#[derive(Clone, Copy, Debug)]
pub struct AnsweredCall<'a> {
    /// The short name of its edge: the label `door` of the log and of counted errors. Responses are counted for `quic`
    /// alone.
    pub door: &'static str,
    /// What the caller asked for: a path, stages or an actor. Any text.
    pub target: &'a str,
    /// The name of the called route; `None` for stages, actors, and a route that does not exist.
    pub route: Option<&'a str>,
    /// How it ended.
    pub end: CallEnd<'a>,
    /// The time since its head arrived; of a stream until its end.
    pub elapsed: Duration,
    /// The length of its body, as announced.
    pub request_bytes: u64,
    /// The length of the encoded answer; of a stream all outputs.
    pub bytes: Option<u64>,
    /// The outputs of a stream.
    pub items: Option<u64>,
    /// The address of its caller, as one of IPv6.
    pub client: Option<[u8; 16]>,
    /// The authenticated name of its caller.
    pub caller: Option<&'a str>,
    /// Its id, if the caller sent one.
    pub request_id: Option<&'a str>,
    /// The id of its caller's trace.
    pub trace_id: Option<&'a str>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
pub enum CallEnd<'a> {
    /// It was answered with its output.
    Answered,
    /// It was refused, or failed.
    Failed(&'a CallError),
    /// Its caller left before the outcome.
    CallerLeft,
}
