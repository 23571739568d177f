//! The removed members that a node knows, and the ways it learns of them.
//!
//! A removed member gets no further certificate. A node with the member in its list refuses the existing certificate:
//! new connections at the hello, open ones as soon as the list is read. The node with the authority reads its directory
//! every second; other nodes ask it at their start and then repeatedly, on a connection as for a renewal, so that only
//! the authority can exclude a member. A node without an answer keeps its list.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::renewal::{BoxError, IssuerClient, run_blocking};
use super::{Identity, Origin};
use crate::authority::RemovedMembers;
use crate::certificate::Member;
use crate::text::with_sources;

/// The interval at which the node with the authority's directory reads it.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The pause before a node asks again after a failure.
const ASK_AGAIN: Duration = Duration::from_secs(5);

impl Identity {
    /// Whether this member was removed, according to this process's list.
    #[must_use]
    pub fn is_removed(&self, member_id: &str) -> bool {
        self.0.removed.borrow().contains(member_id)
    }

    /// The list of removed members, and every change of it.
    #[must_use]
    pub fn watch_removed(&self) -> watch::Receiver<Arc<RemovedMembers>> {
        self.0.removed.subscribe()
    }

    /// Completes when this member is known to be removed.
    pub async fn until_removed(&self, member: Option<&Member>) {
        let id = member.map(|member| member.id.as_str()).unwrap_or_default();
        if self.watch_removed().wait_for(|removed| removed.contains(id)).await.is_err() {
            std::future::pending().await
        }
    }

    fn set_removed(&self, removed: RemovedMembers) {
        self.0.removed.send_if_modified(|known| {
            let has_changed = **known != removed;
            if has_changed {
                *known = Arc::new(removed);
            }
            has_changed
        });
    }

    /// Reads the list once. `None`: there is no authority to ask.
    async fn read_removed(&self, issuers: &impl IssuerClient) -> Option<Result<RemovedMembers, BoxError>> {
        let now = self.clock().now();
        match &self.0.origin {
            Origin::Development(_) => None,
            Origin::Authority(authority) => {
                let authority = authority.clone();
                Some(run_blocking(move || authority.removed(now)).await.map_err(Into::into))
            }
            Origin::Member(membership) => {
                let reading = membership.clone();
                let issuing = match run_blocking(move || Ok(reading.issuers())).await {
                    Ok(issuing) => issuing,
                    Err(error) => return Some(Err(error.into())),
                };
                let list = issuers.request(self, &issuing, "").await;
                let read =
                    |text: String| RemovedMembers::from_text(&text, now).ok_or_else(|| "not a list of members".into());
                Some(list.and_then(read))
            }
        }
    }
}

/// Keeps the list of removed members up to date while it is polled.
pub async fn keep_removals(identity: Identity, issuers: impl IssuerClient, every: Duration) {
    let mut was_logged = false;
    while let Some(read) = identity.read_removed(&issuers).await {
        let pause = match read {
            Ok(removed) => {
                was_logged = false;
                identity.set_removed(removed);
                if identity.authority().is_some() { READ_EVERY.min(every) } else { every }
            }
            Err(error) => {
                if !std::mem::replace(&mut was_logged, true) {
                    let why = with_sources(&*error);
                    tracing::warn!("the list of removed members could not be read, and is asked for again: {why}");
                }
                ASK_AGAIN.min(every)
            }
        };
        // Jitter, so that the nodes of a cluster do not ask together.
        tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 4.0)).await;
    }
}
