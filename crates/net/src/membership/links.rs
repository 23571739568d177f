//! The connections over which members are reached, with a bounded queue for each.
//!
//! A message goes over the newest connection of its member, in either direction. A full queue drops its oldest message,
//! because a newer one says more.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::wire::{FrameKind, frame_head};
use parking_lot::Mutex;
use quinn::Connection;
use tokio::sync::Notify;

use super::message::MAX_MESSAGE_BYTES;
use super::metrics::MembershipMetrics;
use crate::counter::{CountGuard, GuardCounter};
use crate::link::Link;
use crate::stream::FrameSender;
use crate::wire::EmptyHeader;

/// The most messages that wait for one member.
const QUEUE: usize = 64;

/// The longest time for one message. Threat: a member that grants no streams.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// Above the streams of calls, which have 0: a large body delays no probe.
const PRIORITY: i32 = 1;

/// The open connections by member.
#[derive(Debug, Default)]
pub(super) struct Links {
    outboxes: Mutex<HashMap<Arc<str>, Vec<Arc<Outbox>>>>,
    /// Notified when a member has lost its last connection.
    pub(super) lost: Notify,
    /// The messages that wait, or are not acknowledged yet.
    pending: GuardCounter,
    metrics: MembershipMetrics,
}

impl Links {
    pub(super) fn new(metrics: MembershipMetrics) -> Self {
        Self { metrics, ..Self::default() }
    }

    /// Sends over this connection from now on, until the guard is dropped.
    pub(super) fn add(self: &Arc<Self>, member: Arc<str>, connection: &Connection, link: &Arc<Link>) -> LinkGuard {
        let outbox = Arc::new(Outbox::new(Arc::clone(link)));
        self.outboxes.lock().entry(Arc::clone(&member)).or_default().push(Arc::clone(&outbox));
        tokio::spawn(Arc::clone(&outbox).write_to(connection.clone()));
        LinkGuard { links: Arc::clone(self), member, outbox }
    }

    /// Whether all messages have arrived, or were given up.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.count() == 0
    }

    /// Whether there is a connection to this member, in either direction.
    pub(super) fn is_connected(&self, member: &str) -> bool {
        self.outboxes.lock().contains_key(member)
    }

    /// Probes each connection of a member: it may be dead, or another process by now.
    pub(super) fn probe(&self, member: &str) {
        let outboxes = self.outboxes.lock();
        outboxes.get(member).into_iter().flatten().for_each(|outbox| outbox.link.probe());
    }

    /// Sends a message. Without a connection it is dropped: lists are exchanged when there is one.
    pub(super) fn send(&self, to: &str, message: Bytes) {
        if message.len() > MAX_MESSAGE_BYTES {
            self.metrics.dropped.inc();
            return;
        }
        let outboxes = self.outboxes.lock();
        let Some(outbox) = outboxes.get(to).and_then(|outboxes| outboxes.last()) else { return };
        let mut queue = outbox.queue.lock();
        if queue.len() >= QUEUE {
            queue.pop_front();
            self.metrics.dropped.inc();
        }
        queue.push_back((message, self.pending.guard()));
        outbox.has_message.notify_one();
    }
}

/// The messages for one connection.
#[derive(Debug)]
struct Outbox {
    link: Arc<Link>,
    queue: Mutex<VecDeque<(Bytes, CountGuard)>>,
    has_message: Notify,
}

impl Outbox {
    fn new(link: Arc<Link>) -> Self {
        Self { link, queue: Mutex::default(), has_message: Notify::new() }
    }

    /// Sends each message on a stream of its own, until the connection is closed.
    async fn write_to(self: Arc<Self>, connection: Connection) {
        let writing = async {
            loop {
                let next = self.queue.lock().pop_front();
                match next {
                    Some(message) => {
                        // A message that is not taken in time is stale.
                        let _ = tokio::time::timeout(SEND_TIMEOUT, write(&connection, message)).await;
                    }
                    None => self.has_message.notified().await,
                }
            }
        };
        tokio::select! {
            () = writing => {}
            _ = connection.closed() => {}
        }
    }
}

async fn write(connection: &Connection, (message, pending): (Bytes, CountGuard)) -> Option<()> {
    let stream = connection.open_uni().await.ok()?;
    let _ = stream.set_priority(PRIORITY);
    let mut outgoing = FrameSender::new(stream);
    let head = frame_head(FrameKind::Gossip, 0, &EmptyHeader {}, message.len()).ok()?;
    outgoing.write(&mut [head, message]).await.ok()?;
    outgoing.finish();
    let acknowledged = outgoing.stopped();
    tokio::spawn(async move {
        let _ = tokio::time::timeout(SEND_TIMEOUT, acknowledged).await;
        drop(pending);
    });
    Some(())
}

/// A connection to a member, used until this is dropped.
#[derive(Debug)]
pub(super) struct LinkGuard {
    links: Arc<Links>,
    member: Arc<str>,
    outbox: Arc<Outbox>,
}

impl Drop for LinkGuard {
    fn drop(&mut self) {
        let mut outboxes = self.links.outboxes.lock();
        if let Some(of_member) = outboxes.get_mut(&self.member) {
            of_member.retain(|outbox| !Arc::ptr_eq(outbox, &self.outbox));
            if of_member.is_empty() {
                outboxes.remove(&self.member);
                self.links.lost.notify_one();
            }
        }
    }
}
