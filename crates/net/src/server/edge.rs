//! The QUIC edge as a part of a server.

use std::future::ready;
use std::sync::Arc;

use callboard_core::edge::{Edge, EdgeDescription, EdgeError, EdgeFuture};
use callboard_core::{Instant, NodeHandle};

use super::QuicEdge;

impl Edge for QuicEdge {
    fn describe(&self) -> EdgeDescription {
        EdgeDescription::new("quic").at(self.address())
    }

    fn open(&mut self, node: &NodeHandle) -> Result<(), EdgeError> {
        Self::open(self, node.client());
        // Weak: the socket closes with the edge, however long the node is referred to.
        let server = Arc::downgrade(&self.server);
        node.show_metrics_of(move || server.upgrade().map(|server| server.metrics.encode()).unwrap_or_default());
        Ok(())
    }

    /// Its callers use other nodes at once.
    fn withdraw(&self) {
        self.drain();
    }

    /// Its calls end as the node drains. Those of other edges may need the peers until then.
    fn finish(&mut self, _: Instant) -> EdgeFuture<'_> {
        Box::pin(ready(()))
    }

    fn close(&mut self, deadline: Instant) -> EdgeFuture<'_> {
        Box::pin(self.clone().shutdown(deadline.saturating_duration_since(Instant::now())))
    }
}
