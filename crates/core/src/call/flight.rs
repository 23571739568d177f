//! The flight: the shared state of one admitted call.
//!
//! * **Late, cancelled:** noted here. Every part checks this before it begins work for the call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use callboard_codec::{charged_to, charged_up_to};
use once_cell::race::OnceBox;
use parking_lot::Mutex;
use tracing::Span;

use super::attributes::Attributes;
use super::context::OuterCall;
use super::options::{CallOptions, Priority, traceparent};
use super::origin::Origin;
use super::response::ResponseFields;
use super::session::SessionKey;
use crate::clock::Instant;
use crate::containment::{CaughtPanic, contain};
use crate::deadline::Deadline;
use crate::error::{CallError, ErrorKind};
use crate::gateway::Permit;
use crate::id::{RouteName, StageName};
use crate::metrics::CacheUse;
use crate::offload::{CodecBudget, LARGE_BYTES, off_the_runtime};
use crate::timeline::{Account, Phase, Recorder, Timing};

/// The caller of a call has left.
const ABANDONED: u8 = 1;
/// Its time is up.
const LATE: u8 = 2;

/// One admitted call, shared by its caller and all of its entries.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) deadline: Deadline,
    pub(crate) priority: Priority,
    pub(crate) session: Option<SessionKey>,
    /// Whether it waits for a permit of a full queue instead of being refused.
    pub(crate) is_patient: bool,
    /// Whether it was given up: 0, [`ABANDONED`] or [`LATE`]. One byte: each waiting call pays for it.
    given_up: AtomicU8,
    /// Whether its caller has no other call in its task.
    pub(crate) is_alone: bool,
    /// Whether its stages run on this node only.
    pub(crate) stays_here: bool,
    /// Whether it runs on the candidate of a rollout: other nodes have another revision of its stages.
    pub(crate) is_on_candidate: bool,
    /// The permit. It keeps the charged bytes while any work for the call continues.
    pub(crate) permit: Option<Arc<Permit>>,
    account: Account,
    /// Its caller's data, if any.
    pub(crate) origin: Option<Arc<Origin>>,
    /// Whether a stage has run for it on another node that must not run it a second time.
    ran_once: AtomicBool,
    /// The use of its stages' caches: 0, or the place of a [`CacheUse`] from 1 on.
    cache_use: AtomicU8,
    /// What few calls have: each waiting call pays for the size of this struct.
    rare: OnceBox<Rare>,
}

#[derive(Debug, Default)]
struct Rare {
    /// The call of which this is one branch.
    parent: Option<Arc<Flight>>,
    /// What its stages have chosen for its answer, and how often.
    response: Mutex<(u32, ResponseFields)>,
}

impl Flight {
    pub(crate) fn new(deadline: Deadline, priority: Priority) -> Self {
        Self {
            deadline,
            priority,
            session: None,
            is_patient: false,
            is_alone: false,
            given_up: AtomicU8::new(0),
            stays_here: false,
            is_on_candidate: false,
            permit: None,
            account: Account::new(),
            origin: None,
            ran_once: AtomicBool::new(false),
            cache_use: AtomicU8::new(0),
            rare: OnceBox::new(),
        }
    }

    /// A call whose caller limits its own calls: it waits for capacity instead of being refused.
    pub(crate) fn patient(deadline: Deadline, priority: Priority) -> Self {
        Self { is_patient: true, ..Self::new(deadline, priority) }
    }

    /// The same call with its permit and its caller's options. An inner call inherits options from its outer call, and
    /// stays on this node if the outer call came from another node.
    #[must_use]
    pub(crate) fn with_permit(
        mut self,
        permit: Arc<Permit>,
        outer: Option<&Arc<OuterCall>>,
        options: &CallOptions,
    ) -> Self {
        let within = outer.map(|outer| &outer.flight);
        self.deadline = within.map_or(self.deadline, |outer| self.deadline.min(outer.deadline));
        self.priority = options.priority().or_else(|| within.map(|outer| outer.priority)).unwrap_or(self.priority);
        self.session = options.session();
        self.origin = Origin::from_options(options, outer);
        self.stays_here = within.is_some_and(|outer| outer.stays_here);
        self.permit = Some(permit);
        self
    }

