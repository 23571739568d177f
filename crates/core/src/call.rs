//! What a caller may ask for beside the input, what it gets beside the output, and the flight that stands for the call.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use callboard_codec::Payload;
use serde::Serialize;

use crate::clock::Instant;
use crate::deadline::{Deadline, MAX_TIMEOUT};
use crate::mix::mix;
use crate::pipeline::Beyond;
use crate::timeline::{Account, Phase, Recorder};

/// Which queue class a call waits in. Higher classes leave every queue first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Somebody is looking at a screen.
    High,
    /// The default.
    #[default]
    Normal,
    /// Work that may wait: batches, backfills.
    Low,
}

impl Priority {
    /// Every class, the first to leave a queue first.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];
}

/// How a call is to be made. The default asks for nothing special.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    deadline: Option<Deadline>,
    priority: Option<Priority>,
    session: Option<SessionKey>,
    first_item_timeout: Option<Duration>,
    recorder: Option<Recorder>,
}

/// What calls of one session have in common, so that they reach the same replica.
///
/// Two keys that are equal as text are equal on every node. Only a hash is kept: nothing of the text is ever shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionKey(NonZeroU64);

impl SessionKey {
    /// The key of this name: a user, a conversation, a document.
    #[must_use]
    pub fn new(name: &str) -> Self {
        // FNV-1a, and a finisher because it mixes its last bytes little.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self(NonZeroU64::new(mix(hash)).unwrap_or(NonZeroU64::MIN))
    }

    /// The key that another node knows by this number; none for 0.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// What crosses the wire instead of the name.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0.get()
    }

    /// How well this session and a replica agree: the highest wins.
    pub(crate) fn affinity(self, replica: usize) -> u64 {
        mix(self.0.get() ^ mix(replica as u64))
    }
}

impl From<&str> for SessionKey {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for SessionKey {
    fn from(name: String) -> Self {
        Self::new(&name)
    }
}

impl CallOptions {
    /// No deadline and no priority of its own: those of the route, else of the node, apply.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives up at `deadline`. Of several deadlines the smaller one wins.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Deadline) -> Self {
        self.deadline = Some(self.deadline.map_or(deadline, |own| own.min(deadline)));
        self
    }

    /// Gives up `timeout` from `now`.
    #[must_use]
    pub fn with_timeout(self, now: Instant, timeout: Duration) -> Self {
        self.with_deadline(Deadline::after(now, timeout))
    }

    /// Of a streaming route: gives up when the first output is not there `timeout` after the call was let in, although its
    /// deadline is further away.
    #[must_use]
    pub fn with_first_item_timeout(mut self, timeout: Duration) -> Self {
        self.first_item_timeout = Some(timeout.min(MAX_TIMEOUT));
        self
    }

    /// How long the first output may take, where that is asked for.
    #[must_use]
    pub fn first_item_timeout(&self) -> Option<Duration> {
        self.first_item_timeout
    }

    /// Waits in this class.
    #[must_use]
    pub fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// When its caller gives up, where that is asked for.
    #[must_use]
    pub fn deadline(&self) -> Option<Deadline> {
        self.deadline
    }

    /// Belongs to this session: in every stage, calls with the same key reach the same replica while it lives.
    ///
    /// For stages whose replicas remember something, such as a conversation's state. When a replica dies, its sessions move to
    /// others, and back when it is up again; when replicas are added, they draw a part of the sessions. So a replica that does
    /// not know a session must be able to begin it anew. A session's calls wait for its replica although others are free: only
    /// use keys where that is worth it.
    ///
    /// ```
    /// use callboard_core::CallOptions;
    ///
    /// let options = CallOptions::new().with_session_key("conversation 17");
    /// ```
    #[must_use]
    pub fn with_session_key(mut self, key: impl Into<SessionKey>) -> Self {
        self.session = Some(key.into());
        self
    }

    /// Writes its record with this, for whoever wants to know where its time went; see [`Recorder`]. Costs an allocation for each
    /// stage. Calls that go on to another node are recorded on this one only.
    #[must_use]
    pub fn with_recorder(mut self, recorder: Recorder) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// What its record is written with.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// The class that is asked for.
    #[must_use]
    pub fn priority(&self) -> Option<Priority> {
        self.priority
    }

    /// The session that it belongs to.
    #[must_use]
    pub fn session(&self) -> Option<SessionKey> {
        self.session
    }
}

/// Where a call's time went, summed over its stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timing {
    /// From arrival at a stage until a batch took the entry.
    pub queue: Duration,
    /// From the forming of the batch until user code began: hand-over, and wake-up of the worker's thread.
    pub batch: Duration,
    /// User code, for the whole batch.
    pub compute: Duration,
}

