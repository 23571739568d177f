//! The driver of foca: what it is given and when, and what comes of it.

use std::cell::LazyCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_core::Instant;
use callboard_core::remote::NodeReport;
use callboard_identity::HeldLists;
use foca::{Foca, Member, Message, NoCustomBroadcast, State, Timer};
use rand::rngs::SmallRng;
use rand::seq::IteratorRandom;
use rand::{RngExt, SeedableRng};

use super::codec::member_bytes;
use super::digest::{BUCKETS, Buckets, bucket};
use super::effects::{Due, Effect, Effects};
use super::error::GossipError;
use super::identity::MemberId;
use super::isolation::Isolation;
use super::message::{Gossip, Sourced, swim_bytes};
use super::profile::MembershipProfile;
use super::removals::Removals;
use super::reports::{LiveGenerations, Reports};
use super::swim::{Swim, SwimCodec};
use super::tellers::Tellers;

/// The most known members, living and dead. Threat: a member that tells of an endless number of others.
pub(crate) const MAX_MEMBERS: usize = 1_024;

/// More lateness than this means that the process was stopped, or had no processor.
const MAX_LATE: Duration = Duration::from_millis(500);

/// After a stop, messages that have arrived meanwhile are read for this long before timers fire.
const READ_FIRST: Duration = Duration::from_millis(100);

/// The least time between two identities that this node takes because it was called dead, or because its name is taken.
/// Threat: a member that calls it dead without end, and two living nodes with one name, which replace each other.
const RENEW_EVERY: Duration = Duration::from_secs(1);

/// The most bytes of members in one message, so that a long list does not hold up probes.
pub(super) const MAX_LIST_BYTES: usize = 16 << 10;

/// From this many timers on, those that were superseded are dropped: fewer than twice the members are left. Threat: a
/// member that makes up lives and deaths, each of which is remembered for a day.
pub(super) const MAX_TIMERS: usize = 8 * MAX_MEMBERS;

/// A message with more members than this is read with a table of the known ones.
const FEW: usize = 16;

/// What the shell has to do, or to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Send this message to the member of this name.
    Send { to: Arc<str>, message: Bytes },
    /// A dead member should be connected, if it can be: it may be back, or may never have been dead.
    Wanted(MemberId),
    /// This node suspects a member: it has not answered a probe.
    Suspected(MemberId),
    /// A member is up, or has a new identity.
    Up(MemberId),
    /// A member is down. `told_by` is the member whose message says so; without one, this node has found out itself.
    Down { member: MemberId, told_by: Option<Arc<str>> },
    /// A member says that this node is suspected or down.
    Accused { by: Arc<str>, state: State },
    /// This node has taken a new identity: it was called dead.
    Renewed(MemberId),
    /// Another process has this node's name.
    NameTaken(MemberId),
    /// A signed list of removed members, to be verified.
    Removed { from: Arc<str>, list: Bytes },
}

/// The members of a cluster, as one node knows them.
pub(crate) struct Membership {
    foca: Foca<MemberId, SwimCodec, SmallRng, NoCustomBroadcast>,
    effects: Effects,
    isolation: Isolation,
    tellers: Tellers,
    profile: MembershipProfile,
    random: SmallRng,
    timers: BinaryHeap<Reverse<Due>>,
    /// Numbers the timers, so that timers of one time fire in their order.
    timers_made: u64,
    next_exchange: Instant,
    /// A newer identity of this node's name that was heard of.
    taken: Option<MemberId>,
    /// Whether this node was called dead when it could not take a new identity yet.
    is_condemned: bool,
    next_renewal: Instant,
    /// The latest known time, in nanoseconds since 1970.
    clock: u64,
    reports: Reports,
    removals: Removals,
    /// Whether a member has answered with its list.
    has_list: bool,
    outputs: VecDeque<Output>,
}

