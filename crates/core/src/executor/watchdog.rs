//! Detects slow code in task stages: code that holds a runtime thread.
//!
//! A separate thread, which never runs user code, counts ticks. A task notes the tick at which a call began. A call
//! that runs for more than [`MAX_TASK_CALL`] gets one warning that names its stage, and the stage's pool moves: each
//! replica moves to its own thread after its current batch. The request path reads no clock. While no call runs the
//! thread sleeps, and the next call wakes it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use parking_lot::Mutex;

use crate::containment::a_panic_is_printed;
use crate::pool::Pool;

/// The longest time a task stage may hold a runtime thread: ten times "quick", and too short for users to see.
const MAX_TASK_CALL: Duration = Duration::from_millis(10);

/// How often the watchdog checks. It detects a call one to two ticks after it overran.
const TICK: Duration = Duration::from_millis(5);

/// The thread sleeps after this many ticks in a row without a running call: a tenth of a second, so that calls wake it
/// at most ten times a second.
const QUIET_TICKS: u32 = 20;

/// The longest sleep: a call may begin just before it, and see no sleeper.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A call that spans more ticks than this took longer than [`MAX_TASK_CALL`].
const MAX_TICKS: u64 = (MAX_TASK_CALL.as_millis() / TICK.as_millis()) as u64;

/// One task, as seen by the watchdog.
#[derive(Debug)]
pub(crate) struct WatchedTask {
    pool: Weak<Pool>,
    clock: Arc<Clock>,
    /// The tick at which the running call began, or 0 while none runs.
    began: AtomicU64,
}

impl WatchedTask {
    /// A call runs while the guard lives.
    pub(crate) fn watch(&self) -> WatchedCall<'_> {
        self.begin();
        WatchedCall(self)
    }

    /// A call begins.
    fn begin(&self) {
        self.began.store(self.clock.ticks.load(Ordering::Relaxed), Ordering::Relaxed);
        self.clock.wake();
    }

    /// The call is over.
    fn end(&self) {
        self.began.store(0, Ordering::Relaxed);
    }

    /// The tick at which the running call began.
    fn began(&self) -> Option<u64> {
        Some(self.began.load(Ordering::Relaxed)).filter(|tick| *tick != 0)
    }
}

/// A call that runs.
pub(crate) struct WatchedCall<'a>(&'a WatchedTask);

impl Drop for WatchedCall<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The ticks, and the thread that counts them.
#[derive(Debug)]
struct Clock {
    ticks: AtomicU64,
    is_asleep: AtomicBool,
    longest_sleep: Duration,
    thread: OnceLock<Thread>,
}

impl Clock {
    /// Costs a load while the thread is awake.
    fn wake(&self) {
        if self.is_asleep.load(Ordering::Relaxed)
            && self.is_asleep.swap(false, Ordering::Relaxed)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Waits for the next tick and counts it.
    #[expect(clippy::disallowed_methods, reason = "nothing may end it early: no tick is shorter")]
    fn tick(&self) {
        thread::sleep(TICK);
        // The time in which a panic is printed does not count as the call's.
        if !a_panic_is_printed() {
            self.ticks.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sleeps until a call begins. `false`: none has, or it saw no sleeper.
    fn sleep(&self) -> bool {
        self.is_asleep.store(true, Ordering::Relaxed);
        thread::park_timeout(self.longest_sleep);
        !self.is_asleep.swap(false, Ordering::Relaxed)
    }
}

/// The watchdog of one node. Its thread ends when the last handle is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    clock: Arc<Clock>,
    watched: Arc<Mutex<Vec<Weak<WatchedTask>>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts the watching thread.
    pub(crate) fn spawn() -> std::io::Result<Self> {
        Self::spawn_with(LONGEST_SLEEP)
    }

    fn spawn_with(longest_sleep: Duration) -> std::io::Result<Self> {
        let (ticks, is_asleep) = (AtomicU64::new(1), AtomicBool::new(false));
        let clock = Arc::new(Clock { ticks, is_asleep, longest_sleep, thread: OnceLock::new() });
        let watched: Arc<Mutex<Vec<Weak<WatchedTask>>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new().name("callboard-watchdog".to_owned()).spawn({
            let (clock, watched, stop) = (Arc::clone(&clock), Arc::clone(&watched), Arc::clone(&stop));
            move || {
                let _ = clock.thread.set(thread::current());
                let mut quiet = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    clock.tick();
                    let is_running = look_at(&mut watched.lock(), clock.ticks.load(Ordering::Relaxed));
                    quiet = if is_running { 0 } else { quiet.saturating_add(1) };
                    if quiet >= QUIET_TICKS && clock.sleep() {
                        quiet = 0;
                    }
                }
            }
        })?;
        Ok(Self { clock, watched, stop, thread: Some(thread) })
    }

    /// Watches a new task of `pool` while the task keeps the returned handle. It does not watch tests on virtual time,
    /// which are not served: a busy machine would decide where their code runs.
    pub(crate) fn watch(&self, pool: &Arc<Pool>) -> Arc<WatchedTask> {
        let watched = Arc::new(WatchedTask {
            pool: Arc::downgrade(pool),
            clock: Arc::clone(&self.clock),
            began: AtomicU64::new(0),
        });
        if !pool.settings().has_virtual_time() {
            self.watched.lock().push(Arc::downgrade(&watched));
        }
        watched
    }
}

/// Whether a call runs. The stages whose calls overran move.
fn look_at(watched: &mut Vec<Weak<WatchedTask>>, tick: u64) -> bool {
    let mut is_running = false;
    watched.retain(|watched| {
        let Some(watched) = watched.upgrade() else { return false };
        let began = watched.began();
        is_running |= began.is_some();
        if began.is_some_and(|began| tick.saturating_sub(began) > MAX_TICKS)
            && let Some(pool) = watched.pool.upgrade()
        {
            pool.move_to_threads(MAX_TASK_CALL);
        }
        true
    });
    is_running
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn until(what: impl Fn() -> bool) {
        let began = Instant::now();
        while !what() {
            assert!(began.elapsed() < Duration::from_secs(60), "it did not happen");
            thread::yield_now();
        }
    }

    #[test]
    fn the_thread_sleeps_while_no_call_runs_and_a_call_wakes_it() {
        // Only a call ends the sleep.
        let watchdog = Watchdog::spawn_with(Duration::from_secs(3600)).unwrap();
        let clock = &watchdog.clock;
        let (asleep, ticks) = (|| clock.is_asleep.load(Ordering::Relaxed), || clock.ticks.load(Ordering::Relaxed));
        let task = Arc::new(WatchedTask { pool: Weak::new(), clock: Arc::clone(clock), began: AtomicU64::new(0) });
        watchdog.watched.lock().push(Arc::downgrade(&task));
        until(asleep);
        task.begin();
        let begun = ticks();
        until(|| ticks() > begun + 2 * u64::from(QUIET_TICKS));
        assert!(!asleep(), "the call runs");
        task.end();
        until(asleep);
    }
}
