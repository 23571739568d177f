//! What a watch of an actor tells, and questions to all actors of a name, on this node and on a peer, on virtual time.

use std::time::Duration;

use callboard_core::actor::{Actor, ActorContext, ActorEnd, ActorSpec, AskError, Question, RemoteRef, ReplyPort};
use callboard_core::testing::{TestApp, TestPeer};
use callboard_core::{App, Failure, Node};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::support::hide_panics;

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(3_600);

macro_rules! questions {
    ($($name:ident($($field:ty)?) = $word:literal -> $answer:ty,)*) => {
        $(
            #[derive(Clone, Serialize, Deserialize)]
            struct $name($($field)?);

            impl Question for $name {
                const NAME: &str = $word;
                type Answer = $answer;
            }
        )*
    };
}

questions! {
    Add(u64) = "add" -> (),
    Sum() = "sum" -> u64,
    Crash() = "crash" -> (),
    End() = "end" -> (),
}

#[derive(Default)]
struct Counter(u64);

enum Order {
    Add(Add),
    Sum(ReplyPort<u64>),
    Crash,
    End,
}

impl Actor for Counter {
    type Message = Order;

    async fn handle(&mut self, order: Order, context: &ActorContext<Self>) -> Result<(), Failure> {
        match order {
            Order::Add(Add(number)) => self.0 += number,
            Order::Sum(answer) => answer.send(self.0),
            Order::Crash => return Err(Failure::new("as told")),
            Order::End => context.stop(),
        }
        Ok(())
    }
}

fn counter(name: &str) -> ActorSpec<Order> {
    ActorSpec::new(name, |_| Counter::default())
        .accepts_tell(Order::Add)
        .accepts(|Sum(), answer| Order::Sum(answer))
        .accepts_tell(|Crash()| Order::Crash)
        .accepts_tell(|End()| Order::End)
}

/// A node with an actor, and a peer with two.
async fn two() -> (Node, TestPeer) {
    let app = App::new().actor(counter("there")).actor(counter("both"));
    let peer = TestPeer::start(TestApp::new(app)).await.unwrap();
    let app = App::new().actor(counter("here")).actor(counter("both"));
    let node = TestApp::new(app).start().await.unwrap();
    node.handle().join(peer.clone()).unwrap();
    (node, peer)
}

type Watch = JoinHandle<Result<ActorEnd, AskError>>;

/// Begins to watch.
async fn watching(actor: &RemoteRef) -> Watch {
    let actor = actor.clone();
    let watch = tokio::spawn(async move { actor.watch(LONG).await });
    tokio::time::sleep(SECOND).await;
    assert!(!watch.is_finished(), "it is up");
    watch
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_that_an_actor_has_ended_or_failed_and_not_that_it_starts_again() {
    hide_panics();
    let (node, _peer) = two().await;
    for name in ["here", "there"] {
        let actor = node.remote_actor(name);
        let watch = watching(&actor).await;
        actor.tell(SECOND, Crash()).await.unwrap();
        tokio::time::sleep(SECOND).await;
        assert_eq!(actor.ask(SECOND, Sum()).await, Ok(0), "it has started again");
        assert!(!watch.is_finished(), "{name}");
        actor.tell(SECOND, End()).await.unwrap();
        assert_eq!(watch.await.unwrap(), Ok(ActorEnd::Ended), "{name}");
        assert!(matches!(actor.watch(SECOND).await, Err(AskError::Unreachable { .. })), "{name} is published no more");
    }
    for (name, member) in ["here", "there"].into_iter().zip(node.remote_actor("both").members()) {
        let watch = watching(&member).await;
        while !watch.is_finished() {
            let _ = member.tell(LONG, Crash()).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let end = watch.await.unwrap().unwrap();
        let ActorEnd::Failed { reason } = &end else { panic!("{end:?}") };
        assert!(reason.contains("crashes in") && reason.contains("as told"), "{name}: {reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_that_the_node_of_an_actor_drains_or_was_lost() {
    let (node, peer) = two().await;
    let (here, there) = (node.remote_actor("here"), node.remote_actor("there"));
    let (of_here, of_there) = (watching(&here).await, watching(&there).await);
    peer.disconnect();
    let lost = of_there.await.unwrap().unwrap();
    assert!(matches!(&lost, ActorEnd::NodeLost { node, .. } if node == "peer"), "{lost:?}");
    assert!(matches!(there.watch(SECOND).await, Err(AskError::Unreachable { .. })));
    peer.recover();
    let again = watching(&there).await;
    again.abort();
    node.withdraw();
    assert_eq!(of_here.await.unwrap(), Ok(ActorEnd::NodeLeft { node: String::new() }));
    // At once, from then on.
    assert_eq!(here.watch(SECOND).await, Ok(ActorEnd::NodeLeft { node: String::new() }));
}

#[tokio::test(start_paused = true)]
async fn a_watch_takes_no_place_of_the_mailbox_and_ends_with_its_time() {
    let peer = App::new().actor(ActorSpec::with_mailbox("there", 1, |_| Counter::default()).accepts_tell(Order::Add));
    let peer = TestPeer::start(TestApp::new(peer)).await.unwrap();
    let mut nodes = Vec::new();
    for _ in 0..17 {
        let node = TestApp::new(App::new()).start().await.unwrap();
        node.handle().join(peer.clone()).unwrap();
        nodes.push(node);
    }
    let actors: Vec<_> = nodes.iter().map(|node| node.remote_actor("there")).collect();
    let mut watches = Vec::new();
    for actor in &actors[..16] {
        for _ in 0..64 {
            let actor = actor.clone();
            watches.push(tokio::spawn(async move { actor.watch(10 * SECOND).await }));
        }
    }
    tokio::time::sleep(SECOND).await;
    let actor = &actors[0];
    assert_eq!(actor.watch(SECOND).await, Err(AskError::Full), "a node has 64 watches of other nodes");
    assert_eq!(actors[16].watch(SECOND).await, Err(AskError::Full), "an actor has 1,024 of other nodes");
    actor.tell(SECOND, Add(1)).await.unwrap();
    for watch in watches {
        assert_eq!(watch.await.unwrap(), Err(AskError::DeadlineExceeded { taken: false }));
    }
    watching(actor).await.abort();
}

#[tokio::test(start_paused = true)]
async fn all_actors_of_a_name_are_told_and_asked_and_take_turns() {
    let (node, peer) = two().await;
    let both = node.remote_actor("both");
    let told = both.tell_all(SECOND, Add(2)).await;
    let told: Vec<_> = told.into_iter().map(|(member, told)| (member.node().unwrap(), told)).collect();
    assert_eq!(told, [(String::new(), Ok(())), ("peer".to_owned(), Ok(()))]);
    for _ in 0..4 {
        both.pick().unwrap().tell(SECOND, Add(1)).await.unwrap();
    }
    let sums = async || both.ask_all(SECOND, Sum()).await.into_iter().map(|(_, sum)| sum).collect::<Vec<_>>();
    assert_eq!(sums().await, [Ok(4), Ok(4)]);
    let members = both.members();
    assert_eq!(members[1].ask(SECOND, Sum()).await, Ok(4));
    assert_eq!(members[1].members().len(), 1, "a member is on its node only");
    peer.disconnect();
    assert_eq!(sums().await, [Ok(4)]);
    assert!(matches!(members[1].ask(SECOND, Sum()).await, Err(AskError::Unreachable { .. })));
    assert!(node.remote_actor("nobody").pick().is_none());
    assert!(node.remote_actor("nobody").tell_all(SECOND, Add(1)).await.is_empty());
}
