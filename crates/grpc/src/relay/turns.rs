//! One call of a function at a time.
//!
//! A call waits with its permit, so there are no more waiting calls than calls in flight. It waits until its deadline;
//! a client that leaves ends the waiting.

use std::collections::HashMap;
use std::sync::Arc;

use callboard_core::edge::Route;
use callboard_core::{Deadline, ErrorKind};
use callboard_http::protocol::ApiError;
use parking_lot::Mutex;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};
use tokio::time::timeout_at;

/// The turn of each function that was called, by the name of its route. Only routes that exist get an entry; that of a
/// route which was removed stays, a few hundred bytes.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<String, Arc<Turn<()>>>>);

impl Turns {
    /// Waits for the turn of a call.
    ///
    /// # Errors
    ///
    /// The deadline passed.
    pub(super) async fn take(&self, route: &Route, deadline: Deadline) -> Result<OwnedMutexGuard<()>, ApiError> {
        let turn = Arc::clone(self.0.lock().entry(route.name().to_owned()).or_default());
        timeout_at(deadline.instant(), turn.lock_owned()).await.map_err(|_| {
            let message = "the deadline passed while an earlier call of the function ran";
            ApiError::new(ErrorKind::DeadlineExceeded, message).about(route.name())
        })
    }
}
