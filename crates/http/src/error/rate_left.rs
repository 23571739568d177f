//! How far a key is from its limit.

use std::time::Duration;

/// What a key may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLeft {
    /// The most requests at once.
    pub limit: u32,
    /// The requests that are allowed now.
    pub remaining: u32,
    /// The time until all of them are.
    pub reset: Duration,
}
