//! The declaration of a kind of keyed actors, and what user code implements.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::{Data, Payload};
use serde::{Deserialize, Serialize};

use super::context::KeyContext;
use super::handover;
use super::kind::{AnyKind, Kind, KindNode};
use super::letter::{Handler, Letter};
use super::store::StateStore;
use super::stored::Stored;
use crate::actor::{AcceptedQuestion, PublishedActor, Question, QuestionForm, owned};
use crate::error::Failure;

/// An instance of a kind: the state of one key, and what the code needs beside it.
///
/// The instance answers the questions for which it implements [`Answers`]. Its messages are handled one after another.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use callboard_core::actor::Question;
/// use callboard_core::keyed::{Answers, KeyContext, KeyedSpec, Stored};
/// use callboard_core::testing::MemoryStore;
/// use callboard_core::{App, Failure};
/// use serde::{Deserialize, Serialize};
///
/// /// What is saved of a cart.
/// #[derive(Default, Serialize, Deserialize)]
/// struct Cart {
///     items: Vec<String>,
/// }
///
/// /// Adds an item. The answer is the count of items.
/// #[derive(Serialize, Deserialize)]
/// struct Add(String);
///
/// impl Question for Add {
///     const NAME: &str = "add";
///     type Answer = usize;
/// }
///
/// impl Answers<Add> for Stored<Cart> {
///     async fn answer(&mut self, Add(item): Add, _: &KeyContext) -> Result<usize, Failure> {
///         self.items.push(item);
///         Ok(self.items.len())
///     }
/// }
///
/// let carts = KeyedSpec::new("cart", Arc::new(MemoryStore::new()), |_, cart: Stored<Cart>| async { Ok(cart) });
/// let node = App::new().keyed(carts.accepts::<Add>()).start().await?;
///
/// let carts = node.keyed("cart");
/// let within = Duration::from_secs(1);
/// assert_eq!(carts.ask("ann", within, Add("tea".to_owned())).await?, 1);
/// assert_eq!(carts.ask("ann", within, Add("jam".to_owned())).await?, 2);
/// assert_eq!(carts.ask("bob", within, Add("tea".to_owned())).await?, 1);
/// # Ok(())
/// # }
/// ```
///
/// # Crashes
///
/// A failure that a handler returns is an answer: the instance lives, and what it has changed is saved. A panic, or a
/// handler that takes longer than [`KeyedSpec::handle_within`], is a crash: its asker gets
/// [`Crashed`](crate::actor::AskError::Crashed), and the instance is dropped with what it has not saved. The next
/// message loads the key again.
pub trait Keyed: Send + Sized + 'static {
    /// What the store keeps of a key. A key that was never saved begins with the default.
    type State: Data + Default;

    /// The state, for its save. It must be the one that the instance was loaded with.
    fn stored(&mut self) -> &mut Stored<Self::State>;
}

impl<S: Data + Default> Keyed for Stored<S> {
    type State = S;

    fn stored(&mut self) -> &mut Self {
        self
    }
}

/// How an instance answers one type of question.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not answer `{Q}`",
    label = "needs `impl Answers<{Q}> for {Self}`"
)]
pub trait Answers<Q: Question>: Keyed {
    /// Handles one question. The next one of this key waits until this future is ready.
    ///
    /// # Errors
    ///
    /// A failure is the answer of this question alone: [`AskError::Failed`](crate::actor::AskError::Failed).
    ///
    /// # Cancellation
    ///
    /// The future is not dropped when its asker leaves. It is dropped after
    /// [`handle_within`](KeyedSpec::handle_within), and when the node ends.
    fn answer(&mut self, question: Q, context: &KeyContext) -> impl Future<Output = Result<Q::Answer, Failure>> + Send;
}

/// Forgets the state of its key. Each kind accepts it.
#[derive(Serialize, Deserialize)]
pub(super) struct ForgetKey;

impl Question for ForgetKey {
    const NAME: &str = "callboard.forget";
    type Answer = ();
}

/// When a changed state is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SavePolicy {
    /// After each message that has changed it, before the answer leaves: what was answered is never lost. Each such
    /// message costs an operation of the store.
    Durable,
    /// At most once in this time, when the key is passivated and when the node stops. The answer leaves at once. If the
    /// node is killed, or a handler crashes, the changes since the last save are lost, although they were answered.
    Relaxed {
        /// The time between two saves of a key.
        every: Duration,
    },
}

