//! The removed members that a node knows, and the ways it learns of them.
//!
//! A removed member gets no further certificate. A node that knows of the removal refuses the existing certificate: new
//! connections at the hello, open ones as soon as it knows. Only an issuer can exclude a member, in two ways:
//!
//! * It signs its list, and nodes pass the signed lists on ([`Identity::take_list`]): all know within seconds.
//! * Nodes ask an issuer at their start and then repeatedly, on a connection as for a renewal: those that do not gossip,
//!   and those that have missed the rest.
//!
//! The node of an issuer reads its directory every second, and adds what it has heard from the others, so a removal
//! outlives the issuer that has ordered it. What a node knows is the union of the newest list of each issuer, and of
//! what it has asked for, until it expires.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use super::renewal::{BoxError, IssuerClient, run_blocking};
use super::{Identity, Origin};
use crate::authority::{InvalidRemovals, RemovedMembers, SignedRemovals};
use crate::certificate::Member;
use crate::error::IdentityError;
use crate::text::with_sources;

/// The interval at which the node of an issuer reads its directory.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The pause before a node asks again after a failure.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// The most lists that are passed on, one for each issuer. Lists of further issuers are added to what was asked for.
const MAX_LISTS: usize = 64;

/// A signed list that was verified, to be passed on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldList {
    /// Of two lists of an issuer, the higher one counts.
    pub version: u64,
    /// The list.
    pub bytes: Arc<[u8]>,
    /// When nobody accepts it any more.
    pub(super) ends: SystemTime,
}

/// What is known, by its source, so that no issuer can take the room of another one.
#[derive(Debug, Default)]
pub(super) struct HeardRemovals {
    /// What this issuer's directory has, or what was asked for: it is added up.
    asked: RemovedMembers,
    /// The newest list of each issuer.
    signed: BTreeMap<String, RemovedMembers>,
}

impl HeardRemovals {
    /// All current entries.
    fn all(&mut self, now: SystemTime) -> RemovedMembers {
        self.signed.values_mut().for_each(|list| *list = std::mem::take(list).current(now));
        self.signed.retain(|_, list| !list.is_empty());
        let mut all = self.asked.clone().current(now);
        self.signed.values().for_each(|list| all.add(list, usize::MAX));
        all
    }
}

/// What an issuer has signed last: the list, the end of its certificate, and the version.
type LastSigned = Option<(RemovedMembers, SystemTime, u64)>;

/// The newest list of each issuer, by the id of the issuer; empty for the root.
pub type HeldLists = Arc<BTreeMap<String, HeldList>>;

impl Identity {
    /// Whether this member was removed, or its issuer, according to this process's list.
    #[must_use]
    pub fn is_removed(&self, member: &Member) -> bool {
        self.0.removed.borrow().excludes(member)
    }

    /// The list of removed members, and every change of it.
    #[must_use]
    pub fn watch_removed(&self) -> watch::Receiver<Arc<RemovedMembers>> {
        self.0.removed.subscribe()
    }

    /// Completes when this member is known to be removed.
    pub async fn until_removed(&self, member: Option<&Member>) {
        let excludes = |removed: &Arc<RemovedMembers>| member.is_some_and(|member| removed.excludes(member));
        if self.watch_removed().wait_for(excludes).await.is_err() {
            std::future::pending().await
        }
    }

    /// The lists to be passed on, and every change of them.
    #[must_use]
    pub fn watch_lists(&self) -> watch::Receiver<HeldLists> {
        self.0.lists.subscribe()
    }

    /// Takes a signed list over that another node has passed on. `false`: it is no newer than what is known.
    ///
    /// # Errors
    ///
    /// A list that no issuer of this cluster has signed.
    pub fn take_list(&self, bytes: &[u8]) -> Result<bool, InvalidRemovals> {
        let list = SignedRemovals::read(bytes)?;
        let signer = list.signer()?;
        let is_known = |lists: &HeldLists| lists.get(&signer.issuer).is_some_and(|held| held.version >= list.version);
        if is_known(&self.0.lists.borrow()) {
            return Ok(false);
        }
        if self.is_removed(&signer) {
            return Err(InvalidRemovals::Signer("it was removed".to_owned()));
        }
        list.verify(Arc::clone(&self.0.authorities), self.clock().now())?;
        self.add_removed(Some(&signer.issuer), list.removed);
        let ends = signer.validity.not_after;
        self.hold(signer.issuer, HeldList { version: list.version, bytes: bytes.into(), ends });
        Ok(true)
    }

