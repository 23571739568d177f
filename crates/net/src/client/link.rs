//! Watches a connection while it has calls in hand: whether its node answers, is silent, or is gone.
//!
//! * **Silent:** no datagram has arrived for a while, although the keep-alive has asked several times. New calls go
//!   elsewhere, and calls that may run again are repeated there. The next datagram ends it.
//! * **Gone:** the node's machine reports that no process has its port. The connection is closed.
//! * **Lost:** QUIC closes the connection after its idle timeout, without this watch.
//!
//! The watch sleeps while there is no call, so an idle connection costs no wake-ups.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quinn::Connection;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::counter::{CountGuard, GuardCounter};
use crate::endpoint::is_port_closed;

/// How often a connection with calls is looked at, and the machine of a quiet node is asked for its port.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The calls in hand of one connection, and whether its node is silent.
#[derive(Debug)]
pub(crate) struct Link {
    /// Counts the streams that are open for calls.
    calls: GuardCounter,
    silent_after: Duration,
    is_watched: AtomicBool,
    /// Wakes the watch for the first call.
    first_call: Notify,
    is_silent: AtomicBool,
    /// Notified when the node falls silent.
    fell_silent: Notify,
}

impl Link {
    pub(super) fn new(silent_after: Duration) -> Self {
        Self {
            calls: GuardCounter::default(),
            silent_after,
            is_watched: AtomicBool::new(false),
            first_call: Notify::new(),
            is_silent: AtomicBool::new(false),
            fell_silent: Notify::new(),
        }
    }

    /// Counts a stream with calls until the guard is dropped.
    pub(super) fn begin(&self) -> CountGuard {
        let guard = self.calls.guard();
        // Both sides swap: either the watch sees this call, or this call sees that the watch sleeps.
        if !self.is_watched.swap(true, Ordering::AcqRel) {
            self.first_call.notify_one();
        }
        guard
    }

    /// The number of open streams.
    #[cfg(feature = "testing")]
    pub(super) fn open_streams(&self) -> usize {
        self.calls.count()
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Acquire)
    }

    /// Completes when the node is silent.
    pub(crate) async fn silent(&self) {
        loop {
            let fell_silent = self.fell_silent.notified();
            if self.is_silent() {
                return;
            }
            fell_silent.await;
        }
    }

    /// Watches until the node's machine reports that its port is closed.
    pub(super) async fn until_gone(&self, connection: &Connection) {
        let datagrams = || connection.stats().udp_rx.datagrams;
        loop {
            let (mut silence, mut looked) = (LinkQuiet::new(datagrams()), Instant::now());
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let now = Instant::now();
                let lasting = silence.look(datagrams(), now - looked);
                looked = now;
                self.set_silent(lasting >= self.silent_after, connection);
                let has_calls = self.calls.count() > 0;
                if lasting.is_zero() && !has_calls {
                    break;
                }
                if has_calls && !lasting.is_zero() && is_port_closed(connection.remote_address()).await {
                    return;
                }
            }
            self.is_watched.swap(false, Ordering::AcqRel);
            if self.calls.count() == 0 {
                self.first_call.notified().await;
            }
            self.is_watched.store(true, Ordering::Release);
        }
    }

    fn set_silent(&self, is_silent: bool, connection: &Connection) {
        if self.is_silent.swap(is_silent, Ordering::AcqRel) == is_silent {
            return;
        }
        let peer = connection.remote_address();
        if is_silent {
            self.fell_silent.notify_waiters();
            tracing::info!(%peer, "a node with calls is silent: new calls go elsewhere");
        } else {
            tracing::info!(%peer, "the silent node answers again");
        }
    }
}

/// How long nothing has arrived: a pure decision.
#[derive(Debug)]
struct LinkQuiet {
    /// All datagrams so far.
    datagrams: u64,
    lasting: Duration,
}

impl LinkQuiet {
    /// The most that counts between two looks: a pause of this process is no silence of the node.
    const LONGEST_LOOK: Duration = Duration::from_millis(100);

    fn new(datagrams: u64) -> Self {
        Self { datagrams, lasting: Duration::ZERO }
    }

    /// Returns how long the silence lasts; zero if a datagram has arrived since the last look.
    fn look(&mut self, datagrams: u64, since_last: Duration) -> Duration {
        let is_quiet = std::mem::replace(&mut self.datagrams, datagrams) == datagrams;
        self.lasting = if is_quiet { self.lasting + since_last.min(Self::LONGEST_LOOK) } else { Duration::ZERO };
        self.lasting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_lasts_from_datagram_to_datagram() {
        let mut silence = LinkQuiet::new(7);
        for look in 1..=18 {
            assert_eq!(silence.look(7, LOOK_EVERY), LOOK_EVERY * look);
        }
        assert_eq!(silence.look(8, LOOK_EVERY), Duration::ZERO);
        assert_eq!(silence.look(8, LOOK_EVERY), LOOK_EVERY);
    }

    #[test]
    fn a_pause_of_this_process_is_no_silence_of_its_peers() {
        let mut silence = LinkQuiet::new(7);
        assert!(silence.look(7, Duration::from_secs(30)) <= Duration::from_millis(100));
    }
}
