//! Tells a node that has connected to this one that it cannot be connected at the address that it tells others.
//!
//! The node itself cannot know that its address is translated, or its port filtered. It hears of it on its own
//! connection, as a frame `unreachable`, at most once a minute from each node. Each failure asks for a sign
//! of life. A connection on which none has arrived by the next failure says nothing: its node may be dead, or the line
//! cut.

use std::net::SocketAddr;
use std::sync::Weak;
use std::time::{Duration, Instant};

use callboard_codec::wire::{FrameKind, Unreachable, frame_head};
use quinn::Connection;

use super::ServerState;
use crate::stream::FrameSender;

/// The least time between two reports on one connection.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// The longest time for one report. Threat: a node that grants no streams.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The connections over which nodes are told.
#[derive(Clone, Debug)]
pub(crate) struct DialBack(pub(super) Weak<ServerState>);

impl DialBack {
    /// This address could not be connected, for this reason. Whoever claims it is told.
    pub(crate) fn failed(&self, address: SocketAddr, reason: &str) {
        let Some(server) = self.0.upgrade() else { return };
        let now = Instant::now();
        for open in server.connections.lock().iter_mut().filter(|open| open.claims == Some(address)) {
            let arrived = open.connection.stats().udp_rx.datagrams;
            let is_alive = open.arrived.replace(arrived).is_some_and(|before| before < arrived);
            open.link.ask();
            let is_due = open.told.is_none_or(|at| now.saturating_duration_since(at) >= REPORT_EVERY);
            if !is_alive || !is_due {
                continue;
            }
            open.told = Some(now);
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
