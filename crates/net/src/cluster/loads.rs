//! The loads of the stages of other nodes. Each connected node is asked when somebody wants to know, because a load
//! changes with each call: gossip does not carry it, and replies carry it only to callers.

use std::sync::Arc;
use std::time::Duration;

use callboard_codec::wire::{FrameKind, FrameLimits};
use callboard_core::remote::StageLoadReport;
use futures_util::StreamExt;
use futures_util::stream;

use super::Inner;
use crate::client::{NodeConnection, ReplyLimits, order};
use crate::server::StatusOrder;

/// The time for the answers of all nodes together. A node that is slower has an unknown load.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// The most nodes that are asked at the same time.
const ASKED_AT_ONCE: usize = 64;

/// The longest answer. Threat: a node that answers with megabytes, at each question.
const MAX_ANSWER_BYTES: usize = 512 << 10;

/// The most stages of a node, and the longest name of one, in bytes: as in a report.
const MAX_STAGES: usize = 1_024;
const MAX_NAME_BYTES: usize = 256;

impl Inner {
    /// The loads that the connected nodes tell within the time.
    pub(super) async fn stage_loads(self: Arc<Self>) -> Vec<(Arc<str>, Vec<StageLoadReport>)> {
        let peers = self.index.peers();
        // Also of nodes that drain, which take orders.
        let connected = peers.iter().filter_map(|peer| peer.connected()).filter(|(node, _)| !node.is_closed());
        let connected: Vec<_> = connected.map(|(node, _)| node).collect();
        let asking = connected.into_iter().map(|node| {
            let inner = Arc::clone(&self);
            async move {
                // The members of a description are those of gossip.
                let name = node.gossip_name()?.into();
                Some((name, inner.stage_loads_of(&node).await?))
            }
        });
        let answers = stream::iter(asking).buffer_unordered(ASKED_AT_ONCE);
        let in_time = answers.take_until(tokio::time::sleep(ANSWERED_WITHIN));
        in_time.filter_map(std::future::ready).collect().await
    }

    async fn stage_loads_of(&self, node: &Arc<NodeConnection>) -> Option<Vec<StageLoadReport>> {
        let frames = FrameLimits { max_body_bytes: MAX_ANSWER_BYTES, ..self.frames.clone() };
        let limits = ReplyLimits { frames: &frames, ..self.reply_limits() };
        let state = order(node, limits, FrameKind::Status, StatusOrder { own: true }).await.ok()?;
        let own = state.members.into_iter().find(|member| member.is_this_node)?;
        let mut loads = own.load?;
        loads.truncate(MAX_STAGES);
        loads.retain(|load| load.name.len() <= MAX_NAME_BYTES);
        Some(loads)
    }
}
