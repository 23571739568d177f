//! The gateway's permits: taken without a message, freed on drop.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use callboard_codec::{Account, ChargeError};
use parking_lot::Mutex;
use ractor::ActorRef;
use tokio::runtime::Handle;

use super::admission::{Ledger, LedgerLine, Limits, MAX_INNER_CALLS, Refusal, RequestBytes};
use super::message::GatewayMessage;
use super::pending_bodies::{PendingBodies, PendingBody};
use crate::clock::Instant;
use crate::error::{CallError, ErrorKind, ErrorReason, MAX_IN_FLIGHT_BYTES, RETRY_AFTER};
use crate::host::HostNode;
use crate::id::{CallId, RouteIndex, RouteName};
use crate::metrics::{CallRefusal, SharedMetrics};
use crate::offload::Offload;

/// Shared by all edges and clients of the node. The lock is held for a few dozen instructions, twice per call.
#[derive(Debug)]
pub(crate) struct Gateway {
    default_timeout: Duration,
    max_timeout: Duration,
    ledger: Mutex<Ledger>,
    pending_bodies: PendingBodies,
    actor: Mutex<Option<ActorRef<GatewayMessage>>>,
    /// The node, for user code that calls it.
    node: OnceLock<Weak<dyn HostNode>>,
    metrics: SharedMetrics,
    offload: Offload,
}

impl Gateway {
    pub(crate) fn new(limits: Limits, metrics: SharedMetrics) -> Self {
        Self {
            default_timeout: limits.default_timeout.min(limits.max_timeout),
            max_timeout: limits.max_timeout,
            pending_bodies: PendingBodies::new(&limits),
            ledger: Mutex::new(Ledger::new(limits)),
            actor: Mutex::default(),
            node: OnceLock::new(),
            metrics,
            offload: Offload::of_node(Handle::current()),
        }
    }

    /// Takes a permit, or uses that of `root` while that call has no outcome.
    pub(crate) fn take_permit(
        self: &Arc<Self>,
        now: Instant,
        route: RouteIndex,
        bytes: u64,
        root: Option<&Permit>,
    ) -> Result<Arc<Permit>, Refusal> {
        let key = self.enter(now, route, bytes, root)?;
        let (gateway, inner, is_kept) = (Arc::clone(self), AtomicU16::new(0), AtomicBool::new(false));
        Ok(Arc::new(Permit { gateway, key, inner, is_kept }))
    }

    /// Opens a line of the ledger, on the permit of `root` while that call has no outcome.
    fn enter(&self, now: Instant, route: RouteIndex, bytes: u64, root: Option<&Permit>) -> Result<u32, Refusal> {
        let mut ledger = self.ledger.lock();
        let root = root.filter(|root| self.carries(root, &ledger));
        if let Some(root) = root {
            root.take_inner()?;
        }
        let key = ledger.admit(now, route, bytes, root.is_some());
        key.inspect_err(|_| root.into_iter().for_each(Permit::give_inner_back))
    }

    /// Whether a call may use this permit. The line may be that of another node in this process.
    fn carries(&self, root: &Permit, ledger: &Ledger) -> bool {
        std::ptr::eq(&*root.gateway, self) && ledger.is_open(root.line())
    }

    /// Whether a permit for this many bytes is free. Takes none.
    pub(crate) fn check_permit(&self, bytes: u64, root: Option<&Permit>) -> Result<(), Refusal> {
        let ledger = self.ledger.lock();
        ledger.check(bytes, root.is_some_and(|root| self.carries(root, &ledger)))
    }

    /// Counts a call that waits for more of its body.
    pub(crate) fn begin_body(&self) -> Result<PendingBody, CallError> {
        self.pending_bodies.begin()
    }

    /// The threads for large payloads.
    pub(crate) fn offload(&self) -> &Offload {
        &self.offload
    }

    pub(crate) fn set_actor(&self, actor: ActorRef<GatewayMessage>) {
        *self.actor.lock() = Some(actor);
    }

