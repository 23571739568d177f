//! The membership of a running node, for its connections and its view.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::wire::{FrameKind, FrameLimits};
use callboard_core::Instant;
use callboard_core::remote::{MemberDescription, MemberState, NodePhase, NodeReport};
use callboard_identity::Identity;
use foca::State;
use parking_lot::Mutex;
use quinn::{Connection, RecvStream};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, watch};

use super::actor::{self, Input};
use super::links::{LinkGuard, Links};
use super::message::MAX_MESSAGE_BYTES;
use super::metrics::MembershipMetrics;
use super::state::MAX_MEMBERS;
use super::{MemberId, Membership, MembershipProfile};
use crate::link::Link;
use crate::stream::FrameReceiver;
use crate::wire::generation_of;

/// The name of gossip in hello and welcome.
pub(crate) const FEATURE: &str = "gossip";

/// The names of reports, and of signed lists of removed members, there.
const REPORTS: &str = "reports";
const REMOVALS: &str = "removals";

/// The features of a node that gossips.
pub(crate) fn features(gossip: Option<&GossipHandle>) -> Vec<String> {
    gossip.map(|_| [FEATURE, REPORTS, REMOVALS].map(str::to_owned).to_vec()).unwrap_or_default()
}

/// The one-way streams that a node allows another one.
pub(crate) const STREAMS: u32 = 16;

/// The most messages that wait for the actor; further ones are dropped, as a network does.
const INBOX: usize = 1_024;

/// The most of them of one connection. Threat: a member whose flood leaves no room for the others.
const INBOX_OF_ONE: usize = INBOX / 4;

/// The longest time for the bytes of one message.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The addresses of the other members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberAddresses {
    /// Of those that are up, and of dead ones whose connection is still open.
    pub(crate) up: Vec<SocketAddr>,
    /// Of dead ones that are tried again.
    pub(crate) wanted: Vec<SocketAddr>,
}

/// Clones share the membership, which ends with the last one.
#[derive(Clone, Debug)]
pub(crate) struct GossipHandle {
    name: Arc<str>,
    /// Whether members have names in their certificates: not under the development identity.
    is_certified: bool,
    inputs: mpsc::Sender<Input>,
    links: Arc<Links>,
    members: watch::Receiver<Arc<MemberAddresses>>,
    /// Read for descriptions; its actor alone changes it.
    membership: Arc<Mutex<Membership>>,
    metrics: MembershipMetrics,
}

impl GossipHandle {
    /// Starts the membership of a node that knows no others. `identity` verifies and holds the lists of removed
    /// members.
    pub(crate) fn start(mut own: MemberId, profile: MembershipProfile, identity: Identity, runtime: &Handle) -> Self {
        own.address.set_ip(own.address.ip().to_canonical());
        let (name, is_certified) = (Arc::clone(&own.name), !identity.name().is_empty());
        let membership = Membership::new(own, profile, fastrand::u64(..), Instant::now());
        let membership = Arc::new(Mutex::new(membership));
        let (inputs, inbox) = mpsc::channel(INBOX);
        let (published, members) = watch::channel(Arc::default());
        let metrics = MembershipMetrics::default();
        let links = Arc::new(Links::new(metrics.clone()));
        let shared = (Arc::clone(&membership), Arc::clone(&links));
        runtime.spawn(actor::run(shared, identity, inbox, published, metrics.clone()));
        Self { name, is_certified, inputs, links, members, membership, metrics }
    }

    /// Tells the others this of the node, unless they know it.
    pub(crate) async fn report(&self, report: NodeReport) {
        // An error means that the node ends.
        let _ = self.inputs.send(Input::Report(Box::new(report))).await;
    }

    /// Whether all others know that this node drains.
    pub(crate) fn is_drain_known(&self) -> bool {
        let membership = self.membership.lock();
        let drains = membership.reports().own().is_some_and(|report| report.phase == NodePhase::Draining);
        drains && membership.is_report_known() && self.links.is_idle()
    }

    /// The members, this node first and the others by name.
    pub(crate) fn describe(&self) -> Vec<MemberDescription> {
        let (own, mut others) = self.known();
        others.sort_by(|one, other| one.member.name.cmp(&other.member.name));
        let own = own.describe().as_this_node();
        std::iter::once(own).chain(others.into_iter().map(KnownMember::describe)).collect()
    }

    /// This node and the others. Shares what they have: the membership waits for this lock.
    fn known(&self) -> (KnownMember, Vec<KnownMember>) {
        let membership = self.membership.lock();
        let (own, reports) = (membership.own(), membership.reports());
        let others = membership.members().map(|(member, state)| KnownMember {
            member: member.clone(),
            state,
            since: reports.since(&member.name),
            report: reports.of(member).cloned(),
        });
        let others = others.collect();
        let (since, report) = (own.generation, reports.own().cloned());
        (KnownMember { member: own.clone(), state: State::Alive, since, report }, others)
    }

