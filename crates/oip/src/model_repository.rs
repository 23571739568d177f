//! The seam behind `load` and `unload` of the protocol: a source of models.
//!
//! The protocol knows routes, not how they are made. `/v2/repository/index` lists the routes of the repository, served
//! or not. They are loaded and unloaded through the admin listener and, with
//! [`model_control`](callboard_http::HttpConfig::model_control), through the edge.

use std::fmt;
use std::pin::Pin;

use callboard_core::ChangeError;

/// A change of the served routes in progress.
///
/// # Cancellation
///
/// Dropping it before it took effect undoes it.
pub type RepositoryChange<'a> = Pin<Box<dyn Future<Output = Result<(), RepositoryError>> + Send + 'a>>;

/// Makes routes by name while the node serves.
pub trait ModelRepository: fmt::Debug + Send + Sync + 'static {
    /// The routes that it can make, served or not.
    fn routes(&self) -> Vec<String>;

    /// Serves a route. A served route is made again, and replaced when the new one is warm. No call fails because of
    /// it.
    fn load<'a>(&'a self, route: &'a str) -> RepositoryChange<'a>;

    /// Closes a route. Its calls finish. A route that is not served stays so.
    fn unload<'a>(&'a self, route: &'a str) -> RepositoryChange<'a>;
}

/// Why a route was not loaded or unloaded. The served routes are unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepositoryError {
    /// The repository does not know the route.
    #[error("there is no such model in the repository")]
    Unknown,
    /// The route cannot be made: the configuration or the model is wrong.
    #[error("{0}")]
    Source(String),
    /// The node refuses the change.
    #[error(transparent)]
    Change(#[from] ChangeError),
}