impl Timing {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.queue + self.batch + self.compute
    }
}

/// A timing in microseconds of 32 bits, a quarter of what durations take: every waiting call has room for a few. They reach
/// beyond the longest deadline.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Micros([u32; 3]);

impl Micros {
    pub(crate) fn add(&mut self, timing: Timing) {
        for (sum, micros) in self.0.iter_mut().zip(Self::from(timing).0) {
            *sum = sum.saturating_add(micros);
        }
    }
}

impl From<Timing> for Micros {
    fn from(timing: Timing) -> Self {
        let micros = |duration: Duration| u32::try_from(duration.as_micros()).unwrap_or(u32::MAX);
        Self([timing.queue, timing.batch, timing.compute].map(micros))
    }
}

impl From<Micros> for Timing {
    fn from(micros: Micros) -> Self {
        let [queue, batch, compute] = micros.0.map(|micros| Duration::from_micros(micros.into()));
        Self { queue, batch, compute }
    }
}

impl std::ops::Add for Timing {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { queue: self.queue + other.queue, batch: self.batch + other.batch, compute: self.compute + other.compute }
    }
}

/// A successful outcome.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Reply {
    /// What the last stage gave.
    pub payload: Payload,
    /// Where the time went.
    pub timing: Timing,
}

impl Reply {
    pub(crate) fn into_parts(self) -> (Payload, Timing) {
        (self.payload, self.timing)
    }

    /// An outcome that another door brings.
    #[must_use]
    pub fn new(payload: Payload, timing: Timing) -> Self {
        Self { payload, timing }
    }
}

/// One admitted call, shared by its caller and by every entry that works for it.
///
/// What changes is whether somebody still waits, and why not.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) deadline: Deadline,
    pub(crate) priority: Priority,
    pub(crate) session: Option<SessionKey>,
    /// Waits for a place in a full queue instead of being refused.
    pub(crate) patient: bool,
    abandoned: AtomicBool,
    /// It was given up because its time was up, not because its caller had gone.
    late: AtomicBool,
    /// The other nodes, where its stages may run as well.
    pub(crate) beyond: Option<Arc<Beyond>>,
    /// What its record is written with, where somebody wants one.
    pub(crate) recorder: Option<Recorder>,
    account: Account,
    /// The call of which this is one branch.
    parent: Option<Arc<Self>>,
}

impl Flight {
    pub(crate) fn new(deadline: Deadline, priority: Priority) -> Self {
        let (abandoned, late) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            deadline,
            priority,
            session: None,
            patient: false,
            abandoned,
            late,
            beyond: None,
            recorder: None,
            account: Account::new(),
            parent: None,
        }
    }

    /// A call whose caller bounds how many of them there are, so that none needs to be refused for want of room.
    pub(crate) fn patient(deadline: Deadline, priority: Priority) -> Self {
        Self { patient: true, ..Self::new(deadline, priority) }
    }

    /// The same call as one of a session.
    #[must_use]
    pub(crate) fn of_session(self, session: Option<SessionKey>) -> Self {
        Self { session, ..self }
    }

    /// A part of a call that can be given up without the rest.
    pub(crate) fn branch_of(parent: &Arc<Self>) -> Self {
        let (patient, own) = (parent.patient, Self::new(parent.deadline, parent.priority));
        Self {
            patient,
            session: parent.session,
            beyond: parent.beyond.clone(),
            recorder: parent.recorder.clone(),
            parent: Some(Arc::clone(parent)),
            ..own
        }
    }

    /// Books what it did until now, and what it does from now on. The call has one account, whichever branch moves.
    pub(crate) fn enter(&self, phase: Phase, now: Instant) {
        match &self.parent {
            Some(parent) => parent.enter(phase, now),
            None => self.account.enter(phase, self.deadline, now),
        }
    }

    /// Where its time went, for an error that has no outcome to tell it.
    pub(crate) fn spent(&self, now: Instant) -> Timing {
        self.account.spent(self.deadline, now)
    }

    /// Nobody waits any more. Work that has not begun must not begin.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
    }

    /// Its time is up before its deadline, by the word of its caller.
    pub(crate) fn expire(&self) {
        self.late.store(true, Ordering::Release);
        self.abandon();
    }

    /// Whether it ended for want of time, rather than because its caller went away.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.late.load(Ordering::Acquire) || self.deadline.is_expired(now)
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire) || self.parent.as_ref().is_some_and(|parent| parent.is_abandoned())
    }

    /// Whether user code may still start for this call.
    pub(crate) fn is_wanted(&self, now: Instant) -> bool {
        !self.is_abandoned() && !self.deadline.is_expired(now)
    }
}
