//! The data of a call's caller that affects no decision.

use std::fmt;
use std::sync::Arc;

use super::context::OuterCall;
use super::isolated::NodeElsewhere;
use super::options::CallOptions;
use crate::timeline::Recorder;

/// Names with values, few enough for a linear search. Inner calls share them.
type Pairs = Vec<(Arc<str>, Arc<str>)>;

/// The caller's data for user code. Most calls in process have none.
#[derive(Clone, Default)]
pub(crate) struct Origin {
    pub(crate) request_id: Option<Box<str>>,
    pub(crate) traceparent: Option<Box<str>>,
    pub(crate) caller: Option<Box<str>>,
    pub(crate) headers: Pairs,
    pub(crate) tags: Pairs,
    /// The recorder of the call, if it has one.
    pub(crate) recorder: Option<Recorder>,
    /// The outer call, if user code made this call.
    pub(crate) outer: Option<Arc<OuterCall>>,
    /// The node of an isolated replica, if this is one.
    pub(crate) node: Option<NodeElsewhere>,
}

impl Origin {
    /// The origin of an admitted call. It inherits missing options from its outer call. Most calls have no origin, so a
    /// waiting call has room for a pointer only.
    pub(crate) fn from_options(options: &CallOptions, outer: Option<&Arc<OuterCall>>) -> Option<Arc<Self>> {
        if outer.is_none() && options.recorder().is_none() {
            return options.origin().cloned();
        }
        let mut origin = options.origin().map(|own| Self::clone(own)).unwrap_or_default();
        if let Some(around) = outer.and_then(|outer| outer.flight.origin.as_deref()) {
            origin.request_id = origin.request_id.or_else(|| around.request_id.clone());
            origin.traceparent = origin.traceparent.or_else(|| around.traceparent.clone());
            origin.caller = origin.caller.or_else(|| around.caller.clone());
            origin.recorder.clone_from(&around.recorder);
            origin.node.clone_from(&around.node);
            inherit(&mut origin.headers, &around.headers);
            inherit(&mut origin.tags, &around.tags);
        }
        origin.recorder = options.recorder().cloned().or(origin.recorder);
        origin.outer = outer.cloned();
        Some(Arc::new(origin))
    }

    /// The same origin for a copy of its call: without an outer call, and not recorded.
    pub(crate) fn for_copy(&self) -> Self {
        Self { outer: None, recorder: None, ..self.clone() }
    }

    /// The same origin without an outer call.
    pub(crate) fn alone(self: Arc<Self>) -> Arc<Self> {
        let origin = Arc::unwrap_or_clone(self);
        Arc::new(Self { outer: None, node: None, ..origin })
    }
}

/// Names only: values may be secrets.
impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |pairs: &Pairs| pairs.iter().map(|(name, _)| Arc::clone(name)).collect::<Vec<_>>();
        f.debug_struct("Origin")
            .field("request_id", &self.request_id)
            .field("traceparent", &self.traceparent)
            .field("caller", &self.caller)
            .field("headers", &names(&self.headers))
            .field("tags", &names(&self.tags))
            .finish_non_exhaustive()
    }
}

fn inherit(own: &mut Pairs, outer: &Pairs) {
    let new = outer.iter().filter(|(name, _)| find(own, name).is_none()).cloned().collect::<Pairs>();
    own.extend(new);
}

pub(crate) fn pairs(pairs: &Pairs) -> impl Iterator<Item = (&str, &str)> {
    pairs.iter().map(|(name, value)| (&**name, &**value))
}

pub(crate) fn find<'a>(pairs: &'a Pairs, name: &str) -> Option<&'a str> {
    pairs.iter().find(|(known, _)| **known == *name).map(|(_, value)| &**value)
}
