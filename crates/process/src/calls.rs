//! The calls that a child makes to routes of its node, while it runs a batch.
//!
//! Each belongs to an item of the batch, whose deadline, trace and caller it has, or to all items together. It runs on
//! the node's runtime, as an inner call; the outcome wakes the replica's thread, which alone writes to the child.
//!
//! * **Full:** beyond [`MAX_OPEN`] the result is `Overloaded`, as beyond the limits of the node and its routes.
//! * **Late:** the result is `DeadlineExceeded`, at the deadline of the item at the latest.
//! * **Cancelled:** a call ends when its item's caller has left, when the child says so, and with its batch.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{self, Duration};

use callboard_codec::{Envelope, Value};
use callboard_core::{CallContext, CallError, CallOptions, ErrorKind, Instant, StartedCall};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use crate::message::{self, ItemError, ToChild};

/// The most calls of one child at the same time. Each is charged to its item's call; this bounds what waits for a child
/// that does not read.
pub(crate) const MAX_OPEN: usize = 1_024;

/// The most bytes of an error's details in a result: its head has at most 4 MiB.
const MAX_DETAILS_BYTES: usize = 1024 * 1024;

/// The calls of one child.
#[derive(Debug)]
pub(crate) struct Calls {
    open: HashMap<u64, OpenCall>,
    outcomes: Arc<Outcomes>,
    /// Readable when outcomes have come.
    woken: UnixStream,
    last_id: Option<u64>,
}

#[derive(Debug)]
struct OpenCall {
    /// `None`: it belongs to all items.
    item: Option<usize>,
    /// A call of all items is made again if the caller has left for whose item it was made, before it was begun.
    again: Option<Again>,
    /// Cancels the call when it is dropped.
    _started: Option<StartedCall>,
}

#[derive(Debug)]
struct Again {
    within: CallContext,
    route: String,
    input: Value,
}

/// Where the runtime leaves outcomes for the replica's thread.
#[derive(Debug)]
struct Outcomes {
    came: Mutex<Vec<(u64, CallOutcome)>>,
    wake: UnixStream,
}

/// The outcome of one call.
pub(crate) type CallOutcome = Result<Value, CallError>;

impl Calls {
    pub(crate) fn new() -> io::Result<Self> {
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        let outcomes = Arc::new(Outcomes { came: Mutex::default(), wake });
        Ok(Self { open: HashMap::new(), outcomes, woken, last_id: None })
    }

    /// Whether outcomes are awaited.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether outcomes have come.
    pub(crate) fn has_outcomes(&self) -> bool {
        self.is_waiting() && !self.outcomes.came.lock().is_empty()
    }

    /// Whether a new call may have this id. An outcome of an earlier call may still come.
    pub(crate) fn is_new(&mut self, id: u64) -> bool {
        self.last_id.replace(id).is_none_or(|last| last < id)
    }

    /// Starts a call for the item of this context.
    pub(crate) fn start(&mut self, id: u64, item: Option<usize>, within: &CallContext, route: String, input: Value) {
        if self.open.len() >= MAX_OPEN {
            return self.refuse(id, too_many());
        }
        let again = || Again { within: within.clone(), route: route.clone(), input: input.clone() };
        let mut call = OpenCall { item, again: item.is_none().then(again), _started: None };
        match within.client() {
            Ok(client) => {
                let promise = Promise { id, outcomes: Some(Arc::clone(&self.outcomes)) };
                let then = move |outcome| promise.keep(outcome);
                call._started = Some(client.start_call::<Value, Value>(&route, input, CallOptions::new(), then));
            }
            Err(error) => self.outcomes.leave(id, Err(error)),
        }
        self.open.insert(id, call);
    }

    /// Answers a call that is not started.
    pub(crate) fn refuse(&mut self, id: u64, error: CallError) {
        self.open.insert(id, OpenCall { item: None, again: None, _started: None });
        self.outcomes.leave(id, Err(error));
    }

    /// The child has given up a call.
    pub(crate) fn cancel(&mut self, id: u64) {
        self.open.remove(&id);
    }

    /// The caller of an item has left. `is_last`: so have all others of the batch.
    pub(crate) fn cancel_item(&mut self, item: usize, is_last: bool) {
        let outcomes = &self.outcomes;
        let of_item = self.open.iter_mut().filter(|(_, call)| call.item.map_or(is_last, |of| of == item));
        for (id, call) in of_item {
            (call._started, call.again) = (None, None);
            outcomes.leave(*id, Err(CallError::new(ErrorKind::Cancelled, "the caller has left")));
        }
    }

