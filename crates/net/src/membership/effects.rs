//! What foca wants to happen, and when.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_core::Instant;
use foca::{Notification, Runtime, Timer};

use super::codec::Reader;
use super::identity::MemberId;
use super::message::swim_bytes;

/// A timer of foca.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) at: Instant,
    pub(super) order: u64,
    pub(super) timer: Timer<MemberId>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// What foca wants to happen.
#[derive(Debug)]
pub(super) enum Effect {
    Send(Arc<str>, Bytes),
    Timer(Instant, Timer<MemberId>),
    Up(MemberId),
    Renamed(MemberId),
    Down(MemberId),
    Renewed(MemberId),
}

/// Collects it.
#[derive(Debug)]
pub(super) struct Effects {
    pub(super) now: Instant,
    /// The identity and the incarnation of the last message: foca has no getter for the incarnation.
    sent_by: MemberId,
    incarnation: u16,
    pub(super) collected: Vec<Effect>,
}

impl Effects {
    pub(super) fn new(own: MemberId, now: Instant) -> Self {
        Self { now, sent_by: own, incarnation: 0, collected: Vec::new() }
    }

    pub(super) fn incarnation_of(&self, own: &MemberId) -> u16 {
        if self.sent_by == *own { self.incarnation } else { 0 }
    }
}

impl Runtime<MemberId> for Effects {
    fn notify(&mut self, notification: Notification<'_, MemberId>) {
        self.collected.push(match notification {
            Notification::MemberUp(id) => Effect::Up(id.clone()),
            Notification::Rename(_, id) => Effect::Renamed(id.clone()),
            Notification::MemberDown(id) => Effect::Down(id.clone()),
            Notification::Rejoin(id) => Effect::Renewed(id.clone()),
            _ => return,
        });
    }

    fn send_to(&mut self, to: MemberId, data: &[u8]) {
        let mut reader = Reader::new(data);
        if let (Ok(id), Ok(incarnation)) = (reader.id(), reader.u16("an incarnation")) {
            (self.sent_by, self.incarnation) = (id, incarnation);
        }
        self.collected.push(Effect::Send(to.name, swim_bytes(data)));
    }

    fn submit_after(&mut self, event: Timer<MemberId>, after: Duration) {
        self.collected.push(Effect::Timer(self.now + after, event));
    }
}
