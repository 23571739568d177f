//! Where a question goes whose node begins to drain, or is lost, between the choice of it and the question, with a
//! network that the test plays.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::Payload;
use parking_lot::Mutex;

use super::network::{Add, join};
use crate::actor::AskError;
use crate::clock;
use crate::error::CallError;
use crate::remote::{KeyOwner, Reach, RemoteActors, RemoteFuture, RemoteQuestion};
use crate::{App, ErrorKind, Node};

const SECOND: Duration = Duration::from_secs(1);

/// The answer of a node to the next question, and what the asking node knows after it.
#[derive(Clone, Debug)]
struct Turn {
    node: &'static str,
    answer: Result<u64, CallError>,
    /// The owner from then on, and after a moment.
    then: &'static str,
    later: &'static str,
}

/// The other nodes of a node without the kind.
#[derive(Clone, Debug)]
struct Network(Arc<Mutex<Played>>);

#[derive(Debug)]
struct Played {
    turns: VecDeque<Turn>,
    owner: &'static str,
    /// What becomes known only then.
    later: Option<(&'static str, clock::Instant)>,
}

impl Played {
    fn owner(&self) -> &'static str {
        self.later.filter(|(_, at)| *at <= clock::now()).map_or(self.owner, |(owner, _)| owner)
    }
}

impl Network {
    fn new(turns: impl IntoIterator<Item = Turn>) -> Self {
        let turns: VecDeque<_> = turns.into_iter().collect();
        let owner = turns.front().map_or("", |turn| turn.node);
        Self(Arc::new(Mutex::new(Played { turns, owner, later: None })))
    }
}

impl RemoteActors for Network {
    fn ask(&self, question: RemoteQuestion) -> RemoteFuture<Payload> {
        let mut played = self.0.lock();
        let turn = played.turns.pop_front().expect("no further question");
        assert_eq!(question.node.as_deref(), Some(turn.node));
        (played.owner, played.later) = (turn.then, Some((turn.later, clock::now() + Duration::from_millis(5))));
        Box::pin(async move { turn.answer.map(Payload::new) })
    }

    fn owner(&self, _: &str, _: u64, _: bool) -> Option<KeyOwner> {
        let owner = self.0.lock().owner();
        (!owner.is_empty()).then(|| KeyOwner::Other(owner.into()))
    }

    fn reach(&self, _: &str, node: &str) -> Reach {
        if node == self.0.lock().owner() { Reach::Connected } else { Reach::Gone }
    }
}

async fn node(network: &Network) -> Node {
    let node = App::new().start().await.unwrap();
    join(&node, network.clone());
    node
}

async fn answer(network: &Network) -> Result<u64, AskError> {
    let node = node(network).await;
    let answer = node.keyed("total").ask("ann", SECOND, Add(1)).await;
    assert!(network.0.lock().turns.is_empty(), "{network:?}");
    answer
}

fn away() -> CallError {
    CallError::new(ErrorKind::Unavailable, "the node has left")
}

fn moved(node: &str) -> CallError {
    AskError::Moved { node: node.to_owned() }.into_answer()
}

fn turn(node: &'static str, answer: Result<u64, CallError>, then: &'static str) -> Turn {
    Turn { node, answer, then, later: then }
}

#[tokio::test(start_paused = true)]
async fn a_question_whose_node_has_left_before_it_came_goes_to_the_next_one() {
    let network = Network::new([turn("left", Err(away()), "right"), turn("right", Ok(7), "right")]);
    assert_eq!(answer(&network).await, Ok(7));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_drains_and_knows_no_other_one_lets_its_asker_look() {
    let network = Network::new([turn("left", Err(moved("")), "right"), turn("right", Ok(7), "right")]);
    assert_eq!(answer(&network).await, Ok(7));

    // The asker learns of the drain a moment after the answer.
    let late = Turn { later: "right", ..turn("left", Err(moved("")), "left") };
    let network = Network::new([late, turn("right", Ok(7), "right")]);
    assert_eq!(answer(&network).await, Ok(7));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_a_node_that_has_the_key_is_the_answer() {
    let refusal = CallError::new(ErrorKind::Unavailable, "the state of the key is away");
    let network = Network::new([turn("left", Err(refusal), "left")]);
    let answer = answer(&network).await;
    assert!(matches!(&answer, Err(AskError::Unreachable { reason }) if reason.contains("state")), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_question_follows_twice_at_most() {
    let network = Network::new([
        turn("left", Err(moved("")), "right"),
        turn("right", Err(away()), "third"),
        turn("third", Err(moved("left")), "third"),
    ]);
    assert_eq!(answer(&network).await, Err(AskError::NoOwner));

    let network = Network::new([
        turn("left", Err(away()), "right"),
        turn("right", Err(away()), "third"),
        turn("third", Err(away()), ""),
    ]);
    let answer = answer(&network).await;
    assert!(matches!(answer, Err(AskError::Unreachable { .. })), "{answer:?}");
}
