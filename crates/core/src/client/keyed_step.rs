//! Keyed actors as a step of a pipeline: each item is a question to the actor of its key.

use std::sync::Arc;

use callboard_codec::{Data, Payload};

use super::{LocalClient, NodeState};
use crate::actor::{AskFn, Question, call_error};
use crate::call::{CallContext, CallOptions};
use crate::containment::contain;
use crate::error::{CallError, ErrorKind, Failure};
use crate::id::StageName;
use crate::keyed::published_name;
use crate::pipeline::Pipeline;

impl<In: Question + Clone> Pipeline<In, In::Answer> {
    /// The keyed actors of this kind as a step: each item is a question, which the actor of its key answers, on
    /// whichever node that is. `key` gives the key of an item. The question has the deadline of its call, its caller
    /// and its trace.
    ///
    /// Each item has its own outcome, so a key that cannot be loaded fails its own items only. A full mailbox is
    /// `Overloaded`, a key that no node can load `Unavailable`, and an actor that crashed or lost its key with the item
    /// `WorkerFailed`: the item is not sent again. [`KeyedRef`](crate::keyed::KeyedRef) has the list.
    ///
    /// An actor that calls a route with this step, for a key of its own kind, may wait for itself until its deadline.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    ///
    /// use callboard_core::actor::Question;
    /// use callboard_core::keyed::{Answers, KeyContext, KeyedSpec, Stored};
    /// use callboard_core::testing::MemoryStore;
    /// use callboard_core::{App, Failure, Pipeline};
    /// use schemars::JsonSchema;
    /// use serde::{Deserialize, Serialize};
    ///
    /// /// A page that a user has read. The answer is how many these are.
    /// #[derive(Clone, Serialize, Deserialize, JsonSchema)]
    /// struct Read {
    ///     user: String,
    ///     page: String,
    /// }
    ///
    /// impl Question for Read {
    ///     const NAME: &str = "read";
    ///     type Answer = usize;
    /// }
    ///
    /// impl Answers<Read> for Stored<Vec<String>> {
    ///     async fn answer(&mut self, read: Read, _: &KeyContext) -> Result<usize, Failure> {
    ///         self.push(read.page);
    ///         Ok(self.len())
    ///     }
    /// }
    ///
    /// let store = Arc::new(MemoryStore::new());
    /// let readers = KeyedSpec::new("reader", store, |_, pages: Stored<Vec<String>>| async { Ok(pages) });
    /// let count = Pipeline::ask_key("reader", |read: &Read| read.user.clone());
    /// let node = App::new().keyed(readers.accepts::<Read>()).route("/read", count).start().await?;
    ///
    /// let read = |page: &str| Read { user: "ann".to_owned(), page: page.to_owned() };
    /// assert_eq!(node.client().call::<_, usize>("/read", read("first")).await?, 1);
    /// assert_eq!(node.client().call::<_, usize>("/read", read("second")).await?, 2);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn ask_key<K, F>(kind: &str, key: F) -> Self
    where
        K: Into<String>,
        F: Fn(&In) -> K + Send + Sync + 'static,
    {
        Self::ask_key_with(kind, move |question: &In, _| Ok((key(question), question.clone())))
    }
}

impl<In: Data, Out: Data> Pipeline<In, Out> {
    /// As [`ask_key`](Self::ask_key), where `question` makes key and question of each item and its call, for example of
    /// the path of the request. Its failure, or its panic, is the error of that item.
    #[must_use]
    pub fn ask_key_with<Q, K, F>(kind: &str, question: F) -> Self
    where
        Q: Question<Answer = Out>,
        K: Into<String>,
        F: Fn(&In, &CallContext) -> Result<(K, Q), Failure> + Send + Sync + 'static,
    {
        let (name, question): (Arc<str>, _) = (kind.into(), Arc::new(question));
        let kind = Arc::clone(&name);
        let ask: AskFn = Arc::new(move |payload, flight| {
            let (kind, question) = (Arc::clone(&kind), Arc::clone(&question));
            Box::pin(async move {
                // Stages have names of their own.
                let context = CallContext::of(flight, &StageName::from(published_name(&kind)));
                let (key, asked) = made(&kind, payload, &context, &*question)?;
                let node = context.flight().permit.as_ref().and_then(|permit| permit.node());
                let node = node.ok_or_else(|| CallError::new(ErrorKind::Unavailable, "the node has ended"))?;
                let options = CallOptions::from(context.flight().deadline);
                let keyed = LocalClient::new(NodeState::of(&node)).within(&context).keyed(&kind);
                let answer = keyed.ask(&key.into(), options, asked).await;
                answer.map(Payload::new).map_err(|error| call_error(error, &kind))
            })
        });
        Self::asking(name, ask)
    }
}

/// Runs the user's code in the caller's future: its panic is the error of this item.
fn made<In: Data, M>(
    kind: &str,
    payload: Payload,
    context: &CallContext,
    question: impl Fn(&In, &CallContext) -> Result<M, Failure>,
) -> Result<M, CallError> {
    let (encoded, kind) = (payload.encoded_bytes(), StageName::new(kind));
    let input = || context.flight().reading(encoded, || payload.into_arc::<In>());
    let made = contain(|| input().map(|input| question(&input, context))).map_err(|words| {
        let error = CallError::new(ErrorKind::WorkerFailed, format!("the question's maker panicked: {words}"));
        error.at_stage(&kind).with_trace(words.trace())
    })??;
    made.map_err(|failure| CallError::from_failure(failure, &kind))
}
