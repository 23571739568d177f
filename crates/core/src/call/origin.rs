//! The data of a call's caller that affects no decision.

use std::fmt;
use std::sync::Arc;

use tracing::{Level, Span, level_enabled};

use super::attributes::{Attributes, PairKind, RequestFact};
use super::context::OuterCall;
use super::isolated::NodeElsewhere;
use super::options::CallOptions;
use crate::error::CallError;
use crate::timeline::Recorder;

/// The caller's data for user code. Most calls in process have none.
#[derive(Clone, Default)]
pub(crate) struct Origin {
    pub(crate) request_id: Option<Box<str>>,
    pub(crate) traceparent: Option<Box<str>>,
    pub(crate) caller: Option<Box<str>>,
    /// Headers, query parameters, path and tags, if there is one of these.
    pub(crate) attributes: Option<Box<Attributes>>,
    /// Whether it takes neither caller nor attributes from an outer call.
    pub(crate) is_for_several_callers: bool,
    /// The recorder of the call, if it has one.
    pub(crate) recorder: Option<Recorder>,
    /// The outer call, if user code made this call.
    pub(crate) outer: Option<Arc<OuterCall>>,
    /// The node of an isolated replica, if this is one.
    pub(crate) node: Option<NodeElsewhere>,
    /// The span in which its caller made the call, if a subscriber has one.
    pub(crate) span: Option<Box<Span>>,
}

/// The span of the code that makes a call. Without a subscriber this is one comparison.
fn current_span() -> Option<Box<Span>> {
    level_enabled!(Level::ERROR).then(Span::current).filter(|span| !span.is_none()).map(Box::new)
}

impl Origin {
    /// The origin of an admitted call. It inherits missing options from its outer call. Most calls have no origin, so a
    /// waiting call has room for a pointer only.
    pub(crate) fn from_options(options: &CallOptions, outer: Option<&Arc<OuterCall>>) -> Option<Arc<Self>> {
        let span = current_span();
        if outer.is_none() && options.recorder().is_none() && span.is_none() {
            return options.origin().cloned();
        }
        let mut origin = options.origin().map(|own| Self::clone(own)).unwrap_or_default();
        if let Some(around) = outer.and_then(|outer| outer.flight.origin.as_deref()) {
            origin.request_id = origin.request_id.or_else(|| around.request_id.clone());
            origin.traceparent = origin.traceparent.or_else(|| around.traceparent.clone());
            origin.recorder.clone_from(&around.recorder);
            origin.node.clone_from(&around.node);
            if !origin.is_for_several_callers {
                origin.caller = origin.caller.or_else(|| around.caller.clone());
                origin.inherit(around.attributes.as_deref());
            }
        }
        origin.recorder = options.recorder().cloned().or(origin.recorder);
        origin.outer = outer.cloned();
        origin.span = span.or(origin.span);
        Some(Arc::new(origin))
    }

    fn inherit(&mut self, outer: Option<&Attributes>) {
        match (&mut self.attributes, outer) {
            (Some(own), Some(outer)) => own.inherit(outer),
            (own, outer) => *own = own.take().or_else(|| outer.cloned().map(Box::new)),
        }
    }

    pub(crate) fn find(&self, kind: PairKind, name: &str) -> Option<&str> {
        self.attributes.as_ref()?.find(kind, name)
    }

    pub(crate) fn pairs(&self, kind: PairKind) -> impl Iterator<Item = (&str, &str)> {
        self.attributes.iter().flat_map(move |attributes| attributes.pairs(kind))
    }

    pub(crate) fn fact(&self, fact: RequestFact) -> Option<&str> {
        self.attributes.as_ref()?.get(fact)
    }

    pub(crate) fn attribute_bytes(&self) -> usize {
        self.attributes.as_ref().map_or(0, |attributes| attributes.bytes())
    }

    /// See [`CallOptions::check`].
    pub(crate) fn check(&self) -> Result<(), CallError> {
        self.attributes.as_ref().map_or(Ok(()), |attributes| attributes.check())
    }

    /// The same origin for a copy of its call: without an outer call, not recorded, and no part of its caller's span.
    pub(crate) fn for_copy(&self) -> Self {
        Self { outer: None, recorder: None, span: None, ..self.clone() }
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
        let names = |kind| self.pairs(kind).map(|(name, _)| name).collect::<Vec<_>>();
        f.debug_struct("Origin")
            .field("request_id", &self.request_id)
            .field("traceparent", &self.traceparent)
            .field("caller", &self.caller)
            .field("headers", &names(PairKind::Header))
            .field("query", &names(PairKind::QueryParameter))
            .field("tags", &names(PairKind::Tag))
            .finish_non_exhaustive()
    }
}
