//! What operators ask of a node over QUIC: the state of the cluster, and to drain.
//!
//! Both are for operators. Under the development identity, which is for one user on one machine, every caller is an
//! operator. A node may read the state, which it knows anyway; it may not drain another one. Orders need no permit: a
//! node that is full has to answer them as well.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use callboard_codec::wire::{FrameHead, FrameKind, Hello};
use callboard_codec::{Account, ChargeError, Payload};
use callboard_core::remote::{MemberDescription, MemberState, PeerDescription};
use callboard_core::{CallError, Deadline, ErrorKind, Instant, LocalClient};
use callboard_identity::{Member, Role, quoted};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::{EncodedOutput, EntryOutcome, encode};
use super::receiving::RunningCall;
use super::{QuicEdge, ServerState};
use crate::membership::cut_report;
use crate::wire::known_name;

/// Says in the welcome that a node takes orders.
pub(crate) const ORDERS: &str = "orders";

/// What a node knows of its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ClusterState {
    /// The members, the asked node first, which is the only one if it is in no cluster.
    pub members: Vec<MemberDescription>,
    /// The nodes to which it has, or seeks, a connection.
    pub peers: Vec<PeerDescription>,
}

/// The header of an order for the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct StatusOrder {
    /// Only the asked node, which asks no other one: so nodes ask each other.
    pub(crate) own: bool,
}

/// The caller of a connection.
#[derive(Debug)]
pub(super) struct ConnectedCaller {
    pub(super) role: Role,
    /// Empty under the development identity.
    name: String,
    /// The name by which all nodes know it, if it is one.
    pub(super) node: Option<Arc<str>>,
    peer: SocketAddr,
    /// A state may have megabytes, so that its answers wait for each other.
    states: Arc<Semaphore>,
}

impl ConnectedCaller {
    pub(super) fn new(member: &Member, hello: &Hello, peer: SocketAddr) -> Self {
        let (role, name) = (member.role, member.name.clone());
        let node = known_name(&name, &hello.node, hello.generation).filter(|_| role == Role::Node).map(Arc::from);
        Self { role, name, node, peer, states: Arc::new(Semaphore::new(1)) }
    }

    /// The name in its certificate; empty under the development identity.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its address, as one of IPv6.
    pub(super) fn address_octets(&self) -> [u8; 16] {
        match self.peer.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        }
    }
}

/// Does what the caller asks for, up to the encoded answer.
pub(super) fn carry_out(
    server: &Arc<ServerState>,
    caller: &ConnectedCaller,
    order: &FrameHead,
) -> Result<RunningCall, CallError> {
    let (role, kind, entry) = (caller.role, order.kind, order.entry);
    let is_operator = role == Role::Operator || server.identity.is_for_loopback_only();
    if !is_operator && (kind != FrameKind::Status || role != Role::Node) {
        let message = format!("{} may not order `{kind}`: join with a token of role operator", role.with_article());
        return Err(CallError::new(ErrorKind::PermissionDenied, message));
    }
    let unavailable = |message: &str| CallError::new(ErrorKind::Unavailable, message);
    let node = server.node().ok_or_else(|| unavailable("the node is starting"))?;
    if kind == FrameKind::Drain {
        if !server.takes_drain_orders.load(Ordering::Acquire) {
            return Err(unavailable("the program of this node takes no orders to drain (QuicEdge::drain_asked)"));
        }
        tracing::info!(%role, member = %quoted(&caller.name), peer = %caller.peer, "asked to drain");
        server.drain_asked.notify_one();
    }
    let asked = match kind {
        FrameKind::Drain => StatusOrder::default(),
        _ => order.header().map_err(|error| CallError::new(ErrorKind::InvalidInput, error.to_string()))?,
    };
    let (server, states) = (Arc::clone(server), Arc::clone(&caller.states));
    Ok(Box::pin(async move {
        let outcome = match kind {
            FrameKind::Drain => done(&node),
            _ => state(&server, &node, states, asked).await,
        };
        EntryOutcome { entry, outcome, queued: 0 }
    }))
}