    /// The name of this node in gossip.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn metrics(&self) -> &MembershipMetrics {
        &self.metrics
    }

    pub(crate) fn members(&self) -> watch::Receiver<Arc<MemberAddresses>> {
        self.members.clone()
    }

    /// Gossips over this connection until the link is dropped, if its node does: `features` of its hello or welcome.
    /// `certified` is the name in its certificate, empty under the development identity; then the name that it
    /// announced counts.
    pub(crate) fn link(
        &self,
        (certified, announced, features): (&str, &str, &[String]),
        connection: &Connection,
        link: &Arc<Link>,
    ) -> Option<GossipLink> {
        let name = if certified.is_empty() { announced } else { certified };
        if name.is_empty() || name == &*self.name || !features.iter().any(|feature| feature == FEATURE) {
            return None;
        }
        let member: Arc<str> = name.into();
        let guard = self.links.add(Arc::clone(&member), connection, link);
        let link = GossipLink {
            member,
            inputs: self.inputs.clone(),
            room: Arc::new(Semaphore::new(INBOX_OF_ONE)),
            metrics: self.metrics.clone(),
            _guard: guard,
        };
        let [has_reports, has_removals] =
            [REPORTS, REMOVALS].map(|name| features.iter().any(|feature| feature == name));
        let member = Arc::clone(&link.member);
        let _ = self.inputs.try_send(Input::Connected { member, has_reports, has_removals });
        Some(link)
    }

    /// Another node reaches this one at this address.
    pub(crate) fn observed(&self, address: &str) {
        if let Ok(address) = address.parse::<SocketAddr>() {
            let _ = self.inputs.try_send(Input::Observed(address));
        }
    }

    /// Other nodes reach this one at this address, whatever they see.
    pub(crate) fn set_address(&self, address: SocketAddr) {
        let _ = self.inputs.try_send(Input::Advertised(address));
    }

    /// Whether a further member would be known.
    pub(crate) fn has_room(&self) -> bool {
        self.members.borrow().up.len() < MAX_MEMBERS
    }

    /// Whether a member of this address is up.
    pub(crate) fn is_up(&self, address: SocketAddr) -> bool {
        self.members.borrow().up.contains(&address)
    }

    /// Whether a member has sent its member list.
    pub(crate) fn has_list(&self) -> bool {
        self.membership.lock().has_list()
    }

    /// Whether the node that all nodes know by this name is a member, and not down.
    pub(crate) fn is_alive(&self, node: &str) -> bool {
        let is_it = |member: &MemberId| is_known_as(node, member, self.is_certified);
        self.membership.lock().members().any(|(member, state)| state != State::Down && is_it(member))
    }

    /// No process has this port of the member any more.
    pub(crate) fn refused(&self, member: Arc<str>, address: SocketAddr) {
        let _ = self.inputs.try_send(Input::Refused(member, address));
    }
}

/// Whether all nodes know the member by this name.
fn is_known_as(node: &str, member: &MemberId, is_certified: bool) -> bool {
    if is_certified {
        *member.name == *node
    } else {
        // Its name in gossip is random.
        generation_of(node) == Some(member.generation)
    }
}

/// What the membership knows of a member.
struct KnownMember {
    member: MemberId,
    state: State,
    /// In nanoseconds since 1970.
    since: u64,
    report: Option<Arc<NodeReport>>,
}

impl KnownMember {
    fn describe(self) -> MemberDescription {
        let Self { member, state, since, report } = self;
        let has_drained = report.as_ref().is_some_and(|report| report.phase == NodePhase::Draining);
        let state = match state {
            State::Alive => MemberState::Up,
            State::Suspect => MemberState::Suspected,
            State::Down if has_drained => MemberState::Left,
            State::Down => MemberState::Down,
        };
        MemberDescription::new(&*member.name, member.address.to_string(), state, since / 1_000_000_000)
            .with_generation(member.generation)
            .with_report(report)
    }
}

/// A connection to a member that gossips.
#[derive(Debug)]
pub(crate) struct GossipLink {
    member: Arc<str>,
    inputs: mpsc::Sender<Input>,
    /// Its part of the inbox.
    room: Arc<Semaphore>,
    metrics: MembershipMetrics,
    _guard: LinkGuard,
}

impl GossipLink {
    /// The name of the member in gossip.
    pub(crate) fn member(&self) -> &str {
        &self.member
    }

    /// A message has arrived on its connection.
    pub(crate) fn received(&self, message: Bytes) {
        if message.len() > MAX_MESSAGE_BYTES {
            self.metrics.refused.inc();
            return;
        }
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
            self.metrics.dropped.inc();
            return;
        };
        let input = Input::Received { from: Arc::clone(&self.member), message, _room: room };
        if self.inputs.try_send(input).is_err() {
            self.metrics.dropped.inc();
        }
    }

    /// Receives messages until the connection ends, each in a task of its own: an incomplete one delays no other.
    pub(crate) async fn receive_all(self, connection: &Connection) {
        let link = Arc::new(self);
        while let Ok(stream) = connection.accept_uni().await {
            tokio::spawn(tokio::time::timeout(READ_TIMEOUT, receive(Arc::clone(&link), stream)));
        }
    }
}

async fn receive(link: Arc<GossipLink>, stream: RecvStream) {
    let limits = FrameLimits { max_body_bytes: MAX_MESSAGE_BYTES, ..FrameLimits::default() };
    let mut incoming = FrameReceiver::new(stream, limits);
    let Ok(Some(head)) = incoming.next_head().await else { return };
    let Ok(body) = incoming.short_body(&head).await else { return };
    if head.kind == FrameKind::Gossip {
        link.received(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::known_name;

    #[test]
    fn a_member_is_known_by_its_certificate_or_by_its_generation() {
        let member = |name: &str, generation| {
            let address = SocketAddr::from(([127, 0, 0, 1], 1));
            MemberId { name: name.into(), address, generation, bump: 0 }
        };
        let name = known_name("", "gpu", 7).expect("a generation");
        assert!(is_known_as(&name, &member("development-1", 7), false));
        assert!(!is_known_as(&name, &member("development-1", 8), false));
        // Names in certificates may read like the others.
        assert!(is_known_as("gpu@7", &member("gpu@7", 1), true));
        assert!(!is_known_as("gpu@7", &member("cpu", 7), true));
    }
}
