//! The seam behind the `load` and `unload` of the Open Inference Protocol: where the models of a node come from.
//!
//! The edge knows routes and not how they are made; whoever reads a configuration does. What it offers here is listed by
//! `/v2/repository/index`, served or not, and loaded and unloaded on the admin listener and, where
//! [`model_control`](crate::HttpConfig::model_control) is on, at the edge's own door.

use std::fmt;
use std::pin::Pin;

use callboard_core::ChangeError;

/// A change of what is served, under way.
///
/// # Cancellation
///
/// Dropping it before it took effect undoes it.
pub type RepositoryChange<'a> = Pin<Box<dyn Future<Output = Result<(), RepositoryError>> + Send + 'a>>;

/// Makes routes by their name, while the node serves.
pub trait ModelRepository: fmt::Debug + Send + Sync + 'static {
    /// The routes that it can make, whether they are served or not.
    fn routes(&self) -> Vec<String>;

    /// Serves a route; one that is served is made anew and takes the place of the old one when it is warm. No call fails for it.
    fn load<'a>(&'a self, route: &'a str) -> RepositoryChange<'a>;

    /// Closes a route. Calls in it finish. One that is not served stays so.
    fn unload<'a>(&'a self, route: &'a str) -> RepositoryChange<'a>;
}

/// Why a route was not loaded or unloaded. What is served is what was served before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepositoryError {
    /// The repository does not know it.
    #[error("there is no such model in the repository")]
    Unknown,
    /// It cannot be made: the configuration or the model is at fault.
    #[error("{0}")]
    Source(String),
    /// The node refuses the change.
    #[error(transparent)]
    Change(#[from] ChangeError),
}