    /// The batch is over, and all calls with it.
    pub(crate) fn end(&mut self) {
        self.open.clear();
        // First the bytes, as `take` does: an outcome that comes between the two has its own.
        self.drain_wake();
        self.outcomes.came.lock().clear();
    }

    /// The outcomes that have come, each of a call that is no longer open. `another` gives the context of an item whose
    /// caller still waits.
    pub(crate) fn take(&mut self, another: impl Fn() -> Option<CallContext>) -> Vec<(u64, CallOutcome)> {
        self.drain_wake();
        let came = std::mem::take(&mut *self.outcomes.came.lock());
        let mut taken = Vec::with_capacity(came.len());
        for (id, outcome) in came {
            let Some(mut call) = self.open.remove(&id) else { continue };
            let is_begun = outcome.as_ref().map_or_else(CallError::was_started, |_| true);
            let again = call.again.take().filter(|again| !is_begun && !again.within.is_wanted(Instant::now()));
            // Only then: it looks at all callers.
            match again.and_then(|again| Some((again, another()?))) {
                Some((again, within)) => self.start(id, None, &within, again.route, again.input),
                None => taken.push((id, outcome)),
            }
        }
        taken
    }

    /// Waits until the child sends or outcomes have come, at most until `until`. Whether the child has sent.
    pub(crate) fn wait(&self, child: BorrowedFd<'_>, until: time::Instant) -> io::Result<bool> {
        let mut watched =
            [PollFd::new(&child, PollFlags::IN), PollFd::from_borrowed_fd(self.woken.as_fd(), PollFlags::IN)];
        let timeout = until.saturating_duration_since(time::Instant::now());
        retry_on_intr(|| poll(&mut watched, Some(&timespec(timeout))))?;
        Ok(!watched[0].revents().is_empty())
    }

    fn drain_wake(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.woken).read(&mut bytes), Ok(read) if read == bytes.len()) {}
    }
}

/// An outcome that is owed to a call: also when its node ends before it.
struct Promise {
    id: u64,
    outcomes: Option<Arc<Outcomes>>,
}

impl Promise {
    fn keep(mut self, outcome: CallOutcome) {
        if let Some(outcomes) = self.outcomes.take() {
            outcomes.leave(self.id, outcome);
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(outcomes) = self.outcomes.take() {
            outcomes.leave(self.id, Err(CallError::new(ErrorKind::Unavailable, "the node has ended")));
        }
    }
}

impl Outcomes {
    /// Leaves an outcome, and wakes the replica's thread unless it has been woken.
    fn leave(&self, id: u64, outcome: CallOutcome) {
        let mut came = self.came.lock();
        came.push((id, outcome));
        if came.len() == 1 {
            // A full buffer has bytes that wake as well.
            let _ = (&self.wake).write(&[0]);
        }
    }
}

/// The outcome of a call as a message to its child.
pub(crate) fn result(id: u64, outcome: CallOutcome, max_bytes: usize) -> (ToChild, Option<Envelope>) {
    let envelope = outcome.and_then(|output| {
        let envelope = output.to_envelope()?;
        let bytes = envelope.len();
        let is_larger = || format!("the output has {bytes} bytes, more than {max_bytes} (max_batch_bytes)");
        if bytes <= max_bytes { Ok(envelope) } else { Err(CallError::new(ErrorKind::Failed, is_larger())) }
    });
    match envelope {
        Ok(envelope) => (ToChild::Result { id, error: None }, Some(envelope)),
        Err(error) => (ToChild::Result { id, error: Some(item_error(error)) }, None),
    }
}

/// The error of a call as its child reads it.
fn item_error(error: CallError) -> ItemError {
    let parts = error.into_parts();
    let fits = |details: &Value| message::encode(details).is_ok_and(|written| written.len() <= MAX_DETAILS_BYTES);
    ItemError {
        message: parts.message,
        invalid: parts.kind == ErrorKind::InvalidInput,
        kind: Some(parts.kind.as_str().to_owned()),
        stage: parts.stage.map(|stage| stage.to_string()),
        status: parts.status,
        error_type: parts.error_type,
        details: parts.details.filter(fits),
        retry_after_ms: parts.retry_after.and_then(|after| u64::try_from(after.as_millis()).ok()),
        trace: parts.remote_trace,
    }
}

/// The refusal of a call for a batch that has ended.
pub(crate) fn over() -> CallError {
    CallError::new(ErrorKind::Cancelled, "the call that it belongs to is over")
}

/// The refusal of a call beyond [`MAX_OPEN`].
pub(crate) fn too_many() -> CallError {
    CallError::new(ErrorKind::Overloaded, format!("{MAX_OPEN} calls are open already"))
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX), tv_nsec: duration.subsec_nanos().into() }
}