/// The answer to an order that asks for nothing: some bytes, which a full node has as well.
fn done(node: &LocalClient) -> Result<EncodedOutput, CallError> {
    let envelope = Payload::new(ClusterState::default()).to_envelope();
    let envelope = envelope.map_err(|error| CallError::new(ErrorKind::Internal, error.to_string()))?;
    Ok(EncodedOutput::of_order(envelope, Arc::new(node.edge().held_bytes())))
}

/// Waits until the last state was sent on this connection.
async fn state(
    server: &ServerState,
    node: &LocalClient,
    states: Arc<Semaphore>,
    asked: StatusOrder,
) -> Result<EncodedOutput, CallError> {
    // Nobody closes it.
    let turn = states.acquire_owned().await.ok();
    let state = match &server.gossip {
        Some(gossip) if !asked.own => {
            let mut members = gossip.describe();
            node.edge().add_loads(&mut members).await;
            ClusterState { members, peers: node.edge().peers() }
        }
        _ => {
            let alone = server.describe_alone().with_load(Some(node.edge().stage_loads()));
            ClusterState { members: vec![alone], peers: if asked.own { Vec::new() } else { node.edge().peers() } }
        }
    };
    let state = Payload::new(state);
    let deadline = Deadline::after(Instant::now(), Deadline::DEFAULT_TIMEOUT);
    let (envelope, account) = encode(node, deadline, state).await?;
    Ok(EncodedOutput::of_order(envelope, Arc::new(HeldState { account, _turn: turn })))
}

/// Holds the bytes of a state, and the turn of its connection.
struct HeldState {
    account: Arc<dyn Account>,
    _turn: Option<OwnedSemaphorePermit>,
}

impl Account for HeldState {
    fn charge(&self, bytes: usize) -> Result<(), ChargeError> {
        self.account.charge(bytes)
    }

    fn refund(&self, bytes: usize) {
        self.account.refund(bytes);
    }
}

impl ServerState {
    /// This node, if it is in no cluster.
    fn describe_alone(&self) -> MemberDescription {
        let (address, since) = (self.own_address.current().to_string(), self.generation / 1_000_000_000);
        let name = Some(self.identity.name()).filter(|name| !name.is_empty());
        MemberDescription::new(name.unwrap_or_else(|| self.config.node.clone()), address, MemberState::Up, since)
            .with_generation(self.generation)
            .with_report(Some(Arc::new(cut_report(self.report()).0)))
            .as_this_node()
    }
}

impl QuicEdge {
    /// Completes when an operator asks this node to drain. The program decides how to finish its calls and end. A node
    /// whose program has never called this refuses such orders.
    ///
    /// # Cancellation
    ///
    /// Nothing is lost: the next call completes.
    pub async fn drain_asked(&self) {
        self.server.takes_drain_orders.store(true, Ordering::Release);
        self.server.drain_asked.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use callboard_core::App;
    use callboard_identity::Identity;
    use futures_util::FutureExt;

    use super::*;
    use crate::NetConfig;

    #[tokio::test]
    async fn a_connection_has_one_state_in_hand_and_its_bytes_are_charged() {
        let directory = std::env::temp_dir().join(format!("callboard-orders-{}", std::process::id()));
        let identity = Identity::development_in(&directory.join("development")).unwrap();
        let edge = QuicEdge::bind("127.0.0.1:0".parse().unwrap(), identity, NetConfig::default()).unwrap();
        let node = App::new().start().await.unwrap();
        edge.open(node.client());
        let states = Arc::new(Semaphore::new(1));
        let client = node.client();
        let ask = || state(&edge.server, &client, Arc::clone(&states), StatusOrder::default());
        let first = ask().await.unwrap();
        assert!(node.describe().in_flight_bytes > 100, "its report has a version and names");
        let mut second = Box::pin(ask());
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        assert_eq!(node.describe().in_flight_bytes, 0);
        drop(second.await.unwrap());
        // Another holder has all bytes.
        let others = client.edge().held_bytes();
        others.grow(others.limit()).unwrap();
        assert_eq!(ask().await.err().map(|error| error.kind()), Some(ErrorKind::Overloaded));
        assert!(done(&client).is_ok());
        let _ = std::fs::remove_dir_all(directory);
    }
}
