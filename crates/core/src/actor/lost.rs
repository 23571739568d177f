//! The questions that an actor has in hand when it crashes: their askers learn which actor it was, and why.
//!
//! A port that is dropped while the actor's code runs may be that of a crash, whose reason is known only afterwards. So
//! its asker waits for the end of the message in hand, which says either.

use std::cell::RefCell;

use tokio::sync::oneshot;

use crate::text::limit_error_text;

/// The end of an actor with a question in hand.
#[derive(Clone, Debug)]
pub(super) struct Crash {
    pub(super) actor: String,
    pub(super) reason: String,
}

/// Tells an asker of the crash. Dropped: there was none.
pub(super) type CrashPort = oneshot::Sender<Crash>;

thread_local! {
    /// The ports that were dropped by the code that runs now, if it is an actor's.
    static DROPPED: RefCell<Option<Vec<CrashPort>>> = const { RefCell::new(None) };
}

/// A reply port was dropped unused.
pub(super) fn dropped(port: CrashPort) {
    // A thread that ends has no list any more.
    let _ = DROPPED.try_with(|dropped| {
        if let Some(dropped) = &mut *dropped.borrow_mut() {
            dropped.push(port);
        }
    });
}

/// The ports that were dropped while one message was handled.
#[derive(Debug, Default)]
pub(super) struct InHand(Vec<CrashPort>);

impl InHand {
    /// Runs code of the actor, which must not unwind.
    pub(super) fn during<R>(&mut self, run: impl FnOnce() -> R) -> R {
        let outer = DROPPED.replace(Some(std::mem::take(&mut self.0)));
        let result = run();
        self.0 = DROPPED.replace(outer).unwrap_or_default();
        result
    }

    pub(super) fn crashed(self, actor: &str, reason: &str) {
        let crash = Crash { actor: actor.to_owned(), reason: limit_error_text(reason.to_owned()) };
        for port in self.0 {
            let _ = port.send(crash.clone());
        }
    }
}
