//! `/openapi.json`, made once for each set of routes: the document is asked by anybody and may be large.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use callboard_core::Route;

use crate::describe::openapi::ApiInfo;

/// The last document, with the routes that it is about.
#[derive(Debug, Default)]
pub(super) struct DocumentCache(Mutex<Option<Made>>);

#[derive(Debug)]
struct Made {
    routes: Vec<Arc<Route>>,
    document: Bytes,
}

/// Makes a document.
pub(super) type Make = fn(&[Arc<Route>], &ApiInfo) -> serde_json::Value;

impl DocumentCache {
    /// The document of these routes. Whoever comes while it is being made waits: once is quicker than once for each.
    pub(super) fn of(&self, routes: Vec<Arc<Route>>, info: &ApiInfo, make: Make) -> Bytes {
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = made.as_ref().filter(|made| is_same(&made.routes, &routes)) {
            return made.document.clone();
        }
        let document = Bytes::from(make(&routes, info).to_string());
        *made = Some(Made { routes, document: document.clone() });
        document
    }
}

fn is_same(some: &[Arc<Route>], others: &[Arc<Route>]) -> bool {
    some.len() == others.len() && some.iter().zip(others).all(|(one, other)| Arc::ptr_eq(one, other))
}
