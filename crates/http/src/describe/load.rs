//! `/metrics/load`: how much the node has to do, for what chooses between nodes and reads it many times a second.
//!
//! The page has three gauges without labels, each under the names by which pickers of Kubernetes know the same figure
//! of other servers: those of vLLM, which they expect of a server that says nothing else, and those of Triton.

use std::fmt::Write as _;

use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;
use callboard_core::edge::NodeLoad;

use crate::observe::metrics::PROMETHEUS_TEXT;

pub(crate) const PATH: &str = "/metrics/load";

const QUEUED: [&str; 3] = ["callboard_queued", "vllm:num_requests_waiting", "nv_inference_pending_request_count"];
const RUNNING: [&str; 3] = ["callboard_running", "vllm:num_requests_running", "nv_inference_exec_count"];
/// vLLM's is the share of a cache that is full: a picker avoids the fuller server.
const SATURATION: [&str; 2] = ["callboard_saturation", "vllm:kv_cache_usage_perc"];

pub(super) fn page(load: NodeLoad) -> ([(HeaderName, &'static str); 1], String) {
    let mut text = String::with_capacity(1_024);
    let mut gauges = |names: &[&str], value: f64| {
        for name in names {
            // Writing into a string does not fail.
            let _ = writeln!(text, "# TYPE {name} gauge\n{name} {value}");
        }
    };
    gauges(&QUEUED, load.queued as f64);
    gauges(&RUNNING, load.running as f64);
    gauges(&SATURATION, load.saturation);
    ([(CONTENT_TYPE, PROMETHEUS_TEXT)], text)
}
