//! `callboard bench`: load on a route, and what came of it.
//!
//! ```text
//!  args ─► Load ─► round: threads × connections ─► Tally ─► Summary ─► table | JSON | plot | assertions
//!                     ▲
//!               pacer (open loop): one ticket per slot of the Schedule
//! ```
//!
//! The wire is HTTP or QUIC; a lane does not know which. Two kinds of load. *Closed loop*: every connection sends its next
//! request when it has the answer to the last one, so the load gives way when the target slows down; it finds the highest
//! throughput. *Open loop* (`--rate`): requests fall due at
//! a fixed rate whatever the target does, as those of a public do, and a latency counts from the moment at which the
//! request was due: time in which no connection was free for it is waiting that its sender would have felt. Leaving that out
//! is known as coordinated omission.
//!
//! What is bounded, and how: connections and rate by their arguments, time by `--duration` plus one `--timeout` for what is
//! in flight then, memory by histograms of fixed size, one set per thread. A request that is due and cannot be sent before
//! the end is counted as `unsent`, with the least latency that it can have had. An interrupt ends the load at once and the
//! report is made of what there is; a second one ends without a report.

pub(crate) mod args;
mod assertion;
mod lane;
mod load;
mod plot;
mod report;
mod schedule;
mod summary;
mod table;
mod tally;
mod versus;
mod wire;

pub(crate) use args::BenchArgs;
pub(crate) use load::{Load, Progress, round};
pub(crate) use report::{LoadShown, Named, Report};
pub(crate) use tally::Tally;
pub(crate) use versus::{Round, ours_first};
pub(crate) use wire::Aim;
