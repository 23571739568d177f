//! The turn of a batch that was handed over ahead.

use tokio::sync::oneshot;

/// The turn of a batch of a stage that [hands batches ahead](crate::StageSettings::hands_ahead).
///
/// The worker says by [`begin`](Self::begin) that the batch runs. If the worker ends before that, the batch goes back
/// to the queue, under every contract. The stage's timeout counts from this call. In other stages a batch begins when
/// its worker gets it, and this call has no effect.
#[derive(Debug, Default)]
pub struct Turn(Option<oneshot::Sender<()>>);

impl Turn {
    /// A turn, and a receiver that resolves when it begins.
    pub(crate) fn pair() -> (Self, oneshot::Receiver<()>) {
        let (sender, begun) = oneshot::channel();
        (Self(Some(sender)), begun)
    }

    /// The worker begins with the batch. Only the first time counts.
    pub fn begin(&mut self) {
        if let Some(begun) = self.0.take() {
            // Without a receiver the callers left.
            let _ = begun.send(());
        }
    }
}
