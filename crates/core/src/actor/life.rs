//! One life of an actor: the trait that users implement, and how the engine drives it.
//!
//! The engine is ractor. No public name is ractor's, so a new version or another engine changes nothing for users.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use ractor::{ActorProcessingErr, ActorRef as EngineRef};
use tracing::{Instrument, Span, info_span};

use super::context::ActorContext;
use super::lost::InHand;
use super::mailbox::{ActorRef, Delivery};
use crate::containment::{CaughtPanic, contain, contain_future, drop_contained};
use crate::error::Failure;
use crate::host::HostNode;

/// State that handles one message at a time.
///
/// The state is `self`, and no other code has access to it. All messages of an actor are of one type: an enum, or a
/// struct where there is one kind. A message that expects an answer carries a [`ReplyPort`](crate::actor::ReplyPort).
/// An [`ActorSpec`](crate::actor::ActorSpec) says how to build the actor, an [`ActorRef`](crate::actor::ActorRef)
/// reaches it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use callboard_core::actor::{Actor, ActorContext, ActorSpec, ReplyPort};
/// use callboard_core::{App, Failure};
///
/// struct Account {
///     balance: u64,
/// }
///
/// enum Order {
///     PayIn(u64),
///     PayOut(u64, ReplyPort<u64>),
/// }
///
/// impl Actor for Account {
///     type Message = Order;
///
///     async fn handle(&mut self, order: Order, _: &ActorContext<Self>) -> Result<(), Failure> {
///         match order {
///             Order::PayIn(amount) => self.balance += amount,
///             Order::PayOut(amount, answer) => match self.balance.checked_sub(amount) {
///                 Some(rest) => {
///                     self.balance = rest;
///                     answer.send(rest);
///                 }
///                 None => answer.fail(Failure::new("not enough money").with_status(402)),
///             },
///         }
///         Ok(())
///     }
/// }
///
/// let node = App::new().actor(ActorSpec::new("account", |_| Account { balance: 0 })).start().await?;
/// let account = node.actor::<Order>("account").expect("it has just been started");
/// account.tell(Order::PayIn(10))?;
/// let rest = account.ask(Duration::from_secs(1), |answer| Order::PayOut(4, answer)).await?;
/// assert_eq!(rest, 6);
/// # Ok(())
/// # }
/// ```
///
/// # Messages that are not handled
///
/// A message is handled at most once. `tell` is [`ActorRef::tell`](crate::actor::ActorRef::tell), `ask` is
/// [`ActorRef::ask`](crate::actor::ActorRef::ask).
///
/// | when | `tell` | `ask` |
/// |---|---|---|
/// | the mailbox is full | gives the message back: `Full` | `Full` |
/// | the actor restarts | gives the message back: `Down` | waits for the next life, until the deadline |
/// | the actor has ended | gives the message back: `Over` | `Over` |
/// | it crashes while the message waits | is handled by the next life | is handled by the next life |
/// | it ends while the message waits | the message is lost | `Over` |
/// | the deadline passes while the message waits | – | `DeadlineExceeded`, and the message is never handled |
/// | it crashes with the message in hand | the message is lost | `Crashed`, with the reason: it may have had an effect |
///
/// A sender that must know whether a message was handled asks, with a `ReplyPort<()>`. A question that an actor hands
/// on, with its port in a `tell`, waits and fails in the same way.
///
/// # Crashes
///
/// An error of [`handle`](Self::handle) is a crash, as is a panic: this life ends, its state is dropped, and the actor
/// is then built again as its [group](crate::actor::ActorGroup) says. [`stopped`](Self::stopped) does not run. A
/// refusal that leaves the state intact is no crash: it is [`ReplyPort::fail`](crate::actor::ReplyPort::fail).
///
/// # Cancellation
///
/// If an actor does not stop within 5 s, or its node is dropped, the future of the running hook is dropped at its next
/// `await`. The next life of the actor starts only after that: two lives never exist at once.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an actor",
    label = "this has to be an `Actor`",
    note = "write `impl Actor for {Self}` with `type Message` and `async fn handle(&mut self, message, context)`",
    note = "the closure of an `ActorSpec` returns the actor itself, not a `Result`: what may fail belongs in `started`"
)]
pub trait Actor: Send + Sized + 'static {
    /// The type of its messages.
    type Message: Send + 'static;

    /// Handles one message. The next one waits until this future is ready; the place in the mailbox is already free.
    ///
    /// # Errors
    ///
    /// An error ends this life as a crash. Its text is in the actor's
    /// [description](crate::description::ActorDescription).
    fn handle(
        &mut self,
        message: Self::Message,
        context: &ActorContext<Self>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Runs once in each life, before the first message. The start of the node, or of the group, waits for it.
    ///
    /// # Errors
    ///
    /// At the first start, the start of the node or the group fails with it. A later error counts as another crash.
    fn started(&mut self, context: &ActorContext<Self>) -> impl Future<Output = Result<(), Failure>> + Send {
        let _ = context;
        async { Ok(()) }
    }

    /// Runs after the last message of a life that ends in good order: the actor was stopped, alone, with its group or
    /// with its node. Its messages are refused by then.
    fn stopped(&mut self, context: &ActorContext<Self>) -> impl Future<Output = ()> + Send {
        let _ = context;
        async {}
    }
}

