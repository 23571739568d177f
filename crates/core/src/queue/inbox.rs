//! Where callers put down their entries: a batcher hears once of all that come before it looks.
//!
//! A message to an actor costs several times what it costs to put an entry into a list. So callers share the list, and only the
//! first one since the batcher last looked sends a message. The batcher looks at the list before it does what any message says, so
//! an entry is known by the time that its caller may say anything else about it.
//!
//! * **Full:** never; every entry holds a place in the bounded queue.
//! * **Late, cancelled:** not looked at here; the batcher finds the entry in the list before it hears that its caller has gone.
//! * **Closed:** with its batcher. What is in the list then is dropped, and callers get their entries back.

use parking_lot::Mutex;

use super::entry::Entry;

/// The largest list that is kept for the next entries.
const KEPT_CAPACITY: usize = 256;

/// Entries on their way to one batcher.
#[derive(Debug, Default)]
pub(crate) struct Inbox(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    entries: Vec<Entry>,
    closed: bool,
}

impl Inbox {
    /// Puts an entry down. `Ok(true)`: it is the first one since the batcher looked, who is to be told.
    ///
    /// # Errors
    ///
    /// The entry, when there is no batcher any more.
    pub(crate) fn put(&self, entry: Entry) -> Result<bool, Entry> {
        let mut state = self.0.lock();
        if state.closed {
            return Err(entry);
        }
        state.entries.push(entry);
        Ok(state.entries.len() == 1)
    }

    /// Takes all that is there, in the order in which it came. `taken` is empty, and what it can hold is used again.
    pub(crate) fn take(&self, taken: &mut Vec<Entry>) {
        std::mem::swap(&mut self.0.lock().entries, taken);
    }

    /// Ends the way in.
    pub(crate) fn close(&self) {
        let dropped = {
            let mut state = self.0.lock();
            state.closed = true;
            std::mem::take(&mut state.entries)
        };
        // Without the lock: their callers are told.
        drop(dropped);
    }
}

/// An emptied list, unless a crowd has made it large: it would be memory that the crowd's calls pay for as they wait.
pub(crate) fn worth_keeping(emptied: Vec<Entry>) -> Vec<Entry> {
    if emptied.capacity() > KEPT_CAPACITY { Vec::new() } else { emptied }
}
