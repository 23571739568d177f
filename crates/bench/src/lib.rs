//! The load generator behind `callboard bench`: it puts load on a target and reports the measurements.
//!
//! ```text
//!  Load + Target ─► round: threads × connections ─► Stats ─► Summary ─► table | JSON | plot | assertions
//!                      ▲
//!                pacer (open loop): one ticket per slot of the Schedule
//! ```
//!
//! A target speaks HTTP or QUIC; a lane does not know which. There are two kinds of load.
//!
//! * **Closed loop:** every connection sends its next request when the last one is answered. The load drops when the
//!   target slows down, so this finds the highest throughput.
//! * **Open loop** (`--rate`): requests are due at a fixed rate, however slow the target is. A latency counts from the
//!   moment at which the request was due, so it includes the wait for a free connection. A report without that wait has
//!   the error known as coordinated omission.
//!
//! *Bounds.* Arguments bound connections and rate. `--duration` bounds the time, plus one `--timeout` for the requests
//! that are then in flight. Histograms have a fixed size, one set per thread. A request that is due and cannot be sent
//! before the end counts as `unsent`, with the least latency that it can have had. A first interrupt ends the load and
//! the report has the figures so far; a second one ends the program without a report.

mod assertion;
mod comparison;
mod lane;
mod load;
mod plot;
mod report;
mod round;
mod schedule;
mod stats;
mod summary;
mod target;

pub use assertion::{Assertion, Verdict};
pub use comparison::{Ratio, Ratios, RoundPair, starts_with_first};
pub use load::{Load, Progress};
pub use report::{Comparison, LoadSummary, Report, Side, TargetLabel};
pub use round::round;
pub use schedule::{RATES, Schedule};
pub use stats::{Slice, Stats};
pub use summary::{Distribution, Summary};
pub use target::Target;