    fn hold(&self, issuer: String, list: HeldList) {
        self.0.lists.send_if_modified(|lists| {
            let lists = Arc::make_mut(lists);
            let is_newer = lists.get(&issuer).is_none_or(|held| held.version < list.version);
            let has_room = lists.contains_key(&issuer) || lists.len() < MAX_LISTS;
            if is_newer && has_room {
                lists.insert(issuer, list);
            }
            is_newer && has_room
        });
    }

    /// Forgets lists whose signature has ended: nobody would accept them.
    fn drop_ended_lists(&self) {
        let now = self.clock().now();
        self.0.lists.send_if_modified(|lists| {
            let has_ended = lists.values().any(|list| list.ends <= now);
            if has_ended {
                Arc::make_mut(lists).retain(|_, list| list.ends > now);
            }
            has_ended
        });
    }

    /// Adds what an issuer has signed, in place of its earlier list; or what was read or asked for.
    pub(crate) fn add_removed(&self, signer: Option<&str>, more: RemovedMembers) {
        let now = self.clock().now();
        let mut heard = self.0.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = |id: &&str| heard.signed.contains_key(*id) || heard.signed.len() < MAX_LISTS;
        match signer.filter(has_room) {
            Some(id) => _ = heard.signed.insert(id.to_owned(), more),
            None => heard.asked = heard.asked.union(&more, now),
        }
        let all = heard.all(now);
        // While it is locked, so that a later list is not replaced by an earlier one.
        self.0.removed.send_if_modified(|known| {
            let has_changed = **known != all;
            if has_changed {
                *known = Arc::new(all);
            }
            has_changed
        });
    }

    /// Signs what this issuer knows, unless that is what it has signed last with this certificate, and the newest list.
    pub(crate) fn sign_list(&self, signed: &mut LastSigned) -> Result<(), IdentityError> {
        let (removed, presented) = (self.0.removed.borrow().as_ref().clone(), self.0.presented.load_full());
        let (ends, issuer) = (presented.member.validity.not_after, presented.member.issuer.clone());
        // Others may have a newer list of this issuer, if its clock was set back.
        let held = self.0.lists.borrow().get(&issuer).map_or(0, |held| held.version);
        if removed.is_empty() || signed.as_ref() == Some(&(removed.clone(), ends, held)) {
            return Ok(());
        }
        let now = self.clock().now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let version = u64::try_from(now).unwrap_or(u64::MAX).max(held.saturating_add(1));
        let bytes = SignedRemovals::sign(version, &removed, &presented.key)?.into();
        self.hold(issuer, HeldList { version, bytes, ends });
        *signed = Some((removed, ends, version));
        Ok(())
    }

    /// Reads the list once. `None`: there is no authority to ask.
    async fn read_removed(&self, issuers: &impl IssuerClient) -> Option<Result<RemovedMembers, BoxError>> {
        let now = self.clock().now();
        match &self.0.origin {
            Origin::Development(_) => None,
            Origin::Authority(authority) => {
                let (authority, heard) = (authority.clone(), Arc::clone(&self.0.removed.borrow()));
                let read = run_blocking(move || {
                    authority.take_over(&heard, now)?;
                    Ok((authority.removed(now)?, authority.issuer()?))
                });
                let read = read.await.map(|(removed, issuer)| {
                    self.0.issuer.store(issuer.map(Arc::new));
                    removed
                });
                Some(read.map_err(Into::into))
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

/// Keeps the list of removed members up to date while it is polled, and signs that of an issuer.
pub async fn keep_removals(identity: Identity, issuers: impl IssuerClient, every: Duration) {
    let (mut was_logged, mut signed) = (false, None);
    while let Some(read) = identity.read_removed(&issuers).await {
        let is_issuer = identity.authority().is_some();
        let read = read.and_then(|removed| {
            identity.add_removed(None, removed);
            if is_issuer { identity.sign_list(&mut signed).map_err(Into::into) } else { Ok(()) }
        });
        identity.drop_ended_lists();
        let pause = match read {
            Ok(()) => {
                was_logged = false;
                if is_issuer { READ_EVERY.min(every) } else { every }
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
