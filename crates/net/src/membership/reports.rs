//! The reports of the members: this node's own, what it holds of the others', and what is asked for.
//!
//! A node owns its report, and numbers its versions. Others hear of a version in three ways: from the owner when they
//! connect to it, by rumour, and in the exchange of lists, because some rumours do not arrive. A node that is behind
//! asks the owner, and passes a version on when it has that report.
//!
//! * **Trust:** a report counts only from its owner, on its connection, and only after a question: no member can make
//!   up one of another member. A version that a member makes up costs questions to the owner, at most one a second
//!   from each node, which the owner answers with its version alone; it is not passed on.
//! * **Full:** there is one report for each known member. A rumour ends after a few rounds.
//! * **Late:** an answer that does not come is asked for again each second, a few times; the exchange tells of the
//!   version again.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_core::Instant;
use callboard_core::remote::{NodePhase, NodeReport};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::codec::version_bytes;
use super::digest::{BUCKETS, Buckets, bucket};
use super::error::GossipError;
use super::identity::MemberId;
use super::message::Gossip;
use super::report_codec;
use super::state::{MAX_LIST_BYTES, MAX_MEMBERS};

/// The least time between two versions of a node, but for a drain: what changes often does not belong into a report.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(1);

/// The longest time between two versions that differ in numbers of replicas only, while such changes go on: each
/// version goes to each member.
const MAX_PAUSE: Duration = Duration::from_secs(15);

/// The time between two rounds of rumours and questions.
const ROUND: Duration = Duration::from_millis(100);

/// A rumour is sent to this many members in each round, for this many rounds. Then one of 160,000 members does not hear
/// of it, if all are equally lucky.
const RUMOUR_TO: usize = 4;
const RUMOUR_ROUNDS: u8 = 3;

/// The most rumours in one message.
const MAX_RUMOURS: usize = 128;

/// The time after which a question is asked again, and how often it is asked.
const ASK_EVERY: Duration = Duration::from_secs(1);
const MAX_ASKS: u8 = 8;

/// The least time between two answers to one member. Threat: a member that asks without end for a long report.
const ANSWER_EVERY: Duration = Duration::from_millis(250);

/// The version of a member's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) name: Arc<str>,
    /// The generation of the member. It starts a new count.
    pub(super) generation: u64,
    pub(super) version: u64,
}

/// The other members that are not down, with their generations.
pub(super) type LiveGenerations = BTreeMap<Arc<str>, u64>;

/// What is known of the report of one member.
#[derive(Debug, Default)]
struct Known {
    /// Whether it has the feature `reports`.
    has_reports: bool,
    /// Since when it is in its state, in nanoseconds since 1970.
    since: u64,
    /// The generation that the rest is of.
    generation: u64,
    /// The version that this node has; 0 for none.
    version: u64,
    report: Option<Arc<NodeReport>>,
    /// The newest version that was heard of.
    heard: u64,
    /// Whether it was asked and has not answered.
    is_asked: bool,
    asks: u8,
    /// The version of this node's report that it has asked for, or has.
    told: u64,
    next_ask: Option<Instant>,
    next_answer: Option<Instant>,
}

impl Known {
    /// Forgets what was of another generation.
    fn of_generation(&mut self, generation: u64) -> &mut Self {
        if self.generation != generation {
            let Self { has_reports, since, next_ask, next_answer, .. } = *self;
            *self = Self { has_reports, since, generation, next_ask, next_answer, ..Self::default() };
        }
        self
    }

    fn is_behind(&self) -> bool {
        self.heard > self.version
    }
}

