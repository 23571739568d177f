//! The reasons for a reset stream or a closed connection, as QUIC error codes.

/// The reason why one side resets a stream or closes a connection. No message can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResetCode {
    /// The caller no longer waits for the answer.
    Cancelled = 0x10,
    /// The deadline has passed.
    Deadline = 0x11,
    /// There is no room for another call; nothing was started.
    Busy = 0x12,
    /// The node takes no new work; nothing was started.
    Draining = 0x13,
    /// The received bytes are not of this protocol.
    Protocol = 0x14,
    /// A length is beyond a limit.
    TooLarge = 0x15,
    /// A defect of the sender of this code.
    Internal = 0x16,
    /// A newer generation of the same node is connected.
    StaleGeneration = 0x17,
    /// The peer belongs to another cluster, or is not allowed to do this.
    Refused = 0x18,
    /// The other side has ended normally.
    Done = 0x19,
}

impl ResetCode {
    /// Every code.
    pub const ALL: [Self; 10] = [
        Self::Cancelled,
        Self::Deadline,
        Self::Busy,
        Self::Draining,
        Self::Protocol,
        Self::TooLarge,
        Self::Internal,
        Self::StaleGeneration,
        Self::Refused,
        Self::Done,
    ];

    /// The number on the wire, never given to another reason.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// The reason of a number, if it is known.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|code| u64::from(code.number()) == number)
    }

    /// Whether the code promises that nothing was started, so that the call may be made on another node.
    #[must_use]
    pub const fn says_not_started(self) -> bool {
        matches!(self, Self::Busy | Self::Draining)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_round_trips_through_its_number() {
        for code in ResetCode::ALL {
            assert_eq!(ResetCode::from_number(code.number().into()), Some(code));
        }
        assert_eq!(ResetCode::from_number(0), None);
    }
}
