//! Rollouts: a candidate, the next revision of a route, proves itself beside the current one before it takes over.
//!
//! * `policy.rs`: what the user asks for.
//! * `judge.rs`: promotes or rolls back, from what it observed; pure. `confidence.rs` is its statistic, `latencies.rs`
//!   its histogram.
//! * `draw.rs`: by which chance the candidate gets a call.
//! * `trial.rs`: what both revisions share while the rollout runs: which one takes a call, and the judge.
//! * `agreement.rs`: whether two answers are the same, for a shadow.
//! * `record.rs`: the line of the table about a route's rollout, and what a description shows of it.
//!
//! The router's actor carries decisions out. A decision to roll back counts at once: the trial gives the candidate no
//! more calls, whatever the actor does meanwhile.

mod agreement;
mod confidence;
mod draw;
mod judge;
mod latencies;
mod policy;
mod record;
mod trial;

#[cfg(test)]
mod adversaries;

pub(crate) use agreement::agrees;
pub(crate) use draw::Draw;
pub(crate) use judge::{Decision, Observation};
pub use policy::Rollout;
pub(crate) use record::RolloutRecord;
pub use record::{RevisionDescription, RolloutDescription, RolloutState};
pub(crate) use trial::Trial;
