//! Tells a connected node that this one cannot reach the address that it advertises.
//!
//! The node itself cannot know that its address is translated, or its port filtered. It hears of it on its own
//! connection, as a frame `unreachable`, at most once a minute from each node. Each failure probes that connection.
//! Without an answer by the next failure nothing is told: the node may be dead, or the line cut.

use std::net::SocketAddr;
use std::sync::Weak;
use std::time::{Duration, Instant};

use callboard_codec::wire::{FrameKind, Unreachable, frame_head};
use quinn::Connection;

use super::ServerState;
use crate::stream::FrameSender;

/// The least time between two reports on one connection.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// The longest time for one report. Threat: a node that grants no streams.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The connections over which nodes are told.
#[derive(Clone, Debug)]
pub(crate) struct DialBack(pub(super) Weak<ServerState>);

impl DialBack {
    /// Reports the failure to each connected node that claims this address.
    pub(crate) fn failed(&self, address: SocketAddr, reason: &str) {
        let Some(server) = self.0.upgrade() else { return };
        let now = Instant::now();
        for open in server.connections.lock().iter_mut().filter(|open| open.claims == Some(address)) {
            let datagrams = open.connection.stats().udp_rx.datagrams;
            let before = open.datagrams_at_last_failure.replace(datagrams);
            let is_alive = before.is_some_and(|before| before < datagrams);
            open.link.probe();
            let is_due = open.told_at.is_none_or(|at| now.saturating_duration_since(at) >= TELL_EVERY);
            if !is_alive || !is_due {
                continue;
            }
            open.told_at = Some(now);
            let report = Unreachable { address: address.to_string(), reason: reason.to_owned() };
            tokio::spawn(tokio::time::timeout(SEND_TIMEOUT, send(open.connection.clone(), report)));
        }
    }
}

async fn send(connection: Connection, report: Unreachable) {
    let Ok(stream) = connection.open_uni().await else { return };
    let mut outgoing = FrameSender::new(stream);
    let Ok(head) = frame_head(FrameKind::Unreachable, 0, &report, 0) else { return };
    if outgoing.write(&mut [head]).await.is_ok() {
        outgoing.finish();
    }
}
