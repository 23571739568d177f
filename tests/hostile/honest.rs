//! Honest callers: the first calls a small route, the second polls health and readiness.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::http1::{Request, exchange};

/// The interval of an honest caller's calls.
pub(crate) const INTERVAL: Duration = Duration::from_millis(20);

/// The timeout of an honest caller.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest latency that the histogram distinguishes.
const MAX_MICROS: u64 = 60_000_000;

/// The outcomes of the calls.
#[derive(Debug)]
pub(crate) struct CallStats {
    micros: Histogram<u64>,
    pub(crate) answered: u64,
    /// Calls that were answered with 429.
    pub(crate) refused: u64,
    /// Other failures, as text.
    pub(crate) failures: Vec<String>,
}

impl CallStats {
    fn new() -> Self {
        let micros = Histogram::new_with_bounds(1, MAX_MICROS, 3).expect("bounds that fit");
        Self { micros, answered: 0, refused: 0, failures: Vec::new() }
    }

    fn record(&mut self, latency: Duration, outcome: std::io::Result<(u16, String)>) {
        // A slow call delays the later ones: their wait counts too.
        let (latency, interval) = (latency.as_micros() as u64, INTERVAL.as_micros() as u64);
        self.micros.record_correct(latency.clamp(1, MAX_MICROS), interval).expect("within its bounds");
        match outcome {
            Ok((200, _)) => self.answered += 1,
            Ok((429, _)) => self.refused += 1,
            Ok((status, body)) => self.failures.push(format!("{status} {body:.80}")),
            Err(error) => self.failures.push(error.to_string()),
        }
    }

    pub(crate) fn p99(&self) -> Duration {
        Duration::from_micros(self.micros.value_at_quantile(0.99))
    }
}

/// A caller on its own thread.
pub(crate) struct Caller {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<CallStats>,
}

impl Caller {
    /// Makes this call again and again.
    pub(crate) fn honest(node: SocketAddr, call: Request) -> Self {
        Self::begin(node, Ipv4Addr::new(127, 0, 0, 2), vec![call])
    }

    /// Polls health and readiness in turn.
    pub(crate) fn health(node: SocketAddr) -> Self {
        let requests = vec![Request::get("/livez"), Request::get("/readyz")];
        Self::begin(node, Ipv4Addr::new(127, 0, 0, 3), requests)
    }

    fn begin(node: SocketAddr, from: Ipv4Addr, requests: Vec<Request>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let mut stats = CallStats::new();
            for request in requests.iter().cycle() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let start = Instant::now();
                let outcome = exchange(node, from, request, CALL_TIMEOUT);
                stats.record(start.elapsed(), outcome);
                thread::sleep(INTERVAL.saturating_sub(start.elapsed()));
            }
            stats
        });
        Self { is_over, thread }
    }

    /// Ends the caller after its next call.
    pub(crate) fn end(self) -> CallStats {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("a caller does not panic")
    }
}

/// The p99 of an honest caller alone with the node, over this time.
pub(crate) fn baseline_p99(node: SocketAddr, call: &Request, duration: Duration) -> Duration {
    let caller = Caller::honest(node, call.clone());
    thread::sleep(duration);
    let stats = caller.end();
    assert!(stats.failures.is_empty() && stats.refused == 0, "an honest caller alone: {:?}", stats.failures);
    stats.p99()
}
