//! Why a gossip message is refused.

/// An invalid gossip message, or one that a member may not send.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum GossipError {
    /// This node does not speak the version of the sender. Remedy: run versions that are one release apart.
    #[error("gossip has version {found}: this node knows {known}")]
    Version { found: u8, known: u8 },
    #[error("gossip has {bytes} bytes: a message may have {max}")]
    TooLarge { bytes: usize, max: usize },
    #[error("gossip ends within {field}")]
    Truncated { field: &'static str },
    #[error("{field} of gossip is {found}, and may be {limit}")]
    Invalid { field: &'static str, found: u64, limit: &'static str },
    #[error("gossip has bytes after its end")]
    TrailingBytes,
    /// A member speaks for itself only.
    #[error("the source of a message is not the member that sent it")]
    ForeignSource,
    /// A member floods this node: what it says is told by others as well.
    #[error("a member sends more than a hundred messages of gossip a second")]
    TooMany,
    #[error(
        "the member that sent gossip has generation {generation} and bump {bump}: at most a day ahead, and 1048576"
    )]
    Implausible { generation: u64, bump: u32 },
    /// The packet is full: what was to be encoded goes with a later one.
    #[error("no room for {field}")]
    NoRoom { field: &'static str },
    #[error("the report of a member is invalid: {0}")]
    Report(String),
    #[error("gossip is refused: {0}")]
    Protocol(String),
}

impl From<foca::Error> for GossipError {
    fn from(error: foca::Error) -> Self {
        Self::Protocol(error.to_string())
    }
}
