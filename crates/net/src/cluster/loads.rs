//! The loads of the stages of other nodes. Each connected node is asked when somebody wants to know, because a load
//! changes with each call: gossip does not carry it, and replies carry it only to callers.

use std::sync::Arc;
use std::time::Duration;

use callboard_codec::DecodeLimits;
use callboard_codec::wire::{FrameKind, FrameLimits};
use callboard_core::remote::{MAX_REPORTED, MAX_REPORTED_NAME_BYTES, StageLoadReport};
use futures_util::StreamExt;
use futures_util::stream;

use super::Inner;
use crate::client::{NodeConnection, ReplyLimits, order};
use crate::server::{ClusterState, StatusOrder};

/// The time for the answers of all nodes together. A node that is slower has an unknown load.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// The most nodes that are asked at the same time.
const ASKED_AT_ONCE: usize = 64;

/// The longest answer. Threat: a node that answers with megabytes, at each question.
const MAX_ANSWER_BYTES: usize = 512 << 10;

/// Threat: an answer of empty maps, whose bytes become loads of fifty times their size, from each node at the same
/// time. An answer is charged to nobody. The elements of the most loads take a fifth of these, and their report with
/// its routes the rest.
const ANSWER_LIMITS: DecodeLimits = DecodeLimits {
    max_bytes: MAX_ANSWER_BYTES,
    max_depth: 16,
    max_elements: 32 * MAX_REPORTED,
    max_tree_bytes: 2 * MAX_ANSWER_BYTES,
    max_decompressed_bytes: 0,
    ..DecodeLimits::UNLIMITED
};

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
        let limits = ReplyLimits { frames: &frames, decode: &ANSWER_LIMITS, is_encoded: false };
        own_loads(order(node, limits, FrameKind::Status, &StatusOrder { own: true }).await.ok()?)
    }
}

/// What a node has told of itself, within the bounds of a report.
fn own_loads(state: ClusterState) -> Option<Vec<StageLoadReport>> {
    let own = state.members.into_iter().find(|member| member.is_this_node)?;
    let mut loads = own.load?;
    loads.truncate(MAX_REPORTED);
    loads.retain(|load| load.name.len() <= MAX_REPORTED_NAME_BYTES);
    loads.shrink_to_fit();
    Some(loads)
}

#[cfg(test)]
mod tests {
    use callboard_codec::{DecodeError, EnvelopeDecoder, Format, Value};

    use super::*;

    /// The length of an answer with this report and these loads, as JSON, and what is read of it.
    fn answered(report: &str, loads: &[String]) -> (usize, Result<ClusterState, DecodeError>) {
        let member = r#""name": "left", "address": "127.0.0.1:1", "state": "up", "since": 1, "is_this_node": true"#;
        let loads = loads.join(",");
        let state = format!(r#"{{"members": [{{{member}, "report": {report}, "load": [{loads}]}}], "peers": []}}"#);
        let state = Value::decode(Format::Json, &state.into(), &DecodeLimits::UNLIMITED).unwrap();
        let bytes = state.to_envelope().unwrap().into_bytes();
        let (len, mut decoder) = (bytes.len(), EnvelopeDecoder::new(&ANSWER_LIMITS));
        (len, decoder.push(bytes).and_then(|()| decoder.finish_as()))
    }

    #[test]
    fn an_answer_of_empty_maps_is_refused() {
        let maps = |count| vec!["{}".to_owned(); count];
        let (bytes, answer) = answered("null", &maps(MAX_ANSWER_BYTES - 500));
        assert!(bytes <= MAX_ANSWER_BYTES && bytes > MAX_ANSWER_BYTES - 500, "{bytes}");
        let error = answer.unwrap_err();
        assert_eq!(error.limit().map(|limit| limit.name), Some("max_elements"), "{error}");

        let loads = own_loads(answered("null", &maps(20_000)).1.unwrap()).unwrap();
        assert_eq!((loads.len(), loads.capacity()), (MAX_REPORTED, MAX_REPORTED), "of many, the first are kept");
    }

    #[test]
    fn the_most_stages_are_told_with_their_report_and_thousands_of_routes() {
        let each = |count, text: &str| -> Vec<String> {
            (0..count).map(|index: usize| text.replace("INDEX", &index.to_string())).collect()
        };
        let loads = r#"{"name": "stage-of-a-model-INDEX", "queued": 1, "queue_limit": 9, "busy": 1, "capacity": 4}"#;
        let stages = r#"{"name": "stage-of-a-model-INDEX", "revision": 1, "ready": 1, "wanted": 1}"#;
        let routes = r#"{"name": "/models/INDEX", "revision": 1}"#;
        let (stages, routes) = (each(MAX_REPORTED, stages).join(","), each(4_000, routes).join(","));
        let report = format!(r#"{{"phase": "ready", "stages": [{stages}], "routes": [{routes}]}}"#);
        let (bytes, answer) = answered(&report, &each(MAX_REPORTED, loads));
        assert!(bytes <= MAX_ANSWER_BYTES, "{bytes}");
        let loads = own_loads(answer.unwrap()).unwrap();
        assert_eq!((loads.len(), loads[1_023].name.as_str()), (MAX_REPORTED, "stage-of-a-model-1023"));
    }
}
