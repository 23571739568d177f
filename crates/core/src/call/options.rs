//! What a caller may ask for beside the input. Nothing is decided here: what it leaves open, the route or the node says.

use std::time::Duration;

use serde::Serialize;

use super::session::SessionKey;
use crate::clock::Instant;
use crate::deadline::{Deadline, MAX_TIMEOUT};
use crate::timeline::Recorder;

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
