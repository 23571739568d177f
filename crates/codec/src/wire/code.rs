//! The reasons for a reset stream or a closed connection, as QUIC error codes.

/// The reason why one side resets a stream or closes a connection. No message can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResetCode {
    /// The caller no longer waits for the answer.
    Cancelled,
    /// The deadline has passed.
    Deadline,
    /// There is no room for another call; nothing was started.
    Busy,
    /// The node takes no new work; nothing was started.
    Draining,
    /// The received bytes are not of this protocol.
    Protocol,
    /// A length is beyond a limit.
    TooLarge,
    /// A defect of the sender of this code.
    Internal,
    /// A newer generation of the same node is connected.
    StaleGeneration,
    /// The peer belongs to another cluster, or is not allowed to do this.
    Refused,
    /// The other side has ended normally.
    Done,
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
        match self {
            Self::Cancelled => 0x10,
            Self::Deadline => 0x11,
            Self::Busy => 0x12,
            Self::Draining => 0x13,
            Self::Protocol => 0x14,
            Self::TooLarge => 0x15,
            Self::Internal => 0x16,
            Self::StaleGeneration => 0x17,
            Self::Refused => 0x18,
            Self::Done => 0x19,
        }
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
