//! Contains panics of user code, and of the destructors of users' values: a panic affects only its own call.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use futures_util::FutureExt;
use parking_lot::Mutex;

use crate::text::limit_error_text;

/// The payload of a panic as text, and its place. It displays as the message.
#[derive(Clone, Debug)]
pub struct CaughtPanic {
    message: String,
    place: Option<String>,
    /// Whether the worker ended without a panic.
    is_exit: bool,
}

impl CaughtPanic {
    /// Takes the payload of the panic. It is a user's value: its destructor may panic.
    pub(crate) fn from_payload(panic: Box<dyn Any + Send>) -> Self {
        let panic = match panic.downcast::<WorkerExit>() {
            Ok(exit) => {
                return Self { message: limit_error_text(exit.reason), place: None, is_exit: true };
            }
            Err(panic) => panic,
        };
        let place = PLACE.take();
        if place.is_none() {
            note_places_again();
        }
        let message = panic_message(panic.as_ref());
        drop_contained(panic);
        Self { message, place, is_exit: false }
    }

    /// Whether the worker ended without a panic: other batches that it ran have ended with it.
    pub(crate) fn is_exit(&self) -> bool {
        self.is_exit
    }

    /// Message and place, as Rust itself prints them.
    pub(crate) fn trace(&self) -> Option<String> {
        match &self.place {
            Some(place) => Some(format!("panicked at {place}:\n{}", self.message)),
            None => (!self.is_exit).then(|| self.message.clone()),
        }
    }

    /// The panic as the reason of a worker's end.
    pub(crate) fn in_worker(&self) -> String {
        let verb = if self.is_exit { "ended" } else { "panicked" };
        format!("the worker {verb}: {}", self.message)
    }
}

impl fmt::Display for CaughtPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A worker cannot continue, because a part of it has ended, such as its child process.
///
/// Inside a call it ends the replica as a panic would, with the same rules for the entries of the batch, but nothing is
/// printed, and the error says "ended" in place of "panicked".
#[derive(Clone, Debug)]
pub struct WorkerExit {
    pub(crate) reason: String,
}

impl WorkerExit {
    /// An exit for this reason. The message is "the worker ended: " and the reason.
    #[must_use]
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }

    /// Why it ended.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Ends the replica, from inside its worker's call. A worker that is being built returns a failure instead.
    pub fn unwind(self) -> ! {
        panic::resume_unwind(Box::new(self))
    }
}

impl fmt::Display for WorkerExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the worker ended: {}", self.reason)
    }
}

/// The text of a panic, if it has one.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned());
    limit_error_text(text)
}

/// Runs user code.
///
/// # Errors
///
/// The panic that ended it.
pub fn contain<T>(code: impl FnOnce() -> T) -> Result<T, CaughtPanic> {
    catch_unwind(AssertUnwindSafe(code)).map_err(CaughtPanic::from_payload)
}

/// Panics with `message` as user code would, but prints nothing: for simulations.
pub(crate) fn panic_quietly(message: &'static str) -> ! {
    PLACE.replace(Some("a simulation".to_owned()));
    panic::resume_unwind(Box::new(message))
}

/// Drives user code. The future must not be polled after a panic: its state may be broken.
///
/// # Errors
///
/// The panic that ended it.
pub async fn contain_future<T>(code: impl Future<Output = T>) -> Result<T, CaughtPanic> {
    AssertUnwindSafe(code).catch_unwind().await.map_err(CaughtPanic::from_payload)
}

thread_local! {
    /// The place of this thread's last panic.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Threads that are in a panic hook.
static IN_HOOKS: AtomicUsize = AtomicUsize::new(0);

/// How many times the hook wraps other hooks.
static HOOKS: Mutex<u32> = Mutex::new(0);

/// How often this hook wraps a later hook of the program. Only a program that sets hooks repeatedly exceeds it.
const MAX_HOOKS: u32 = 16;

/// Makes every panic record its location and the time of its printing. Done once for a process.
pub(crate) fn note_places() {
    let mut hooks = HOOKS.lock();
    if *hooks == 0 {
        add_hook(&mut hooks);
    }
}

/// Wraps a hook that the program has set since then, which does not record locations.
fn note_places_again() {
    let mut hooks = HOOKS.lock();
    if (1..MAX_HOOKS).contains(&*hooks) && !thread::panicking() {
        add_hook(&mut hooks);
    }
}

fn add_hook(hooks: &mut u32) {
    let previous_hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        IN_HOOKS.fetch_add(1, Ordering::Relaxed);
        PLACE.replace(info.location().map(ToString::to_string));
        previous_hook(info);
        IN_HOOKS.fetch_sub(1, Ordering::Relaxed);
    }));
    *hooks += 1;
}

/// Whether a thread is printing a panic. That may take longer than its call: a backtrace reads the program's file.
pub(crate) fn a_panic_is_printed() -> bool {
    IN_HOOKS.load(Ordering::Relaxed) > 0
}

/// Drops a value that may contain a user's value. A destructor that panics is logged and ends nothing else.
pub(crate) fn drop_contained<T>(value: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        tracing::error!(parent: None, panic = panic_message(panic.as_ref()), "a destructor panicked");
        // The payload of this panic is leaked: its destructor could panic as well.
        Box::leak(panic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("boom");
        }
    }

    #[test]
    fn reports_the_panic_message_and_survives_its_payload() {
        assert_eq!(contain(|| 1).unwrap(), 1);
        assert_eq!(contain(|| panic!("no")).unwrap_err().to_string(), "no");
        let with_a_bomb = contain(|| panic::panic_any(Bomb));
        assert_eq!(with_a_bomb.unwrap_err().to_string(), "a panic without a message");
        drop_contained(Bomb);
    }
}
