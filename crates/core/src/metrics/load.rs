//! How busy a node is, as three numbers.

/// How much a node has to do: what chooses between nodes, or adds and removes them, reads this.
///
/// Of several bounds, the fullest counts: a node refuses calls as soon as one is full.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct NodeLoad {
    /// Entries that wait in the queues of the node's stages.
    pub queued: usize,
    /// Admitted calls beyond those: their entries run, here or on another node.
    pub running: usize,
    /// How full the fullest bound is, from 0 to 1: calls in flight, bytes in flight, or the queue of a stage.
    pub saturation: f64,
}
