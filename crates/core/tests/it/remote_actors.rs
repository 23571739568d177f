//! Questions by name, to actors of this node and of a peer: what is accepted, and what every error says.

use std::sync::Arc;
use std::time::Duration;

use callboard_core::actor::{
    Actor, ActorContext, ActorError, ActorGroup, ActorSpec, ActorState, AskError, Question, RemoteRef, ReplyPort,
    RestartPolicy, RestartStrategy,
};
use callboard_core::testing::{TestApp, TestPeer};
use callboard_core::{App, CallContext, CallOptions, ErrorKind, Failure, Instant, Node, Stage};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::support::hide_panics;

const SECOND: Duration = Duration::from_secs(1);

struct Account {
    balance: u64,
    gate: Arc<Semaphore>,
}

enum Order {
    PayIn(PayIn),
    PayOut(PayOut, ReplyPort<u64>),
    Caller(String, ReplyPort<String>),
    Wait(ReplyPort<bool>),
    Crash(ReplyPort<()>),
    Forget(ReplyPort<()>),
}

macro_rules! questions {
    ($($name:ident($($field:ty)?) = $word:literal -> $answer:ty,)*) => {
        $(
            #[derive(Serialize, Deserialize)]
            struct $name($($field)?);

            impl Question for $name {
                const NAME: &str = $word;
                type Answer = $answer;
            }
        )*
    };
}

questions! {
    PayIn(u64) = "pay_in" -> (),
    PayOut(u64) = "pay_out" -> u64,
    WhoAsks() = "who_asks" -> String,
    Wait() = "wait" -> bool,
    Crash() = "crash" -> (),
    Forget() = "forget" -> (),
    Unknown() = "unknown" -> (),
    Wrong(String) = "pay_out" -> String,
}

impl Actor for Account {
    type Message = Order;

    async fn handle(&mut self, order: Order, context: &ActorContext<Self>) -> Result<(), Failure> {
        match order {
            Order::PayIn(PayIn(amount)) => self.balance += amount,
            Order::PayOut(PayOut(amount), answer) => match self.balance.checked_sub(amount) {
                Some(rest) => {
                    self.balance = rest;
                    answer.send(rest);
                }
                None => answer.fail(Failure::new("not enough money").with_status(402).with_type("Poor")),
            },
            Order::Caller(caller, answer) => answer.send(caller),
            Order::Wait(answer) => {
                self.gate.acquire().await?.forget();
                let wanted = answer.is_wanted();
                answer.send(wanted);
            }
            Order::Crash(_answer) => return Err(Failure::new(format!("life {}", context.life()))),
            Order::Forget(answer) => drop(answer),
        }
        Ok(())
    }
}

fn account(name: &str, messages: usize, gate: &Arc<Semaphore>) -> ActorSpec<Order> {
    let gate = Arc::clone(gate);
    ActorSpec::with_mailbox(name, messages, move |_| Account { balance: 10, gate: Arc::clone(&gate) })
        .accepts_tell(Order::PayIn)
        .accepts(Order::PayOut)
        .accepts_with(|WhoAsks(), answer, options: &CallOptions| {
            Order::Caller(options.caller().unwrap_or_default().to_owned(), answer)
        })
        .accepts(|Wait(), answer| Order::Wait(answer))
        .accepts(|Crash(), answer| Order::Crash(answer))
        .accepts(|Forget(), answer| Order::Forget(answer))
}

/// A reference to an actor on the same node, and one to an actor on a peer.
struct Both {
    local: RemoteRef,
    remote: RemoteRef,
    peer: TestPeer,
    gate: Arc<Semaphore>,
    node: Node,
}

async fn both(messages: usize) -> Both {
    let gate = Arc::new(Semaphore::new(0));
    let peer = TestPeer::start(TestApp::new(App::new().actor(account("there", messages, &gate)))).await.unwrap();
    let node = TestApp::new(App::new().actor(account("here", messages, &gate))).start().await.unwrap();
    node.handle().join(peer.clone()).unwrap();
    Both { local: node.remote_actor("here"), remote: node.remote_actor("there"), peer, gate, node }
}

