//! The context of an actor: its name, its node, its timers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ractor::ActorRef as EngineRef;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::MissedTickBehavior;

use super::life::Actor;
use super::mailbox::{ActorRef, Delivery};
use crate::clock;
use crate::containment::contain;
use crate::host::HostNode;

/// The shortest period of a repeated message.
const SHORTEST_PERIOD: Duration = Duration::from_millis(1);

/// The access of an actor to itself and to its node: name, reference, timers, client. Each life has its own context.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use callboard_core::actor::{Actor, ActorContext, ActorSpec, ReplyPort};
/// use callboard_core::{App, Failure};
///
/// /// Empties itself every minute.
/// #[derive(Default)]
/// struct Cache(Vec<String>);
///
/// enum Order {
///     Keep(String),
///     Empty,
///     Size(ReplyPort<usize>),
/// }
///
/// impl Actor for Cache {
///     type Message = Order;
///
///     async fn started(&mut self, context: &ActorContext<Self>) -> Result<(), Failure> {
///         context.tell_every(Duration::from_secs(60), || Order::Empty);
///         Ok(())
///     }
///
///     async fn handle(&mut self, order: Order, _: &ActorContext<Self>) -> Result<(), Failure> {
///         match order {
///             Order::Keep(text) => self.0.push(text),
///             Order::Empty => self.0.clear(),
///             Order::Size(answer) => answer.send(self.0.len()),
///         }
///         Ok(())
///     }
/// }
///
/// let cache = ActorSpec::new("cache", |_| Cache::default());
/// let orders = cache.reference();
/// let _node = App::new().actor(cache).start().await?;
/// orders.tell(Order::Keep("a text".to_owned()))?;
/// assert_eq!(orders.ask(Duration::from_secs(1), Order::Size).await?, 1);
/// tokio::time::sleep(Duration::from_secs(61)).await;
/// assert_eq!(orders.ask(Duration::from_secs(1), Order::Size).await?, 0);
/// # Ok(())
/// # }
/// ```
pub struct ActorContext<A: Actor> {
    pub(crate) node: Arc<dyn HostNode>,
    reference: ActorRef<A::Message>,
    /// This life only: a timer must not reach the next one.
    myself: EngineRef<Delivery<A::Message>>,
    life: u64,
    /// Dropping it ends the timers of this life.
    timers: Mutex<JoinSet<()>>,
}

impl<A: Actor> ActorContext<A> {
    pub(super) fn new(
        node: Arc<dyn HostNode>,
        reference: ActorRef<A::Message>,
        myself: EngineRef<Delivery<A::Message>>,
        life: u64,
    ) -> Self {
        Self { node, reference, myself, life, timers: Mutex::default() }
    }

    /// The count of earlier lives: 0 at the first start.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.life
    }

    /// The actor's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.reference.name()
    }

    /// The actor's own reference, to be given to others: it is good in all lives. The actor must not wait for an answer
    /// of itself.
    #[must_use]
    pub fn reference(&self) -> &ActorRef<A::Message> {
        &self.reference
    }

    /// Sends the actor itself a message, after the waiting messages. The mailbox's bound does not apply: the actor must
    /// limit such messages itself. If this life ends first, the message is lost.
    pub fn tell_self(&self, message: A::Message) {
        // A life that is ending takes no messages.
        let _ = self.myself.cast(Delivery::new(message, None));
    }

    /// Sends the actor itself `message` after `delay`, unless the [`ActorTimer`] is cancelled or this life ends first.
    pub fn tell_after(&self, delay: Duration, message: A::Message) -> ActorTimer {
        let myself = self.myself.clone();
        self.timer(async move {
            tokio::time::sleep(delay).await;
            let _ = myself.cast(Delivery::new(message, None));
        })
    }

    /// Sends the actor itself a message every `period` (at least 1 ms), first after one period. At most one of them
    /// waits in the mailbox; periods that the actor missed are skipped. If `message` panics, the timer ends, and the
    /// log says so.
    pub fn tell_every(&self, period: Duration, mut message: impl FnMut() -> A::Message + Send + 'static) -> ActorTimer {
        let (myself, name) = (self.myself.clone(), self.name().to_owned());
        let period = period.max(SHORTEST_PERIOD);
        let first = clock::now().checked_add(period);
        let only_one = Arc::new(Semaphore::new(1));
        self.timer(async move {
            // The clock cannot represent the first time: the timer never fires.
            let Some(first) = first else { return };
            let mut ticks = tokio::time::interval_at(first, period);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
            // Free again when the actor has taken the previous message.
            while let Ok(place) = Arc::clone(&only_one).acquire_owned().await {
                ticks.tick().await;
                let sent = match contain(&mut message) {
                    Ok(message) => myself.cast(Delivery::with_place(message, place)),
                    Err(panic) => {
                        return tracing::error!(parent: None, actor = name, %panic, "a timer's message panicked");
                    }
                };
                if sent.is_err() {
                    return;
                }
            }
        })
    }

    fn timer(&self, ticks: impl Future<Output = ()> + Send + 'static) -> ActorTimer {
        let mut timers = self.timers.lock();
        while timers.try_join_next().is_some() {}
        ActorTimer(timers.spawn(ticks))
    }

    /// Ends this life in good order after the message in hand. Messages that wait are not handled. The actor does not
    /// start again, unless it is declared to do so [always](crate::actor::RestartPolicy::Always).
    pub fn stop(&self) {
        self.myself.stop(None);
    }
}

impl<A: Actor> fmt::Debug for ActorContext<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActorContext").field("name", &self.name()).field("life", &self.life).finish_non_exhaustive()
    }
}

/// A scheduled message of an actor to itself. Dropping this handle does not cancel it.
#[derive(Debug)]
pub struct ActorTimer(AbortHandle);

impl ActorTimer {
    /// Cancels the timer. A message that is already in the mailbox, or is sent at the same moment, is still handled.
    pub fn cancel(&self) {
        self.0.abort();
    }
}
