//! Keeps a paused clock still while a thread works, in tests.
//!
//! Tokio advances a paused clock when the runtime has nothing to do, but not while a blocking task runs. A thread that
//! works for a stage is no such task, so one runs beside it.

use std::cell::RefCell;
use std::sync::mpsc::{Sender, channel};

use tokio::runtime::Handle;

thread_local! {
    /// The hold of the batch that this thread runs.
    static OF_BATCH: RefCell<Option<ClockHold>> = const { RefCell::new(None) };
}

/// A paused clock does not advance while it lives.
pub(crate) struct ClockHold(#[expect(dead_code, reason = "dropping it ends the blocking task")] Sender<()>);

impl ClockHold {
    /// On a runtime.
    pub(crate) fn new() -> Self {
        let (held, released) = channel();
        Handle::current().spawn_blocking(move || released.recv());
        Self(held)
    }
}

/// Runs a batch with this hold.
pub(crate) fn hold_during<T>(hold: Option<ClockHold>, run: impl FnOnce() -> T) -> T {
    if hold.is_none() {
        return run();
    }
    put_hold(hold);
    let done = run();
    drop(take_hold());
    done
}

/// Takes the hold of the batch that this thread runs, to release it while the batch waits for the runtime.
pub(super) fn take_hold() -> Option<ClockHold> {
    OF_BATCH.take()
}

pub(super) fn put_hold(hold: Option<ClockHold>) {
    OF_BATCH.set(hold);
}
