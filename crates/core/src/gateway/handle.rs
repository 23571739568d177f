//! The way in: takes permits without a message, gives them back when dropped.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use ractor::ActorRef;

use super::admission::{Ledger, LedgerLine, Limits, Refusal};
use super::message::GatewayMessage;
use crate::clock::{self, Instant};
use crate::deadline::Deadline;
use crate::error::{CallError, ErrorKind};
use crate::id::{FlightId, RouteIndex};
use crate::metrics::{SharedMetrics, TurnedAway};
use crate::pipeline::{Beyond, PeerDescription};
use crate::router::{HeldRoute, Route};

/// HTTP's word for an input that is larger than can be taken.
const TOO_LARGE: u16 = 413;

/// When a refused caller may come again: the time in which a node at its bound has surely finished something.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Shared by every door of the node. The lock is held for a few dozen instructions, twice per call.
#[derive(Debug)]
pub(crate) struct Gateway {
    default_timeout: Duration,
    ledger: Mutex<Ledger>,
    actor: Mutex<Option<ActorRef<GatewayMessage>>>,
    /// The other nodes, once this one has joined them.
    beyond: OnceLock<Arc<Beyond>>,
    metrics: SharedMetrics,
}

impl Gateway {
    pub(crate) fn new(limits: Limits, metrics: SharedMetrics) -> Self {
        Self {
            default_timeout: limits.default_timeout,
            ledger: Mutex::new(Ledger::new(limits)),
            actor: Mutex::default(),
            beyond: OnceLock::new(),
            metrics,
        }
    }

    /// Lets a call in.
    pub(crate) fn admit(self: &Arc<Self>, route: HeldRoute, bytes: u64) -> Result<Admission, CallError> {
        self.try_admit(route, bytes).map_err(|refusal| self.refuse(refusal))
    }

    /// Lets a call in, or says why not without counting it: for a caller that may wait.
    pub(crate) fn try_admit(self: &Arc<Self>, route: HeldRoute, bytes: u64) -> Result<Admission, Refusal> {
        let now = clock::now();
        route.enter()?;
        let admitted = self.ledger.lock().admit(now, route.index(), bytes);
        let (key, id) = admitted.inspect_err(|_| route.leave())?;
        Ok(Admission { gateway: Arc::clone(self), route, key, id, admitted_at: now })
    }

    pub(crate) fn set_actor(&self, actor: ActorRef<GatewayMessage>) {
        *self.actor.lock() = Some(actor);
    }

    /// Lets stages run on other nodes from now on. Once only: a node is in one cluster.
    pub(crate) fn join(&self, beyond: Beyond) -> bool {
        self.beyond.set(Arc::new(beyond)).is_ok()
    }

    /// The other nodes, if this one has joined some.
    pub(crate) fn beyond(&self) -> Option<&Arc<Beyond>> {
        self.beyond.get()
    }

    /// The other nodes, as this one knows them.
    pub(crate) fn peers(&self) -> Vec<PeerDescription> {
        self.beyond.get().map(|beyond| beyond.0.peers()).unwrap_or_default()
    }

    pub(crate) fn drain(&self) {
        self.ledger.lock().drain();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.ledger.lock().is_draining()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.ledger.lock().in_flight()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.ledger.lock().bytes()
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.ledger.lock().admitted()
    }

    pub(crate) fn default_timeout(&self) -> Duration {
        self.default_timeout
    }

    /// Reads the lines of the ledger under its lock.
    pub(crate) fn with_lines<T>(&self, read: impl FnOnce(&mut dyn Iterator<Item = &LedgerLine>) -> T) -> T {
        read(&mut self.ledger.lock().lines())
    }

    pub(crate) fn overdue(&self, now: Instant) -> Vec<(FlightId, RouteIndex)> {
        let ledger = self.ledger.lock();
        ledger.overdue(now).map(|line| (line.id, line.route)).collect()
    }

