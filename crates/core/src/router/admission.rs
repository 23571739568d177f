//! The right of one call to run on a route: the permits of the gateway and the route, taken and freed together.

use std::sync::Arc;
use std::time::Duration;

use callboard_codec::Account;

use super::route::{HeldRoute, Route};
use crate::call::{CallOptions, Flight, OuterCall};
use crate::clock::{self, Instant};
use crate::deadline::Deadline;
use crate::error::CallError;
use crate::gateway::{Gateway, HeldBytes, Permit, Refusal, RequestBytes};
use crate::id::CallId;

impl Gateway {
    /// Admits a call that arrives now.
    pub(crate) fn admit(self: &Arc<Self>, route: HeldRoute, bytes: u64) -> Result<Admission, CallError> {
        self.try_admit_at(clock::now(), route, bytes, None).map_err(|refusal| self.refuse(refusal))
    }

    /// Admits a call that arrived at `now`. A refusal is not counted: the caller may wait. An inner call uses the
    /// permit of its outer call, while that call is in flight.
    pub(crate) fn try_admit_at(
        self: &Arc<Self>,
        now: Instant,
        route: HeldRoute,
        bytes: u64,
        outer: Option<&Arc<OuterCall>>,
    ) -> Result<Admission, Refusal> {
        route.enter()?;
        let permit = self.take_permit(now, route.index(), bytes, outer.and_then(root_of));
        let permit = permit.inspect_err(|_| route.leave())?;
        Ok(Admission { permit, route, admitted_at: now, outer: outer.cloned() })
    }

    /// Whether a call could be admitted now, with the permit of its outer call if it has one. Takes nothing.
    pub(crate) fn check_room(
        &self,
        route: &Route,
        bytes: u64,
        outer: Option<&Arc<OuterCall>>,
    ) -> Result<(), CallError> {
        let room = route.check_room().and_then(|()| self.check_permit(bytes, outer.and_then(root_of)));
        room.map_err(|refusal| self.refuse(refusal))
    }

    /// The timeout of a call of this route, whose caller may set `timeout`.
    pub(crate) fn timeout_of(&self, route: &Route, timeout: Option<Duration>) -> Duration {
        let timeout = timeout.or_else(|| route.default_timeout()).unwrap_or_else(|| self.default_timeout());
        timeout.min(self.max_timeout_of(route))
    }

    /// The longest time for a call of this route.
    pub(crate) fn max_timeout_of(&self, route: &Route) -> Duration {
        let of_node = self.max_timeout();
        route.max_timeout().map_or(of_node, |own| own.min(of_node))
    }
}

impl Flight {
    /// The flight of the admitted call, with its caller's options.
    #[must_use]
    pub(crate) fn admitted(self, admission: &Admission, options: &CallOptions) -> Self {
        let mut flight = self.with_permit(Arc::clone(&admission.permit), admission.outer.as_ref(), options);
        flight.is_on_candidate = admission.route.is_candidate();
        flight
    }
}

/// The right of a call to run: its permits, its account, its line in the ledger. Dropping it frees the permits. The
/// charged bytes go back after the last work for the call.
#[derive(Debug)]
pub struct Admission {
    permit: Arc<Permit>,
    route: HeldRoute,
    admitted_at: Instant,
    /// The outer call of an inner call.
    outer: Option<Arc<OuterCall>>,
}

impl Admission {
    /// The admitted route: the newest revision of its name.
    #[must_use]
    pub fn route(&self) -> &Arc<Route> {
        &self.route
    }

    pub(crate) fn gateway(&self) -> &Arc<Gateway> {
        self.permit.gateway()
    }

    /// The number of this call on this node.
    #[must_use]
    pub fn id(&self) -> CallId {
        self.permit.id()
    }

    /// When the call was admitted. A timeout counts from here, so that it covers the reading of the body.
    #[must_use]
    pub fn admitted_at(&self) -> Instant {
        self.admitted_at
    }

    /// The deadline of the call: `timeout` after its admission, else the default of the route or the node. Never later
    /// than the route and the node allow.
    #[must_use]
    pub fn deadline(&self, timeout: Option<Duration>) -> Deadline {
        Deadline::after(self.admitted_at, self.permit.gateway().timeout_of(&self.route, timeout))
    }

    /// The latest deadline that the route and the node allow.
    pub(crate) fn latest_deadline(&self) -> Deadline {
        Deadline::after(self.admitted_at, self.permit.gateway().max_timeout_of(&self.route))
    }

    /// The latest deadline that the node allows.
    pub(crate) fn latest_deadline_of_node(&self) -> Deadline {
        Deadline::after(self.admitted_at, self.permit.gateway().max_timeout())
    }

    /// Counts the account of the call among those of its request. A second request changes nothing.
    pub fn join(&self, request: &RequestBytes) {
        self.permit.join(request);
    }

    /// Charges `bytes` more to the call: its body is longer than announced.
    ///
    /// # Errors
    ///
    /// `Overloaded` if the node's bytes are all taken, `InvalidInput` if all accounts of its request together
    /// exceed the node's limit. The admission stays valid.
    pub fn grow(&self, bytes: u64) -> Result<(), CallError> {
        self.permit.grow(bytes)
    }

    /// Gives back `bytes` that were charged to the call.
    pub fn shrink(&self, bytes: u64) {
        self.permit.shrink(bytes);
    }

    /// The account of the call, for decoding and encoding. It keeps the charged bytes, but not the permit.
    #[must_use]
    pub fn account(&self) -> Arc<dyn Account> {
        self.permit.keep();
        Arc::clone(&self.permit) as Arc<dyn Account>
    }

    /// Restarts the time of the call at `now`: the permit was taken before the call.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.admitted_at = now;
        self.permit.restart(now);
    }

    /// An account for further bytes, which may be given back before the call ends, or outlive it.
    #[must_use]
    pub fn beside(&self) -> HeldBytes {
        HeldBytes::none_of(self.permit.gateway())
    }

    /// Gives back the charged bytes: the call has ended, and no work runs for it. Not while an edge keeps the account,
    /// because the outcome may share the memory of the input.
    pub(crate) fn settle(&self) {
        self.permit.settle();
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.route.leave();
        self.permit.close(self.outer.as_ref().and_then(root_of));
    }
}

/// The permit of the outermost call.
fn root_of(outer: &Arc<OuterCall>) -> Option<&Permit> {
    outer.outermost().permit.as_deref()
}