    pub(crate) fn set_node(&self, node: Weak<dyn HostNode>) {
        let _ = self.node.set(node);
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

    #[cfg(feature = "testing")]
    pub(crate) fn take_peak_bytes(&self) -> u64 {
        self.ledger.lock().take_peak_bytes()
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.ledger.lock().admitted()
    }

    pub(crate) fn default_timeout(&self) -> Duration {
        self.default_timeout
    }

    /// The longest time for a call.
    pub(crate) fn max_timeout(&self) -> Duration {
        self.max_timeout
    }

    pub(crate) fn limits(&self) -> Limits {
        self.ledger.lock().limits().clone()
    }

    /// Reads the lines of the ledger under its lock.
    pub(crate) fn with_lines<T>(&self, read: impl FnOnce(&mut dyn Iterator<Item = &LedgerLine>) -> T) -> T {
        read(&mut self.ledger.lock().lines())
    }

    pub(crate) fn overdue(&self, now: Instant) -> Vec<(CallId, RouteIndex)> {
        let ledger = self.ledger.lock();
        ledger.overdue(now).map(|line| (line.id, line.route)).collect()
    }

    /// Counts a refused charge, and converts it to the codec's error.
    fn refuse_charge(&self, refusal: &Refusal) -> ChargeError {
        self.metrics.refused(CallRefusal::Bytes);
        let max = |limit| usize::try_from(limit).unwrap_or(usize::MAX);
        match *refusal {
            Refusal::TooLarge { limit, .. } => ChargeError::too_large(MAX_IN_FLIGHT_BYTES, max(limit)),
            Refusal::TooManyBytes { limit, .. } => ChargeError::exhausted(MAX_IN_FLIGHT_BYTES, max(limit)),
            _ => ChargeError::exhausted(MAX_IN_FLIGHT_BYTES, 0),
        }
    }

    /// Counts a refusal, and converts it to the caller's error.
    pub(crate) fn refuse(&self, refusal: Refusal) -> CallError {
        self.metrics.refused(match refusal {
            Refusal::Draining => CallRefusal::Draining,
            Refusal::TooManyCalls { .. } | Refusal::TooManyInnerCalls { .. } => CallRefusal::Calls,
            Refusal::TooManyBytes { .. } | Refusal::TooLarge { .. } => CallRefusal::Bytes,
            Refusal::RouteFull { .. } => CallRefusal::Route,
        });
        match refusal {
            Refusal::Draining => CallError::new(ErrorKind::Unavailable, refusal.to_string()),
            // Waiting does not help.
            Refusal::TooLarge { .. } => {
                CallError::new(ErrorKind::InvalidInput, refusal.to_string()).with_reason(ErrorReason::TooLarge)
            }
            Refusal::TooManyCalls { .. }
            | Refusal::TooManyInnerCalls { .. }
            | Refusal::TooManyBytes { .. }
            | Refusal::RouteFull { .. } => CallError::overloaded(refusal.to_string(), RETRY_AFTER),
        }
    }
}

/// The permit and the account of one call. All memory that the node holds for the call is charged to it.
#[derive(Debug)]
pub(crate) struct Permit {
    gateway: Arc<Gateway>,
    /// Its line in the ledger. A small type, because each waiting call has one.
    key: u32,
    /// The count of inner calls that use it.
    inner: AtomicU16,
    /// Whether an edge keeps the account, and gives back the charged bytes after it has written the outcome.
    is_kept: AtomicBool,
}

impl Permit {
    fn line(&self) -> usize {
        self.key as usize
    }

    pub(crate) fn is_of_node_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.gateway, &other.gateway)
    }

    pub(crate) fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// The number of its call on this node.
    pub(crate) fn id(&self) -> CallId {
        self.gateway.ledger.lock().id_of(self.line())
    }

    /// Counts the account among those of a request. A second request changes nothing.
    pub(crate) fn join(&self, request: &RequestBytes) {
        self.gateway.ledger.lock().join(self.line(), request);
    }

    /// Charges `bytes` more to the call.
    pub(crate) fn grow(&self, bytes: u64) -> Result<(), CallError> {
        let grown = self.gateway.ledger.lock().grow(self.line(), bytes);
        grown.map_err(|refusal| self.gateway.refuse(refusal))
    }

    /// Gives back `bytes` that were charged to the call.
    pub(crate) fn shrink(&self, bytes: u64) {
        self.gateway.ledger.lock().shrink(self.line(), bytes);
    }

    /// Restarts the age of the call at `now`.
    pub(crate) fn restart(&self, now: Instant) {
        self.gateway.ledger.lock().restart(self.line(), now);
    }

    /// An edge keeps the account from now on, and gives back the charged bytes after it has written the outcome.
    pub(crate) fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }

    /// Gives back the charged bytes, unless an edge keeps the account.
    pub(crate) fn settle(&self) {
        if !self.is_kept.load(Ordering::Relaxed) {
            self.refund_all();
        }
    }

    /// The call has its outcome and is no longer in flight. `root` is the permit that an inner call uses.
    pub(crate) fn close(&self, root: Option<&Self>) {
        let gateway = &self.gateway;
        let emptied = {
            let mut ledger = gateway.ledger.lock();
            if ledger.close(self.line())
                && let Some(root) = root
            {
                root.give_inner_back();
            }
            ledger.is_draining() && ledger.in_flight() == 0
        };
        if emptied && let Some(actor) = &*gateway.actor.lock() {
            let _ = actor.send_message(GatewayMessage::Emptied);
        }
    }

    /// The route that its call was admitted for.
    pub(crate) fn route(&self) -> Option<RouteName> {
        let index = self.gateway.ledger.lock().route_of(self.line());
        self.node()?.route_name(index)
    }

    fn take_inner(&self) -> Result<(), Refusal> {
        let take = |inner| (inner < MAX_INNER_CALLS).then_some(inner + 1);
        let taken = self.inner.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map(drop).map_err(|limit| Refusal::TooManyInnerCalls { limit })
    }

    fn give_inner_back(&self) {
        self.inner.fetch_sub(1, Ordering::Relaxed);
    }

    /// The node, while there is one.
    pub(crate) fn node(&self) -> Option<Arc<dyn HostNode>> {
        self.gateway.node.get()?.upgrade()
    }
}

