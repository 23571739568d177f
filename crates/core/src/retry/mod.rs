//! When a failed call is made again, and how often: pure decisions, for clients in process and over a network, and for
//! the stages of a cluster.
//!
//! * [`RetryPolicy`] decides for one call, [`RetryBudget`] for all calls of a client or a cluster together.
//! * The Python package has the same numbers in `client/policy.py`.
//! * A stage that runs entries of a lost worker again has a budget of its own, for the reason in
//!   `pool/rerun_budget.rs`.

mod budget;
mod policy;

pub use self::budget::RetryBudget;
pub use self::policy::RetryPolicy;
