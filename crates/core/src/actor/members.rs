//! All actors of one name, on all nodes: a group whose members are found by that name.

use std::sync::atomic::Ordering;

use futures_util::future::join_all;

use super::question::Question;
use super::remote_ref::{ActorPlace, RemoteRef};
use crate::call::CallOptions;
use crate::error::AskError;

impl RemoteRef {
    /// The node of a [member](Self::members); empty for a node without a name. `None` for a reference to any node.
    #[must_use]
    pub fn node(&self) -> Option<String> {
        match &self.place {
            ActorPlace::Anywhere => None,
            ActorPlace::Here => Some(self.this_node()),
            ActorPlace::Node(node) => Some((**node).to_owned()),
        }
    }

    /// A reference to each actor of this name that can be asked now: that of this node first, then one for each other
    /// node that publishes it. Each goes to its own node only. Nodes that start and end change the list: it is a view.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use std::time::Duration;
    /// # use callboard_core::actor::{Actor, ActorContext, ActorSpec, Question};
    /// # use callboard_core::{App, Failure};
    /// # use serde::{Deserialize, Serialize};
    /// # struct Cache;
    /// # impl Actor for Cache {
    /// #     type Message = Forget;
    /// #     async fn handle(&mut self, _: Forget, _: &ActorContext<Self>) -> Result<(), Failure> {
    /// #         Ok(())
    /// #     }
    /// # }
    /// # #[derive(Clone, Serialize, Deserialize)]
    /// # struct Forget(String);
    /// # impl Question for Forget {
    /// #     const NAME: &str = "forget";
    /// #     type Answer = ();
    /// # }
    /// # let cache = ActorSpec::new("cache", |_| Cache).accepts_tell(|forget: Forget| forget);
    /// # let node = App::new().actor(cache).start().await?;
    /// let caches = node.remote_actor("cache");
    /// for (cache, told) in caches.tell_all(Duration::from_secs(1), Forget("ann".to_owned())).await {
    ///     if let Err(error) = told {
    ///         eprintln!("{:?} was not told: {error}", cache.node());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn members(&self) -> Vec<Self> {
        let member = |place| {
            let mut member = self.clone();
            member.place = place;
            member
        };
        match &self.place {
            ActorPlace::Anywhere => {}
            place => return vec![member(place.clone())],
        }
        let here = self.is_here().then_some(ActorPlace::Here);
        here.into_iter().chain(self.others().into_iter().map(ActorPlace::Node)).map(member).collect()
    }

    /// One of the [members](Self::members), in turn among all clones of this reference. `None` without any.
    #[must_use]
    pub fn pick(&self) -> Option<Self> {
        let mut members = self.members();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(members.len())?;
        Some(members.swap_remove(turn))
    }

    /// [Tells](Self::tell) all [members](Self::members) at the same time, and returns what became of each. A node that
    /// starts or is connected meanwhile is not told.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, each message may be handled or not.
    pub async fn tell_all<Q: Question + Clone>(
        &self,
        within: impl Into<CallOptions>,
        question: Q,
    ) -> Vec<(Self, Result<(), AskError>)> {
        let options = self.until_one_deadline(within.into());
        let telling = self.members().into_iter().map(|member| {
            let (options, question) = (options.clone(), question.clone());
            async move {
                let told = member.tell(options, question).await;
                (member, told)
            }
        });
        join_all(telling).await
    }

    /// [Asks](Self::ask) all [members](Self::members) at the same time, and returns the answer of each.
    ///
    /// # Cancellation
    ///
    /// As of [`ask`](Self::ask), for each.
    pub async fn ask_all<Q: Question + Clone>(
        &self,
        within: impl Into<CallOptions>,
        question: Q,
    ) -> Vec<(Self, Result<Q::Answer, AskError>)> {
        let options = self.until_one_deadline(within.into());
        let asking = self.members().into_iter().map(|member| {
            let (options, question) = (options.clone(), question.clone());
            async move {
                let answer = member.ask(options, question).await;
                (member, answer)
            }
        });
        join_all(asking).await
    }
}

impl RemoteRef {
    /// All members have the same deadline.
    fn until_one_deadline(&self, options: CallOptions) -> CallOptions {
        let deadline = options.message_deadline(self.outer.as_ref());
        options.with_deadline(deadline)
    }
}