/// How each life is built.
pub(super) type ActorFactory<A> = Arc<dyn Fn(&ActorContext<A>) -> A + Send + Sync>;

/// One life of an actor, as the engine runs it.
pub(super) struct ActorLife<A: Actor> {
    pub(super) build: ActorFactory<A>,
    pub(super) node: Arc<dyn HostNode>,
    pub(super) reference: ActorRef<A::Message>,
    pub(super) number: u64,
}

/// The state of one life and its context, until that life is over.
pub(super) struct LifeState<A: Actor>(Option<(A, ActorContext<A>)>);

impl<A: Actor> Drop for LifeState<A> {
    /// The engine drops the rest in its own tasks, which a panic of a user's destructor must not end.
    fn drop(&mut self) {
        drop_contained(self.0.take());
    }
}

/// A hook that runs on the state. If the hook fails or its future is dropped, the state is dropped with it. The engine
/// reports the end of a life before it drops the state, and by then the next life may start.
struct RunningHook<'a, A: Actor> {
    state: &'a mut LifeState<A>,
    has_succeeded: bool,
}

impl<A: Actor> Drop for RunningHook<'_, A> {
    fn drop(&mut self) {
        if !self.has_succeeded {
            drop_contained(self.state.0.take());
        }
    }
}

impl<A: Actor> ActorLife<A> {
    /// The span of the actor's code. It names the actor, as the engine's own span does not, and is not below that.
    fn span(&self) -> Span {
        info_span!(target: "callboard::actor", parent: None, "actor", name = self.reference.name())
    }
}

impl<A: Actor> ractor::Actor for ActorLife<A> {
    type Msg = Delivery<A::Message>;
    /// Empty once the actor has ended: the engine hands it to the supervisor, which must run no user's destructor.
    type State = LifeState<A>;
    type Arguments = ();

    async fn pre_start(&self, myself: EngineRef<Self::Msg>, (): ()) -> Result<Self::State, ActorProcessingErr> {
        let context = ActorContext::new(self.node.clone(), self.reference.clone(), myself, self.number);
        let span = self.span();
        let actor = contain(|| span.in_scope(|| (self.build)(&context))).map_err(panicked)?;
        let mut state = LifeState(Some((actor, context)));
        if let Some((actor, context)) = &mut state.0 {
            let started = contain_future(actor.started(context).instrument(span)).await.map_err(panicked)?;
            started.map_err(|failure| failure.to_string())?;
        }
        Ok(state)
    }

    async fn handle(
        &self,
        _: EngineRef<Self::Msg>,
        delivery: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let mut hook = RunningHook { state, has_succeeded: false };
        if let (Some((actor, context)), Some(message)) = (&mut hook.state.0, delivery.open()) {
            let mut in_hand = InHand::default();
            let handled = {
                let handling = async { actor.handle(message, context).await };
                let mut handling = pin!(contain_future(handling.instrument(self.span())));
                poll_fn(|task| in_hand.during(|| handling.as_mut().poll(task))).await
            };
            let ended = handled.map_err(panicked).and_then(|handled| handled.map_err(|failure| failure.to_string()));
            if let Err(why) = ended {
                // The state may have ports of earlier questions.
                in_hand.during(|| drop(hook));
                in_hand.crashed(self.reference.name(), &why);
                return Err(why.into());
            }
        }
        hook.has_succeeded = true;
        Ok(())
    }

    async fn post_stop(&self, _: EngineRef<Self::Msg>, state: &mut Self::State) -> Result<(), ActorProcessingErr> {
        let hook = RunningHook { state, has_succeeded: false };
        if let Some((actor, context)) = &mut hook.state.0 {
            contain_future(actor.stopped(context).instrument(self.span())).await.map_err(panicked)?;
        }
        Ok(())
    }
}

fn panicked(words: CaughtPanic) -> String {
    format!("panicked: {words}")
}
