//! A lane sends one request after the other on a connection, or on one stream of it.
//!
//! It reopens a failed connection for the next request. After a refused connection it pauses, so that a closed loop
//! does not count failures as fast as the processor can.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::load::{LAST_SLOTS, Shared};
use crate::schedule::Schedule;
use crate::stats::{Outcome, Stats, Times};
use crate::target::TargetConnection;

/// The pause before a refused connection is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// The lanes of one thread.
#[derive(Debug)]
pub(crate) struct Lanes {
    shared: Arc<Shared>,
    stats: Rc<RefCell<Stats>>,
}

impl Lanes {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), stats: Rc::new(RefCell::new(Stats::new(shared.load.duration))) }
    }

    /// The statistics, once all lanes have ended.
    pub(crate) fn into_stats(self) -> Stats {
        Rc::try_unwrap(self.stats).expect("no lane is left").into_inner()
    }
}

/// Runs the lanes of `connections` connections until their time is over.
pub(crate) async fn run(lanes: &Lanes, connections: usize) {
    let mut running = JoinSet::new();
    for _ in 0..connections {
        let shared_connection = Rc::new(SharedConnection::default());
        for _ in 0..lanes.shared.load.streams {
            let lane = Lane {
                shared: Arc::clone(&lanes.shared),
                stats: Rc::clone(&lanes.stats),
                shared_connection: Rc::clone(&shared_connection),
                connection: None,
            };
            running.spawn_local(lane.run());
        }
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("a lane does not panic");
    }
}

/// The connection that the streams of HTTP/2 or QUIC share. With HTTP/1.1 every lane has its own.
#[derive(Debug, Default)]
struct SharedConnection(tokio::sync::Mutex<Option<TargetConnection>>);

#[derive(Debug)]
struct Lane {
    shared: Arc<Shared>,
    stats: Rc<RefCell<Stats>>,
    shared_connection: Rc<SharedConnection>,
    connection: Option<TargetConnection>,
}

impl Lane {
    async fn run(mut self) {
        // Connects before the first request, so that its latency does not include it.
        let _ = self.connect().await;
        let shared = Arc::clone(&self.shared);
        for request in (0..shared.target.requests()).cycle() {
            let Some(due) = self.next_turn().await else { return };
            let sent = Instant::now();
            let due = due.unwrap_or(sent);
            let outcome = self.request(request).await;
            let done = Instant::now();
            self.count(due, sent, done, &outcome);
            if outcome.is_unreachable() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Waits until the next request may be sent. Returns its due time in an open loop; `None` when the round is over.
    async fn next_turn(&self) -> Option<Option<Instant>> {
        let shared = &*self.shared;
        let end = match shared.load.schedule {
            Some(_) => {
                // An error means that the round needs no further request.
                shared.tickets.acquire().await.ok()?.forget();
                shared.end() + LAST_SLOTS
            }
            None => shared.end(),
        };
        let now = Instant::now();
        // Checked before a slot is taken: a taken slot is sent, and the remaining ones count as unsent.
        if now >= end {
            return None;
        }
        let slot = |schedule: Schedule| shared.start + schedule.due_at(shared.next.fetch_add(1, Ordering::Relaxed));
        let due = shared.load.schedule.map(slot);
        let is_counted = due.unwrap_or(now) >= shared.begin();
        if is_counted && shared.counted.fetch_add(1, Ordering::Relaxed) >= shared.load.requests {
            shared.tickets.close();
            return None;
        }
        Some(due)
    }

    /// Sends one request and reads its answer to the end, within the timeout.
    async fn request(&mut self, request: usize) -> Outcome {
        let timeout = self.shared.load.timeout;
        let exchange = async {
            match self.connect().await {
                Ok(connection) => connection.exchange(request).await,
                Err(outcome) => outcome,
            }
        };
        let outcome = tokio::time::timeout(timeout, exchange).await.unwrap_or(Outcome::TimedOut);
        // After a failure the state of an HTTP/1.1 connection is unknown. HTTP/2 and QUIC know their own.
        if !matches!(outcome, Outcome::Answered { .. }) {
            self.connection = None;
        }
        outcome
    }

    async fn connect(&mut self) -> Result<&mut TargetConnection, Outcome> {
        let usable = self.connection.take().filter(|connection| !connection.is_closed());
        let connection = match usable {
            Some(connection) => connection,
            None => self.shared_connection.connection(&self.shared).await?,
        };
        Ok(self.connection.insert(connection))
    }

    fn count(&self, due: Instant, sent: Instant, done: Instant, outcome: &Outcome) {
        let counter = if outcome.is_ok() { &self.shared.progress.ok } else { &self.shared.progress.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        let begin = self.shared.begin();
        if due < begin {
            return;
        }
        let [due, sent, done] = [due, sent, done].map(|moment| moment.saturating_duration_since(begin));
        self.stats.borrow_mut().record(Times { due, sent, done }, outcome);
    }
}

impl SharedConnection {
    /// A handle on the shared connection, or a connection of the lane's own.
    async fn connection(&self, shared: &Shared) -> Result<TargetConnection, Outcome> {
        let mut shared_connection = self.0.lock().await;
        if let Some(shared) =
            shared_connection.as_ref().filter(|open| !open.is_closed()).and_then(TargetConnection::share)
        {
            return Ok(shared);
        }
        let opened = shared.target.open(shared.load.timeout).await?;
        *shared_connection = opened.share();
        Ok(opened)
    }
}
