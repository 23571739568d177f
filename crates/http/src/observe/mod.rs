//! Records of a request: its trace, log line, timeline, times and metrics.

pub(crate) mod cache_status;
pub(crate) mod health;
pub(crate) mod log_line;
pub(crate) mod metrics;
pub(crate) mod other_doors;
pub(crate) mod request_trace;
pub(crate) mod server_timing;
pub(crate) mod stream_log;
pub(crate) mod timeline_header;
