//! What operators ask of a node over QUIC: the state of the cluster, and to drain.
//!
//! Both are for operators. Under the development identity, which is for one user on one machine, every caller is an
//! operator. A node may read the state, which it knows anyway; it may not drain another one. Orders need no permit: a
//! node that is full has to answer them as well.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use callboard_codec::wire::FrameKind;
use callboard_codec::{Account, Payload};
use callboard_core::remote::{MemberDescription, PeerDescription};
use callboard_core::{CallError, ErrorKind};
use callboard_identity::Role;
use serde::{Deserialize, Serialize};

use super::answer::EncodedOutput;
use super::{QuicEdge, ServerState};

/// Says in the welcome that a node takes orders.
pub(crate) const ORDERS: &str = "orders";

/// What a node knows of its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ClusterState {
    /// The members, the asked node first; empty if it is in no cluster.
    pub members: Vec<MemberDescription>,
    /// The nodes to which it has, or seeks, a connection.
    pub peers: Vec<PeerDescription>,
}

/// Does what a caller of this role asks for.
pub(super) fn carry_out(server: &Arc<ServerState>, role: Role, kind: FrameKind) -> Result<EncodedOutput, CallError> {
    let is_operator = role == Role::Operator || server.identity.is_for_loopback_only();
    if !is_operator && (kind != FrameKind::Status || role != Role::Node) {
        let message = format!("{} may not order `{kind}`: join with a token of role operator", role.with_article());
        return Err(CallError::new(ErrorKind::PermissionDenied, message));
    }
    let unavailable = |message: &str| CallError::new(ErrorKind::Unavailable, message);
    let node = server.node().ok_or_else(|| unavailable("the node is starting"))?;
    let state = if kind == FrameKind::Drain {
        if !server.takes_drain_orders.load(Ordering::Acquire) {
            return Err(unavailable("the program of this node takes no orders to drain (QuicEdge::drain_asked)"));
        }
        tracing::info!(%role, "asked to drain");
        server.drain_asked.notify_one();
        ClusterState::default()
    } else {
        let (members, peers) = node.edge().cluster();
        ClusterState { members, peers }
    };
    let envelope = Payload::new(state).to_envelope();
    let envelope = envelope.map_err(|error| CallError::new(ErrorKind::Internal, error.to_string()))?;
    let held: Arc<dyn Account> = Arc::new(node.edge().held_bytes());
    Ok(EncodedOutput::of_order(envelope, held))
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
