//! Groups of actors: which of them restart, when they are ready, and when they end.

use std::sync::Arc;
use std::time::Duration;

use callboard_core::actor::{
    Actor, ActorContext, ActorError, ActorGroup, ActorSpec, ActorState, AskError, RestartStrategy, TellError,
};
use callboard_core::{App, AsyncWorker, BackoffPolicy, Batch, Failure, Replica, RestartIntensity, Stage, StartError};
use tokio::sync::{Notify, Semaphore};

use super::actors::{Log, Say, Tally, add, state, tally};
use super::support::{PATIENCE, until};

async fn lives_after_a_crash_of_the_second(strategy: RestartStrategy) -> Vec<String> {
    let log = Log::default();
    let group = ActorGroup::new("group", strategy)
        .actor(tally("first", &log))
        .actor(tally("second", &log))
        .actor(tally("third", &log));
    let node = App::new().actors(group).start().await.unwrap();
    assert_eq!(log.take(), ["first starts", "second starts", "third starts"]);
    node.actor::<Say>("second").unwrap().tell(Say::Panic).unwrap();
    until("it has restarted", || node.describe().actors[1].restarts == 1).await;
    until("all are up", || node.describe().actors.iter().all(|actor| actor.state == ActorState::Up)).await;
    let lives = log.take();
    let _ = node.shutdown(PATIENCE).await;
    assert_eq!(log.take(), ["third ends", "second ends", "first ends"]);
    lives
}

#[tokio::test]
async fn the_strategy_selects_the_actors_that_restart() {
    let lives = lives_after_a_crash_of_the_second;
    assert_eq!(lives(RestartStrategy::OneForOne).await, ["second starts"]);
    assert_eq!(lives(RestartStrategy::RestForOne).await, ["third ends", "second starts", "third starts"]);
    assert_eq!(
        lives(RestartStrategy::OneForAll).await,
        ["third ends", "first ends", "first starts", "second starts", "third starts"]
    );
}

/// A [`Tally`] that waits for a permit before it is up.
struct Slow(Tally, Arc<Semaphore>);

impl Actor for Slow {
    type Message = Say;

    async fn started(&mut self, _: &ActorContext<Self>) -> Result<(), Failure> {
        self.1.acquire().await?.forget();
        self.0.log.note(format!("{} starts", self.0.name));
        Ok(())
    }

    async fn handle(&mut self, _: Say, _: &ActorContext<Self>) -> Result<(), Failure> {
        Ok(())
    }

    async fn stopped(&mut self, _: &ActorContext<Self>) {
        self.0.log.note(format!("{} ends", self.0.name));
    }
}

#[tokio::test]
async fn a_starting_actor_restarts_after_the_crash_of_an_earlier_actor() {
    let (log, gate) = (Log::default(), Arc::new(Semaphore::new(0)));
    let (slow_log, slow_gate) = (log.clone(), Arc::clone(&gate));
    let slow = ActorSpec::new("second", move |_| {
        Slow(Tally { name: "second", log: slow_log.clone(), sum: 0 }, Arc::clone(&slow_gate))
    });
    let group = ActorGroup::new("group", RestartStrategy::RestForOne).actor(tally("first", &log)).actor(slow);
    let node = App::new().start().await.unwrap();
    let handle = node.handle();
    let spawning = tokio::spawn(async move { handle.spawn_actors(group).await });
    until("the first is up", || log.0.lock().unwrap().contains(&"first starts".to_owned())).await;
    node.actor::<Say>("first").unwrap().tell(Say::Panic).unwrap();
    until("its crash is known", || node.describe().actors[0].state == ActorState::Restarting).await;
    assert!(!spawning.is_finished(), "the second is not up");

    gate.add_permits(2);
    spawning.await.unwrap().unwrap();
    assert_eq!(log.take(), ["first starts", "second starts", "second ends", "first starts", "second starts"]);
    let _ = node.shutdown(PATIENCE).await;
}

/// A [`Tally`] that ends slowly.
struct SlowStop(Tally);

