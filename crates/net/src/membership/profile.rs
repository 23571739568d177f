//! The times of failure detection.

use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use foca::{Config, PeriodicParams};

/// How soon a silent member is suspected and called dead. All members of a cluster should have the same profile.
///
/// A shorter time to a verdict costs false deaths: a member that is silent for longer than the suspicion is called
/// dead, although it may only pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MembershipProfile {
    /// For round trips of up to 100 ms: all know of a death after 2.5 s in half of all cases, after 3.3 s in nineteen
    /// of twenty. A pause of up to 1.5 s is no death.
    #[default]
    Near,
    /// For longer round trips: four times as long.
    Far,
}

/// Each change is sent to at most this many members by each that learns of it, several at a time. Enough for a
/// thousand members; the exchange of lists catches the rest.
const MAX_TRANSMISSIONS: NonZeroU8 = NonZeroU8::new(10).unwrap();
const INDIRECT_PROBES: NonZeroUsize = NonZeroUsize::new(3).unwrap();
const GOSSIP_TO: NonZeroUsize = NonZeroUsize::new(4).unwrap();
const MAX_PACKET_BYTES: NonZeroUsize = NonZeroUsize::new(16 << 10).unwrap();

/// Dead members are forgotten after this: a late message about a death must not count as a new one.
const REMOVE_DOWN_AFTER: Duration = Duration::from_secs(24 * 3600);

impl MembershipProfile {
    /// The time between two probes of one node.
    pub(super) fn probe_period(self) -> Duration {
        self.scaled(300)
    }

    /// How long a suspected member has to answer.
    pub(super) fn suspicion(self) -> Duration {
        self.scaled(1_500)
    }

    /// The time between two exchanges of lists.
    pub(super) fn exchange_every(self) -> Duration {
        self.scaled(2_000)
    }

    /// The settings of foca.
    pub(super) fn config(self) -> Config {
        Config {
            probe_period: self.probe_period(),
            probe_rtt: self.scaled(150),
            num_indirect_probes: INDIRECT_PROBES,
            max_transmissions: MAX_TRANSMISSIONS,
            suspect_to_down_after: self.suspicion(),
            remove_down_after: Some(REMOVE_DOWN_AFTER),
            max_packet_size: MAX_PACKET_BYTES,
            notify_down_members: true,
            periodic_announce: None,
            // The exchange of lists reaches members that are down.
            periodic_announce_to_down_members: None,
            periodic_gossip: Some(PeriodicParams { frequency: Duration::from_millis(100), num_members: GOSSIP_TO }),
        }
    }

    fn scaled(self, millis: u64) -> Duration {
        Duration::from_millis(match self {
            Self::Near => millis,
            Self::Far => 4 * millis,
        })
    }
}