    /// A part of a call that can be given up alone.
    pub(crate) fn branch_of(parent: &Arc<Self>) -> Self {
        let (is_patient, own) = (parent.is_patient, Self::new(parent.deadline, parent.priority));
        Self {
            is_patient,
            session: parent.session,
            stays_here: parent.stays_here,
            is_on_candidate: parent.is_on_candidate,
            permit: parent.permit.clone(),
            origin: parent.origin.clone(),
            rare: OnceBox::with_value(Box::new(Rare { parent: Some(Arc::clone(parent)), ..Rare::default() })),
            ..own
        }
    }

    /// Whether none of its stages may run on another node.
    pub(crate) fn must_stay(&self) -> bool {
        self.stays_here || self.is_on_candidate
    }

    /// The called route, if it was called on this node.
    pub(crate) fn route(&self) -> Option<RouteName> {
        let permit = self.permit.as_ref().filter(|_| !self.comes_from_a_peer());
        permit?.route()
    }

    pub(crate) fn request_id(&self) -> Option<&str> {
        self.origin.as_ref()?.request_id.as_deref()
    }

    /// The span in which its caller made it.
    pub(crate) fn caller_span(&self) -> Option<&Span> {
        self.origin.as_ref()?.span.as_deref()
    }

    /// The authenticated name of its caller.
    pub(crate) fn caller(&self) -> Option<&str> {
        self.origin.as_ref()?.caller.as_deref()
    }

    /// What its caller attached, and what its route reads of its request.
    pub(crate) fn attributes(&self) -> Option<&Attributes> {
        self.origin.as_ref()?.attributes.as_deref()
    }

    /// Whether it has values that no other process can have.
    pub(crate) fn has_extensions(&self) -> bool {
        self.attributes().is_some_and(|attributes| !attributes.extensions.is_empty())
    }

    fn comes_from_a_peer(&self) -> bool {
        self.stays_here && self.outer().is_none()
    }

    /// Its own place in a trace, else that of its caller.
    pub(crate) fn traceparent(&self) -> Option<String> {
        traceparent(self.recorder(), self.origin.as_deref())
    }

    /// Whether one of its outer calls is in this stage of this node.
    pub(crate) fn is_inside(&self, stage: &StageName) -> bool {
        let is_of_node = |outer: &&Arc<OuterCall>| match (&self.permit, &outer.flight.permit) {
            (Some(own), Some(other)) => own.is_of_node_of(other),
            _ => false,
        };
        std::iter::successors(self.outer(), |outer| outer.flight.outer())
            .filter(is_of_node)
            .any(|outer| outer.stage == *stage)
    }

    /// The outer call of an inner call.
    pub(crate) fn outer(&self) -> Option<&Arc<OuterCall>> {
        self.origin.as_ref()?.outer.as_ref()
    }

