//! What happens to an input between the producer and its call.

use std::sync::Arc;

use callboard_codec::{Data, Payload};

use crate::failure::Failure;

/// How a stream makes the input of a call of what it pulls. [`NoPreprocess`] and [`Preprocess`] are the two ways there are.
pub trait Prepare<X>: sealed::Sealed {
    /// What is kept of an input until its result is there.
    type Kept;

    /// The input of the call, and what is kept of the original if it is to `keep` it.
    #[doc(hidden)]
    fn prepare(&mut self, input: X, keep: bool) -> (Option<Self::Kept>, Result<Payload, Failure>);

    /// The original again.
    #[doc(hidden)]
    fn give_back(kept: Self::Kept) -> X
    where
        X: Clone;
}

/// Inputs are sent as they are.
#[derive(Clone, Copy, Debug)]
pub struct NoPreprocess;

impl<X: Data> Prepare<X> for NoPreprocess {
    type Kept = Arc<X>;

    fn prepare(&mut self, input: X, keep: bool) -> (Option<Arc<X>>, Result<Payload, Failure>) {
        let input = Arc::new(input);
        let kept = keep.then(|| Arc::clone(&input));
        (kept, Ok(Payload::from_arc(input)))
    }

    fn give_back(kept: Arc<X>) -> X
    where
        X: Clone,
    {
        // Shared no more once the call is over, unless a stage has passed it on.
        Arc::unwrap_or_clone(kept)
    }
}

/// The input of a call that is made already, or why there is none: what an edge pulls off a connection.
#[derive(Clone, Debug)]
pub struct PreparedInput(pub Result<Payload, Failure>);

impl Prepare<PreparedInput> for NoPreprocess {
    type Kept = PreparedInput;

    fn prepare(&mut self, input: PreparedInput, keep: bool) -> (Option<PreparedInput>, Result<Payload, Failure>) {
        (keep.then(|| input.clone()), input.0)
    }

    fn give_back(kept: PreparedInput) -> PreparedInput {
        kept
    }
}

/// A function makes the input of each call; see [`CallStream::preprocess`](super::CallStream::preprocess).
#[derive(Clone, Copy)]
pub struct Preprocess<F>(pub(super) F);

impl<X, In, F> Prepare<X> for Preprocess<F>
where
    In: Data,
    F: FnMut(&X) -> Result<In, Failure>,
{
    type Kept = X;

    fn prepare(&mut self, input: X, keep: bool) -> (Option<X>, Result<Payload, Failure>) {
        let prepared = (self.0)(&input).map(Payload::new);
        (keep.then_some(input), prepared)
    }

    fn give_back(kept: X) -> X
    where
        X: Clone,
    {
        kept
    }
}

impl<F> std::fmt::Debug for Preprocess<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Preprocess").finish_non_exhaustive()
    }
}

mod sealed {
    #[expect(unnameable_types, reason = "so that nobody else implements `Prepare`")]
    pub trait Sealed {}

    impl Sealed for super::NoPreprocess {}

    impl<F> Sealed for super::Preprocess<F> {}
}