impl Actor for SlowStop {
    type Message = Say;

    async fn started(&mut self, _: &ActorContext<Self>) -> Result<(), Failure> {
        self.0.log.note(format!("{} starts", self.0.name));
        Ok(())
    }

    async fn handle(&mut self, _: Say, _: &ActorContext<Self>) -> Result<(), Failure> {
        Ok(())
    }

    async fn stopped(&mut self, _: &ActorContext<Self>) {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        self.0.log.note(format!("{} ends", self.0.name));
    }
}

/// A [`Tally`] whose later lives wait for a permit before they are up.
struct SlowRestart(Tally, Arc<Semaphore>);

impl Actor for SlowRestart {
    type Message = Say;

    async fn started(&mut self, context: &ActorContext<Self>) -> Result<(), Failure> {
        if context.life() > 0 {
            self.1.acquire().await?.forget();
        }
        Ok(())
    }

    async fn handle(&mut self, message: Say, _: &ActorContext<Self>) -> Result<(), Failure> {
        match message {
            Say::Add(n, answer) => answer.send(n),
            Say::Wait(gate) => gate.acquire().await?.forget(),
            Say::Note(n) => self.0.log.note(n.to_string()),
            _ => self.0.sum += 1,
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_wait_for_a_life_are_handled_before_those_sent_to_it() {
    let (up, log, gate) = (Arc::new(Semaphore::new(0)), Log::default(), Arc::new(Semaphore::new(0)));
    let (late, lines) = (Arc::clone(&up), log.clone());
    let spec = ActorSpec::with_mailbox("late", 1024, move |_| {
        SlowRestart(Tally { name: "late", log: lines.clone(), sum: 0 }, Arc::clone(&late))
    });
    let actor = spec.reference();
    let node = App::new().actor(spec).start().await.unwrap();
    actor.tell(Say::Wait(Arc::clone(&gate))).unwrap();
    (0..1000).for_each(|n| actor.tell(Say::Note(n)).unwrap());
    // The actor crashes.
    gate.close();
    until("it is down", || state(&node, "late") == Some(ActorState::Restarting)).await;
    let sent = std::thread::spawn(move || {
        while let Err(TellError::Down(_)) = actor.tell(Say::Note(1000)) {
            std::thread::yield_now();
        }
    });
    up.add_permits(1);
    until("all are handled", || log.0.lock().unwrap().len() == 1001).await;
    sent.join().unwrap();
    let expected: Vec<_> = (0..=1000).map(|n: u64| n.to_string()).collect();
    assert!(log.take() == expected, "in the order of sending");
}

#[tokio::test]
async fn an_ask_with_a_mailbox_slot_waits_for_one_in_the_next_life() {
    let (up, log) = (Arc::new(Semaphore::new(0)), Log::default());
    let late = Arc::clone(&up);
    let spec = ActorSpec::with_mailbox("late", 1, move |_| {
        SlowRestart(Tally { name: "late", log: log.clone(), sum: 0 }, Arc::clone(&late))
    });
    let actor = spec.reference();
    let node = App::new().actor(spec).start().await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    actor.tell(Say::Wait(Arc::clone(&gate))).unwrap();
    until("the actor handles the message", || node.describe().actors[0].waiting == 0).await;
    let ask = |n| {
        let actor = actor.clone();
        tokio::spawn(async move { add(&actor, n).await })
    };
    let first = ask(1);
    until("it has the mailbox slot", || node.describe().actors[0].waiting == 1).await;
    // The actor crashes.
    gate.close();
    until("it is down", || state(&node, "late") == Some(ActorState::Restarting)).await;
    let others: Vec<_> = (0..30).map(|_| ask(2)).collect();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    up.add_permits(1);
    assert_eq!(first.await.unwrap(), Ok(1));
    let mut refused = 0;
    for other in others {
        refused += usize::from(other.await.unwrap() == Err(AskError::Full));
    }
    assert!(refused > 0, "the mailbox was full");
    assert_eq!(node.describe().actors[0].refused, refused as u64);
}

#[tokio::test]
async fn a_group_whose_start_is_refused_has_already_freed_its_names() {
    let log = Log::default();
    let whole = || {
        let log = log.clone();
        ActorSpec::new("whole", move |_| SlowStop(Tally { name: "whole", log: log.clone(), sum: 0 }))
    };
    let broken = || ActorSpec::new("broken", |_: &_| -> Tally { panic!("no such device") });
    let node = App::new().start().await.unwrap();
    for _ in 0..2 {
        let group = ActorGroup::new("group", RestartStrategy::OneForOne).actor(whole()).actor(broken());
        let refused = node.spawn_actors(group).await;
        assert!(matches!(&refused, Err(ActorError::Start { name, .. }) if name == "broken"), "{refused:?}");
        assert_eq!(log.take(), ["whole starts", "whole ends"]);
    }
}

#[tokio::test]
async fn a_node_is_not_ready_while_an_actor_that_it_needs_starts_again() {
    let may_start = Arc::new(Semaphore::new(2));
    struct Slow(Arc<Semaphore>);
    impl Actor for Slow {
        type Message = Say;
        async fn started(&mut self, _: &ActorContext<Self>) -> Result<(), Failure> {
            self.0.acquire().await.unwrap().forget();
            Ok(())
        }
        async fn handle(&mut self, _: Say, _: &ActorContext<Self>) -> Result<(), Failure> {
            Err(Failure::new("no heart beat"))
        }
    }
    let slow = |name: &'static str| {
        let may_start = Arc::clone(&may_start);
        ActorSpec::new(name, move |_| Slow(Arc::clone(&may_start)))
    };
    let node = App::new().actor(slow("needed").needed()).actor(slow("other")).start().await.unwrap();
    assert!(node.health().ready);
    node.actor::<Say>("other").unwrap().tell(Say::Note(1)).unwrap();
    until("it is down", || node.describe().actors[1].state == ActorState::Restarting).await;
    assert!(node.health().ready);
    node.actor::<Say>("needed").unwrap().tell(Say::Note(1)).unwrap();
    until("the node is not ready", || !node.health().ready).await;
    let down = &node.health().down_actors[0];
    assert_eq!((down.name.as_str(), down.state), ("needed", ActorState::Restarting));
    assert_eq!(down.reason.as_deref(), Some("no heart beat"));
    assert!(node.health().failed_actors.is_empty());
    may_start.add_permits(2);
    until("the node is ready", || node.health().ready).await;
}

/// Ends when the test allows it, and says whether it could.
struct Lingering(Arc<Semaphore>, Log);

impl Actor for Lingering {
    type Message = Say;

    async fn handle(&mut self, _: Say, _: &ActorContext<Self>) -> Result<(), Failure> {
        Ok(())
    }

    async fn stopped(&mut self, _: &ActorContext<Self>) {
        self.1.note("asked".to_owned());
        let _ = self.0.acquire().await;
        self.1.note("ended".to_owned());
    }
}

#[tokio::test(start_paused = true)]
async fn an_actor_has_its_own_time_to_end() {
    for (within, expected) in
        [(Duration::from_secs(60), vec!["asked", "ended"]), (Duration::from_secs(6), vec!["asked"])]
    {
        let (log, may_end) = (Log::default(), Arc::new(Semaphore::new(0)));
        let build = {
            let (log, may_end) = (log.clone(), Arc::clone(&may_end));
            move |_: &ActorContext<Lingering>| Lingering(Arc::clone(&may_end), log.clone())
        };
        let node = App::new().actor(ActorSpec::new("lingering", build).stop_within(within)).start().await.unwrap();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(20)).await;
            may_end.add_permits(1);
        });
        let _ = node.shutdown(Duration::from_secs(1)).await;
        assert_eq!(log.take(), expected);
    }
}

