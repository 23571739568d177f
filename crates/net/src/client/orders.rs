//! What operators ask of a node: the state of its cluster, and to drain.

use std::sync::Arc;

use callboard_codec::DecodeError;
use callboard_codec::wire::FrameKind;
use callboard_core::{CallError, ErrorKind};
use serde::Serialize;

use super::call::{CallExchange, ReplyLimits, RoomPolicy, read_output};
use super::connection::NodeConnection;
use super::fault::{CallFault, unreadable};
use super::{CallResponse, Client};
use crate::server::{ClusterState, ORDERS, StatusOrder};
use crate::wire::EmptyHeader;

impl Client {
    /// What the node knows of its cluster.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](ErrorKind::PermissionDenied), unless this identity is an operator's or a node's.
    pub async fn cluster_state(&self) -> Result<ClusterState, CallError> {
        self.order(FrameKind::Status, &StatusOrder::default()).await
    }

    /// Asks the node to finish its calls and to end, as a signal does. Returns before that.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](ErrorKind::PermissionDenied), unless this identity is an operator's.
    pub async fn drain_node(&self) -> Result<(), CallError> {
        self.order(FrameKind::Drain, &EmptyHeader {}).await.map(drop)
    }

    /// Not retried: the caller knows whether that is of use.
    async fn order(&self, kind: FrameKind, header: &(impl Serialize + Sync)) -> Result<ClusterState, CallError> {
        let node = self.connection().await?;
        order(&node, self.inner.reply_limits(false), kind, header).await
    }
}

/// Gives one node an order, with the header of its kind.
pub(crate) async fn order(
    node: &Arc<NodeConnection>,
    limits: ReplyLimits<'_>,
    kind: FrameKind,
    header: &(impl Serialize + Sync),
) -> Result<ClusterState, CallError> {
    if !node.welcome().features.iter().any(|feature| feature == ORDERS) {
        let message = format!("the node has version {}, which takes no orders", node.welcome().build);
        return Err(CallError::new(ErrorKind::Unavailable, message));
    }
    let answered = async { CallExchange::open(node, limits, RoomPolicy::Wait).await?.order(kind, header).await };
    let CallResponse { body, .. } = answered.await.map_err(CallFault::into_error)?;
    read_output(body, None, |body| Ok::<_, DecodeError>(body.finish_as::<ClusterState>())).await?.map_err(unreadable)
}