impl Both {
    fn each(&self) -> [&RemoteRef; 2] {
        [&self.local, &self.remote]
    }
}

#[tokio::test(start_paused = true)]
async fn an_actor_answers_by_name_wherever_it_is() {
    let both = both(8).await;
    for actor in both.each() {
        actor.tell(SECOND, PayIn(5)).await.unwrap();
        assert_eq!(actor.ask(SECOND, PayOut(3)).await.unwrap(), 12, "{actor:?}");
        let ann = CallOptions::new().with_caller("ann").with_timeout(SECOND);
        assert_eq!(actor.ask(ann, WhoAsks()).await.unwrap(), "ann");
        let AskError::Failed(failure) = actor.ask(SECOND, PayOut(99)).await.unwrap_err() else { panic!("it fails") };
        let parts = failure.into_parts();
        assert_eq!((parts.status, parts.error_type.as_deref()), (Some(402), Some("Poor")));
        assert_eq!(actor.ask(SECOND, Forget()).await, Err(AskError::Lost));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stage_asks_for_its_call_with_its_caller_and_until_its_deadline() {
    let gate = Arc::new(Semaphore::new(0));
    let peer = TestPeer::start(TestApp::new(App::new().actor(account("there", 8, &gate)))).await.unwrap();
    let asks = Stage::each_async_with_context("asks", |name: Arc<String>, context: CallContext| async move {
        let actor = context.client()?.remote_actor(&name);
        let caller = actor.ask(SECOND, WhoAsks()).await?;
        actor.ask(60 * SECOND, Wait()).await?;
        Ok(caller)
    });
    let app = App::new().actor(account("here", 8, &gate)).route("/asks", asks);
    let node = TestApp::new(app).start().await.unwrap();
    node.handle().join(peer).unwrap();
    for name in ["here", "there"] {
        let options = || CallOptions::new().with_caller("ann").with_timeout(SECOND);
        let began = Instant::now();
        let late = node.client().call_with::<_, String>("/asks", name.to_owned(), options()).await.unwrap_err();
        assert_eq!((late.kind(), began.elapsed()), (ErrorKind::DeadlineExceeded, SECOND));
        gate.add_permits(1);
        tokio::time::sleep(SECOND).await;
        gate.add_permits(1);
        let caller: String = node.client().call_with("/asks", name.to_owned(), options()).await.unwrap();
        assert_eq!(caller, "ann", "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_actor_does_not_accept_reaches_no_mailbox() {
    let both = both(8).await;
    for actor in both.each() {
        let reasons = [
            actor.ask(SECOND, Unknown()).await.unwrap_err(),
            actor.tell(SECOND, PayOut(1)).await.unwrap_err(),
            actor.ask(SECOND, PayIn(1)).await.unwrap_err(),
            actor.ask(SECOND, Wrong("three".to_owned())).await.unwrap_err(),
        ];
        let words = ["accepts no `unknown`", "`pay_out` as an ask only", "`pay_in` as a tell only", "`pay_out`: "];
        for (error, words) in reasons.into_iter().zip(words) {
            let AskError::NotAccepted { reason } = &error else { panic!("{error:?}") };
            assert!(reason.contains(words) && !error.was_taken(), "{reason}");
        }
        assert_eq!(actor.ask(SECOND, PayOut(0)).await.unwrap(), 10);
    }
    // An actor that accepts nothing is not published, whatever its local references can do.
    let gate = Arc::clone(&both.gate);
    let quiet = ActorSpec::new("quiet", move |_| Account { balance: 0, gate: Arc::clone(&gate) });
    let quiet = both.node.spawn_actor(quiet).await.unwrap();
    let error = both.node.remote_actor("quiet").ask(SECOND, PayOut(0)).await.unwrap_err();
    assert!(matches!(error, AskError::Unreachable { .. }), "{error:?}");
    assert_eq!(quiet.ask(SECOND, |answer| Order::PayOut(PayOut(0), answer)).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_full_mailbox_a_deadline_and_an_asker_that_left_are_as_for_a_local_reference() {
    let both = both(1).await;
    for actor in both.each() {
        // One in hand, one in the only place.
        let (asking, waiting) = (actor.clone(), actor.clone());
        let in_hand = tokio::spawn(async move { asking.ask(10 * SECOND, Wait()).await });
        tokio::time::sleep(SECOND).await;
        let late = tokio::spawn(async move { waiting.ask(SECOND, PayOut(1)).await });
        tokio::time::sleep(SECOND / 2).await;
        assert_eq!(actor.ask(SECOND, PayOut(1)).await, Err(AskError::Full));
        assert_eq!(actor.tell(SECOND, PayIn(1)).await, Err(AskError::Full));
        let error = late.await.unwrap().unwrap_err();
        assert!(matches!(error, AskError::DeadlineExceeded { .. }), "{error:?}");
        both.gate.add_permits(1);
        assert!(in_hand.await.unwrap().unwrap(), "the asker waits");
        // What was too late was not handled.
        assert_eq!(actor.ask(SECOND, PayOut(0)).await.unwrap(), 10);
        // One whose asker leaves while it is in hand.
        let left = tokio::time::timeout(SECOND, actor.ask(10 * SECOND, Wait())).await;
        assert!(left.is_err());
        both.gate.add_permits(1);
        assert_eq!(actor.ask(SECOND, PayOut(0)).await.unwrap(), 10);
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_is_told_and_messages_wait_for_the_next_life() {
    hide_panics();
    let both = both(8).await;
    for actor in both.each() {
        actor.tell(SECOND, PayIn(1)).await.unwrap();
        let crash = actor.ask(SECOND, Crash()).await.unwrap_err();
        let name = actor.name().to_owned();
        assert_eq!(crash, AskError::Crashed { actor: name, reason: "life 0".to_owned() });
        // It is being started again.
        actor.tell(10 * SECOND, PayIn(2)).await.unwrap();
        assert_eq!(actor.ask(10 * SECOND, PayOut(0)).await.unwrap(), 12);
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_to_a_lost_peer_may_have_been_handled_and_the_next_one_was_not() {
    let both = both(8).await;
    let asking = both.remote.clone();
    let asked = tokio::spawn(async move { asking.ask(10 * SECOND, Wait()).await });
    tokio::time::sleep(SECOND).await;
    both.peer.disconnect();
    let lost = asked.await.unwrap().unwrap_err();
    assert!(lost.was_taken() && lost == AskError::Lost, "{lost:?}");
    let error = both.remote.ask(SECOND, PayOut(1)).await.unwrap_err();
    assert!(matches!(error, AskError::Unreachable { .. }) && !error.was_taken(), "{error:?}");
    both.peer.recover();
    both.gate.add_permits(1);
    assert_eq!(both.remote.ask(SECOND, PayOut(0)).await.unwrap(), 10);
}

#[tokio::test(start_paused = true)]
async fn an_actor_that_has_ended_is_gone_from_the_directory_and_its_name_is_free() {
    let gate = Arc::new(Semaphore::new(0));
    let node = App::new().start().await.unwrap();
    let remote = node.remote_actor("account");
    assert!(matches!(remote.ask(SECOND, PayOut(1)).await, Err(AskError::Unreachable { .. })));
    for _ in 0..2 {
        let spec = account("account", 8, &gate).restart(RestartPolicy::Never);
        let account = node.spawn_actor(spec).await.unwrap();
        assert_eq!(remote.ask(SECOND, PayOut(1)).await.unwrap(), 9);
        account.stop();
        while node.actor::<Order>("account").is_some() {
            tokio::time::sleep(SECOND).await;
        }
        assert!(matches!(remote.ask(SECOND, PayOut(1)).await, Err(AskError::Unreachable { .. })));
    }
}

#[tokio::test(start_paused = true)]
async fn an_actor_that_has_ended_in_its_group_is_looked_for_on_other_nodes() {
    let gate = Arc::new(Semaphore::new(0));
    let peer = TestPeer::start(TestApp::new(App::new().actor(account("account", 8, &gate)))).await.unwrap();
    let group = ActorGroup::new("group", RestartStrategy::OneForOne)
        .actor(account("account", 8, &gate))
        .actor(account("other", 8, &gate));
    let node = TestApp::new(App::new().actors(group)).start().await.unwrap();
    node.handle().join(peer).unwrap();
    let remote = node.remote_actor("account");
    assert_eq!(remote.ask(SECOND, PayOut(9)).await.unwrap(), 1, "its own node is preferred");
    let own = node.actor::<Order>("account").unwrap();
    own.stop();
    while node.describe().actors[0].state != ActorState::Ended {
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(node.client().edge().published_actors(), ["other"]);
    assert_eq!(remote.ask(SECOND, PayOut(0)).await.unwrap(), 10, "the other lives");
    assert!(node.actor::<Order>("account").is_some(), "its group lives, and has its name");
}

/// Less than the wait before an actor starts again after its second crash.
const SOON: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn the_mailbox_has_its_bound_while_its_actor_is_down() {
    hide_panics();
    let Both { remote, .. } = &both(2).await;
    for _ in 0..2 {
        remote.ask(SECOND, Crash()).await.unwrap_err();
        tokio::time::sleep(SOON).await;
    }
    let asks = tokio::join!(
        remote.ask(10 * SECOND, PayOut(1)),
        remote.tell(10 * SECOND, PayIn(2)),
        remote.ask(10 * SECOND, PayOut(1)),
        remote.tell(10 * SECOND, PayIn(2)),
    );
    assert!(matches!(asks, (Ok(9 | 11), Ok(()), Err(AskError::Full), Err(AskError::Full))), "{asks:?}");

    // One question waits when the actor crashes, and has its place again before the others come.
    let later = async {
        tokio::time::sleep(SOON).await;
        tokio::join!(remote.ask(10 * SECOND, PayOut(1)), remote.ask(10 * SECOND, PayOut(1)))
    };
    let (crash, waiting, later) = tokio::join!(remote.ask(SECOND, Crash()), remote.ask(10 * SECOND, PayOut(0)), later);
    assert!(matches!(crash, Err(AskError::Crashed { .. })), "{crash:?}");
    waiting.unwrap();
    assert!(matches!(later, (Ok(_), Err(AskError::Full))), "{later:?}");
}

#[tokio::test(start_paused = true)]
async fn questions_that_arrive_have_half_of_the_mailbox() {
    let both = both(4).await;
    let client = both.node.client();
    let admit = || client.edge().admit_question("here", None, "pay_out", false, 1);
    let mut arriving = [admit().unwrap(), admit().unwrap()];
    assert_eq!(admit().unwrap_err().error_type(), Some("actor_full"));
    // The other half is for this node, and for questions that have arrived.
    both.local.tell(SECOND, PayIn(1)).await.unwrap();
    arriving[0].arrived();
    let third = admit().unwrap();
    assert_eq!(admit().unwrap_err().error_type(), Some("actor_full"));
    drop((arriving, third));
    admit().unwrap();
}

#[tokio::test(start_paused = true)]
async fn published_names_are_bounded_in_length_and_number() {
    let gate = Arc::new(Semaphore::new(0));
    let node = App::new().start().await.unwrap();
    let long = "n".repeat(129);
    let error = node.spawn_actor(account(&long, 1, &gate)).await.unwrap_err();
    assert_eq!(error, ActorError::LongName { name: long, limit: 128 });
    for n in 0..1_024 {
        node.spawn_actor(account(&format!("{n:0>128}"), 1, &gate)).await.unwrap();
    }
    let error = node.spawn_actor(account("one more", 1, &gate)).await.unwrap_err();
    assert_eq!(error, ActorError::TooManyPublished { limit: 1_024 });
    assert_eq!(node.client().edge().published_actors().len(), 1_024);
}
