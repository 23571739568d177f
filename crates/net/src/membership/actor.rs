//! The shell of the membership: brings it messages and the time, and carries out what it wants.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use callboard_core::Instant;
use callboard_core::remote::NodeReport;
use callboard_identity::{Identity, quoted};
use foca::State;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use super::handle::MemberAddresses;
use super::links::Links;
use super::metrics::MembershipMetrics;
use super::{Membership, Output};

/// How long a dead member is tried after it was chosen, or has died: enough for several tries to connect.
const WANTED_FOR: Duration = Duration::from_secs(5);

/// The least time between two lines about accusers.
const ACCUSATIONS_EVERY: Duration = Duration::from_secs(10);

/// How long no list of a member is verified that has sent an invalid one. Threat: a member that costs a signature check
/// with each message. Another member tells of the same lists meanwhile.
const LISTS_AFTER_REFUSAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) enum Input {
    Received {
        from: Arc<str>,
        message: Bytes,
        _room: OwnedSemaphorePermit,
    },
    Connected {
        member: Arc<str>,
        /// Whether it has the feature `reports`.
        has_reports: bool,
        /// Whether it has the feature `removals`.
        has_removals: bool,
    },
    Refused(Arc<str>, SocketAddr),
    Observed(SocketAddr),
    Advertised(SocketAddr),
    Report(Box<NodeReport>),
}

/// Runs until the last handle is dropped.
pub(super) async fn run(
    (membership, links): (Arc<Mutex<Membership>>, Arc<Links>),
    identity: Identity,
    mut inputs: mpsc::Receiver<Input>,
    published: watch::Sender<Arc<MemberAddresses>>,
    metrics: MembershipMetrics,
) {
    let finds_address = membership.lock().own().address.ip().is_unspecified();
    let mut lists = identity.watch_lists();
    lists.mark_changed();
    let mut shell = Shell {
        links: Arc::clone(&links),
        identity,
        published,
        metrics,
        finds_address,
        wanted: Vec::new(),
        accused_at: None,
        refused_lists: BTreeMap::new(),
    };
    loop {
        let wake = membership.lock().next_wakeup();
        let (mut received, mut has_lost_link) = (None, false);
        tokio::select! {
            biased;
            // Before the messages: it changes seldom, and a flood of them does not hold it up.
            Ok(()) = lists.changed() => {
                let lists = Arc::clone(&lists.borrow_and_update());
                membership.lock().set_lists(lists, Instant::now());
            }
            input = inputs.recv() => match input {
                Some(input) => received = Some(input),
                None => return,
            },
            () = links.lost.notified() => has_lost_link = true,
            () = tokio::time::sleep_until(wake) => {}
        }
        let (mut membership, now) = (membership.lock(), Instant::now());
        if let Some(input) = received {
            shell.give(&mut membership, input);
        }
        // Also after a message: a flood of them does not hold up the timers.
        if membership.next_wakeup() <= now {
            membership.wake(now);
        }
        shell.carry_out(&mut membership, now, has_lost_link);
    }
}

struct Shell {
    links: Arc<Links>,
    identity: Identity,
    published: watch::Sender<Arc<MemberAddresses>>,
    metrics: MembershipMetrics,
    /// Whether it listens at all addresses of its machine, and learns from others which of them they reach.
    finds_address: bool,
    /// Dead members that are tried, and until when.
    wanted: Vec<(SocketAddr, Instant)>,
    accused_at: Option<Instant>,
    /// The members that have sent an invalid list, and until when no further one of theirs is verified.
    refused_lists: BTreeMap<Arc<str>, Instant>,
}

impl Shell {
    fn give(&mut self, membership: &mut Membership, input: Input) {
        let now = Instant::now();
        match input {
            Input::Received { from, message, .. } => {
                let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                membership.set_clock(u64::try_from(clock.as_nanos()).unwrap_or(u64::MAX));
                if let Err(error) = membership.received(&from, &message, now) {
                    self.metrics.refused.inc();
                    tracing::debug!(member = %quoted(&from), "{error}");
                }
            }
            Input::Connected { member, has_reports, has_removals } => {
                membership.connected(&member, (has_reports, has_removals), now);
            }
            Input::Refused(member, address) => membership.refused(&member, address, now),
            Input::Observed(address) => {
                let (own, observed) = (membership.own().address, address.ip().to_canonical());
                if self.finds_address && is_better(observed, own.ip()) {
                    membership.set_address(SocketAddr::new(observed, own.port()), now);
                }
            }
            Input::Advertised(address) => {
                self.finds_address = false;
                membership.set_address(address, now);
            }
            Input::Report(report) => membership.set_report(*report, now),
        }
    }