#[tokio::test]
async fn a_group_that_crashes_too_often_fails_as_a_whole() {
    let log = Log::default();
    let group = ActorGroup::new("group", RestartStrategy::OneForOne)
        .intensity(RestartIntensity { max_restarts: 2, within: Duration::from_secs(60) })
        .backoff(BackoffPolicy { initial: Duration::from_millis(1), ..BackoffPolicy::default() })
        .actor(tally("weak", &log))
        .actor(tally("strong", &log));
    let echo = Stage::each("echo", |n: &u64| Ok(*n));
    let node = App::new().actors(group).route("/echo", echo).start().await.unwrap();
    let (weak, strong) = (node.actor::<Say>("weak").unwrap(), node.actor::<Say>("strong").unwrap());
    for life in 0..3 {
        assert_eq!(add(&weak, 0).await, Ok(life * 1000));
        weak.tell(Say::Panic).unwrap();
    }
    assert_eq!(add(&weak, 0).await, Err(AskError::Over));
    until("the other has also ended", || matches!(strong.tell(Say::Note(1)), Err(TellError::Over(_)))).await;
    until("it has ended in good order", || log.take().contains(&"strong ends".to_owned())).await;
    let health = node.health();
    assert!(health.live && health.ready, "no actor is needed");
    assert_eq!(health.failed_actors, ["weak", "strong"]);
    assert_eq!(node.client().call::<u64, u64>("/echo", 1).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_spawned_actor_that_fails_costs_nobody_else_anything_and_frees_its_name() {
    let node = App::new().start().await.unwrap();
    let spawn = || node.spawn_actor(tally("user 3", &Log::default()));
    let user = spawn().await.unwrap();
    while !matches!(user.tell(Say::Panic), Err(TellError::Over(_))) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    until("its name is free", || node.actor::<Say>("user 3").is_none()).await;
    let health = node.health();
    assert!(health.ready && health.down_actors.is_empty(), "{health:?}");
    assert_eq!(health.failed_actors, ["user 3"]);
    assert_eq!(add(&spawn().await.unwrap(), 1).await, Ok(1));
    assert!(node.health().failed_actors.is_empty() && node.describe().actors.len() == 1);
}

#[tokio::test(start_paused = true)]
async fn a_group_with_a_needed_actor_does_not_give_up() {
    let node = App::new().actor(tally("needed", &Log::default()).needed()).start().await.unwrap();
    let actor = node.actor::<Say>("needed").unwrap();
    for life in 0..6 {
        assert_eq!(add(&actor, 0).await, Ok(life * 1000));
        actor.tell(Say::Panic).unwrap();
    }
    until("it waits", || {
        node.health().down_actors.first().is_some_and(|down| {
            down.reason.as_deref().is_some_and(|reason| reason.contains("more than 5 crashes in 10s"))
        })
    })
    .await;
    assert!(!node.health().ready);
    assert_eq!(add(&actor, 1).await, Ok(6001), "an ask waits for it");
    assert!(node.health().ready);
}

/// Warms up for ever.
struct NeverWarm(Log, Arc<Notify>);

impl AsyncWorker for NeverWarm {
    type In = u64;
    type Out = u64;

    async fn warmup(&self) -> Result<(), Failure> {
        self.1.notify_one();
        std::future::pending().await
    }

    async fn call(&self, _: Batch<u64>) -> Vec<Result<u64, Failure>> {
        Vec::new()
    }
}

impl Drop for NeverWarm {
    fn drop(&mut self) {
        self.0.note("worker ends".to_owned());
    }
}

#[tokio::test]
async fn actors_end_after_the_workers_that_are_being_built_when_the_start_is_interrupted() {
    let (log, warms_up) = (Log::default(), Arc::new(Notify::new()));
    let (held, warms) = (log.clone(), Arc::clone(&warms_up));
    let stage = Stage::async_worker("cold", move |_: &Replica| Ok(NeverWarm(held.clone(), Arc::clone(&warms))));
    let app = App::new().actor(tally("tally", &log)).route("/cold", stage);
    let error = app.start_unless(async move { warms_up.notified().await }).await.unwrap_err();
    assert!(matches!(error, StartError::Cancelled), "{error}");
    assert_eq!(log.take(), ["tally starts", "worker ends", "tally ends"]);
}
