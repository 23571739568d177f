//! What is known of a request besides its answer: its id, its trace, its line in the log, its timeline, its times, its metrics.

pub(crate) mod health;
pub(crate) mod log_line;
pub(crate) mod metrics;
pub(crate) mod request_trace;
pub(crate) mod server_timing;
pub(crate) mod timeline_header;