    /// Counts a refusal, and says it in the caller's words.
    pub(crate) fn refuse(&self, refusal: Refusal) -> CallError {
        self.metrics.refused(match refusal {
            Refusal::Draining => TurnedAway::Draining,
            Refusal::TooManyCalls { .. } => TurnedAway::Calls,
            Refusal::TooManyBytes { .. } => TurnedAway::Bytes,
            Refusal::RouteFull { .. } => TurnedAway::Route,
        });
        match refusal {
            Refusal::Draining => CallError::new(ErrorKind::Unavailable, refusal.to_string()),
            // It will not fit later either.
            Refusal::TooManyBytes { asked, limit } if asked > limit => {
                let message =
                    format!("the call's {asked} bytes are more than the limit of {limit} for all calls in flight");
                CallError::new(ErrorKind::InvalidInput, message).with_status(TOO_LARGE)
            }
            Refusal::TooManyCalls { .. } | Refusal::TooManyBytes { .. } | Refusal::RouteFull { .. } => {
                CallError::overloaded(refusal.to_string(), RETRY_AFTER)
            }
        }
    }
}

/// A call's right to be here: one permit, its bytes, its line in the ledger. Dropping it gives all of them back.
#[derive(Debug)]
pub struct Admission {
    gateway: Arc<Gateway>,
    route: HeldRoute,
    key: usize,
    id: FlightId,
    admitted_at: Instant,
}

impl Admission {
    /// The route it was given for: the newest revision of that name.
    #[must_use]
    pub fn route(&self) -> &Arc<Route> {
        &self.route
    }

    /// The other nodes, where its stages may run as well.
    pub(crate) fn beyond(&self) -> Option<Arc<Beyond>> {
        self.gateway.beyond().cloned()
    }

    /// The number of this call on this node.
    #[must_use]
    pub fn id(&self) -> FlightId {
        self.id
    }

    /// When the call was let in. A timeout counts from here, so that it covers the reading of the body.
    #[must_use]
    pub fn admitted_at(&self) -> Instant {
        self.admitted_at
    }

    /// When the call is late: `timeout` after it was let in, or the route's or the node's default where its caller said
    /// nothing.
    #[must_use]
    pub fn deadline(&self, timeout: Option<Duration>) -> Deadline {
        let timeout =
            timeout.or_else(|| self.route.default_timeout()).unwrap_or_else(|| self.gateway.default_timeout());
        Deadline::after(self.admitted_at, timeout)
    }

    /// Takes `bytes` more: the body turned out longer than announced.
    ///
    /// # Errors
    ///
    /// `Overloaded` when the node's bytes are all out. The admission itself stays good.
    pub fn grow(&self, bytes: u64) -> Result<(), CallError> {
        let grown = self.gateway.ledger.lock().grow(self.key, bytes);
        grown.map_err(|refusal| self.gateway.refuse(refusal))
    }

    /// For bytes beside the call's own, that are given back before it ends.
    #[must_use]
    pub fn beside(&self) -> HeldBytes {
        HeldBytes::none_of(&self.gateway)
    }
}

/// Bytes of the node that no call has: while there is no call for them yet, or beside what a call keeps. They take no place
/// of a call and of no route. Dropping it gives them back.
#[derive(Debug)]
pub struct HeldBytes {
    gateway: Arc<Gateway>,
    bytes: u64,
}

impl HeldBytes {
    pub(crate) fn none_of(gateway: &Arc<Gateway>) -> Self {
        Self { gateway: Arc::clone(gateway), bytes: 0 }
    }

    /// How many are held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many the node has for all together: more will never be held.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.gateway.ledger.lock().max_bytes()
    }

    /// Takes `bytes` more if there is room for them now. That there is none is not counted as a refusal: the caller may wait.
    #[must_use]
    pub fn try_grow(&mut self, bytes: u64) -> bool {
        let taken = self.gateway.ledger.lock().take(bytes).is_ok();
        self.bytes += if taken { bytes } else { 0 };
        taken
    }

    /// Takes `bytes` more.
    ///
    /// # Errors
    ///
    /// `Overloaded` when the node's bytes are all out, `InvalidInput` when it never has so many. What is held already stays.
    pub fn grow(&mut self, bytes: u64) -> Result<(), CallError> {
        let taken = self.gateway.ledger.lock().take(bytes);
        taken.map_err(|refusal| self.gateway.refuse(refusal))?;
        self.bytes += bytes;
        Ok(())
    }

    /// Gives all of them back.
    pub fn release(&mut self) {
        self.gateway.ledger.lock().give_back(std::mem::take(&mut self.bytes));
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.release();
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.route.leave();
        let emptied = {
            let mut ledger = self.gateway.ledger.lock();
            ledger.close(self.key);
            ledger.is_draining() && ledger.in_flight() == 0
        };
        if emptied && let Some(actor) = &*self.gateway.actor.lock() {
            let _ = actor.send_message(GatewayMessage::Emptied);
        }
    }
}