/// The bounds of a kind.
#[derive(Clone, Debug)]
pub(super) struct KeyedSettings {
    pub(super) save: SavePolicy,
    pub(super) max_active: usize,
    pub(super) mailbox: usize,
    pub(super) max_waiting: usize,
    pub(super) max_state_bytes: usize,
    pub(super) idle_after: Duration,
    pub(super) load_within: Duration,
    pub(super) save_within: Duration,
    pub(super) handle_within: Duration,
    pub(super) stop_within: Duration,
}

impl Default for KeyedSettings {
    fn default() -> Self {
        Self {
            save: SavePolicy::Durable,
            // Some 200 MB beside the states.
            max_active: 100_000,
            mailbox: 256,
            max_waiting: 65_536,
            max_state_bytes: 1 << 20,
            idle_after: Duration::from_secs(60),
            load_within: Duration::from_secs(10),
            save_within: Duration::from_secs(10),
            handle_within: Duration::from_secs(60),
            stop_within: Duration::from_secs(5),
        }
    }
}

/// Makes an instance of what the store has.
pub(super) type LoadHook<K> = dyn Fn(KeyContext, Stored<<K as Keyed>::State>) -> Pin<Box<dyn Future<Output = Result<K, Failure>> + Send>>
    + Send
    + Sync;

/// Makes one question of the list of a running kind.
type AcceptedForm<K> = fn(&Arc<Kind<K>>) -> AcceptedQuestion;

/// The declaration of a kind: its name, its store, how an instance is made, the questions that it accepts, and its
/// bounds.
#[must_use = "a kind starts once it is given to an app"]
pub struct KeyedSpec<K: Keyed> {
    pub(super) name: Arc<str>,
    pub(super) settings: KeyedSettings,
    pub(super) store: Arc<dyn StateStore>,
    pub(super) load: Box<LoadHook<K>>,
    pub(super) handlers: BTreeMap<&'static str, Arc<Handler<K>>>,
    accepted: Vec<AcceptedForm<K>>,
}

impl<K: Keyed> KeyedSpec<K> {
    /// The longest key, in bytes. A longer one is refused as
    /// [`NotAccepted`](crate::actor::AskError::NotAccepted).
    pub const MAX_KEY_BYTES: usize = super::kind::MAX_KEY_BYTES;

    /// A kind called `name`, of at most [`MAX_NAME_BYTES`](Self::MAX_NAME_BYTES), which keeps its state in `store`.
    /// `load` makes an instance of the state of a key.
    ///
    /// An error or a panic of `load`, or one that takes longer than [`load_within`](Self::load_within), fails the
    /// messages that wait for the key as [`Unreachable`](crate::actor::AskError::Unreachable); the next message tries
    /// again.
    pub fn new<F, R>(name: &str, store: Arc<dyn StateStore>, load: F) -> Self
    where
        F: Fn(KeyContext, Stored<K::State>) -> R + Send + Sync + 'static,
        R: Future<Output = Result<K, Failure>> + Send + 'static,
    {
        let forget: Arc<Handler<K>> = Arc::new(|_, instance, _| {
            Box::pin(async move {
                instance.stored().forget();
                Ok(Payload::new(()))
            })
        });
        Self {
            name: name.into(),
            settings: KeyedSettings::default(),
            store,
            load: Box::new(move |context, stored| Box::pin(load(context, stored))),
            handlers: BTreeMap::from([(ForgetKey::NAME, forget)]),
            accepted: vec![|kind| accepted::<K, ForgetKey>(kind, QuestionForm::Ask)],
        }
    }

    /// The longest name of a kind, in bytes.
    pub const MAX_NAME_BYTES: usize = super::kinds::MAX_NAME_BYTES;

    /// Accepts questions of this type, asked or told. Other nodes of a cluster may ask them, too.
    pub fn accepts<Q: Question>(mut self) -> Self
    where
        K: Answers<Q>,
    {
        let handler: Arc<Handler<K>> = Arc::new(|question, instance, context| {
            Box::pin(async move {
                let unread = |reason| Failure::invalid_input(format!("`{}`: {reason}", Q::NAME));
                let question = owned::<Q>(question).map_err(unread)?;
                instance.answer(question, context).await.map(Payload::new)
            })
        });
        self.handlers.insert(Q::NAME, handler);
        for form in [asked::<K, Q>, told::<K, Q>] {
            self.accepted.push(form);
        }
        self
    }

    /// When a changed state is saved. Default: [`Durable`](SavePolicy::Durable).
    pub fn save(mut self, policy: SavePolicy) -> Self {
        self.settings.save = policy;
        self
    }

