//! The life of an actor: its start, its timers, its end.

use std::sync::Arc;
use std::time::Duration;

use callboard_core::actor::{
    Actor, ActorContext, ActorGroup, ActorRef, ActorSpec, ActorTimer, AskError, ReplyPort, RestartPolicy,
    RestartStrategy,
};
use callboard_core::{App, Failure, Node};
use tokio::sync::Semaphore;

use super::context::{LogBuffer, subscriber};
use super::support::{PATIENCE, hide_panics, until};

/// Does what its messages request, and counts the ticks of its timers.
#[derive(Default)]
struct Pulse {
    beats: u64,
    timer: Option<ActorTimer>,
    _bomb: Option<Bomb>,
}

enum Beat {
    Every(Duration),
    /// The `message` function panics.
    Broken(Duration),
    After(Duration),
    /// Waits for the semaphore of the test, and counts.
    Later(Arc<Semaphore>),
    Cancel,
    Count,
    Beats(ReplyPort<(u64, u64)>),
    Hold(Arc<Semaphore>),
    Fail,
    Stop,
}

impl Actor for Pulse {
    type Message = Beat;

    async fn handle(&mut self, message: Beat, context: &ActorContext<Self>) -> Result<(), Failure> {
        match message {
            Beat::Every(period) => self.timer = Some(context.tell_every(period, || Beat::Count)),
            Beat::Broken(period) => {
                self.timer = Some(context.tell_every(period, || panic!("meant to panic")));
            }
            Beat::After(delay) => self.timer = Some(context.tell_after(delay, Beat::Count)),
            Beat::Later(gate) => {
                gate.acquire().await?.forget();
                context.tell_self(Beat::Count);
            }
            Beat::Cancel => self.timer.iter().for_each(ActorTimer::cancel),
            Beat::Count => self.beats += 1,
            Beat::Beats(answer) => answer.send((context.life(), self.beats)),
            Beat::Hold(gate) => gate.acquire().await?.forget(),
            Beat::Fail => Err("out of luck")?,
            Beat::Stop => context.stop(),
        }
        Ok(())
    }
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("boom");
    }
}

async fn pulse() -> (Node, ActorRef<Beat>) {
    let node = App::new().start().await.unwrap();
    let pulse = node.spawn_actor(ActorSpec::new("pulse", |_| Pulse::default())).await.unwrap();
    (node, pulse)
}

async fn beats_after(pulse: &ActorRef<Beat>, seconds: u64) -> (u64, u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    pulse.ask(PATIENCE, Beat::Beats).await.unwrap()
}

#[tokio::test]
async fn a_message_to_self_needs_no_mailbox_slot_and_waits_its_turn() {
    let node = App::new().start().await.unwrap();
    let pulse = node.spawn_actor(ActorSpec::with_mailbox("pulse", 1, |_| Pulse::default())).await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    pulse.tell(Beat::Later(Arc::clone(&gate))).unwrap();
    until("the actor handles the message", || node.describe().actors[0].waiting == 0).await;
    let before = pulse.clone();
    let before = tokio::spawn(async move { before.ask(PATIENCE, Beat::Beats).await });
    until("the mailbox is full", || node.describe().actors[0].waiting == 1).await;
    gate.add_permits(1);
    assert_eq!(before.await.unwrap(), Ok((0, 0)));
    assert_eq!(pulse.ask(PATIENCE, Beat::Beats).await, Ok((0, 1)));
}