    /// The recorder of the call, if it has one.
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.origin.as_ref()?.recorder.as_ref()
    }

    fn parent(&self) -> Option<&Arc<Self>> {
        self.rare.get().and_then(|rare| rare.parent.as_ref())
    }

    /// Ends one phase of the call and begins the next. All branches share the account of the call.
    pub(crate) fn enter(&self, phase: Phase, now: Instant) {
        match self.parent() {
            Some(parent) => parent.enter(phase, now),
            None => self.account.enter(phase, self.deadline, now),
        }
    }

    /// A stage may have run for the call on a node that must not run it a second time.
    pub(crate) fn set_ran_once(&self) {
        match self.parent() {
            Some(parent) => parent.set_ran_once(),
            None => self.ran_once.store(true, Ordering::Relaxed),
        }
    }

    /// Whether a stage may have run for the call that must not run a second time, by the node that ran it.
    pub(crate) fn ran_once(&self) -> bool {
        self.parent().map_or_else(|| self.ran_once.load(Ordering::Relaxed), |parent| parent.ran_once())
    }

    /// A stage with a cache has answered.
    pub(crate) fn set_cache_use(&self, how: CacheUse) {
        match self.parent() {
            Some(parent) => parent.set_cache_use(how),
            None => _ = self.cache_use.fetch_max(how as u8 + 1, Ordering::Relaxed),
        }
    }

    /// The use of its stages' caches; `None` without a cache.
    pub(crate) fn cache_use(&self) -> Option<CacheUse> {
        let place = self.cache_use.load(Ordering::Relaxed).checked_sub(1)?;
        CacheUse::ALL.get(usize::from(place)).copied()
    }

    /// A stage chooses status and headers of the answer. The last stage wins.
    pub(crate) fn set_response(&self, fields: ResponseFields) {
        match self.parent() {
            Some(parent) => parent.set_response(fields),
            None => {
                let rare = self.rare.get_or_init(Box::default);
                let (choices, chosen) = &mut *rare.response.lock();
                *choices += 1;
                chosen.replace_by(fields);
            }
        }
    }

    /// What its stages have chosen for its answer; `None` if nothing.
    pub(crate) fn response(&self) -> Option<ResponseFields> {
        match self.parent() {
            Some(parent) => parent.response(),
            None => {
                let response = self.rare.get()?.response.lock();
                (response.0 > 0).then(|| response.1.clone())
            }
        }
    }

    /// How often its stages have chosen.
    pub(crate) fn choices(&self) -> u32 {
        match self.parent() {
            Some(parent) => parent.choices(),
            None => self.rare.get().map_or(0, |rare| rare.response.lock().0),
        }
    }

    /// Its times so far, for an error without an outcome.
    pub(crate) fn spent(&self, now: Instant) -> Timing {
        self.account.spent(self.deadline, now)
    }

    /// Adds to the call's error the times of the call and, for a deadline, whether user code had started.
    pub(crate) fn with_timing(&self, error: CallError, now: Instant) -> CallError {
        let started = error.kind() == ErrorKind::DeadlineExceeded && self.account.has_started();
        error.after(self.spent(now)).after_start(started)
    }

    /// Runs a conversion of its payload and charges it to the call's account.
    pub(crate) fn charged<T>(&self, convert: impl FnOnce() -> T) -> T {
        match self.account() {
            Some(account) => charged_to(&account, convert),
            None => convert(),
        }
    }

    /// Runs user code that reads payloads in the caller's future. What it decodes, from envelopes of this length, is
    /// charged to the call; long ones are decoded off the runtime.
    pub(crate) fn reading<T>(&self, encoded_bytes: usize, code: impl FnOnce() -> T) -> T {
        if encoded_bytes == 0 { code() } else { off_the_runtime(encoded_bytes, || self.charged(code)) }
    }

    /// Runs the code of a user's type at the expense of the call. If that turns out to be much, it runs again off the
    /// runtime: no type tells in advance what it becomes.
    ///
    /// # Errors
    ///
    /// The panic that ended it.
    pub(crate) fn convert<T>(&self, work: impl Fn() -> T) -> Result<T, CaughtPanic> {
        contain(|| match self.account() {
            None => work(),
            Some(account) => charged_up_to(LARGE_BYTES, &account, &work)
                .unwrap_or_else(|| off_the_runtime(LARGE_BYTES, || charged_to(&account, &work))),
        })
    }

    /// Decodes and encodes for the call by the rule of its node; `None` if no node has admitted it.
    pub(crate) fn budget(&self) -> Option<CodecBudget<'_>> {
        let permit = self.permit.as_ref()?;
        Some(CodecBudget::new(permit.gateway().offload(), Arc::clone(permit) as _, self.deadline))
    }

    /// The account of its call, if that was admitted here.
    pub(crate) fn account(&self) -> Option<Arc<dyn callboard_codec::Account>> {
        self.permit.as_ref().map(|permit| Arc::clone(permit) as Arc<dyn callboard_codec::Account>)
    }

    /// Marks that the caller left. Work for the call must not begin after this.
    pub(crate) fn abandon(&self) {
        self.given_up.fetch_max(ABANDONED, Ordering::Release);
    }

    /// The caller reports that its time is up before its deadline.
    pub(crate) fn expire(&self) {
        self.given_up.store(LATE, Ordering::Release);
    }

    /// Whether its deadline passed; false if only its caller left.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.given_up.load(Ordering::Acquire) == LATE || self.deadline.is_expired(now)
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.given_up.load(Ordering::Acquire) != 0
            || match self.parent() {
                // A branch shares the outer call of its parent.
                Some(parent) => parent.is_abandoned(),
                None => self.outer().is_some_and(|outer| outer.flight.is_abandoned()),
            }
    }

    /// Whether user code may still start for this call.
    pub(crate) fn is_wanted(&self, now: Instant) -> bool {
        !self.is_abandoned() && !self.deadline.is_expired(now)
    }
}
