//! The life of a stage: which state may follow which. Pure.

use serde::Serialize;

callboard_codec::words! {
    /// Where a stage is in its life.
    ///
    /// `Starting → WarmingUp → Ready ⇄ Degraded → Draining → Stopped`, and `Failed` from anywhere before `Stopped`. A
    /// stage that has failed while it served tries again by itself, and is `Ready` or `Degraded` again.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
    #[serde(rename_all = "snake_case")]
    #[non_exhaustive]
    pub enum StageState {
        /// Its workers are being built.
        #[default]
        Starting => "starting",
        /// Its workers run their warm-up.
        WarmingUp => "warming up",
        /// All replicas are up.
        Ready => "ready",
        /// It serves, but a replica is missing or was replaced after a crash loop began.
        Degraded => "degraded",
        /// It finishes its entries and takes no new ones.
        Draining => "draining",
        /// It has ended.
        Stopped => "stopped",
        /// It has failed, for the given reason. Its routes answer `Unavailable` until it has started again.
        Failed => "failed",
    }
}

impl StageState {
    /// Whether traffic should be sent here.
    #[must_use]
    pub const fn is_ready(self) -> bool {
        matches!(self, Self::Ready | Self::Degraded)
    }

    /// Whether the stage still works for calls that were admitted.
    pub(crate) const fn accepts_entries(self) -> bool {
        matches!(self, Self::Ready | Self::Degraded | Self::Draining)
    }

    /// Whether the stage takes no new entries any more.
    pub(crate) const fn is_ending(self) -> bool {
        matches!(self, Self::Draining | Self::Stopped | Self::Failed)
    }

    const fn may_become(self, next: Self) -> bool {
        match (self, next) {
            // The last reason of a failure is reported.
            (Self::Failed, Self::Failed) | (Self::Stopped | Self::Failed, Self::Stopped) => true,
            // It has tried again.
            (Self::Failed, Self::Ready | Self::Degraded) => true,
            (Self::Stopped | Self::Failed, _) => false,
            (_, Self::Draining | Self::Stopped | Self::Failed) => true,
            (Self::Starting, Self::WarmingUp | Self::Ready | Self::Degraded) => true,
            (Self::WarmingUp, Self::Ready | Self::Degraded) => true,
            (Self::Ready | Self::Degraded, Self::Ready | Self::Degraded) => true,
            _ => false,
        }
    }
}

/// The current state and why it was entered.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    state: StageState,
    reason: Option<String>,
    /// What keeps the stage from being more than degraded although all replicas are up.
    complaint: Option<String>,
}

impl Lifecycle {
    pub(crate) fn state(&self) -> StageState {
        self.state
    }

    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Enters `next` if that step is allowed; returns whether it was.
    pub(crate) fn enter(&mut self, next: StageState, reason: Option<String>) -> bool {
        let (next, reason) = match &self.complaint {
            Some(complaint) if next == StageState::Ready => (StageState::Degraded, Some(complaint.clone())),
            _ => (next, reason),
        };
        let allowed = self.state.may_become(next);
        if allowed {
            // The reason of a failure remains after the stage has stopped.
            if !(self.state == StageState::Failed && next == StageState::Stopped && reason.is_none()) {
                self.reason = reason;
            }
            self.state = next;
        }
        allowed
    }

    /// Raises or withdraws a complaint: while it stands, a stage that would be ready is degraded.
    pub(crate) fn complain(&mut self, complaint: Option<String>) {
        let was_only_that =
            self.state == StageState::Degraded && self.complaint.is_some() && self.reason == self.complaint;
        self.complaint = complaint;
        if self.state == StageState::Ready || was_only_that {
            self.enter(StageState::Ready, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_its_states_in_order() {
        let mut life = Lifecycle::default();
        for next in [
            StageState::WarmingUp,
            StageState::Ready,
            StageState::Degraded,
            StageState::Ready,
            StageState::Draining,
            StageState::Stopped,
        ] {
            assert!(life.enter(next, None), "{next}");
        }
    }

    #[test]
    fn a_complaint_degrades_a_ready_stage_until_it_is_withdrawn() {
        let mut life = Lifecycle::default();
        life.enter(StageState::Ready, None);
        life.complain(Some("poison".to_owned()));
        assert_eq!((life.state(), life.reason()), (StageState::Degraded, Some("poison")));

        life.enter(StageState::Degraded, Some("a replica died".to_owned()));
        life.enter(StageState::Ready, None);
        assert_eq!((life.state(), life.reason()), (StageState::Degraded, Some("poison")), "the complaint remains");

        life.enter(StageState::Degraded, Some("a replica died".to_owned()));
        life.complain(None);
        assert_eq!(life.reason(), Some("a replica died"), "a later reason remains");
        life.enter(StageState::Ready, None);
        assert_eq!((life.state(), life.reason()), (StageState::Ready, None));
    }

    #[test]
    fn a_failed_stage_may_serve_again_and_an_ending_one_may_not() {
        let mut life = Lifecycle::default();
        assert!(life.enter(StageState::Failed, Some("why".to_owned())));
        assert!(!life.enter(StageState::WarmingUp, None), "it has failed while it tries");
        assert_eq!(life.reason(), Some("why"));
        assert!(life.enter(StageState::Ready, None));
        assert_eq!(life.reason(), None);

        assert!(life.enter(StageState::Failed, Some("why".to_owned())));
        assert!(life.enter(StageState::Stopped, None));
        assert_eq!(life.reason(), Some("why"), "of the failure");
        assert!(!life.enter(StageState::Ready, None));

        let mut life = Lifecycle::default();
        assert!(life.enter(StageState::Draining, None));
        assert!(!life.enter(StageState::Degraded, None));
    }
}
