//! When a request of a mounted app ends: before its node stops, or a grace period after its app was replaced or
//! removed.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use callboard_core::edge::Route;

use crate::upgrade::EdgeLife;

/// Completes when a request of an app has to end.
pub(super) type RequestEnd = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The end of a request of this route: as soon as the node wants it, so that its app can stop in order; or `grace`
/// after the route was closed, because the app lives as long as its requests.
pub(super) fn request_end(route: Arc<Route>, life: Arc<EdgeLife>, grace: Duration) -> RequestEnd {
    Box::pin(async move {
        let replaced = pin!(async {
            route.closed().await;
            tokio::time::sleep(grace).await;
        });
        life.ending.unless_begun(replaced).await;
    })
}
