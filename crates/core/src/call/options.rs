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
    /// For interactive calls.
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

/// Options of a call. The default asks for nothing special.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    deadline: Option<Deadline>,
    priority: Option<Priority>,
    session: Option<SessionKey>,
    first_item_timeout: Option<Duration>,
    recorder: Option<Recorder>,
}

impl CallOptions {
    /// No deadline and no priority: those of the route apply, else those of the node.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives up at `deadline`. Of several deadlines the smallest wins.
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

    /// For streaming routes: gives up if there is no output `timeout` after the call was admitted, even before its
    /// deadline.
    #[must_use]
    pub fn with_first_item_timeout(mut self, timeout: Duration) -> Self {
        self.first_item_timeout = Some(timeout.min(MAX_TIMEOUT));
        self
    }

    /// How long the first output may take, if set.
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

    /// The deadline, if set.
    #[must_use]
    pub fn deadline(&self) -> Option<Deadline> {
        self.deadline
    }

    /// Belongs to this session: in every stage, calls with the same key reach the same replica while it lives.
    ///
    /// For stages whose replicas remember something, such as the state of a conversation. When a replica dies, its
    /// sessions move to others, and back when it is up again; added replicas take over a part of the sessions. So a
    /// replica must be able to begin a session that it does not know. A session's calls wait for their replica even if
    /// others are free: use keys only where that is worth it.
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

    /// Records where the call's time goes; see [`Recorder`]. Costs an allocation for each stage. A call that continues
    /// on another node is recorded on this one only.
    #[must_use]
    pub fn with_recorder(mut self, recorder: Recorder) -> Self {
        self.recorder = Some(recorder);
        self
    }

    /// The recorder, if set.
    #[must_use]
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    /// The priority, if set.
    #[must_use]
    pub fn priority(&self) -> Option<Priority> {
        self.priority
    }

    /// The session, if set.
    #[must_use]
    pub fn session(&self) -> Option<SessionKey> {
        self.session
    }
}
