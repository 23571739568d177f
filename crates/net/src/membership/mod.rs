//! Membership: which nodes are in the cluster, which are suspected, and which are down.
//!
//! SWIM with incarnations and suspicions, by the crate foca. [`Membership`] drives it as a pure value: messages,
//! connections and the time go in; messages to members and changes of the list come out. It has no clock, no socket and
//! no source of chance of its own, so whole clusters run in its tests in virtual time.
//!
//! Each member also tells the others of itself (`reports.rs`): its version, what it does, its routes and stages. The
//! lists of removed members that issuers have signed travel the same way (`removals.rs`).
//!
//! * **Rules around foca:** a refuted suspicion has no consequences; messages go over streams, where loss is delay;
//!   members exchange their whole lists, a digest first; a node that hears nobody accuses nobody; a process that was
//!   stopped gets its time back.
//! * **Full:** at most 1,024 members are known. A dead one makes room; without one, a new member is ignored.
//! * **Late:** a timer that fires late is delivered late; more than half a second of lateness moves all timers.
//! * **Untrusted:** a message counts only on a connection of the member that it names as its source, its decoder is
//!   bounded, and so are the messages of one member and the strangers that it makes known (`tellers.rs`). Any member may
//!   call another one dead: that one takes a new identity, and the accuser is reported.

mod actor;
mod codec;
mod digest;
mod effects;
mod error;
#[cfg(feature = "testing")]
mod forger;
mod handle;
mod identity;
mod isolation;
mod links;
mod message;
mod metrics;
mod profile;
mod removals;
mod report_codec;
mod reports;
mod state;
mod swim;
mod tellers;
mod view;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod recordings;
#[cfg(test)]
mod removal_tests;
#[cfg(test)]
mod report_tests;
#[cfg(test)]
mod scale_tests;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

#[cfg(feature = "testing")]
pub use forger::GossipForger;
pub(crate) use handle::{FEATURE, GossipHandle, GossipLink, STREAMS, features};
pub(crate) use identity::MemberId;
pub(crate) use metrics::MembershipMetrics;
pub use profile::MembershipProfile;
pub(crate) use report_codec::cut as cut_report;
pub(crate) use view::GossipView;

use state::{Membership, Output};

/// Bytes from a member never panic, and leave a node that goes on.
#[cfg(feature = "testing")]
pub(crate) fn fuzz(bytes: &[u8]) {
    let (mut now, second) = (callboard_core::Instant::now(), std::time::Duration::from_secs(1));
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let own = MemberId { name: "own".into(), address, generation: 1, bump: 0 };
    let mut node = Membership::new(own, MembershipProfile::Near, 1, now);
    node.set_report(callboard_core::remote::NodeReport::default(), now);
    node.wake(now);
    // Of the member that the message names, so that its content is read. It is asked for its report before.
    let source = message::Sourced::read(bytes).map(|message| message.source);
    if let Ok(source) = &source {
        let version = reports::Version { name: source.name.clone(), generation: source.generation, version: 1 };
        let gossip = message::Gossip::Versions { mask: 0, wants_answer: false, versions: vec![version] };
        let _ = node.received(&source.name, &message::Sourced { source: source.clone(), gossip }.to_bytes(), now);
    }
    let _ = node.received(source.as_ref().map_or("other", |source| &source.name), bytes, now);
    for _ in 0..40 {
        now += second / 20;
        node.wake(now);
        while node.poll_output().is_some() {}
    }
}
