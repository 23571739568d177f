//! Honest callers: the first calls a small route, the second polls health and readiness.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::http1::{Request, exchange};

/// The interval of an honest caller's calls.
pub(crate) const BEAT: Duration = Duration::from_millis(20);

/// The timeout of an honest caller.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest latency that the histogram distinguishes.
const MOST_MICROS: u64 = 60_000_000;

/// The outcomes of the calls.
#[derive(Debug)]
pub(crate) struct Book {
    micros: Histogram<u64>,
    pub(crate) answered: u64,
    /// Calls that were answered with 429.
    pub(crate) refused: u64,
    /// Other failures, as text.
    pub(crate) failures: Vec<String>,
}

impl Book {
    fn new() -> Self {
        let micros = Histogram::new_with_bounds(1, MOST_MICROS, 3).expect("bounds that fit");
        Self { micros, answered: 0, refused: 0, failures: Vec::new() }
    }

    fn enter(&mut self, took: Duration, outcome: std::io::Result<(u16, String)>) {
        // A slow call delays the later ones: their wait counts too.
        let (took, beat) = (took.as_micros() as u64, BEAT.as_micros() as u64);
        self.micros.record_correct(took.clamp(1, MOST_MICROS), beat).expect("within its bounds");
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
    thread: JoinHandle<Book>,
}

impl Caller {
    /// Calls the honest route.
    pub(crate) fn honest(node: SocketAddr) -> Self {
        let call = Request::post("/honest", "application/json", "[0.9,0.1]");
        Self::begin(node, Ipv4Addr::new(127, 0, 0, 2), vec![call])
    }

    /// Polls health and readiness in turn.
    pub(crate) fn health(node: SocketAddr) -> Self {
        let asked = vec![Request::get("/livez"), Request::get("/readyz")];
        Self::begin(node, Ipv4Addr::new(127, 0, 0, 3), asked)
    }

    fn begin(node: SocketAddr, from: Ipv4Addr, requests: Vec<Request>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let mut book = Book::new();
            for request in requests.iter().cycle() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let begun = Instant::now();
                let outcome = exchange(node, from, request, PATIENCE);
                book.enter(begun.elapsed(), outcome);
                thread::sleep(BEAT.saturating_sub(begun.elapsed()));
            }
            book
        });
        Self { is_over, thread }
    }

    /// Ends the caller after its next call.
    pub(crate) fn end(self) -> Book {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("a caller does not panic")
    }
}

/// The p99 of an honest caller alone with the node, over this time.
pub(crate) fn base(node: SocketAddr, over: Duration) -> Duration {
    let caller = Caller::honest(node);
    thread::sleep(over);
    let book = caller.end();
    assert!(book.failures.is_empty() && book.refused == 0, "an honest caller alone: {:?}", book.failures);
    book.p99()
}
