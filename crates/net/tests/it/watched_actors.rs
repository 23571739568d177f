//! What a watch tells of an actor on another node, and questions to all actors of a name, over real connections.

use std::collections::BTreeSet;

use callboard_core::actor::{Actor, ActorContext, ActorEnd, ActorSpec, AskError, Question, RemoteRef, ReplyPort};
use callboard_core::{App, Failure};
use callboard_net::QuicEdge;
use callboard_net::testing::cutter;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::common::{LONG, Member, ServingNode, until};

#[derive(Clone, Serialize, Deserialize)]
struct Add(u64);

#[derive(Clone, Serialize, Deserialize)]
struct Sum;

#[derive(Serialize, Deserialize)]
struct End;

impl Question for Add {
    const NAME: &str = "add";
    type Answer = ();
}

impl Question for Sum {
    const NAME: &str = "sum";
    type Answer = u64;
}

impl Question for End {
    const NAME: &str = "end";
    type Answer = ();
}

#[derive(Default)]
struct Counter(u64);

enum Order {
    Add(Add),
    Sum(ReplyPort<u64>),
    End,
}

impl Actor for Counter {
    type Message = Order;

    async fn handle(&mut self, order: Order, context: &ActorContext<Self>) -> Result<(), Failure> {
        match order {
            Order::Add(Add(number)) => self.0 += number,
            Order::Sum(answer) => answer.send(self.0),
            Order::End => context.stop(),
        }
        Ok(())
    }
}

async fn serving() -> ServingNode {
    let counter = ActorSpec::new("counter", |_| Counter::default());
    let counter = counter.accepts_tell(Order::Add).accepts(|Sum, answer| Order::Sum(answer));
    ServingNode::start(App::new().actor(counter.accepts_tell(|End| Order::End))).await
}

/// A node that knows the counters of these nodes, and the reference to all of them.
async fn asking(edges: &[&QuicEdge]) -> (Member, RemoteRef) {
    let asking = Member::start(App::new(), edges).await;
    let counter = asking.served.node.remote_actor("counter");
    until_members(&counter, edges.len()).await;
    (asking, counter)
}

async fn until_members(counter: &RemoteRef, count: usize) {
    until(|| counter.members().len() == count).await;
}

/// Begins to watch, and waits until the other node has the watch.
async fn watching(served: &ServingNode, counter: &RemoteRef) -> JoinHandle<Result<ActorEnd, AskError>> {
    loop {
        served.until_idle().await;
        let counter = counter.clone();
        let watch = tokio::spawn(async move { counter.watch(LONG).await });
        // The question is paid for until its answer has left.
        until(|| watch.is_finished() || served.node.describe().in_flight_bytes > 0).await;
        // A connection may be replaced at the beginning.
        if !watch.is_finished() {
            return watch;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_tells_how_an_actor_of_another_node_ended() {
    let served = serving().await;
    let (_asking, counter) = asking(&[&served.edge]).await;
    let node = counter.members()[0].node().unwrap();

    let watch = watching(&served, &counter).await;
    cutter(&served.edge)();
    let lost = watch.await.unwrap().unwrap();
    assert!(
        matches!(&lost, ActorEnd::NodeLost { node: lost, reason } if *lost == node && !reason.is_empty()),
        "{lost:?}"
    );

    until_members(&counter, 1).await;
    let watch = watching(&served, &counter).await;
    counter.tell(LONG, End).await.unwrap();
    assert_eq!(watch.await.unwrap(), Ok(ActorEnd::Ended));
    // It is found no more, once the asking node has learnt that.
    until_members(&counter, 0).await;
    assert!(matches!(counter.watch(LONG).await, Err(AskError::Unreachable { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_drains_tells_its_watchers_and_does_not_wait_for_them() {
    let served = serving().await;
    let (_asking, counter) = asking(&[&served.edge]).await;
    let node = counter.members()[0].node().unwrap();
    let watch = watching(&served, &counter).await;
    let ServingNode { node: serving, edge } = served;
    serving.withdraw();
    let began = std::time::Instant::now();
    edge.shutdown(LONG).await;
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    assert_eq!(watch.await.unwrap(), Ok(ActorEnd::NodeLeft { node }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_actors_of_a_name_are_told_once_each_and_a_node_that_left_is_not() {
    let nodes = [serving().await, serving().await];
    let edges = nodes.each_ref().map(|served| &served.edge);
    let (asking, counter) = asking(&edges).await;
    let told = counter.tell_all(LONG, Add(2)).await;
    let names: BTreeSet<_> = told.iter().filter_map(|(member, _)| member.node()).collect();
    assert!(names.len() == 2 && told.iter().all(|(_, told)| told.is_ok()), "{told:?}");
    for _ in 0..6 {
        counter.pick().unwrap().tell(LONG, Add(1)).await.unwrap();
    }
    let sums = async || counter.ask_all(LONG, Sum).await.into_iter().map(|(_, sum)| sum).collect::<Vec<_>>();
    assert_eq!(sums().await, [Ok(5), Ok(5)]);
    // As an asker without members chooses.
    let first = counter.members().remove(0);
    counter.tell(LONG, Add(10)).await.unwrap();
    assert_eq!(first.ask(LONG, Sum).await, Ok(15));

    let [left, _other] = nodes;
    left.node.withdraw();
    left.edge.drain();
    until_members(&counter, 1).await;
    assert_eq!(sums().await.len(), 1);
    let member = asking.served.node.remote_actor("nobody").members();
    assert!(member.is_empty());
}
