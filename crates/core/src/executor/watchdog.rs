//! Detects slow code in task stages: code that holds a runtime thread.
//!
//! A separate thread, which never runs user code, counts ticks. A task notes the tick at which a call began. A call
//! that runs for more than [`MAX_TASK_CALL`] gets one warning that names its stage, and the stage's pool moves: each
//! replica moves to its own thread after its current batch. The request path reads no clock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use crate::containment::a_panic_is_printed;
use crate::pool::Pool;

/// The longest time a task stage may hold a runtime thread: ten times "quick", and too short for users to see.
const MAX_TASK_CALL: Duration = Duration::from_millis(10);

/// How often the watchdog checks. It detects a call one to two ticks after it overran.
const TICK: Duration = Duration::from_millis(5);

/// A call that spans more ticks than this took longer than [`MAX_TASK_CALL`].
const MAX_TICKS: u64 = (MAX_TASK_CALL.as_millis() / TICK.as_millis()) as u64;

/// One task, as seen by the watchdog.
#[derive(Debug)]
pub(crate) struct WatchedTask {
    pool: Weak<Pool>,
    ticks: Arc<AtomicU64>,
    /// The tick at which the running call began, or 0 while none runs.
    began: AtomicU64,
}

impl WatchedTask {
    /// A call begins.
    pub(crate) fn begin(&self) {
        self.began.store(self.ticks.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The call is over.
    pub(crate) fn end(&self) {
        self.began.store(0, Ordering::Relaxed);
    }

    fn overran(&self, tick: u64) -> bool {
        let began = self.began.load(Ordering::Relaxed);
        began != 0 && tick.saturating_sub(began) > MAX_TICKS
    }
}

/// The watchdog of one node. Its thread ends when the last handle is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    ticks: Arc<AtomicU64>,
    watched: Arc<Mutex<Vec<Weak<WatchedTask>>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the watching thread.
    pub(crate) fn spawn() -> std::io::Result<Self> {
        let ticks = Arc::new(AtomicU64::new(1));
        let watched: Arc<Mutex<Vec<Weak<WatchedTask>>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new().name("callboard-watchdog".to_owned()).spawn({
            let (ticks, watched, stop) = (Arc::clone(&ticks), Arc::clone(&watched), Arc::clone(&stop));
            move || {
                while !stop.load(Ordering::Relaxed) {
                    thread::park_timeout(TICK);
                    // The time in which a panic is printed does not count as the call's.
                    if a_panic_is_printed() {
                        continue;
                    }
                    let tick = ticks.fetch_add(1, Ordering::Relaxed) + 1;
                    look_at(&mut watched.lock(), tick);
                }
            }
        })?;
        Ok(Self { ticks, watched, stop, thread: Some(thread) })
    }

    /// Watches a new task of `pool` while the task keeps the returned handle. It does not watch tests on virtual time,
    /// which are not served: a busy machine would decide where their code runs.
    pub(crate) fn watch(&self, pool: &Arc<Pool>) -> Arc<WatchedTask> {
        let watched = Arc::new(WatchedTask {
            pool: Arc::downgrade(pool),
            ticks: Arc::clone(&self.ticks),
            began: AtomicU64::new(0),
        });
        if !pool.settings().has_virtual_time() {
            self.watched.lock().push(Arc::downgrade(&watched));
        }
        watched
    }
}

fn look_at(watched: &mut Vec<Weak<WatchedTask>>, tick: u64) {
    watched.retain(|watched| {
        let Some(watched) = watched.upgrade() else { return false };
        if watched.overran(tick)
            && let Some(pool) = watched.pool.upgrade()
        {
            pool.move_to_threads(MAX_TASK_CALL);
        }
        true
    });
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
        }
    }
}
