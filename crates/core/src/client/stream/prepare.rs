//! How an input becomes the payload of its call.

use std::sync::Arc;

use callboard_codec::{Data, Payload};

use crate::error::Failure;

/// Turns an input of a stream into the payload of its call. Implemented by [`NoPreprocess`] and [`Preprocess`] only.
pub trait Prepare<X>: sealed::Sealed {
    /// The form in which an input is stored until its result arrives.
    type Stored;

    /// The payload of the call, and the stored input if `store` is set.
    #[doc(hidden)]
    fn prepare(&mut self, input: X, store: bool) -> (Option<Self::Stored>, Result<Payload, Failure>);

    /// The input again.
    #[doc(hidden)]
    fn restore(stored: Self::Stored) -> X
    where
        X: Clone;
}

/// Sends each input unchanged.
#[derive(Clone, Copy, Debug)]
pub struct NoPreprocess;

impl<X: Data> Prepare<X> for NoPreprocess {
    type Stored = Arc<X>;

    fn prepare(&mut self, input: X, store: bool) -> (Option<Arc<X>>, Result<Payload, Failure>) {
        let input = Arc::new(input);
        let stored = store.then(|| Arc::clone(&input));
        (stored, Ok(Payload::from_arc(input)))
    }

    fn restore(stored: Arc<X>) -> X
    where
        X: Clone,
    {
        // The call is over. The input is cloned only if a stage has passed it on.
        Arc::unwrap_or_clone(stored)
    }
}

/// An input that an edge has read and decoded, or the reason of the failure.
#[derive(Clone, Debug)]
pub struct PreparedInput(pub Result<Payload, Failure>);

impl Prepare<PreparedInput> for NoPreprocess {
    type Stored = PreparedInput;

    fn prepare(&mut self, input: PreparedInput, store: bool) -> (Option<PreparedInput>, Result<Payload, Failure>) {
        (store.then(|| input.clone()), input.0)
    }

    fn restore(stored: PreparedInput) -> PreparedInput {
        stored
    }
}

/// Makes the input of each call by a function; see [`CallStream::preprocess`](super::CallStream::preprocess).
#[derive(Clone, Copy)]
pub struct Preprocess<F>(pub(super) F);

impl<X, In, F> Prepare<X> for Preprocess<F>
where
    In: Data,
    F: FnMut(&X) -> Result<In, Failure>,
{
    type Stored = X;

    fn prepare(&mut self, input: X, store: bool) -> (Option<X>, Result<Payload, Failure>) {
        let prepared = (self.0)(&input).map(Payload::new);
        (store.then_some(input), prepared)
    }

    fn restore(stored: X) -> X
    where
        X: Clone,
    {
        stored
    }
}

impl<F> std::fmt::Debug for Preprocess<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Preprocess").finish_non_exhaustive()
    }
}

mod sealed {
    #[expect(unnameable_types, reason = "seals `Prepare`")]
    pub trait Sealed {}

    impl Sealed for super::NoPreprocess {}

    impl<F> Sealed for super::Preprocess<F> {}
}