impl Account for Permit {
    fn charge(&self, bytes: usize) -> Result<(), ChargeError> {
        // Frees the lock before the refusal is built.
        let grown = self.gateway.ledger.lock().grow(self.line(), bytes as u64);
        grown.map_err(|refusal| self.gateway.refuse_charge(&refusal))
    }

    fn refund(&self, bytes: usize) {
        self.gateway.ledger.lock().shrink(self.line(), bytes as u64);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.gateway.ledger.lock().remove(self.line());
    }
}

/// Bytes of the node that belong to no call: read before the call begins, or held in addition to it. They count against
/// no call limit. Dropping it gives them back.
#[derive(Debug)]
pub struct HeldBytes {
    gateway: Arc<Gateway>,
    bytes: AtomicU64,
    /// Set if the request has other accounts as well.
    request: OnceLock<RequestBytes>,
}

impl HeldBytes {
    pub(crate) fn none_of(gateway: &Arc<Gateway>) -> Self {
        Self { gateway: Arc::clone(gateway), bytes: AtomicU64::new(0), request: OnceLock::new() }
    }

    /// Counts this account among those of a request. A second request changes nothing.
    pub fn join(&self, request: &RequestBytes) {
        if self.request.set(request.clone()).is_ok() {
            request.add(self.bytes());
        }
    }

    /// The held bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The byte limit of the node for all accounts together.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.gateway.ledger.lock().max_bytes()
    }

    /// Takes `bytes` more if they are free now. A failure is not counted as a refusal: the caller may wait.
    #[must_use]
    pub fn try_grow(&self, bytes: u64) -> bool {
        let taken = self.gateway.ledger.lock().take_patiently(bytes).is_ok();
        if taken {
            self.count(bytes);
        }
        taken
    }

    /// Takes `bytes` more.
    ///
    /// # Errors
    ///
    /// `Overloaded` if the node's bytes are all taken, `InvalidInput` if these and the held bytes alone exceed the
    /// node's limit. The held bytes stay.
    pub fn grow(&self, bytes: u64) -> Result<(), CallError> {
        self.take(bytes).map_err(|refusal| self.gateway.refuse(refusal))
    }

    fn take(&self, bytes: u64) -> Result<(), Refusal> {
        let own = self.request.get().map_or_else(|| self.bytes(), RequestBytes::sum);
        self.gateway.ledger.lock().take(own, bytes)?;
        self.count(bytes);
        Ok(())
    }

    fn count(&self, bytes: u64) {
        // Before the bytes can be given back, so that the sum is never below what is removed from it.
        self.request.get().into_iter().for_each(|request| request.add(bytes));
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives all of them back.
    pub fn release(&self) {
        self.refund_all();
    }
}

impl Account for HeldBytes {
    fn charge(&self, bytes: usize) -> Result<(), ChargeError> {
        self.take(bytes as u64).map_err(|refusal| self.gateway.refuse_charge(&refusal))
    }

    fn refund(&self, bytes: usize) {
        let left = |held: u64| Some(held.saturating_sub(bytes as u64));
        let held = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).unwrap_or_default();
        let given_back = held.min(bytes as u64);
        self.request.get().into_iter().for_each(|request| request.remove(given_back));
        self.gateway.ledger.lock().give_back(given_back);
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.release();
    }
}
