//! What a pack has to send: its calls in one piece, then the frames that give calls up; and how much of each call has left.

use bytes::Bytes;
use callboard_codec::wire::{LooseFrame, cancel_frame};

use crate::stream::{Outgoing, WriteFault};

/// Frames on their way out.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// The frames of the calls, until the first of them is sent.
    gathered: Vec<u8>,
    /// Where the frame of each call ends, counted from the beginning of the stream.
    ends: Vec<usize>,
    pieces: Vec<Bytes>,
    /// How many of the pieces, and how many bytes, were handed over.
    handed: (usize, usize),
}

impl Sending {
    /// Appends a call: the next entry.
    pub(super) fn push(&mut self, frame: &LooseFrame) {
        // Within the bounds of a pack.
        frame.append_to(&mut self.gathered, self.ends.len() as u16);
        self.ends.push(self.gathered.len());
    }

    /// Whether nothing is left to send.
    pub(super) fn is_over(&self) -> bool {
        self.gathered.is_empty() && self.handed.0 == self.pieces.len()
    }

    /// Whether all of a call was handed over.
    pub(super) fn was_sent(&self, entry: usize) -> bool {
        self.handed.1 >= self.ends[entry]
    }

    /// Hands over what there is room for; waits while there is none.
    ///
    /// # Cancellation
    ///
    /// Nothing was handed over.
    pub(super) async fn write_some(&mut self, outgoing: &mut Outgoing) -> Result<(), WriteFault> {
        self.close();
        let (bytes, pieces) = outgoing.write_some(&mut self.pieces[self.handed.0..]).await?;
        self.handed = (self.handed.0 + pieces, self.handed.1 + bytes);
        Ok(())
    }

    /// Gives up a call: it never leaves if nothing of it has; else the node is told so, unless that is said by a reset.
    pub(super) fn give_up(&mut self, entry: usize) {
        self.close();
        let (start, end) = (entry.checked_sub(1).map_or(0, |before| self.ends[before]), self.ends[entry]);
        let left = self.handed.1;
        if left > start {
            if self.ends.len() > 1 {
                self.pieces.push(cancel_frame(entry as u16));
            }
            return;
        }
        // Calls are in the first piece, of which the beginning may have left.
        let calls = &self.pieces[0];
        self.pieces[0] = [&calls[..start - left], &calls[end - left..]].concat().into();
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

    /// Three calls, of which so many bytes have left.
    fn sending(left: usize) -> (Sending, Vec<u8>, usize) {
        let call = |route: &str| Call { route: route.to_owned(), ..Call::default() };
        let mut sending = Sending::default();
        for route in ["/a", "/b", "/c"] {
            sending.push(&LooseFrame::new(FrameKind::Call, &call(route), &[]).unwrap());
        }
        let all = sending.gathered.clone();
        let one = all.len() / 3;
        sending.close();
        let _ = sending.pieces[0].split_to(left);
        sending.handed.1 = left;
        (sending, all, one)
    }

    #[test]
    fn what_has_not_left_never_does() {
        let (mut sending, all, one) = sending(0);
        sending.give_up(1);
        assert_eq!(sending.pieces.concat(), [&all[..one], &all[2 * one..]].concat());
        sending.give_up(0);
        sending.give_up(2);
        assert_eq!(sending.pieces.concat(), b"");
    }

    #[test]
    fn what_has_left_is_taken_back_and_the_rest_stays_whole() {
        let one = sending(0).2;
        let (mut sending, all, _) = sending(one + 1);
        assert!(sending.was_sent(0) && !sending.was_sent(1));
        sending.give_up(2);
        sending.give_up(1);
        sending.give_up(0);
        assert_eq!(sending.pieces.concat(), [&all[one + 1..2 * one], &cancel_frame(1), &cancel_frame(0)].concat());
        sending.handed.1 = 2 * one;
        assert!(sending.was_sent(1));
    }
}