    fn carry_out(&mut self, membership: &mut Membership, now: Instant, has_lost_link: bool) {
        let wanted_before = self.wanted.len();
        self.wanted.retain(|(_, until)| *until > now);
        let mut has_changed = has_lost_link || self.wanted.len() != wanted_before;
        while let Some(output) = membership.poll_output() {
            match output {
                Output::Send { to, message } => self.links.send(&to, message),
                Output::Wanted(member) => {
                    self.want(member.address, now);
                    has_changed = true;
                }
                Output::Suspected(member) => self.links.probe(&member.name),
                Output::Up(member) => {
                    has_changed = true;
                    // Connections to an earlier process of it.
                    self.links.probe(&member.name);
                    tracing::info!(member = %member.name, address = %member.address, "a member is up");
                }
                Output::Down { member, told_by } => {
                    has_changed = true;
                    self.links.probe(&member.name);
                    // Calls wait for a lost node for a while.
                    self.want(member.address, now);
                    self.metrics.deaths.inc();
                    let told_by = told_by.as_deref().unwrap_or("this node");
                    tracing::info!(member = %member.name, address = %member.address, told_by, "a member is down");
                }
                Output::Accused { by, state } => self.accused(&by, state, now),
                Output::Renewed(own) => {
                    tracing::warn!(times = own.bump, "this node was called dead, and has a new identity");
                }
                Output::Removed { from, list } => self.take_list(from, &list, now),
                Output::NameTaken(other) => tracing::warn!(
                    address = %other.address,
                    "another process has this node's name, or its clock was ahead; use one identity per node"
                ),
            }
        }
        if has_changed {
            self.publish(membership);
        }
    }

    /// Takes a list over, if an issuer has signed it; the membership is given it by the identity then.
    fn take_list(&mut self, from: Arc<str>, list: &Bytes, now: Instant) {
        self.refused_lists.retain(|_, until| *until > now);
        if self.refused_lists.contains_key(&from) {
            return;
        }
        if let Err(error) = self.identity.take_list(list) {
            self.metrics.refused.inc();
            tracing::info!(member = %quoted(&from), "a list of removed members is refused: {error}");
            self.refused_lists.insert(from, now + LISTS_AFTER_REFUSAL);
        }
    }

    /// Tries a dead member for a while.
    fn want(&mut self, address: SocketAddr, now: Instant) {
        self.wanted.retain(|(wanted, _)| *wanted != address);
        self.wanted.push((address, now + WANTED_FOR));
    }

    fn accused(&mut self, by: &str, state: State, now: Instant) {
        self.metrics.suspected.inc();
        if self.accused_at.is_none_or(|at| now.saturating_duration_since(at) >= ACCUSATIONS_EVERY) {
            self.accused_at = Some(now);
            let state = if state == State::Down { "down" } else { "suspected" };
            tracing::warn!(by, "a member says that this node is {state}");
        }
    }

    fn publish(&self, membership: &Membership) {
        let has_address = |address: &SocketAddr| !address.ip().is_unspecified() && address.port() != 0;
        let members = || membership.members().filter(|(member, _)| has_address(&member.address));
        self.metrics.up.set(members().filter(|(_, state)| *state != State::Down).count() as i64);
        // A verdict ends no work: a connection that is open is of use.
        let kept = members().filter(|(id, state)| *state != State::Down || self.links.is_connected(&id.name));
        let mut up: Vec<_> = kept.map(|(member, _)| member.address).collect();
        up.sort();
        let wanted = self.wanted.iter().map(|(address, _)| *address);
        let wanted = wanted.filter(|address| has_address(address) && !up.contains(address)).collect();
        let addresses = MemberAddresses { up, wanted };
        self.published.send_if_modified(|published| {
            let has_changed = **published != addresses;
            if has_changed {
                *published = Arc::new(addresses);
            }
            has_changed
        });
    }
}

/// Whether more nodes reach the observed address: those of this machine reach a loopback address, and others none.
fn is_better(observed: IpAddr, known: IpAddr) -> bool {
    let reach = |ip: IpAddr| match ip {
        ip if ip.is_unspecified() || ip.is_multicast() => 0,
        ip if ip.is_loopback() => 1,
        _ => 2,
    };
    reach(observed) > reach(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_address_is_taken_only_until_a_better_one_is_observed() {
        let is_better = |observed: &str, known: &str| is_better(observed.parse().unwrap(), known.parse().unwrap());
        assert!(is_better("127.0.0.1", "0.0.0.0") && is_better("::1", "::"));
        assert!(is_better("10.0.0.1", "0.0.0.0") && is_better("10.0.0.1", "127.0.0.1"));
        assert!(!is_better("127.0.0.1", "10.0.0.1") && !is_better("10.0.0.2", "10.0.0.1"));
        assert!(!is_better("0.0.0.0", "::") && !is_better("224.0.0.1", "0.0.0.0"));
    }
}