/// A change of this node's report.
#[derive(Debug)]
struct PendingReport {
    report: Arc<NodeReport>,
    bytes: Bytes,
    /// Whether it differs from what was announced in numbers of replicas only.
    has_counts_only: bool,
    /// When it is announced.
    due: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Reports {
    /// This node's own, its bytes, and its version.
    own: Option<(Arc<NodeReport>, Bytes)>,
    version: u64,
    /// A change that is not announced yet.
    pending: Option<PendingReport>,
    announced_at: Option<Instant>,
    /// The least time until numbers of replicas are announced again.
    pause: Duration,
    known: BTreeMap<Arc<str>, Known>,
    /// The versions that are passed on, and for how many more rounds.
    rumours: Vec<(Arc<str>, u8)>,
    next_round: Option<Instant>,
    /// Messages to be sent.
    sends: Vec<(Arc<str>, Gossip)>,
}

impl Reports {
    /// This node tells something new of itself. A drain does not wait: the node may be gone in a moment.
    pub(super) fn set_own(&mut self, report: NodeReport, now: Instant) {
        let (report, bytes) = report_codec::cut(report);
        let (mut has_counts_only, mut due) = (false, now);
        if let (Some((before, bytes_before)), Some(announced_at)) = (&self.own, self.announced_at) {
            if bytes == *bytes_before {
                self.pending = None;
                return;
            }
            has_counts_only = differs_in_counts_only(before, &report);
            if report.phase != NodePhase::Draining || before.phase == NodePhase::Draining {
                let pause = if has_counts_only { self.pause.max(ANNOUNCE_EVERY) } else { ANNOUNCE_EVERY };
                due = due.max(announced_at + pause);
            }
        }
        self.pending = Some(PendingReport { report: Arc::new(report), bytes, has_counts_only, due });
        self.plan_round(due);
    }

    /// Has a round at this time, unless one comes earlier.
    fn plan_round(&mut self, at: Instant) {
        self.next_round = Some(self.next_round.map_or(at, |planned| planned.min(at)));
    }

    /// The newest report of this node.
    pub(super) fn own(&self) -> Option<&Arc<NodeReport>> {
        let announced = || self.own.as_ref().map(|(report, _)| report);
        self.pending.as_ref().map(|pending| &pending.report).or_else(announced)
    }

    /// The report of another member, of this generation.
    pub(super) fn of(&self, member: &MemberId) -> Option<&Arc<NodeReport>> {
        let known = self.known.get(&member.name).filter(|known| known.generation == member.generation)?;
        known.report.as_ref()
    }

    /// Since when a member is in its state, in nanoseconds since 1970.
    pub(super) fn since(&self, name: &str) -> u64 {
        self.known.get(name).map_or(0, |known| known.since)
    }

    /// A member is up or down from now on, in nanoseconds since 1970.
    pub(super) fn changed(&mut self, name: &Arc<str>, clock: u64) {
        self.known.entry(Arc::clone(name)).or_default().since = clock;
    }

    /// A connection to a member, which has the feature `reports` or does not. It is told the version of this node.
    pub(super) fn connected(&mut self, name: &Arc<str>, has_reports: bool, own: &MemberId) {
        self.known.entry(Arc::clone(name)).or_default().has_reports = has_reports;
        if has_reports && self.version > 0 {
            self.tell(name, 0, false, vec![self.own_version(own)]);
        }
    }

    /// The messages to be sent.
    pub(super) fn take_sends(&mut self) -> Vec<(Arc<str>, Gossip)> {
        std::mem::take(&mut self.sends)
    }

    /// When to call [`round`](Self::round).
    pub(super) fn next_round(&self) -> Option<Instant> {
        self.next_round
    }

    /// This process was stopped for this long.
    pub(super) fn give_back(&mut self, gap: Duration) {
        self.next_round = self.next_round.map(|at| at + gap);
    }

    /// Announces this node's change, asks for the reports that are missing, and passes rumours on.
    pub(super) fn round(&mut self, own: &MemberId, live: &LiveGenerations, random: &mut SmallRng, now: Instant) {
        if self.next_round.is_none_or(|at| at > now) {
            return;
        }
        if let Some(PendingReport { report, bytes, has_counts_only, .. }) = self.pending.take_if(|own| own.due <= now) {
            if has_counts_only {
                let goes_on = self.announced_at.is_some_and(|at| at + 2 * self.pause >= now);
                self.pause = if goes_on { (2 * self.pause).min(MAX_PAUSE) } else { ANNOUNCE_EVERY };
            }
            self.own = Some((report, bytes));
            self.version += 1;
            self.announced_at = Some(now);
            self.spread(Arc::clone(&own.name));
        }
        let mut behind: Vec<_> =
            self.known.iter().filter(|(_, known)| known.is_behind()).map(|(name, _)| name.clone()).collect();
        behind.retain(|name| live.contains_key(name));
        behind.iter().for_each(|name| self.ask(name, now));
        self.pass_on(own, live, random);
        let is_behind = behind.iter().any(|name| self.known.get(name).is_some_and(Known::is_behind));
        let soon = (is_behind || !self.rumours.is_empty()).then(|| now + ROUND);
        self.next_round = soon.into_iter().chain(self.pending.as_ref().map(|pending| pending.due)).min();
    }

