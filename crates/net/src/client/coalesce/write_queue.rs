//! The bytes that a shared stream has to send: its calls in one piece, then cancel frames; and the progress of each
//! call.

use bytes::Bytes;
use callboard_codec::wire::{LooseFrame, cancel_frame};

use crate::stream::{FrameSender, WriteFault};

/// Frames on their way out.
#[derive(Debug, Default)]
pub(super) struct WriteQueue {
    /// The frames of the calls, until the first write.
    gathered: Vec<u8>,
    /// The end of each call's frame, from the beginning of the stream.
    ends: Vec<usize>,
    pieces: Vec<Bytes>,
    written_pieces: usize,
    written_bytes: usize,
}

impl WriteQueue {
    /// Appends a call as the next entry.
    pub(super) fn push(&mut self, frame: &LooseFrame) {
        // The limit of calls per stream fits into a u16.
        frame.append_to(&mut self.gathered, self.ends.len() as u16);
        self.ends.push(self.gathered.len());
    }

    /// Whether everything was sent.
    pub(super) fn is_empty(&self) -> bool {
        self.gathered.is_empty() && self.written_pieces == self.pieces.len()
    }

    /// Whether a call was sent completely.
    pub(super) fn was_sent(&self, entry: usize) -> bool {
        self.written_bytes >= self.ends[entry]
    }

    /// Writes as much as fits; waits while there is no room.
    ///
    /// # Cancellation
    ///
    /// A dropped future has written nothing.
    pub(super) async fn write_some(&mut self, outgoing: &mut FrameSender) -> Result<(), WriteFault> {
        self.close();
        let (bytes, pieces) = outgoing.write_some(&mut self.pieces[self.written_pieces..]).await?;
        self.written_pieces += pieces;
        self.written_bytes += bytes;
        Ok(())
    }

    /// Cancels a call. An unsent call is removed. Otherwise a cancel frame is queued, unless the call is alone: then
    /// the reset of the stream cancels it.
    pub(super) fn cancel(&mut self, entry: usize) {
        self.close();
        let (start, end) = (entry.checked_sub(1).map_or(0, |before| self.ends[before]), self.ends[entry]);
        let written = self.written_bytes;
        if written > start {
            if self.ends.len() > 1 {
                self.pieces.push(cancel_frame(entry as u16));
            }
            return;
        }
        // The calls are the first piece, of which the beginning may have been written.
        let calls = &self.pieces[0];
        self.pieces[0] = [&calls[..start - written], &calls[end - written..]].concat().into();
        self.ends[entry..].iter_mut().for_each(|later| *later -= end - start);
    }

    fn close(&mut self) {
        if !self.gathered.is_empty() {
            self.pieces.push(std::mem::take(&mut self.gathered).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use callboard_codec::wire::{Call, FrameKind};

    use super::*;

    /// A queue of three calls, of which this many bytes were written.
    fn queue(written: usize) -> (WriteQueue, Vec<u8>, usize) {
        let call = |route: &str| Call { route: route.to_owned(), ..Call::default() };
        let mut queue = WriteQueue::default();
        for route in ["/a", "/b", "/c"] {
            queue.push(&LooseFrame::new(FrameKind::Call, &call(route), &[]).unwrap());
        }
        let all = queue.gathered.clone();
        let one = all.len() / 3;
        queue.close();
        let _ = queue.pieces[0].split_to(written);
        queue.written_bytes = written;
        (queue, all, one)
    }

    #[test]
    fn an_unsent_call_that_is_cancelled_is_never_sent() {
        let (mut queue, all, one) = queue(0);
        queue.cancel(1);
        assert_eq!(queue.pieces.concat(), [&all[..one], &all[2 * one..]].concat());
        queue.cancel(0);
        queue.cancel(2);
        assert_eq!(queue.pieces.concat(), b"");
    }

    #[test]
    fn a_sent_call_is_cancelled_by_a_frame_and_the_others_stay_complete() {
        let one = queue(0).2;
        let (mut queue, all, _) = queue(one + 1);
        assert!(queue.was_sent(0) && !queue.was_sent(1));
        queue.cancel(2);
        queue.cancel(1);
        queue.cancel(0);
        assert_eq!(queue.pieces.concat(), [&all[one + 1..2 * one], &cancel_frame(1), &cancel_frame(0)].concat());
        queue.written_bytes = 2 * one;
        assert!(queue.was_sent(1));
    }
}
