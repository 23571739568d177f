//! The members that this node has called, by name: a member that comes back, at whatever address, keeps its statistics,
//! its breakers and its sessions.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use callboard_core::SessionKey;
use parking_lot::Mutex;

use super::stage_stats::StageStats;

/// From this number on, members without a connection are forgotten when another one comes.
const MAX_REMEMBERED: usize = 1_024;

/// One member: the name in its certificate, or one process under the development identity.
#[derive(Debug)]
pub(super) struct KnownMember {
    pub(super) name: Arc<str>,
    /// Places its sessions and its keyed actors. It follows from the name, so that all nodes agree.
    pub(super) key: u64,
    stages: Mutex<HashMap<String, Arc<StageStats>>>,
    open_breakers: Arc<AtomicUsize>,
}

impl KnownMember {
    /// Its statistics of a stage. Bounded by the stages that this node calls.
    pub(super) fn stage(&self, stage: &str) -> Arc<StageStats> {
        let mut stages = self.stages.lock();
        if let Some(stats) = stages.get(stage) {
            return Arc::clone(stats);
        }
        let stats = Arc::new(StageStats::new(Arc::clone(&self.open_breakers)));
        stages.insert(stage.to_owned(), Arc::clone(&stats));
        stats
    }
}

/// All members.
#[derive(Debug, Default)]
pub(super) struct Members {
    known: Mutex<HashMap<String, Arc<KnownMember>>>,
    /// The breakers that are not closed, of all members and stages.
    open_breakers: Arc<AtomicUsize>,
}

impl Members {
    /// The member of this name, known or new.
    pub(super) fn get(&self, name: &str) -> Arc<KnownMember> {
        let mut known = self.known.lock();
        if let Some(member) = known.get(name) {
            return Arc::clone(member);
        }
        if known.len() >= MAX_REMEMBERED {
            known.retain(|_, member| Arc::strong_count(member) > 1);
        }
        let key = SessionKey::from(name).number();
        let open_breakers = Arc::clone(&self.open_breakers);
        let member = Arc::new(KnownMember { name: name.into(), key, stages: Mutex::default(), open_breakers });
        known.insert(name.to_owned(), Arc::clone(&member));
        member
    }

    /// Whether the breaker of any stage of any member is not closed.
    pub(super) fn has_open_breaker(&self) -> bool {
        self.open_breakers.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use callboard_core::Instant;

    use super::*;

    #[test]
    fn a_failing_stage_opens_its_own_breaker_only() {
        let (members, now) = (Members::default(), Instant::now());
        let member = members.get("left");
        for _ in 0..10 {
            let in_flight = ["bad", "good"].map(|stage| member.stage(stage).begin(now));
            member.stage("bad").record(|stats| stats.lost(now));
            member.stage("good").record(|stats| stats.answered(now, Duration::from_millis(1), None));
            drop(in_flight);
        }
        assert!(member.stage("bad").open_until(now).is_some() && members.has_open_breaker());
        assert!(member.stage("good").open_until(now).is_none());
        member.stage("bad").record(|stats| stats.answered(now, Duration::from_millis(1), None));
        assert!(!members.has_open_breaker());
    }

    #[test]
    fn a_member_is_remembered_by_name_until_there_are_too_many() {
        let (members, now) = (Members::default(), Instant::now());
        let kept = members.get("kept");
        for _ in 0..10 {
            members.get("gone").stage("a").record(|stats| stats.lost(now));
            kept.stage("a").record(|stats| stats.lost(now));
        }
        assert!(members.get("gone").stage("a").open_until(now).is_some());
        (0..2 * MAX_REMEMBERED).for_each(|n| _ = members.get(&format!("other-{n}")));
        assert!(members.known.lock().len() <= MAX_REMEMBERED);
        assert!(Arc::ptr_eq(&kept, &members.get("kept")));
        assert!(members.get("gone").stage("a").open_until(now).is_none(), "it was forgotten");
        drop(kept);
        (0..2 * MAX_REMEMBERED).for_each(|n| _ = members.get(&format!("more-{n}")));
        assert!(!members.has_open_breaker(), "breakers of forgotten members do not count");
    }
}