#[tokio::test(start_paused = true)]
async fn timers_send_their_actor_messages_until_they_are_cancelled() {
    let (_node, pulse) = pulse().await;
    let ten = Duration::from_secs(10);
    pulse.tell(Beat::After(ten)).unwrap();
    assert_eq!(beats_after(&pulse, 9).await, (0, 0));
    assert_eq!(beats_after(&pulse, 2).await, (0, 1));
    assert_eq!(beats_after(&pulse, 60).await, (0, 1), "once");
    pulse.tell(Beat::After(ten)).unwrap();
    pulse.tell(Beat::Cancel).unwrap();
    assert_eq!(beats_after(&pulse, 60).await, (0, 1));
    pulse.tell(Beat::Every(ten)).unwrap();
    assert_eq!(beats_after(&pulse, 35).await, (0, 4));
    pulse.tell(Beat::Cancel).unwrap();
    assert_eq!(beats_after(&pulse, 60).await, (0, 4));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_when_its_timer_is_cancelled_is_handled() {
    let second = Duration::from_secs(1);
    for timer in [Beat::Every(second), Beat::After(second)] {
        let (_node, pulse) = pulse().await;
        let gate = Arc::new(Semaphore::new(0));
        pulse.tell(timer).unwrap();
        pulse.tell(Beat::Hold(Arc::clone(&gate))).unwrap();
        pulse.tell(Beat::Cancel).unwrap();
        // In the mailbox after the message that cancels the timer, which gets time to end.
        pulse.tell(Beat::Hold(Arc::clone(&gate))).unwrap();
        tokio::time::sleep(second * 2).await;
        gate.add_permits(1);
        tokio::time::sleep(second).await;
        gate.add_permits(1);
        assert_eq!(beats_after(&pulse, 60).await, (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_timer_without_a_time_or_a_message_ends_only_itself() {
    hide_panics();
    let written = LogBuffer::default();
    // With only one subscriber, a thread of another test without a subscriber decides what is logged.
    let _second = tracing::Dispatch::new(subscriber(&LogBuffer::default()));
    let _here = tracing::subscriber::set_default(subscriber(&written));
    let (_node, pulse) = pulse().await;
    pulse.tell(Beat::Every(Duration::MAX)).unwrap();
    assert_eq!(beats_after(&pulse, 60).await, (0, 0));
    pulse.tell(Beat::Broken(Duration::from_secs(1))).unwrap();
    assert_eq!(beats_after(&pulse, 60).await, (0, 0));
    let log = written.take();
    assert!(log.contains("pulse") && log.contains("meant to panic"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn an_actor_that_is_late_is_not_flooded_by_its_timers() {
    let (_node, pulse) = pulse().await;
    pulse.tell(Beat::Every(Duration::from_secs(1))).unwrap();
    let gate = Arc::new(Semaphore::new(0));
    pulse.tell(Beat::Hold(Arc::clone(&gate))).unwrap();
    tokio::time::sleep(Duration::from_millis(60_500)).await;
    gate.add_permits(1);
    assert_eq!(beats_after(&pulse, 0).await, (0, 1), "one waited");
    assert_eq!(beats_after(&pulse, 2).await, (0, 4), "one tick replaces the missed ones, and two are on time");
}

#[tokio::test(start_paused = true)]
async fn timers_end_with_the_life_of_their_actor() {
    let (_node, pulse) = pulse().await;
    pulse.tell(Beat::Every(Duration::from_secs(30))).unwrap();
    pulse.tell(Beat::After(Duration::from_secs(30))).unwrap();
    pulse.tell(Beat::Fail).unwrap();
    assert_eq!(beats_after(&pulse, 300).await, (1, 0));
}

#[tokio::test]
async fn an_actor_stops_itself_after_the_current_message() {
    let (node, pulse) = pulse().await;
    pulse.tell(Beat::Stop).unwrap();
    until("it has ended", || node.describe().actors.is_empty()).await;
    assert_eq!(pulse.ask(PATIENCE, Beat::Beats).await, Err(AskError::Over));
}

#[tokio::test]
async fn a_destructor_that_panics_ends_nothing_else() {
    hide_panics();
    let node = App::new().start().await.unwrap();
    let bomb = ActorSpec::new("bomb", |_| Pulse { _bomb: Some(Bomb), ..Pulse::default() });
    let always = bomb.restart(RestartPolicy::Always);
    let pulse = always.reference();
    let other = ActorSpec::new("other", |_| Pulse::default());
    let neighbour = other.reference();
    node.spawn_actors(ActorGroup::new("group", RestartStrategy::OneForOne).actor(always).actor(other)).await.unwrap();
    for end in [Beat::Stop, Beat::Fail] {
        let restarts = node.describe().actors[0].restarts;
        pulse.tell(end).unwrap();
        until("it has restarted", || node.describe().actors.first().is_some_and(|pulse| pulse.restarts > restarts))
            .await;
    }
    assert_eq!(neighbour.ask(PATIENCE, Beat::Beats).await, Ok((0, 0)));
}

/// Starts only in these lives.
struct Choosy(&'static [u64]);

impl Actor for Choosy {
    type Message = Beat;

    async fn started(&mut self, context: &ActorContext<Self>) -> Result<(), Failure> {
        if self.0.contains(&context.life()) {
            Ok(())
        } else {
            Err(Failure::new(format!("not in life {}", context.life())))
        }
    }

    async fn handle(&mut self, message: Beat, context: &ActorContext<Self>) -> Result<(), Failure> {
        match message {
            Beat::Beats(answer) => answer.send((context.life(), 0)),
            _ => Err("out of luck")?,
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_is_an_error_of_the_app_at_first_and_a_crash_later() {
    let refused = App::new().actor(ActorSpec::new("choosy", |_| Choosy(&[1]))).start().await.unwrap_err();
    assert_eq!(refused.to_string(), "actor `choosy` did not start: not in life 0");
    let node = App::new().actor(ActorSpec::new("choosy", |_| Choosy(&[0, 3]))).start().await.unwrap();
    let choosy = node.actor("choosy").unwrap();
    choosy.tell(Beat::Fail).unwrap();
    until("it has restarted", || node.describe().actors[0].restarts == 1).await;
    assert_eq!(choosy.ask(PATIENCE, Beat::Beats).await, Ok((3, 0)));
    assert_eq!(node.describe().actors[0].reasons, ["out of luck", "not in life 1", "not in life 2"]);
}