    /// Whether all these members that know of reports have the newest one of this node, or were sent it.
    pub(super) fn is_known_to(&self, live: &LiveGenerations) -> bool {
        let mut known = live.keys().filter_map(|name| self.known.get(name)).filter(|known| known.has_reports);
        self.pending.is_none() && known.all(|known| known.told >= self.version)
    }

    /// Begins an exchange of versions with a member.
    pub(super) fn exchange(&mut self, with: &Arc<str>, own: &MemberId, live: &LiveGenerations) {
        // Of members that are down, the report is kept for operators while there is room.
        if self.known.len() > 2 * MAX_MEMBERS {
            self.known.retain(|name, _| live.contains_key(name));
        }
        if self.has_reports(with) {
            let buckets = Buckets::of_versions(&self.versions(own, live, u64::MAX));
            self.sends.push((Arc::clone(with), Gossip::ReportBuckets(Box::new(buckets))));
        }
    }

    /// The sums of another node's versions: it is told what this one has in the buckets that differ.
    pub(super) fn received_buckets(
        &mut self,
        from: &Arc<str>,
        theirs: &Buckets,
        own: &MemberId,
        live: &LiveGenerations,
    ) {
        let mask = Buckets::of_versions(&self.versions(own, live, u64::MAX)).difference(theirs);
        if mask != 0 {
            self.tell(from, mask, true, self.versions(own, live, mask));
        }
    }

    /// Versions of which another node tells.
    pub(super) fn received_versions(
        &mut self,
        from: &MemberId,
        (mask, wants_answer, told): (u64, bool, &[Version]),
        own: &MemberId,
        live: &impl Deref<Target = LiveGenerations>,
        now: Instant,
    ) {
        for Version { name, generation, version } in told {
            let is_owner = *name == from.name;
            let generation_now = if is_owner { Some(&from.generation) } else { live.get(name) };
            if generation_now != Some(generation) {
                continue;
            }
            let known = self.known.entry(Arc::clone(name)).or_default().of_generation(*generation);
            if is_owner {
                // It ends what others have made up.
                (known.heard, known.has_reports) = (*version, true);
                if !known.is_behind() {
                    (known.is_asked, known.asks) = (false, 0);
                }
            } else {
                known.heard = known.heard.max(*version);
            }
            if known.is_behind() {
                self.ask(name, now);
                self.plan_round(now + ROUND);
            }
        }
        if wants_answer {
            let mut lacking = self.versions(own, live, mask);
            lacking.retain(|version| !told.contains(version));
            if !lacking.is_empty() {
                self.tell(&from.name, mask, false, lacking);
            }
        }
    }

    /// A member that has this version of this node's report asks for a newer one.
    pub(super) fn received_ask(&mut self, from: &MemberId, has: u64, own: &MemberId, now: Instant) {
        let Some((_, bytes)) = &self.own else { return };
        let bytes = bytes.clone();
        let known = self.known.entry(Arc::clone(&from.name)).or_default();
        if known.next_answer.is_some_and(|at| at > now) {
            return;
        }
        known.next_answer = Some(now + ANSWER_EVERY);
        known.told = self.version;
        if has < self.version {
            self.sends.push((Arc::clone(&from.name), Gossip::Report { version: self.version, bytes }));
        } else {
            self.tell(&from.name, 0, false, vec![self.own_version(own)]);
        }
    }

    /// A member's own report. One that was not asked for, or is no newer, does not count.
    ///
    /// # Errors
    ///
    /// An invalid report.
    pub(super) fn received_report(
        &mut self,
        from: &MemberId,
        (version, bytes): (u64, &Bytes),
        now: Instant,
    ) -> Result<(), GossipError> {
        let Some(known) = self.known.get_mut(&from.name) else { return Ok(()) };
        if !known.is_asked || known.generation != from.generation {
            return Ok(());
        }
        (known.is_asked, known.asks) = (false, 0);
        if version <= known.version {
            return Ok(());
        }
        let (read, is_first) = (report_codec::read(bytes), known.version == 0);
        // Also an invalid one is not asked for again.
        (known.version, known.heard) = (version, version);
        known.report = Some(Arc::new(read?));
        // Of a new generation, each member hears when it connects: a start of all nodes causes no rumours.
        if !is_first {
            self.spread(Arc::clone(&from.name));
            self.plan_round(now);
        }
        Ok(())
    }

