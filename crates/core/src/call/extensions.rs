//! Typed values of a call for user code: what a program's own code knows of a request, such as a layer around a mounted
//! edge. They stay in this process, unlike [attributes](super::attributes).

use std::any::{TypeId, type_name};
use std::fmt;
use std::sync::Arc;

use http::Extensions;

use super::options::CallOptions;

/// The values of one call, one of each type. Inner calls share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallExtensions(Option<Arc<Extensions>>);

impl CallExtensions {
    pub(crate) fn insert<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        Arc::make_mut(self.0.get_or_insert_default()).insert(value);
    }

    pub(crate) fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.0.as_ref()?.get()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Takes the values whose types it has not from the outer call.
    pub(crate) fn inherit(&mut self, outer: &Self) {
        self.0 = match (self.0.take(), &outer.0) {
            (Some(own), Some(outer)) => {
                let mut all = Extensions::clone(outer);
                all.extend(Arc::unwrap_or_clone(own));
                Some(Arc::new(all))
            }
            (own, outer) => own.or_else(|| outer.clone()),
        };
    }
}

/// The values may not be comparable, so only shared ones count as equal.
impl PartialEq for CallExtensions {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        }
    }
}

impl Eq for CallExtensions {}

/// A type whose value of a request the code of a route reads; see [`RouteSpec::extension`](crate::RouteSpec::extension).
#[derive(Clone, Copy)]
pub struct RequestExtension {
    id: TypeId,
    name: &'static str,
    copy: fn(&Extensions, CallOptions) -> CallOptions,
}

impl RequestExtension {
    pub(crate) fn of<T: Clone + Send + Sync + 'static>() -> Self {
        let copy = |from: &Extensions, to: CallOptions| match from.get::<T>() {
            Some(value) => to.with_extension(value.clone()),
            None => to,
        };
        Self { id: TypeId::of::<T>(), name: type_name::<T>(), copy }
    }

    /// Adds the value of this type to the options of a call, if the request has one.
    #[must_use]
    pub fn copy(&self, from: &Extensions, to: CallOptions) -> CallOptions {
        (self.copy)(from, to)
    }
}

impl PartialEq for RequestExtension {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for RequestExtension {}

impl fmt::Debug for RequestExtension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