    /// How long a key stays active after its last message. Then it is saved if it has changed, and dropped. Default
    /// 60 s. A shorter time costs loads, a longer one memory.
    pub fn idle_after(mut self, time: Duration) -> Self {
        self.settings.idle_after = time;
        self
    }

    /// The most active keys on a node, 1 to 2³²−1. Default 100,000: some 200 MB beside their states. For a further one
    /// an idle key is passivated early. If all of them have work, the message waits for a place within its deadline.
    pub fn max_active(mut self, keys: usize) -> Self {
        self.settings.max_active = keys.clamp(1, u32::MAX as usize);
        self
    }

    /// The most messages that wait for one key. Default 256. A further one is refused as
    /// [`Full`](crate::actor::AskError::Full).
    pub fn mailbox(mut self, messages: usize) -> Self {
        self.settings.mailbox = messages.max(1);
        self
    }

    /// The most messages that wait for all keys together. Default 65,536. A further one is refused as
    /// [`Full`](crate::actor::AskError::Full). Messages that arrive from other nodes have half of the places.
    pub fn max_waiting(mut self, messages: usize) -> Self {
        self.settings.max_waiting = messages.clamp(1, u32::MAX as usize);
        self
    }

    /// The largest state of a key, as it is saved. Default 1 MiB. A message that makes it larger fails, and what it
    /// has changed is dropped.
    pub fn max_state_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_state_bytes = bytes;
        self
    }

    /// How long the claim and the load of a key may take. Default 10 s. Until then the messages of this key wait, each
    /// within its own deadline; other keys are not held up.
    pub fn load_within(mut self, time: Duration) -> Self {
        self.settings.load_within = time;
        self
    }

    /// How long one save may take. Default 10 s. After it a save has failed: nobody knows whether the store has it, so the
    /// asker is told [`Lost`](crate::actor::AskError::Lost), and the key is loaded again. Other keys are not held up.
    pub fn save_within(mut self, time: Duration) -> Self {
        self.settings.save_within = time;
        self
    }

    /// How long the handler of one message may take. Default 60 s. A longer one is dropped, as a crash.
    pub fn handle_within(mut self, time: Duration) -> Self {
        self.settings.handle_within = time;
        self
    }

    /// How long the keys may take to save their states when the node stops, all together. Default 5 s. Then they are
    /// ended, and the log says how many there were.
    pub fn stop_within(mut self, time: Duration) -> Self {
        self.settings.stop_within = time;
        self
    }
}

fn asked<K: Answers<Q>, Q: Question>(kind: &Arc<Kind<K>>) -> AcceptedQuestion {
    accepted::<K, Q>(kind, QuestionForm::Ask)
}

fn told<K: Answers<Q>, Q: Question>(kind: &Arc<Kind<K>>) -> AcceptedQuestion {
    accepted::<K, Q>(kind, QuestionForm::Tell)
}

fn accepted<K: Keyed, Q: Question>(kind: &Arc<Kind<K>>, form: QuestionForm) -> AcceptedQuestion {
    let kind = Arc::clone(kind);
    AcceptedQuestion::of::<Q>(form, move |question, order| {
        Arc::clone(&kind).send(Q::NAME, Letter::new(question), form, order)
    })
}

impl<K: Keyed> fmt::Debug for KeyedSpec<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, settings, store, .. } = self;
        f.debug_struct("KeyedSpec")
            .field("name", name)
            .field("settings", settings)
            .field("store", store)
            .finish_non_exhaustive()
    }
}

/// A kind without its type, to be started with its node.
pub(crate) struct KindStart {
    pub(crate) name: Arc<str>,
    start: Box<StartFn>,
}

type StartFn = dyn FnOnce(KindNode) -> (Arc<dyn AnyKind>, Arc<PublishedActor>) + Send;

impl KindStart {
    pub(super) fn start(self, node: KindNode) -> (Arc<dyn AnyKind>, Arc<PublishedActor>) {
        (self.start)(node)
    }
}

impl<K: Keyed> From<KeyedSpec<K>> for KindStart {
    fn from(spec: KeyedSpec<K>) -> Self {
        let name = Arc::clone(&spec.name);
        let start = move |node| {
            let accepted = spec.accepted.clone();
            let kind = Arc::new(Kind::new(spec, node));
            let accepted = accepted.iter().map(|accepted| accepted(&kind)).chain([handover::accepted(&kind)]).collect();
            let published = PublishedActor::new(kind.status(), accepted);
            (kind as Arc<dyn AnyKind>, published)
        };
        Self { name, start: Box::new(start) }
    }
}

impl fmt::Debug for KindStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KindStart").field(&self.name).finish()
    }
}
