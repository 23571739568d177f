//! One request after the other on one connection, or on one stream of it.
//!
//! A connection that fails is opened again for the next request. A target that refuses connections is asked again after a
//! pause, so that a closed loop does not count failures as fast as the processor can.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::load::{LAST_SLOTS, Shared};
use super::schedule::Schedule;
use super::tally::{Outcome, Tally, Times};
use super::wire::Wire;

/// Before a connection is tried again that could not be opened.
const PAUSE: Duration = Duration::from_millis(100);

/// The lanes of one thread.
#[derive(Debug)]
pub(super) struct Lanes {
    shared: Arc<Shared>,
    tally: Rc<RefCell<Tally>>,
}

impl Lanes {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), tally: Rc::new(RefCell::new(Tally::new(shared.load.duration))) }
    }

    /// What they counted, once none of them runs any more.
    pub(super) fn into_tally(self) -> Tally {
        Rc::try_unwrap(self.tally).expect("no lane is left").into_inner()
    }
}

/// Runs the lanes of so many connections until their time is over.
pub(super) async fn run(lanes: &Lanes, connections: usize) {
    let mut running = JoinSet::new();
    for _ in 0..connections {
        let line = Rc::new(Line::default());
        for _ in 0..lanes.shared.load.streams {
            let lane = Lane {
                shared: Arc::clone(&lanes.shared),
                tally: Rc::clone(&lanes.tally),
                line: Rc::clone(&line),
                wire: None,
            };
            running.spawn_local(lane.run());
        }
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("a lane does not panic");
    }
}

/// The connection that the streams of HTTP/2 or QUIC share; on HTTP/1.1 every lane has its own.
#[derive(Debug, Default)]
struct Line(tokio::sync::Mutex<Option<Wire>>);

#[derive(Debug)]
struct Lane {
    shared: Arc<Shared>,
    tally: Rc<RefCell<Tally>>,
    line: Rc<Line>,
    wire: Option<Wire>,
}

impl Lane {
    async fn run(mut self) {
        // The first requests should not pay for the connections where there is time to open them.
        let _ = self.connect().await;
        let shared = Arc::clone(&self.shared);
        for request in (0..shared.aim.requests()).cycle() {
            let Some(due) = self.next_turn().await else { return };
            let sent = Instant::now();
            let due = due.unwrap_or(sent);
            let outcome = self.request(request).await;
            let done = Instant::now();
            self.count(due, sent, done, &outcome);
            if outcome.is_absence() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Waits for leave to send: when the request was due, if that is not now. `None` when it is over.
    async fn next_turn(&self) -> Option<Option<Instant>> {
        let shared = &*self.shared;
        let end = match shared.load.schedule {
            Some(_) => {
                // An error says that no more requests are wanted.
                shared.tickets.acquire().await.ok()?.forget();
                shared.end() + LAST_SLOTS
            }
            None => shared.end(),
        };
        let now = Instant::now();
        // Before a slot is taken: one that is taken is sent, and what is left counts as unsent.
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

    /// Sends one request and reads its answer to the end, or to the limit of its time.
    async fn request(&mut self, request: usize) -> Outcome {
        let timeout = self.shared.load.timeout;
        let exchange = async {
            match self.connect().await {
                Ok(wire) => wire.exchange(request).await,
                Err(outcome) => outcome,
            }
        };
        let outcome = tokio::time::timeout(timeout, exchange).await.unwrap_or(Outcome::TimedOut);
        // After a failure nobody knows what still comes on a connection of HTTP/1.1. One of HTTP/2 or QUIC knows itself.
        if !matches!(outcome, Outcome::Answered { .. }) {
            self.wire = None;
        }
        outcome
    }

    async fn connect(&mut self) -> Result<&mut Wire, Outcome> {
        let usable = self.wire.take().filter(|wire| !wire.is_closed());
        let wire = match usable {
            Some(wire) => wire,
            None => self.line.wire(&self.shared).await?,
        };
        Ok(self.wire.insert(wire))
    }

    fn count(&self, due: Instant, sent: Instant, done: Instant, outcome: &Outcome) {
        let counter = if outcome.is_ok() { &self.shared.progress.ok } else { &self.shared.progress.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        let begin = self.shared.begin();
        if due < begin {
            return;
        }
        let [due, sent, done] = [due, sent, done].map(|moment| moment.saturating_duration_since(begin));
        self.tally.borrow_mut().record(Times { due, sent, done }, outcome);
    }
}

impl Line {
    /// A handle on the shared connection, or one of the lane's own.
    async fn wire(&self, shared: &Shared) -> Result<Wire, Outcome> {
        let mut line = self.0.lock().await;
        if let Some(shared) = line.as_ref().filter(|open| !open.is_closed()).and_then(Wire::share) {
            return Ok(shared);
        }
        let opened = shared.aim.open(shared.load.timeout).await?;
        *line = opened.share();
        Ok(opened)
    }
}
