//! Counts the bytes that a task moves, so that it yields its thread in time.
//!
//! Tokio lets a task use its sockets 128 times before other tasks run, however many bytes each use moves. With large
//! pieces that would block the thread for tens of milliseconds. So each 4 KiB count as a use as well: a turn is half a
//! mebibyte, a fraction of a millisecond.

use std::future::poll_fn;
use std::task::{Context, Poll};

use tokio::task::coop::{consume_budget, poll_proceed};

/// Bytes that count as one use of a socket.
const BYTES_PER_USE: usize = 4096;

/// The weight of a response that waits for nothing: a client that pipelines requests yields its thread after eight.
const ANSWER_BYTES: usize = 16 * BYTES_PER_USE;

/// Counts moved bytes. After enough of them the task's next use of a socket waits for its next turn.
pub(crate) fn count(cx: &mut Context<'_>, bytes: usize) {
    for _ in 0..bytes / BYTES_PER_USE {
        match poll_proceed(cx) {
            Poll::Ready(used) => used.made_progress(),
            Poll::Pending => return,
        }
    }
}

/// Counts moved bytes, and yields after enough of them.
pub(crate) async fn moved(bytes: usize) {
    poll_fn(|cx| {
        count(cx, bytes);
        Poll::Ready(())
    })
    .await;
    consume_budget().await;
}

/// Counts a response that waited for nothing.
pub(crate) async fn answered_at_once() {
    moved(ANSWER_BYTES).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Turns that a task needs for this.
    async fn turns(work: impl Future<Output = ()>) -> u32 {
        let (mut work, mut turns) = (Box::pin(work), 0);
        poll_fn(|cx| {
            turns += 1;
            work.as_mut().poll(cx)
        })
        .await;
        turns
    }

    #[tokio::test]
    async fn a_task_yields_after_half_a_mebibyte_in_any_number_of_pieces() {
        let pieces = async |count: usize, bytes: usize| {
            for _ in 0..count {
                moved(bytes).await;
            }
        };
        assert_eq!(tokio::spawn(turns(async move { pieces(1, 100).await })).await.unwrap(), 1);
        assert_eq!(tokio::spawn(turns(async move { pieces(64, 64 << 10).await })).await.unwrap(), 9);
        assert_eq!(tokio::spawn(turns(async move { pieces(4, 1 << 20).await })).await.unwrap(), 5);
    }
}
