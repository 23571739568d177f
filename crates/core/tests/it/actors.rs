//! Actors of users: references survive crashes, mailboxes are bounded, and calls ask actors.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use callboard_core::actor::{
    Actor, ActorContext, ActorError, ActorRef, ActorSpec, ActorState, AskError, ReplyPort, RestartPolicy, TellError,
};
use callboard_core::{App, CallError, CallOptions, ErrorKind, Failure, Instant, LocalClient, Node, Pipeline, Stage};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::sync::Semaphore;

use super::support::{DEADLY, PATIENCE, hide_panics, until};

pub(crate) enum Say {
    Add(u64, ReplyPort<u64>),
    Note(u64),
    /// Waits for the semaphore of the test.
    Wait(Arc<Semaphore>),
    Panic,
    Fail,
    Forget(ReplyPort<u64>),
    /// Answers after the semaphore of the test allows it.
    Hold(Arc<Semaphore>, ReplyPort<u64>),
    Call(LocalClient, ReplyPort<u64>),
}

/// Adds numbers, and logs its starts and ends.
pub(crate) struct Tally {
    pub(crate) name: &'static str,
    pub(crate) log: Log,
    pub(crate) sum: u64,
}

#[derive(Clone, Default)]
pub(crate) struct Log(pub(crate) Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn note(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Actor for Tally {
    type Message = Say;

    async fn started(&mut self, _: &ActorContext<Self>) -> Result<(), Failure> {
        self.log.note(format!("{} starts", self.name));
        Ok(())
    }

    async fn handle(&mut self, message: Say, context: &ActorContext<Self>) -> Result<(), Failure> {
        match message {
            Say::Add(n, answer) => {
                assert!(n != DEADLY, "meant to panic");
                self.sum += n;
                answer.send(self.sum);
            }
            Say::Note(n) => self.sum += n,
            Say::Wait(gate) => gate.acquire().await?.forget(),
            Say::Panic => panic!("unlucky"),
            Say::Fail => Err("out of luck")?,
            Say::Forget(answer) => drop(answer),
            Say::Hold(gate, answer) => {
                gate.acquire().await?.forget();
                answer.send(self.sum);
            }
            Say::Call(client, answer) => {
                context.tell_self(Say::Note(1));
                answer.send(client.call::<u64, u64>("/double", 4).await?);
            }
        }
        Ok(())
    }

    async fn stopped(&mut self, _: &ActorContext<Self>) {
        self.log.note(format!("{} ends", self.name));
    }
}

pub(crate) fn tally(name: &'static str, log: &Log) -> ActorSpec<Say> {
    let log = log.clone();
    ActorSpec::new(name, move |context| Tally { name, log: log.clone(), sum: context.life() * 1000 })
}

pub(crate) async fn add(actor: &ActorRef<Say>, n: u64) -> Result<u64, AskError> {
    actor.ask(PATIENCE, |answer| Say::Add(n, answer)).await
}

pub(crate) fn state(node: &Node, name: &str) -> Option<ActorState> {
    node.describe().actors.iter().find(|actor| actor.name == name).map(|actor| actor.state)
}

#[tokio::test]
async fn a_reference_outlives_the_crashes_of_its_actor() {
    let log = Log::default();
    let spec = tally("tally", &log);
    let actor = spec.reference();
    assert_eq!(actor.tell(Say::Note(1)).unwrap_err().to_string(), "the actor is not up at the moment");
    let node = App::new().actor(spec).start().await.unwrap();
    assert_eq!(add(&actor, 5).await, Ok(5));
    for (life, crash) in [(1, Say::Panic), (2, Say::Fail)] {
        actor.tell(crash).unwrap();
        assert_eq!(add(&actor, 5).await, Ok(life * 1000 + 5), "the ask waits for the restart");
    }
    let description = &node.describe().actors[0];
    assert_eq!((description.state, description.restarts), (ActorState::Up, 2));
    assert!(description.reasons[0].contains("unlucky") && description.reasons[1].contains("out of luck"));
    assert!(node.health().ready);
}

/// Its drop takes 200 ms, or until its next life starts.
struct Exclusive {
    lives: Arc<Mutex<mpsc::Receiver<()>>>,
    begins: mpsc::Sender<()>,
    overlaps: Arc<Mutex<Vec<bool>>>,
}

impl Actor for Exclusive {
    type Message = Say;

    async fn started(&mut self, context: &ActorContext<Self>) -> Result<(), Failure> {
        if context.life() > 0 {
            self.begins.send(())?;
        }
        Ok(())
    }

    async fn handle(&mut self, message: Say, _: &ActorContext<Self>) -> Result<(), Failure> {
        match message {
            Say::Panic => panic!("unlucky"),
            Say::Add(n, answer) => answer.send(n),
            _ => Err("out of luck")?,
        }
        Ok(())
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        // Hands over the tasks that this thread has woken, which would else wait for the end of this closure.
        let wait = || self.lives.lock().unwrap().recv_timeout(Duration::from_millis(200));
        let next = tokio::task::block_in_place(wait);
        self.overlaps.lock().unwrap().push(next.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_of_a_life_is_dropped_before_the_next_life_starts() {
    hide_panics();
    for crash in [Say::Panic, Say::Fail] {
        let ((begins, lives), overlaps) = (mpsc::channel(), Arc::new(Mutex::new(Vec::new())));
        let (lives, ended) = (Arc::new(Mutex::new(lives)), Arc::clone(&overlaps));
        let spec = ActorSpec::new("exclusive", move |_| Exclusive {
            lives: Arc::clone(&lives),
            begins: begins.clone(),
            overlaps: Arc::clone(&ended),
        });
        let actor = spec.reference();
        let node = App::new().actor(spec).start().await.unwrap();
        actor.tell(crash).unwrap();
        until("it has restarted", || node.describe().actors[0].restarts == 1).await;
        assert_eq!(add(&actor, 1).await, Ok(1));
        until("the first life is dropped", || !overlaps.lock().unwrap().is_empty()).await;
        assert!(!overlaps.lock().unwrap()[0], "the next life starts before the last one is dropped");
    }
}

#[tokio::test]
async fn a_crash_loses_the_current_answer_and_no_waiting_ask() {
    let node = App::new().actor(tally("tally", &Log::default())).start().await.unwrap();
    let actor = node.actor::<Say>("tally").unwrap();
    assert_eq!(actor.ask(PATIENCE, Say::Forget).await, Err(AskError::Lost));
    // One ask crashes with the message, the other waits in the mailbox after it.
    let gate = Arc::new(Semaphore::new(0));
    actor.tell(Say::Wait(Arc::clone(&gate))).unwrap();
    until("the actor handles the message", || node.describe().actors[0].waiting == 0).await;
    actor.tell(Say::Panic).unwrap();
    let asking = tokio::spawn({
        let actor = actor.clone();
        async move { add(&actor, 1).await }
    });
    until("the ask waits", || node.describe().actors[0].waiting == 2).await;
    gate.add_permits(1);
    assert_eq!(asking.await.unwrap(), Ok(1001), "the next life answers");
    assert_eq!(add(&actor, 1).await, Ok(1002));
    assert_eq!(node.describe().actors[0].waiting, 0);
}

#[tokio::test]
async fn a_full_mailbox_gives_the_message_back() {
    let log = Log::default();
    let spec = ActorSpec::with_mailbox("tally", 2, move |_| Tally { name: "tally", log: log.clone(), sum: 0 });
    let actor = spec.reference();
    let node = App::new().actor(spec).start().await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    actor.tell(Say::Wait(Arc::clone(&gate))).unwrap();
    until("the actor handles the message", || node.describe().actors[0].waiting == 0).await;
    actor.tell(Say::Note(1)).unwrap();
    actor.tell(Say::Note(2)).unwrap();
    let refused = actor.tell(Say::Note(3)).unwrap_err();
    assert!(matches!(refused, TellError::Full(Say::Note(3))));
    assert_eq!(add(&actor, 1).await, Err(AskError::Full));
    assert_eq!(node.describe().actors[0].refused, 2);
    gate.add_permits(1);
    until("the mailbox is empty", || node.describe().actors[0].waiting == 0).await;
    assert_eq!(add(&actor, 1).await, Ok(4));
}

#[tokio::test(start_paused = true)]
async fn an_ask_ends_at_its_deadline_and_reports_whether_the_actor_has_it() {
    let node = App::new().actor(tally("tally", &Log::default())).start().await.unwrap();
    let actor = node.actor::<Say>("tally").unwrap();
    let gate = Arc::new(Semaphore::new(0));
    let began = Instant::now();
    let hold = |answer| Say::Hold(Arc::clone(&gate), answer);
    let held = actor.ask(Duration::from_secs(3), hold).await.unwrap_err();
    assert_eq!((held.clone(), held.was_taken()), (AskError::DeadlineExceeded { taken: true }, true));
    assert_eq!(began.elapsed().as_secs(), 3);
    let waits = actor.ask(Duration::from_secs(3), |answer| Say::Add(1, answer)).await.unwrap_err();
    assert_eq!((waits.clone(), waits.was_taken()), (AskError::DeadlineExceeded { taken: false }, false));
    assert_eq!(began.elapsed().as_secs(), 6);
    assert_eq!(CallError::from(held).was_started(), !CallError::from(waits).was_started());
}

#[tokio::test(start_paused = true)]
async fn an_ask_whose_caller_has_left_is_not_handled() {
    let node = App::new().actor(tally("tally", &Log::default())).start().await.unwrap();
    let actor = node.actor::<Say>("tally").unwrap();
    let gate = Arc::new(Semaphore::new(0));
    actor.tell(Say::Wait(Arc::clone(&gate))).unwrap();
    until("the actor handles the message", || node.describe().actors[0].waiting == 0).await;
    let late = actor.ask(Duration::from_secs(3), |answer| Say::Add(1, answer));
    assert_eq!(late.await, Err(AskError::DeadlineExceeded { taken: false }));
    let dropped = tokio::time::timeout(Duration::from_secs(1), add(&actor, 10));
    assert!(dropped.await.is_err());
    assert_eq!(node.describe().actors[0].waiting, 2);
    gate.add_permits(1);
    assert_eq!(add(&actor, 100).await, Ok(100));
}

#[tokio::test]
async fn a_waiting_ask_learns_that_its_ended_actor_has_not_handled_it() {
    let log = Log::default();
    let spec = tally("tally", &log);
    let actor = spec.reference();
    let step = Pipeline::ask("step", actor.clone(), |n: &u64, answer| Say::Add(*n, answer));
    let node = App::new().actor(spec).route("/step", step).start().await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    actor.tell(Say::Wait(Arc::clone(&gate))).unwrap();
    until("the actor handles the message", || node.describe().actors[0].waiting == 0).await;
    let (asking, client) = (actor.clone(), node.client());
    let asking = tokio::spawn(async move { add(&asking, 1).await });
    let calling = tokio::spawn(async move { client.call::<u64, u64>("/step", 1).await });
    until("both wait", || node.describe().actors[0].waiting == 2).await;
    actor.stop();
    gate.add_permits(1);
    assert_eq!(asking.await.unwrap(), Err(AskError::Over));
    let error = calling.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.stage()), (ErrorKind::Unavailable, Some("tally")));
    assert!(error.is_refusal(), "it is a refusal: {error:?}");
    assert_eq!(log.take(), ["tally starts", "tally ends"]);
}

/// Hands its questions on to another actor, which answers them.
struct HandsOn(ActorRef<Say>);

struct Sum(u64, ReplyPort<u64>);

impl Actor for HandsOn {
    type Message = Sum;

    async fn handle(&mut self, Sum(n, port): Sum, _: &ActorContext<Self>) -> Result<(), Failure> {
        self.0.tell(Say::Add(n, port)).map_err(|error| Failure::new(error.to_string()))
    }
}

#[tokio::test]
async fn questions_that_an_actor_hands_on_survive_a_crash_of_the_next_one() {
    let (log, gate) = (Log::default(), Arc::new(Semaphore::new(0)));
    let next = tally("next", &log);
    let reference = next.reference();
    let first = ActorSpec::new("first", move |_| HandsOn(reference.clone()));
    let node = App::new().actor(next).actor(first).start().await.unwrap();
    let (first, next) = (node.actor::<Sum>("first").unwrap(), node.actor::<Say>("next").unwrap());

    next.tell(Say::Wait(Arc::clone(&gate))).unwrap();
    until("it is busy", || node.describe().actors[0].waiting == 0).await;
    next.tell(Say::Panic).unwrap();
    let asking: Vec<_> = (1..=3)
        .map(|n| {
            let first = first.clone();
            tokio::spawn(async move { first.ask(PATIENCE, |port| Sum(n, port)).await })
        })
        .collect();
    until("the questions wait behind the crash", || node.describe().actors[0].waiting == 4).await;
    gate.add_permits(1);
    let mut sums = vec![];
    for asked in asking {
        sums.push(asked.await.unwrap().unwrap());
    }
    sums.sort_unstable();
    assert!(sums.iter().all(|sum| (1001..=1006).contains(sum)), "the next life answers all: {sums:?}");
    assert_eq!(node.describe().actors[0].waiting, 0);
}

#[tokio::test]
async fn an_error_names_the_actor_that_crashed_with_its_text() {
    hide_panics();
    let next = tally("next", &Log::default());
    let reference = next.reference();
    let first = ActorSpec::new("first", move |_| HandsOn(reference.clone()));
    let step = Pipeline::ask("sum", first.reference(), |n: &u64, port| Sum(*n, port));
    let node = App::new().actor(next).actor(first).route("/sum", step).start().await.unwrap();
    let error = node.client().call::<u64, u64>("/sum", DEADLY).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WorkerFailed);
    assert_eq!(error.message(), "actor `next` crashed before it answered: panicked: meant to panic");
    let error = node.actor::<Say>("next").unwrap().ask(PATIENCE, |port| Say::Add(DEADLY, port)).await.unwrap_err();
    assert!(matches!(&error, AskError::Crashed { actor, .. } if actor == "next"), "{error}");
}

#[tokio::test]
async fn nothing_is_left_of_an_actor_that_has_ended() {
    let node = App::new().start().await.unwrap();
    let held = Arc::new(());
    for n in 0..100 {
        let (log, kept) = (Log::default(), Arc::clone(&held));
        let spec = ActorSpec::new(&format!("user {n}"), move |context: &ActorContext<Tally>| {
            let _ = &kept;
            Tally { name: "user", log: log.clone(), sum: context.life() }
        });
        let actor = node.spawn_actor(spec).await.unwrap();
        add(&actor, 1).await.unwrap();
        actor.stop();
    }
    until("all have ended", || node.describe().actors.is_empty()).await;
    until("and nothing of them is left", || Arc::strong_count(&held) == 1).await;
}

#[tokio::test]
async fn an_actor_that_stops_itself_frees_its_name() {
    let log = Log::default();
    let node = App::new().start().await.unwrap();
    let first = node.spawn_actor(tally("guest", &log)).await.unwrap();
    let taken = node.spawn_actor(tally("guest", &log)).await.unwrap_err();
    assert_eq!(taken, ActorError::NameTaken { name: "guest".to_owned() });
    assert_eq!(add(&first, 1).await, Ok(1));
    first.stop();
    until("it has ended", || node.describe().actors.is_empty()).await;
    assert!(matches!(first.tell(Say::Note(1)), Err(TellError::Over(_))));
    let second = node.spawn_actor(tally("guest", &log).restart(RestartPolicy::Always)).await.unwrap();
    second.stop();
    assert_eq!(add(&second, 1).await, Ok(1001));
    assert!(node.actor::<u64>("guest").is_none(), "the message type differs");
    drop(node);
    until("no actor is left", || matches!(second.tell(Say::Note(1)), Err(TellError::Over(_)))).await;
}

#[tokio::test]
async fn an_actor_that_cannot_start_fails_the_start_with_its_own_message() {
    let tries = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tries);
    let broken = ActorSpec::<Say>::new("broken", move |_: &_| -> Tally {
        count.fetch_add(1, Ordering::SeqCst);
        panic!("no such thing");
    });
    let error = App::new().actor(broken).start().await.unwrap_err();
    assert_eq!(error.to_string(), "actor `broken` did not start: panicked: no such thing");
    assert_eq!(tries.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_actor_is_a_step_of_a_pipeline_and_calls_routes_itself() {
    let log = Log::default();
    let spec = tally("tally", &log);
    let actor = spec.reference();
    let double = Stage::each("double", |n: &u64| Ok(n * 2));
    let sum = Pipeline::ask("sum", actor.clone(), |n: &u64, answer| Say::Add(*n, answer));
    let lost = Pipeline::ask("lost", actor.clone(), |_: &u64, answer| Say::Forget(answer));
    let odd = Pipeline::ask("odd", actor.clone(), |n: &u64, answer| {
        assert!(n.is_multiple_of(2), "odd");
        Say::Add(*n, answer)
    });
    let node = App::new()
        .actor(spec)
        .route("/double", double.clone())
        .route("/sum", Pipeline::from(double).then(sum))
        .route("/lost", lost)
        .route("/odd", odd)
        .start()
        .await
        .unwrap();
    let client = node.client();
    assert_eq!(client.call::<u64, u64>("/sum", 4).await.unwrap(), 8);
    assert_eq!(client.call::<u64, u64>("/sum", 1).await.unwrap(), 10);
    let error = client.call::<u64, u64>("/lost", 1).await.unwrap_err();
    assert_eq!((error.kind(), error.stage()), (ErrorKind::WorkerFailed, Some("tally")));
    let error = client.call::<u64, u64>("/odd", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WorkerFailed);
    assert!(error.remote_trace().is_some_and(|trace| trace.ends_with(":\nodd")), "{error:?}");
    let calling = actor.ask(PATIENCE, |answer| Say::Call(client.clone(), answer));
    assert_eq!(calling.await, Ok(8));
    // After a crash, the next call waits for the actor.
    actor.tell(Say::Panic).unwrap();
    assert_eq!(add(&actor, 0).await, Ok(1000));
    assert_eq!(client.call::<u64, u64>("/sum", 1).await.unwrap(), 1002);
    assert_eq!(state(&node, "tally"), Some(ActorState::Up));
}

#[tokio::test(start_paused = true)]
async fn a_step_that_asks_an_actor_ends_at_its_own_timeout_or_at_the_deadline_of_its_call() {
    let spec = tally("tally", &Log::default());
    let actor = spec.reference();
    let gate = Arc::new(Semaphore::new(0));
    let hold = move |_: &u64, answer| Say::Hold(Arc::clone(&gate), answer);
    let held = Pipeline::<u64, u64>::ask_with_timeout("held", actor.clone(), Duration::from_secs(3), hold);
    let add = Pipeline::ask_with_timeout("add", actor, Duration::from_secs(3), |n: &u64, answer| Say::Add(*n, answer));
    let node = App::new().actor(spec).route("/held", held).route("/add", add).start().await.unwrap();
    let client = node.client();
    assert_eq!(client.call::<u64, u64>("/add", 2).await.unwrap(), 2);
    for (timeout, ends_after) in [(20, 3), (1, 1)] {
        let (began, options) = (Instant::now(), CallOptions::new().with_timeout(Duration::from_secs(timeout)));
        let error = client.call_with::<u64, u64>("/held", 1, options).await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed().as_secs()), (ErrorKind::DeadlineExceeded, ends_after), "{error}");
    }
}

/// Panics when it is read.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct Unreadable;

impl<'de> Deserialize<'de> for Unreadable {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("meant to panic")
    }
}

#[tokio::test]
async fn an_input_that_panics_in_an_ask_is_its_callers_error() {
    hide_panics();
    let spec = tally("tally", &Log::default());
    let ask = Pipeline::ask("ask", spec.reference(), |_: &Unreadable, answer| Say::Add(1, answer));
    let node = App::new().actor(spec).route("/ask", ask).start().await.unwrap();
    let error = node.client().call::<Option<u64>, u64>("/ask", None).await.unwrap_err();
    assert_eq!((error.kind(), error.stage()), (ErrorKind::WorkerFailed, Some("tally")), "{error}");
    assert_eq!(node.describe().in_flight, 0);
}
