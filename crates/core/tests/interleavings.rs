//! The orders in which the threads around a stream's wake-ups can act, and the values that their atomics may show: played by loom on the
//! very file that the crate is built from, in a second or two. A wake-up that is lost is a thread that sleeps for ever, which loom
//! tells as a deadlock.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use loom::future::block_on;
use loom::sync::atomic::AtomicUsize;
use loom::thread;

/// What the file finds in the place of the crate's own.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::sync::{Mutex as LoomMutex, MutexGuard};

    #[derive(Default)]
    pub(super) struct Mutex<T>(LoomMutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no thread of the model panics")
        }
    }
}

#[path = "../src/client/stream/bells.rs"]
mod bells;

use bells::Bells;
use sync::Ordering;

/// How often a thread is interrupted where it would not have had to be. Bugs of this kind need one or two; without a bound it takes hours.
const PREEMPTIONS: usize = 2;

/// Threads that each do their part, which nothing but the bell orders, and ring; a task that polls what was rung for until all is done.
fn is_heard_of_all(slots: &'static [usize]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(move || {
        let (bells, done) = (Bells::default(), Arc::new(AtomicUsize::new(0)));
        let all: Vec<_> = (0..=slots[slots.len() - 1]).map(|slot| bells.bell(slot)).collect();
        for slot in slots {
            let (waker, done) = (Waker::from(Arc::clone(&all[*slot])), Arc::clone(&done));
            thread::spawn(move || {
                done.fetch_add(1, Ordering::Relaxed);
                waker.wake();
            });
        }
        // What begins is polled without being rung for.
        let mut turn: Vec<usize> = (0..all.len()).collect();
        block_on(poll_fn(|context| {
            bells.take(&mut turn, context.waker());
            for slot in turn.drain(..) {
                all[slot].silence();
                if done.load(Ordering::Relaxed) == slots.len() {
                    return Poll::Ready(());
                }
            }
            Poll::Pending
        }));
    });
}

#[test]
fn a_call_that_is_rung_for_by_two_threads_is_polled_after_the_last() {
    is_heard_of_all(&[0, 0]);
}

#[test]
fn two_calls_that_are_rung_for_at_once_are_both_heard() {
    is_heard_of_all(&[0, 1]);
}
