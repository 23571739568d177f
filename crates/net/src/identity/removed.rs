//! Which members were removed whose certificates still hold, and how a node comes to know.
//!
//! A removed member gets no further certificate, and the one that it has is refused by every node that has it in its list: new connections
//! in the hello, open ones at once when the list is read. The authority's node reads its directory every second; the others ask that node
//! when they start and again and again, on a connection as for a renewal, so that nobody but the authority can have a member refused.
//! A node that cannot ask goes on with what it knows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quinn::Endpoint;
use tokio::sync::watch;

use super::certificate::Member;
use super::register::seconds;
use super::renewal::with_files;
use super::{Identity, Origin};
use crate::join::removed_members;
use crate::refusal::with_sources;

/// How often the node with the authority's directory looks into it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A node that has not been told is told sooner.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// What a list takes on its way at most: some 9,000 members within the life of a certificate.
pub(crate) const MAX_LIST_BYTES: usize = 256 << 10;

/// The ids of removed members, with the second since 1970 at which the last of their certificates is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Removed(BTreeMap<String, u64>);

impl Removed {
    pub(super) fn new(ids: impl IntoIterator<Item = (String, u64)>) -> Self {
        Self(ids.into_iter().collect())
    }

    /// Whether the member of this id was removed.
    pub(crate) fn contains(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    /// One line for each; those that hold for longest, where there are more than a list takes.
    pub(super) fn to_text(&self) -> String {
        let mut ids: Vec<_> = self.0.iter().collect();
        ids.sort_by(|(_, one), (_, other)| other.cmp(one));
        let mut text = String::new();
        for (id, until) in ids {
            let line = format!("{id} {until}\n");
            if text.len() + line.len() > MAX_LIST_BYTES {
                break;
            }
            text += &line;
        }
        text
    }

    /// Those of whom there is a line and whose time is not over.
    fn of_text(text: &str, now: SystemTime) -> Option<Self> {
        let now = seconds(now);
        let mut ids = BTreeMap::new();
        for line in text.lines() {
            let (id, until) = line.split_once(' ')?;
            let until: u64 = until.parse().ok()?;
            if until > now {
                ids.insert(id.to_owned(), until);
            }
        }
        Some(Self(ids))
    }
}

impl Identity {
    /// Who was removed, as far as is known.
    pub(crate) fn removed(&self) -> Arc<Removed> {
        Arc::clone(&self.0.removed.borrow())
    }

    /// Whether this member was.
    pub(crate) fn is_removed(&self, member: &Member) -> bool {
        self.0.removed.borrow().contains(&member.id)
    }

    /// Tells of every change.
    pub(crate) fn removals(&self) -> watch::Receiver<Arc<Removed>> {
        self.0.removed.subscribe()
    }

    /// Resolves when this member is known to be removed.
    pub(crate) async fn until_removed(&self, id: &str) {
        let mut removals = self.removals();
        if removals.wait_for(|removed| removed.contains(id)).await.is_err() {
            std::future::pending().await
        }
    }

    fn know(&self, removed: Removed) {
        self.0.removed.send_if_modified(|known| {
            let is_other = **known != removed;
            if is_other {
                *known = Arc::new(removed);
            }
            is_other
        });
    }

    /// Looks once. `None`: there is nobody to ask.
    async fn look(&self, endpoint: &Endpoint) -> Option<Result<Removed, Box<dyn std::error::Error + Send + Sync>>> {
        let now = self.clock().now();
        match &self.0.origin {
            Origin::Development(_) => None,
            Origin::Authority(authority) => {
                let authority = authority.clone();
                Some(with_files(move || authority.removed(now)).await.map_err(Into::into))
            }
            Origin::Member(membership) => {
                let asked = removed_members(endpoint, self, &membership.issuers).await;
                let read = |text: String| Removed::of_text(&text, now).ok_or_else(|| "not a list of members".into());
                Some(asked.map_err(Into::into).and_then(read))
            }
        }
    }
}

/// Keeps the list of those who were removed, for as long as it is polled.
pub(crate) async fn keep_removals(identity: Identity, endpoint: Endpoint, every: Duration) {
    let mut was_told = false;
    while let Some(looked) = identity.look(&endpoint).await {
        let pause = match looked {
            Ok(removed) => {
                was_told = false;
                identity.know(removed);
                if identity.authority().is_some() { LOOK_EVERY.min(every) } else { every }
            }
            Err(error) => {
                if !std::mem::replace(&mut was_told, true) {
                    let why = with_sources(&*error);
                    tracing::warn!("who was removed from the cluster is not known anew, and is asked again: {why}");
                }
                ASK_AGAIN.min(every)
            }
        };
        // All nodes of a cluster would ask at once.
        tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 4.0)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_is_written_without_those_who_are_over() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let removed = Removed::new([("a".to_owned(), 1_001), ("b".to_owned(), 5_000), ("c".to_owned(), 1_000)]);
        let read = Removed::of_text(&removed.to_text(), now).unwrap();
        assert!(read.contains("a") && read.contains("b") && !read.contains("c") && !read.contains(""));
        assert_eq!(Removed::of_text("", now), Some(Removed::default()));
        assert_eq!(Removed::of_text("a", now), None);
        assert_eq!(Removed::of_text("a b", now), None);
    }

    #[test]
    fn a_long_list_has_those_who_hold_for_longest() {
        let all = (0..20_000).map(|n| (format!("{n:016x}"), 10_000_000 + n));
        let text = Removed::new(all).to_text();
        assert!(text.len() <= MAX_LIST_BYTES && text.len() > MAX_LIST_BYTES - 64);
        let read = Removed::of_text(&text, SystemTime::UNIX_EPOCH).unwrap();
        assert!(read.contains(&format!("{:016x}", 19_999)) && !read.contains(&format!("{:016x}", 0)));
    }
}
