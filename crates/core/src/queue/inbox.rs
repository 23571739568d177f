//! The list into which callers put their entries: one message tells the batcher of all entries that came before it
//! looked.
//!
//! A message to an actor costs several times as much as a push into a list. So callers share the list, and only the
//! first one after the batcher has emptied it sends a message. The batcher empties the list before it handles any
//! message, so it knows an entry before any other message about that entry.
//!
//! * **Full:** never; every entry holds a permit of the bounded queue.
//! * **Late, cancelled:** not checked here; the batcher takes the entry from the list before it reads that the caller
//!   left.
//! * **Closed:** with its batcher. The entries in the list are dropped, and later callers get theirs back.

use parking_lot::Mutex;

use super::entry::Entry;

/// The largest list that is kept for the next entries.
const KEPT_CAPACITY: usize = 256;

/// Entries on their way to one batcher.
#[derive(Debug, Default)]
pub(crate) struct Inbox(Mutex<InboxState>);

#[derive(Debug, Default)]
struct InboxState {
    entries: Vec<Entry>,
    is_closed: bool,
}

impl Inbox {
    /// Adds an entry. `Ok(true)`: the inbox was empty, so the batcher must be notified.
    ///
    /// # Errors
    ///
    /// Gives the entry back when the batcher has ended.
    pub(crate) fn put(&self, entry: Entry) -> Result<bool, Entry> {
        let mut state = self.0.lock();
        if state.is_closed {
            return Err(entry);
        }
        state.entries.push(entry);
        Ok(state.entries.len() == 1)
    }

    /// Takes all entries in the order of their arrival. `taken` must be empty; the inbox reuses its capacity.
    pub(crate) fn take(&self, taken: &mut Vec<Entry>) {
        std::mem::swap(&mut self.0.lock().entries, taken);
    }

    /// Refuses further entries, and drops the waiting ones.
    pub(crate) fn close(&self) {
        let dropped = {
            let mut state = self.0.lock();
            state.is_closed = true;
            std::mem::take(&mut state.entries)
        };
        // Without the lock: the drop answers their callers.
        drop(dropped);
    }
}

/// An emptied list, unless a crowd has made it large: it would be memory that the crowd's calls pay for as they wait.
pub(crate) fn worth_keeping(emptied: Vec<Entry>) -> Vec<Entry> {
    if emptied.capacity() > KEPT_CAPACITY { Vec::new() } else { emptied }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::call::{Flight, Priority};
    use crate::clock::Instant;
    use crate::deadline::Deadline;
    use crate::queue::{ContainedPayload, EntryOutcome, OutcomePort};

    fn entry(sequence: u64) -> (Entry, tokio::sync::oneshot::Receiver<EntryOutcome>) {
        let now = Instant::now();
        let flight = Arc::new(Flight::new(Deadline::after(now, Duration::from_secs(1)), Priority::Normal));
        let (reply, outcome) = OutcomePort::pair();
        let payload = ContainedPayload::default();
        let enqueued_at = now;
        let entry = Entry { sequence, cost: 1, payload, flight, enqueued_at, reply, outputs: None, permit: None };
        (entry, outcome)
    }

    #[test]
    fn only_the_first_entry_notifies_the_batcher() {
        let (inbox, mut taken) = (Inbox::default(), Vec::new());
        let notifies = |sequence| inbox.put(entry(sequence).0).ok();
        assert_eq!([0, 1, 2].map(notifies), [Some(true), Some(false), Some(false)]);
        inbox.take(&mut taken);
        assert_eq!(taken.iter().map(|entry| entry.sequence).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(notifies(3), Some(true));
    }

    #[test]
    fn a_closed_inbox_drops_its_entries_and_gives_later_ones_back() {
        let (inbox, (waiting, mut outcome)) = (Inbox::default(), entry(0));
        assert!(inbox.put(waiting).is_ok());
        inbox.close();
        assert_eq!(outcome.try_recv().err(), Some(tokio::sync::oneshot::error::TryRecvError::Closed));
        assert_eq!(inbox.put(entry(1).0).err().map(|entry| entry.sequence), Some(1));
    }

    #[test]
    fn only_a_list_that_a_crowd_made_large_is_not_kept() {
        assert_eq!(worth_keeping(Vec::with_capacity(KEPT_CAPACITY)).capacity(), KEPT_CAPACITY);
        assert_eq!(worth_keeping(Vec::with_capacity(KEPT_CAPACITY + 1)).capacity(), 0);
    }
}