impl Membership {
    /// A node that knows nobody. `seed` decides its random choices.
    pub(crate) fn new(own: MemberId, profile: MembershipProfile, seed: u64, now: Instant) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let choices = SmallRng::seed_from_u64(random.random());
        // The first exchange comes at a random time: nodes that start together do not exchange together.
        let next_exchange = now + profile.exchange_every().mul_f64(random.random());
        let clock = own.generation;
        Self {
            effects: Effects::new(own.clone(), now),
            foca: Foca::new(own, profile.config(), choices, SwimCodec),
            isolation: Isolation::new(profile.probe_period(), profile.suspicion(), now),
            tellers: Tellers::default(),
            profile,
            random,
            timers: BinaryHeap::new(),
            timers_made: 0,
            next_exchange,
            taken: None,
            is_condemned: false,
            next_renewal: now,
            clock,
            reports: Reports::default(),
            removals: Removals::default(),
            has_list: false,
            outputs: VecDeque::new(),
        }
    }

    /// This node's identity.
    pub(crate) fn own(&self) -> &MemberId {
        self.foca.identity()
    }

    /// The other members, with those that are down.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&MemberId, State)> {
        self.foca.iter_membership_state().map(|member| (member.id(), member.state()))
    }

    /// Whether a member has sent its member list.
    pub(crate) fn has_list(&self) -> bool {
        self.has_list
    }

    /// What is known of the others' reports, and this node's own.
    pub(crate) fn reports(&self) -> &Reports {
        &self.reports
    }

    /// Whether the others have the newest report of this node, as far as they know of reports.
    pub(crate) fn is_report_known(&self) -> bool {
        self.reports.is_known_to(&live_generations(&self.foca))
    }

    /// This node tells the others something new of itself: at most once a second, the newest.
    pub(crate) fn set_report(&mut self, report: NodeReport, now: Instant) {
        self.effects.now = now;
        self.reports.set_own(report, now);
    }

    /// These lists of removed members were verified, or signed here: they are passed on.
    pub(crate) fn set_lists(&mut self, lists: HeldLists, now: Instant) {
        self.effects.now = now;
        self.removals.set(lists, now);
    }

    /// The next thing to do.
    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to call [`wake`](Self::wake).
    pub(crate) fn next_wakeup(&self) -> Instant {
        let timer = self.timers.peek().map(|Reverse(due)| due.at);
        let renewal = self.is_condemned.then_some(self.next_renewal);
        [timer, renewal, self.reports.next_round(), self.removals.next_round()]
            .into_iter()
            .flatten()
            .fold(self.next_exchange, Instant::min)
    }

    /// A connection to a member, in either direction, which has the features `reports` and `removals` or not. The lists
    /// are exchanged if the member is not known to be up.
    pub(crate) fn connected(&mut self, name: &Arc<str>, (has_reports, has_removals): (bool, bool), now: Instant) {
        if *name == self.own().name {
            return;
        }
        self.effects.now = now;
        self.tellers.heard(name);
        let is_up = |member: &Member<MemberId>| member.id().name == *name && member.state() == State::Alive;
        if !self.foca.iter_members().any(is_up) {
            self.send_digest(Arc::clone(name));
        }
        self.reports.connected(name, has_reports, self.foca.identity());
        self.removals.connected(name, has_removals);
        self.send_reports();
    }

    /// Tells it the time, in nanoseconds since 1970: nobody has begun much later.
    pub(crate) fn set_clock(&mut self, clock: u64) {
        self.clock = self.clock.max(clock);
    }

    /// No process has this port of the member any more, which was connected there: it is down.
    pub(crate) fn refused(&mut self, name: &str, address: SocketAddr, now: Instant) {
        self.effects.now = now;
        let is_there = |id: &MemberId| &*id.name == name && id.address == address;
        let at = self.foca.iter_members().filter(|member| is_there(member.id()));
        let down: Vec<_> = at.map(|member| Member::down(member.id().clone())).collect();
        if !down.is_empty() {
            // Both fail only if a message cannot be encoded.
            let _ = self.foca.apply_many(down.into_iter(), true, &mut self.effects);
            let _ = self.foca.gossip(&mut self.effects);
            self.settle(None);
        }
    }

    /// This node has learnt the address at which others reach it.
    pub(crate) fn set_address(&mut self, address: SocketAddr, now: Instant) {
        self.effects.now = now;
        if let Some(next) = self.own().next().filter(|own| own.address != address) {
            let _ = self.foca.change_identity(MemberId { address, ..next }, &mut self.effects);
            self.settle(None);
        }
    }

    /// A message on a connection of the member `from`.
    ///
    /// # Errors
    ///
    /// An invalid message, one of another member, or one of too many. It has changed nothing.
    pub(crate) fn received(&mut self, from: &str, bytes: &[u8], now: Instant) -> Result<(), GossipError> {
        if !self.tellers.may_tell(from, now) {
            return Err(GossipError::TooMany);
        }
        let Sourced { source, gossip } = Sourced::read(bytes)?;
        if *source.name != *from || source.name == self.own().name {
            return Err(GossipError::ForeignSource);
        }
        if !source.is_plausible(self.clock) {
            let MemberId { generation, bump, .. } = source;
            return Err(GossipError::Implausible { generation, bump });
        }
        self.effects.now = now;
        self.tellers.heard(from);
        if self.isolation.heard(now) {
            let suspects = self.foca.iter_members().filter(|member| member.state() == State::Suspect);
            let suspects: Vec<_> = suspects.map(|member| Arc::clone(&member.id().name)).collect();
            suspects.into_iter().for_each(|suspect| self.send_digest(suspect));
        }
        let result = match gossip {
            Gossip::Swim(swim) => self.received_swim(*swim, &bytes[2..]),
            Gossip::Digest(digest) => {
                let ours = Buckets::of(self.list().iter());
                if ours.digest() != digest {
                    self.send(Arc::clone(&source.name), Gossip::Buckets(Box::new(ours)));
                }
                Ok(())
            }
            Gossip::Buckets(theirs) => {
                let mask = Buckets::of(self.list().iter()).difference(&theirs);
                self.send_lists(&source.name, mask, true, self.in_buckets(mask));
                Ok(())
            }
            Gossip::Members { mask, wants_answer, members } => self.received_list(&source, mask, wants_answer, members),
            Gossip::ReportBuckets(theirs) => {
                let live = live_generations(&self.foca);
                self.reports.received_buckets(&source.name, &theirs, self.foca.identity(), &live);
                Ok(())
            }
            Gossip::Versions { mask, wants_answer, versions } => {
                // Most tell of their sender only.
                let (live, told) = (LazyCell::new(|| live_generations(&self.foca)), (mask, wants_answer, &*versions));
                self.reports.received_versions(&source, told, self.foca.identity(), &live, now);
                Ok(())
            }
            Gossip::Ask(has) => {
                self.reports.received_ask(&source, has, self.foca.identity(), now);
                Ok(())
            }
            Gossip::Removals { wants_answer, versions } => {
                self.removals.received(&source.name, wants_answer, &versions, now);
                Ok(())
            }
            Gossip::Removed(list) => {
                self.outputs.push_back(Output::Removed { from: Arc::clone(&source.name), list });
                Ok(())
            }
            Gossip::Report { version, bytes } => self.reports.received_report(&source, (version, &bytes), now),
        };
        self.send_reports();
        self.settle(Some(&source.name));
        result
    }

    fn received_swim(&mut self, mut swim: Swim, bytes: &[u8]) -> Result<(), GossipError> {
        let sent = swim.members.len();
        let mut told = self.told(&swim.header.src.name, sent + 1);
        let source = Member::new(swim.header.src.clone(), 0, State::Alive);
        if !self.admits(&source, &mut told) {
            return Ok(());
        }
        let condemns = swim.header.message == Message::TurnUndead && swim.header.dst == *self.own();
        if condemns && !self.may_renew() {
            return Ok(());
        }
        swim.members.retain(|member| self.admits(member, &mut told));
        let data = if swim.members.len() == sent { bytes } else { &swim.to_bytes()? };
        self.foca.handle_data(data, &mut self.effects)?;
        Ok(())
    }

    /// Takes over what is news, and answers with what the sender lacks.
    fn received_list(
        &mut self,
        source: &MemberId,
        mask: u64,
        wants_answer: bool,
        listed: Vec<Member<MemberId>>,
    ) -> Result<(), GossipError> {
        let mut told = self.told(&source.name, listed.len());
        let mut news = listed.clone();
        news.retain(|member| self.admits(member, &mut told));
        self.foca.apply_many(news.into_iter(), true, &mut self.effects)?;
        self.has_list = true;
        if wants_answer {
            let mut lacking = self.in_buckets(mask);
            lacking.retain(|member| !listed.contains(member));
            self.send_lists(&source.name, mask, false, lacking);
        }
        Ok(())
    }

    /// Fires the timers that are due.
    pub(crate) fn wake(&mut self, now: Instant) {
        self.effects.now = now;
        let late = now.saturating_duration_since(self.next_wakeup());
        if late > MAX_LATE {
            self.give_back(late + READ_FIRST);
            return;
        }
        while self.timers.peek().is_some_and(|Reverse(due)| due.at <= now) {
            let Some(Reverse(Due { timer, .. })) = self.timers.pop() else { break };
            if let Timer::ChangeSuspectToDown { member_id, incarnation, .. } = &timer {
                // foca would tell a member that has refuted the suspicion that it is down.
                let is_suspect = |member: &Member<MemberId>| {
                    member.id() == member_id && member.incarnation() == *incarnation && member.state() == State::Suspect
                };
                if !self.foca.iter_members().any(is_suspect) {
                    continue;
                }
                if let Some(at) = self.isolation.held_until(now) {
                    self.push_timer(at, timer);
                    continue;
                }
            }
            if let Err(error) = self.foca.handle_timer(timer, &mut self.effects) {
                tracing::debug!("a timer of membership: {error}");
            }
            self.settle(None);
        }
        if self.is_condemned && self.next_renewal <= now {
            self.is_condemned = false;
            let own = Member::down(self.own().clone());
            let _ = self.foca.apply_many(std::iter::once(own), true, &mut self.effects);
            self.settle(None);
        }
        if self.next_exchange <= now {
            self.next_exchange = now + self.profile.exchange_every();
            self.sweep_tellers();
            self.exchange();
        }
        if self.reports.next_round().is_some_and(|at| at <= now) {
            let live = live_generations(&self.foca);
            self.reports.round(self.foca.identity(), &live, &mut self.random, now);
            self.send_reports();
        }
        if self.removals.next_round().is_some_and(|at| at <= now) {
            self.removals.round(&live_generations(&self.foca), &mut self.random, now);
            self.send_reports();
        }
    }

    /// This process was stopped for `gap`: its timers move, so that it reads what has arrived before it judges others.
    fn give_back(&mut self, gap: Duration) {
        self.isolation.give_back(gap);
        self.tellers.give_back(gap);
        self.next_exchange += gap;
        self.next_renewal += gap;
        self.reports.give_back(gap);
        self.removals.give_back(gap);
        let timers = std::mem::take(&mut self.timers).into_iter();
        self.timers = timers.map(|Reverse(due)| Reverse(Due { at: due.at + gap, ..due })).collect();
    }

    /// Begins an exchange with a random member that is up, and with one that is down: it may be alive.
    fn exchange(&mut self) {
        let of_state = |is_down: bool| {
            self.foca.iter_membership_state().filter(move |member| (member.state() == State::Down) == is_down)
        };
        let up = of_state(false).choose(&mut self.random).map(|member| Arc::clone(&member.id().name));
        let down = of_state(true).choose(&mut self.random).map(|member| member.id().clone());
        if let Some(up) = up {
            let live = live_generations(&self.foca);
            self.reports.exchange(&up, self.foca.identity(), &live);
            self.removals.exchange(&up, &live);
            self.send_reports();
            self.send_digest(up);
        }
        if let Some(down) = down {
            self.send_digest(Arc::clone(&down.name));
            self.outputs.push_back(Output::Wanted(down));
        }
    }

    fn send_digest(&mut self, to: Arc<str>) {
        let digest = Buckets::of(self.list().iter()).digest();
        self.send(to, Gossip::Digest(digest));
    }

    /// Sends these members of some buckets, in messages that each have whole buckets, if those are not too large.
    fn send_lists(&mut self, to: &Arc<str>, mask: u64, wants_answer: bool, members: Vec<Member<MemberId>>) {
        let mut by_bucket = vec![Vec::new(); BUCKETS];
        for member in members {
            by_bucket[bucket(&member.id().name)].push(member);
        }
        let (mut part, mut part_mask, mut part_bytes) = (Vec::new(), 0, 0);
        for (at, of_bucket) in by_bucket.into_iter().enumerate().filter(|(at, _)| mask & 1 << at != 0) {
            let bytes: usize = of_bucket.iter().map(member_bytes).sum();
            if part_mask != 0 && part_bytes + bytes > MAX_LIST_BYTES {
                self.send_list(to, part_mask, wants_answer, std::mem::take(&mut part));
                (part_mask, part_bytes) = (0, 0);
            }
            part_mask |= 1 << at;
            for member in of_bucket {
                let bytes = member_bytes(&member);
                if part_bytes + bytes > MAX_LIST_BYTES {
                    // Only the last part of a bucket is answered.
                    self.send_list(to, part_mask, false, std::mem::take(&mut part));
                    part_bytes = 0;
                }
                part.push(member);
                part_bytes += bytes;
            }
        }
        if part_mask != 0 && (wants_answer || !part.is_empty()) {
            self.send_list(to, part_mask, wants_answer, part);
        }
    }

    fn send_list(&mut self, to: &Arc<str>, mask: u64, wants_answer: bool, members: Vec<Member<MemberId>>) {
        self.send(Arc::clone(to), Gossip::Members { mask, wants_answer, members });
    }

    fn send_reports(&mut self) {
        for (to, gossip) in self.reports.take_sends().into_iter().chain(self.removals.take_sends()) {
            self.send(to, gossip);
        }
    }

    fn send(&mut self, to: Arc<str>, gossip: Gossip) {
        let message = Sourced { source: self.own().clone(), gossip }.to_bytes();
        self.outputs.push_back(Output::Send { to, message });
    }

    /// All members that were heard, and this node.
    fn list(&self) -> Vec<Member<MemberId>> {
        let own = Member::new(self.own().clone(), self.effects.incarnation_of(self.own()), State::Alive);
        let heard = self.foca.iter_membership_state().filter(|member| !self.tellers.is_stranger(&member.id().name));
        heard.cloned().chain([own]).collect()
    }

    fn in_buckets(&self, mask: u64) -> Vec<Member<MemberId>> {
        let mut list = self.list();
        list.retain(|member| mask & 1 << bucket(&member.id().name) != 0);
        list
    }

    /// What is known of the members of a message, which has this many.
    fn told(&self, by: &Arc<str>, members: usize) -> Told {
        let known = (members > FEW).then(|| {
            let all = self.foca.iter_membership_state();
            all.map(|member| (Arc::clone(&member.id().name), member.clone())).collect()
        });
        Told { by: Arc::clone(by), room: self.room_for(members), named: HashSet::new(), known }
    }

    fn known(&self, name: &str, told: &Told) -> Option<Member<MemberId>> {
        match &told.known {
            Some(known) => known.get(name).cloned(),
            None => self.foca.iter_membership_state().find(|member| *member.id().name == *name).cloned(),
        }
    }

    /// The room for new members. `None`: `count` new ones fit in any case.
    fn room_for(&self, count: usize) -> Option<usize> {
        let known = self.foca.iter_membership_state().len();
        (known + count > MAX_MEMBERS).then(|| MAX_MEMBERS.saturating_sub(known))
    }

    /// Whether foca is to know of this member.
    fn admits(&mut self, member: &Member<MemberId>, told: &mut Told) -> bool {
        let (own, id) = (self.foca.identity(), member.id());
        if id != own && !id.is_plausible(self.clock) {
            return false;
        }
        if id.name == own.name {
            if id == own && member.state() != State::Alive {
                self.outputs.push_back(Output::Accused { by: Arc::clone(&told.by), state: member.state() });
            }
            if id.is_newer_than(own) && self.taken.as_ref().is_none_or(|taken| id.is_newer_than(taken)) {
                self.taken = Some(id.clone());
            }
            let is_own = id == own;
            // It cannot be refuted with a higher incarnation.
            let condemns = match member.state() {
                State::Down => true,
                State::Suspect => member.incarnation() == u16::MAX,
                State::Alive => false,
            };
            return is_own && (!condemns || self.may_renew());
        }
        // No honest message has a name twice. So each one makes room for its sender once.
        if !told.named.insert(Arc::clone(&id.name)) {
            return false;
        }
        if id.name == told.by {
            return self.makes_room(told, true);
        }
        let known = self.known(&id.name, told);
        let begins = match &known {
            None => true,
            Some(known) => known.state() == State::Down && id.is_newer_than(known.id()),
        };
        if !begins {
            return true;
        }
        // A death or a suspicion of a stranger is no news: dead members would never be forgotten by all. A suspicion of
        // a later life is none either, because it would be passed on: it is refuted, or a death follows.
        match member.state() {
            State::Down => return known.is_some(),
            State::Suspect => return false,
            State::Alive => {}
        }
        self.tellers.introduce(&id.name, &told.by, self.effects.now)
            && (known.is_some() || self.makes_room(told, false))
    }

    /// Whether there is room for a member that may be new. The dead make room, and strangers for members that are
    /// `heard`.
    fn makes_room(&mut self, told: &mut Told, heard: bool) -> bool {
        let is_known = heard && self.known(&told.by, told).is_some();
        let Some(left) = told.room.as_mut().filter(|_| !is_known) else { return true };
        if *left > 0 {
            *left -= 1;
            return true;
        }
        let all = || self.foca.iter_membership_state();
        let is_stranger = |member: &&Member<MemberId>| self.tellers.is_stranger(&member.id().name);
        let given_up = match all().find(|member| member.state() == State::Down) {
            None if heard => all().find(is_stranger),
            dead => dead,
        };
        let Some(given_up) = given_up.map(|member| member.id().clone()) else { return false };
        // It is told to nobody, and its death is not one. Both fail only if a message cannot be encoded.
        let (down, effects) = (std::iter::once(Member::down(given_up.clone())), self.effects.collected.len());
        let _ = self.foca.apply_many(down, false, &mut self.effects);
        let _ = self.foca.handle_timer(Timer::RemoveDown(given_up), &mut self.effects);
        self.effects.collected.truncate(effects);
        true
    }

    fn sweep_tellers(&mut self) {
        let up: HashSet<_> = self.foca.iter_members().map(|member| Arc::clone(&member.id().name)).collect();
        self.tellers.sweep(self.effects.now, |name| up.contains(name));
    }

    /// A message of SWIM, without the strangers that are up: others believe this node.
    fn without_strangers(&self, message: Bytes) -> Bytes {
        let Ok(mut swim) = Swim::read(&message[2..]) else { return message };
        let sent = swim.members.len();
        let is_told =
            |member: &Member<MemberId>| member.state() != State::Alive || !self.tellers.is_stranger(&member.id().name);
        swim.members.retain(is_told);
        match swim.to_bytes() {
            Ok(bytes) if swim.members.len() != sent => swim_bytes(&bytes),
            _ => message,
        }
    }

    /// Whether this node, which was called dead, takes a new identity now; otherwise it does so later.
    fn may_renew(&mut self) -> bool {
        let may_renew = self.next_renewal <= self.effects.now;
        self.is_condemned |= !may_renew;
        may_renew
    }

    /// The number of timers.
    #[cfg(test)]
    pub(super) fn timers(&self) -> usize {
        self.timers.len()
    }

    /// Carries out what foca has decided. `told_by`: the source of the message that was handled.
    fn settle(&mut self, told_by: Option<&Arc<str>>) {
        if let Some(taken) = self.taken.take()
            && taken.is_newer_than(self.own())
            && self.next_renewal <= self.effects.now
        {
            self.next_renewal = self.effects.now + RENEW_EVERY;
            if let Some(next) = taken.next() {
                let next = MemberId { address: self.own().address, ..next };
                let _ = self.foca.change_identity(next, &mut self.effects);
                self.outputs.push_back(Output::NameTaken(taken));
            }
        }
        for effect in std::mem::take(&mut self.effects.collected) {
            match effect {
                Effect::Send(to, message) => {
                    let message = if self.tellers.has_strangers() { self.without_strangers(message) } else { message };
                    self.outputs.push_back(Output::Send { to, message });
                }
                Effect::Timer(at, timer) => {
                    if let Timer::ChangeSuspectToDown { member_id, .. } = &timer {
                        self.outputs.push_back(Output::Suspected(member_id.clone()));
                    }
                    self.push_timer(at, timer);
                }
                Effect::Up(member) => {
                    self.reports.changed(&member.name, self.clock);
                    self.outputs.push_back(Output::Up(member));
                }
                Effect::Renamed(member) => {
                    if self.foca.iter_members().any(|known| *known.id() == member) {
                        self.outputs.push_back(Output::Up(member));
                    }
                }
                Effect::Down(member) => {
                    self.reports.changed(&member.name, self.clock);
                    self.outputs.push_back(Output::Down { member, told_by: told_by.cloned() });
                }
                Effect::Renewed(own) => {
                    (self.is_condemned, self.next_renewal) = (false, self.effects.now + RENEW_EVERY);
                    self.outputs.push_back(Output::Renewed(own));
                }
            }
        }
    }

    fn push_timer(&mut self, at: Instant, timer: Timer<MemberId>) {
        self.timers_made += 1;
        self.timers.push(Reverse(Due { at, order: self.timers_made, timer }));
        if self.timers.len() >= MAX_TIMERS {
            self.drop_superseded();
        }
    }

    /// Drops the timers of lives, suspicions and deaths that are over, and all but the last one of each member.
    fn drop_superseded(&mut self) {
        let known: HashMap<_, _> =
            self.foca.iter_membership_state().map(|member| (Arc::clone(&member.id().name), member)).collect();
        let mut timers = std::mem::take(&mut self.timers).into_vec();
        timers.sort_by_key(|Reverse(due)| Reverse(due.order));
        let mut kept = HashSet::new();
        timers.retain(|Reverse(due)| {
            let (id, state) = match &due.timer {
                Timer::RemoveDown(id) => (id, State::Down),
                Timer::ChangeSuspectToDown { member_id, .. } => (member_id, State::Suspect),
                _ => return true,
            };
            let is_current = known.get(&id.name).is_some_and(|member| member.id() == id && member.state() == state);
            is_current && kept.insert(Arc::clone(&id.name))
        });
        self.timers = timers.into();
    }
}

/// What a message says of others, while it is read.
struct Told {
    by: Arc<str>,
    /// The room for new members. `None`: all of the message fit.
    room: Option<usize>,
    /// The members that it has named.
    named: HashSet<Arc<str>>,
    /// The known members by name, if the message is long.
    known: Option<HashMap<Arc<str>, Member<MemberId>>>,
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Membership").field("own", self.own()).finish_non_exhaustive()
    }
}

/// The other members that are not down, with their generations.
fn live_generations(foca: &Foca<MemberId, SwimCodec, SmallRng, NoCustomBroadcast>) -> LiveGenerations {
    let ids = foca.iter_members().map(Member::id);
    ids.map(|id| (Arc::clone(&id.name), id.generation)).collect()
}
