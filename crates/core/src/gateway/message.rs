//! The messages to the gateway.

use tokio::sync::oneshot;

/// Messages to the gateway. The path of a request sends none of them.
#[derive(Debug)]
pub(crate) enum GatewayMessage {
    /// Refuse new calls, and notify when no call is in flight. From the node.
    Drain(oneshot::Sender<()>),
    /// The last call in flight ended while draining. From its admission.
    Emptied,
    /// Look for calls that are older than possible. From the gateway's own timer.
    Sweep,
}
