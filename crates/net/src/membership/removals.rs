//! The lists of removed members that issuers have signed, as they spread.
//!
//! A node that has taken a newer list over sends it to a few members, for a few rounds, and so do they. Members that
//! connect, and those that exchange their lists of members, compare versions, because some messages do not arrive.
//!
//! * **Trust:** a list counts by its signature, whoever sends it. What arrives here is not verified yet: only what the
//!   shell gives back, by [`Removals::set`], is passed on.
//! * **Full:** there is one list for each issuer, at most 64, of at most 32 KiB.
//! * **Late:** the exchange tells of the versions again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_core::Instant;
use callboard_identity::HeldLists;
use rand::RngExt;
use rand::rngs::SmallRng;

use super::message::Gossip;
use super::reports::LiveGenerations;
use super::state::MAX_MEMBERS;

/// The time between two rounds, how many members a list is sent to in each, and for how many rounds: as for the rumours
/// of reports.
const ROUND: Duration = Duration::from_millis(100);
const SEND_TO: usize = 4;
const ROUNDS: u8 = 3;

/// The least time between two answers to one member. Threat: a member that asks without end for long lists.
const ANSWER_EVERY: Duration = Duration::from_millis(250);

/// The longest name of an issuer: its id. The root has none.
pub(super) const MAX_ISSUER_BYTES: usize = 16;

/// The version of the list of an issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListVersion {
    pub(super) issuer: String,
    pub(super) version: u64,
}

#[derive(Debug, Default)]
struct Peer {
    /// Whether it has the feature `removals`.
    has_removals: bool,
    next_answer: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Removals {
    lists: HeldLists,
    peers: BTreeMap<Arc<str>, Peer>,
    /// The issuers whose lists are passed on, and for how many more rounds.
    rumours: Vec<(String, u8)>,
    next_round: Option<Instant>,
    /// Messages to be sent.
    sends: Vec<(Arc<str>, Gossip)>,
}

impl Removals {
    /// These lists were verified, or signed here. The newer ones are passed on.
    pub(super) fn set(&mut self, lists: HeldLists, now: Instant) {
        for (issuer, list) in &*lists {
            if self.version_of(issuer) < list.version {
                self.rumours.retain(|(other, _)| other != issuer);
                self.rumours.push((issuer.clone(), ROUNDS));
                self.next_round = Some(now);
            }
        }
        self.lists = lists;
    }

    /// A connection to a member, which has the feature `removals` or does not. It is told the versions here.
    pub(super) fn connected(&mut self, name: &Arc<str>, has_removals: bool) {
        self.peers.entry(Arc::clone(name)).or_default().has_removals = has_removals;
        self.tell(name, true);
    }

    /// Begins an exchange of versions with a member.
    pub(super) fn exchange(&mut self, with: &Arc<str>, live: &LiveGenerations) {
        if self.peers.len() > 2 * MAX_MEMBERS {
            self.peers.retain(|name, _| live.contains_key(name));
        }
        self.tell(with, true);
    }

    fn tell(&mut self, to: &Arc<str>, wants_answer: bool) {
        // Nothing to tell, unless it is an answer: then the asking node has something.
        let is_of_use = !self.lists.is_empty() || !wants_answer;
        if is_of_use && self.peers.get(to).is_some_and(|peer| peer.has_removals) {
            let version = |(issuer, list): (&String, &callboard_identity::HeldList)| ListVersion {
                issuer: issuer.clone(),
                version: list.version,
            };
            let versions = self.lists.iter().map(version).collect();
            self.sends.push((Arc::clone(to), Gossip::Removals { wants_answer, versions }));
        }
    }

    /// Versions that another node has: it is sent what it lacks, and asked for what is newer.
    pub(super) fn received(&mut self, from: &Arc<str>, wants_answer: bool, theirs: &[ListVersion], now: Instant) {
        let peer = self.peers.entry(Arc::clone(from)).or_default();
        peer.has_removals = true;
        if peer.next_answer.is_some_and(|at| at > now) {
            return;
        }
        peer.next_answer = Some(now + ANSWER_EVERY);
        let has =
            |issuer: &str, version: u64| theirs.iter().any(|their| their.issuer == issuer && their.version >= version);
        let lacking: Vec<_> = self
            .lists
            .iter()
            .filter(|(issuer, list)| !has(issuer, list.version))
            .map(|(_, list)| &list.bytes)
            .collect();
        let sends = lacking.into_iter().map(|list| (Arc::clone(from), Gossip::Removed(Bytes::copy_from_slice(list))));
        self.sends.extend(sends.collect::<Vec<_>>());
        if wants_answer && theirs.iter().any(|their| self.version_of(&their.issuer) < their.version) {
            self.tell(from, false);
        }
    }

    /// When to call [`round`](Self::round).
    pub(super) fn next_round(&self) -> Option<Instant> {
        self.next_round
    }

    /// Passes lists on.
    pub(super) fn round(&mut self, live: &LiveGenerations, random: &mut SmallRng, now: Instant) {
        let has_removals = |name: &&Arc<str>| self.peers.get(*name).is_some_and(|peer| peer.has_removals);
        let mut to: Vec<Arc<str>> = live.keys().filter(has_removals).cloned().collect();
        for _ in 0..SEND_TO.min(to.len()) {
            let to = to.swap_remove(random.random_range(0..to.len()));
            let lists = self.rumours.iter().filter_map(|(issuer, _)| self.lists.get(issuer));
            let sends = lists.map(|list| (Arc::clone(&to), Gossip::Removed(Bytes::copy_from_slice(&list.bytes))));
            self.sends.extend(sends);
        }
        self.rumours.iter_mut().for_each(|(_, rounds)| *rounds -= 1);
        self.rumours.retain(|(_, rounds)| *rounds > 0);
        self.next_round = (!self.rumours.is_empty()).then(|| now + ROUND);
    }

    /// This process was stopped for this long.
    pub(super) fn give_back(&mut self, gap: Duration) {
        self.next_round = self.next_round.map(|at| at + gap);
    }

    /// The messages to be sent.
    pub(super) fn take_sends(&mut self) -> Vec<(Arc<str>, Gossip)> {
        std::mem::take(&mut self.sends)
    }

    /// The version here; 0 for none.
    fn version_of(&self, issuer: &str) -> u64 {
        self.lists.get(issuer).map_or(0, |list| list.version)
    }
}
