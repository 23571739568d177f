//! What the gateway can be told.

use tokio::sync::oneshot;

/// Messages to the gateway; none of them is on the path of a request.
#[derive(Debug)]
pub(crate) enum GatewayMessage {
    /// Admit nothing more, and tell when nothing is in flight. From the node.
    Drain(oneshot::Sender<()>),
    /// The last call in flight has left while draining. From its admission.
    Emptied,
    /// Look for calls that are older than they can be. From the gateway's own timer.
    Sweep,
}