    fn has_reports(&self, name: &str) -> bool {
        self.known.get(name).is_some_and(|known| known.has_reports)
    }

    /// Asks the owner, unless it was asked a moment ago.
    fn ask(&mut self, name: &Arc<str>, now: Instant) {
        let Some(known) = self.known.get_mut(name) else { return };
        if known.next_ask.is_some_and(|at| at > now) {
            return;
        }
        if !known.has_reports || known.asks >= MAX_ASKS {
            (known.heard, known.asks) = (known.version, 0);
            return;
        }
        (known.is_asked, known.asks, known.next_ask) = (true, known.asks + 1, Some(now + ASK_EVERY));
        self.sends.push((Arc::clone(name), Gossip::Ask(known.version)));
    }

    /// Passes a version on from the next round on.
    fn spread(&mut self, name: Arc<str>) {
        self.rumours.retain(|(other, _)| *other != name);
        self.rumours.push((name, RUMOUR_ROUNDS));
    }

    /// Sends a round of rumours, the newest first.
    fn pass_on(&mut self, own: &MemberId, live: &LiveGenerations, random: &mut SmallRng) {
        if self.rumours.is_empty() {
            return;
        }
        let mut to: Vec<Arc<str>> = live.keys().filter(|name| self.has_reports(name)).cloned().collect();
        let newest = self.rumours.iter().rev().take(MAX_RUMOURS);
        let told: Vec<_> = newest.filter_map(|(name, _)| self.version_of(name, own, live)).collect();
        for _ in 0..RUMOUR_TO.min(to.len()) {
            let to = to.swap_remove(random.random_range(0..to.len()));
            self.tell(&to, 0, false, told.clone());
        }
        let first_sent = self.rumours.len().saturating_sub(MAX_RUMOURS);
        self.rumours[first_sent..].iter_mut().for_each(|(_, rounds)| *rounds -= 1);
        self.rumours.retain(|(_, rounds)| *rounds > 0);
    }

    /// Tells a member of versions, in messages that are not too long.
    fn tell(&mut self, to: &Arc<str>, mask: u64, wants_answer: bool, mut versions: Vec<Version>) {
        versions.sort_by_key(|version| bucket(&version.name));
        // Buckets of which this node has nothing go with the first message.
        let mut left = mask;
        loop {
            let mut bytes = 0;
            let fit = versions.iter().take_while(|version| {
                bytes += version_bytes(version);
                bytes <= MAX_LIST_BYTES
            });
            let rest = versions.split_off(fit.count());
            let of_rest = rest.iter().fold(0_u64, |mask, version| mask | 1 << bucket(&version.name));
            let part = left & !of_rest;
            left &= !part;
            self.sends.push((Arc::clone(to), Gossip::Versions { mask: part, wants_answer, versions }));
            if rest.is_empty() {
                return;
            }
            versions = rest;
        }
    }

    fn own_version(&self, own: &MemberId) -> Version {
        Version { name: Arc::clone(&own.name), generation: own.generation, version: self.version }
    }

    /// The version of a report that this node has.
    fn version_of(&self, name: &Arc<str>, own: &MemberId, live: &LiveGenerations) -> Option<Version> {
        if *name == own.name {
            return (self.version > 0).then(|| self.own_version(own));
        }
        let (known, generation) = (self.known.get(name)?, *live.get(name)?);
        let is_held = known.version > 0 && known.generation == generation;
        is_held.then(|| Version { name: Arc::clone(name), generation, version: known.version })
    }

    /// The versions of all reports that this node has, in these buckets.
    fn versions(&self, own: &MemberId, live: &LiveGenerations, mask: u64) -> Vec<Version> {
        let names = live.keys().chain([&own.name]).filter(|name| mask & 1 << bucket(name) != 0);
        names.filter_map(|name| self.version_of(name, own, live)).collect()
    }
}

/// Whether two reports have the same stages, and the same of all else.
fn differs_in_counts_only(one: &NodeReport, other: &NodeReport) -> bool {
    let without_counts = |report: &NodeReport| {
        let mut report = report.clone();
        report.stages.iter_mut().for_each(|stage| (stage.ready, stage.wanted) = (0, 0));
        report
    };
    without_counts(one) == without_counts(other)
}

const _: () = assert!(BUCKETS == 64, "a mask has a bit for each bucket");
