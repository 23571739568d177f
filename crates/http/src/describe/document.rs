//! `/openapi.json`, made once for each set of routes: every client may request the document, and it may be large.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use callboard_core::edge::Route;

/// The last document, with its routes.
#[derive(Debug, Default)]
pub(super) struct DocumentCache(Mutex<Option<CachedDocument>>);

#[derive(Debug)]
struct CachedDocument {
    routes: Vec<Arc<Route>>,
    document: Bytes,
}

impl DocumentCache {
    /// The document of these routes. Concurrent callers wait for one `make`, which is quicker than several.
    pub(super) fn get(&self, routes: Vec<Arc<Route>>, make: impl FnOnce(&[Arc<Route>]) -> serde_json::Value) -> Bytes {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = cached.as_ref().filter(|cached| is_same(&cached.routes, &routes)) {
            return cached.document.clone();
        }
        let document = Bytes::from(make(&routes).to_string());
        *cached = Some(CachedDocument { routes, document: document.clone() });
        document
    }
}

fn is_same(first: &[Arc<Route>], second: &[Arc<Route>]) -> bool {
    first.len() == second.len() && first.iter().zip(second).all(|(left, right)| Arc::ptr_eq(left, right))
}
