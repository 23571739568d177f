//! Traces, read by a collector with OpenTelemetry's own messages; the script is the collector and the callers.

use crate::python::Python;
use crate::support::directory;

#[test]
fn a_collector_reads_requests_with_their_parents_and_batches_with_their_links() {
    let Some(python) = Python::with("opentelemetry") else { return };
    let directory = directory();
    python.run("traces.py", &[env!("CARGO_BIN_EXE_callboard"), directory.to_str().unwrap()]);
}
