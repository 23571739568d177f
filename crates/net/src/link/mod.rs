//! A link is a connection with its watch: cold and left to QUIC while it has no calls, and hot, watched closely, else.
//!
//! * **Cold:** it costs no wake-ups. QUIC sends a keep-alive after ten seconds of silence, and closes it after thirty.
//! * **Hot:** it has calls, or had some in the last seconds, or was [probed](Link::probe). While nothing arrives, the
//!   watch sends keep-alives: empty QUIC datagrams, which the other side acknowledges and drops.
//! * **Silent:** nothing has arrived for a while, or no keep-alive has had an answer. New calls go elsewhere, and calls
//!   that may run again are repeated there. The next answer ends it.
//! * **Lost:** no keep-alive has had an answer for longer. Datagrams may still arrive, if the line carries one way
//!   only. The watch closes the connection, as QUIC does with a cold one.
//! * **Gone:** the machine of the other side reports that no process has its port. The connection is closed.
//!
//! Both sides watch: the side that connects while it waits for calls, and the side that accepts while it runs some.
//! `decision.rs` decides, and is pure.

mod decision;

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use callboard_codec::wire::ResetCode;
use quinn::{Connection, ConnectionError};
use tokio::sync::Notify;
use tokio::time::Instant;

use self::decision::{Heard, LinkDecision, LinkTimes};
use crate::counter::{CountGuard, GuardCounter};
use crate::endpoint::{Tuning, code, is_port_closed};

/// What the other side reads as the reason if it has not answered.
pub(crate) const TIMED_OUT: &[u8] = b"timed_out";

/// The calls in hand of one connection, and whether the other side is silent.
#[derive(Debug)]
pub(crate) struct Link {
    /// Counts the streams that are open for calls.
    calls: GuardCounter,
    times: LinkTimes,
    /// Whether the machine of the other side is asked for its port.
    asks_port: bool,
    /// Whether a call need not wake the watch: it looks soon.
    is_watched: AtomicBool,
    /// Whether the watch is to send a keep-alive at once.
    must_probe: AtomicBool,
    /// Wakes the watch.
    woken: Notify,
    is_silent: AtomicBool,
    /// Notified when the other side falls silent.
    fell_silent: Notify,
    is_lost: AtomicBool,
}

/// Why a watch has ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkEnd {
    /// No process has the port of the other side.
    Gone,
    /// The keep-alives have had no answer.
    Lost,
}

impl LinkEnd {
    /// Closes the connection for this reason.
    pub(crate) fn close(self, connection: &Connection) {
        let reason: &[u8] = match self {
            Self::Gone => b"port_closed",
            Self::Lost => TIMED_OUT,
        };
        connection.close(code(ResetCode::Done), reason);
    }
}

impl Link {
    /// Of a connection that this side has made.
    pub(crate) fn dialled(tuning: &Tuning) -> Self {
        Self::new(LinkTimes::dialled(tuning), true)
    }

    /// Of a connection that this side has accepted. The other side keeps it hot between calls, and its port may be that
    /// of a router.
    pub(crate) fn accepted(tuning: &Tuning) -> Self {
        Self::new(LinkTimes::accepted(tuning), false)
    }

    fn new(times: LinkTimes, asks_port: bool) -> Self {
        Self {
            calls: GuardCounter::default(),
            times,
            asks_port,
            is_watched: AtomicBool::new(false),
            must_probe: AtomicBool::new(false),
            woken: Notify::new(),
            is_silent: AtomicBool::new(false),
            fell_silent: Notify::new(),
            is_lost: AtomicBool::new(false),
        }
    }

    /// Counts a stream with calls until the guard is dropped.
    pub(crate) fn begin(&self) -> CountGuard {
        let guard = self.calls.guard();
        // Both sides swap: either the watch sees this call, or this call sees that the watch sleeps.
        if !self.is_watched.swap(true, Ordering::AcqRel) {
            self.woken.notify_one();
        }
        guard
    }

    /// Sends a keep-alive as soon as one is due, also if there are no calls. Without an answer the connection is lost.
    pub(crate) fn probe(&self) {
        if !self.must_probe.swap(true, Ordering::AcqRel) {
            self.woken.notify_one();
        }
    }

    /// The number of open streams.
    #[cfg(feature = "testing")]
    pub(crate) fn open_streams(&self) -> usize {
        self.calls.count()
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Acquire)
    }

    /// Completes when the other side is silent.
    pub(crate) async fn silent(&self) {
        loop {
            let fell_silent = self.fell_silent.notified();
            if self.is_silent() {
                return;
            }
            fell_silent.await;
        }
    }

    /// The cause of the end of the connection: that of a lost link is the silence, although this side has closed it.
    pub(crate) fn cause(&self, error: ConnectionError) -> ConnectionError {
        match error {
            ConnectionError::LocallyClosed if self.is_lost.load(Ordering::Acquire) => ConnectionError::TimedOut,
            error => error,
        }
    }

    /// Watches until the connection is to be closed. One task watches a link.
    pub(crate) async fn watch(&self, connection: &Connection) -> LinkEnd {
        let heard = || {
            let stats = connection.stats();
            Heard {
                datagrams: stats.udp_rx.datagrams,
                acks: stats.frame_rx.acks,
                rtt: stats.path.rtt,
                left: stats.frame_tx.datagram,
            }
        };
        let mut decision = LinkDecision::new(self.times, heard(), Instant::now());
        loop {
            self.is_watched.swap(false, Ordering::AcqRel);
            let has_calls = self.calls.count() > 0;
            match decision.pause(has_calls, self.must_probe.load(Ordering::Acquire), Instant::now()) {
                Some(pause) if has_calls => {
                    self.is_watched.store(true, Ordering::Release);
                    tokio::time::sleep(pause).await;
                }
                Some(pause) => {
                    let _ = tokio::time::timeout(pause, self.woken.notified()).await;
                }
                None => {
                    self.woken.notified().await;
                    decision.awake(heard(), Instant::now());
                }
            }
            // A call that has begun and ended meanwhile counts, too.
            let has_calls = self.is_watched.swap(true, Ordering::AcqRel) || self.calls.count() > 0;
            let (now, is_probe) = (Instant::now(), self.must_probe.load(Ordering::Acquire));
            let look = decision.look(heard(), has_calls, is_probe, now);
            self.set_silent(look.is_silent, connection);
            if look.is_lost {
                self.is_lost.store(true, Ordering::Release);
                return LinkEnd::Lost;
            }
            if look.sends_keep_alive {
                // Before it is sent: a probe that is wanted meanwhile is this one.
                self.must_probe.store(false, Ordering::Release);
                // Peers of earlier versions take none, and send some by QUIC's own keep-alive.
                decision.sent_keep_alive(connection.send_datagram(Bytes::new()).is_ok(), now);
            }
            if self.asks_port && look.is_overdue && is_port_closed(connection.remote_address()).await {
                return LinkEnd::Gone;
            }
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
