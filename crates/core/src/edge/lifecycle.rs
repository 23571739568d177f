//! The life of an edge in a server: it opens with a node, and ends without losing a call.

use std::error::Error;
use std::fmt;
use std::future::ready;
use std::pin::Pin;

use crate::clock::Instant;
use crate::node::NodeHandle;

/// A part of an edge's end.
pub type EdgeFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// The reason why an edge does not serve a node.
pub type EdgeError = Box<dyn Error + Send + Sync>;

/// A way to the routes of a node, such as the HTTP edge. A server opens its edges once its node has started, and ends
/// them in this order:
///
/// 1. [`withdraw`](Self::withdraw): callers are told to go elsewhere, and are still answered.
/// 2. [`finish`](Self::finish), all edges at the same time: no new calls, and those in progress are answered.
/// 3. The node drains. The calls that are left when its time is over end with [`abort`](Self::abort).
/// 4. The node stops.
/// 5. [`close`](Self::close), in the order in which the edges were opened; then the edge is dropped. An edge that
///    carries calls to peers closes only here.
///
/// `withdraw` may be called again. The future of `finish` is dropped if it is not done by its deadline, and `abort` is
/// called in any case. If a later edge does not open, the edge is dropped, with calls that it has already taken.
///
/// Every step but `open` and `finish` does nothing by default. An edge binds its socket before it is given to a server,
/// so that an address in use is known before a model is loaded. Dropped at any time, it closes at once.
///
/// ```
/// use callboard_core::edge::{Edge, EdgeDescription, EdgeError, EdgeFuture};
/// use callboard_core::{Instant, LocalClient, NodeHandle};
///
/// /// Calls `/tick` when it opens.
/// #[derive(Debug, Default)]
/// struct Once(Option<tokio::task::JoinHandle<()>>);
///
/// impl Edge for Once {
///     fn describe(&self) -> EdgeDescription {
///         EdgeDescription::new("once")
///     }
///
///     fn open(&mut self, node: &NodeHandle) -> Result<(), EdgeError> {
///         let client: LocalClient = node.client();
///         self.0 = Some(tokio::spawn(async move {
///             let _: Result<u64, _> = client.call("/tick", 1_u64).await;
///         }));
///         Ok(())
///     }
///
///     fn finish(&mut self, deadline: Instant) -> EdgeFuture<'_> {
///         Box::pin(async move {
///             if let Some(call) = &mut self.0 {
///                 let _ = tokio::time::timeout_at(deadline, call).await;
///             }
///         })
///     }
/// }
/// ```
pub trait Edge: fmt::Debug + Send + Sync + 'static {
    /// Its name and its address, for logs and errors.
    fn describe(&self) -> EdgeDescription;

    /// Takes calls for the routes of this node, which has started, from now on.
    ///
    /// # Errors
    ///
    /// If it cannot serve these routes. The server does not start then.
    fn open(&mut self, node: &NodeHandle) -> Result<(), EdgeError>;

    /// Tells its callers to use another node. Callers that stay are still answered.
    fn withdraw(&self) {}

    /// Takes no new calls, and returns once those in progress are answered, at `deadline` at the latest: a server waits
    /// no longer.
    fn finish(&mut self, deadline: Instant) -> EdgeFuture<'_>;

    /// Ends the calls that are still in progress with an error.
    fn abort(&mut self) {}

    /// Closes what is left; the last answers are on their way until the deadline.
    fn close(&mut self, _deadline: Instant) -> EdgeFuture<'_> {
        Box::pin(ready(()))
    }
}

/// An edge, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EdgeDescription {
    /// What it speaks, such as `http`.
    pub name: String,
    /// Where its callers reach it, if it has an address.
    pub address: Option<String>,
}

impl EdgeDescription {
    /// An edge without an address.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), address: None }
    }

    /// The same with its address.
    #[must_use]
    pub fn at(mut self, address: impl fmt::Display) -> Self {
        self.address = Some(address.to_string());
        self
    }
}
