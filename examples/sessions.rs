//! One actor for each user, on two nodes: events → session of the user → batched model → totals. One node is killed,
//! and its users' sessions go on at the other with what was answered.
//!
//! `cargo run --example sessions`: both nodes are in this process and talk over QUIC, as they would between machines.
//! They share a store in memory. Between machines it would be a server: `PostgresStore`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use callboard::actor::keyed::{Answers, KeyContext, KeyedSpec, Stored};
use callboard::actor::{Actor, ActorContext, ActorSpec, Question, ReplyPort};
use callboard::net::{Cluster, Identity, NetConfig, QuicEdge, StaticView};
use callboard::prelude::*;
use callboard::testing::MemoryStore;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

type Problem = Box<dyn std::error::Error>;

const SECOND: Duration = Duration::from_secs(1);
const USERS: usize = 12;
const EVENTS: u64 = 5;

/// What a user has done.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Event {
    user: String,
    /// Counts up for each user, so that an event that is sent again is known.
    number: u64,
    text: String,
}

/// What is saved of a user.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
struct Session {
    events: u64,
    score: i64,
}

impl Question for Event {
    const NAME: &str = "event";
    type Answer = Session;
}

impl Answers<Event> for Stored<Session> {
    async fn answer(&mut self, event: Event, context: &KeyContext) -> Result<Session, Failure> {
        if event.number > self.events {
            let client = context.client();
            let score: i64 = client.call("/score", event.text).await?;
            self.events = event.number;
            self.score += score;
            let scored = Scored { user: event.user, score: self.score };
            client.remote_actor("totals").tell(SECOND, scored).await?;
        }
        // The session is saved before this answer leaves.
        Ok((**self).clone())
    }
}

/// The score of a user, for the totals. It may come twice, so it says what the score is, and not what is added.
#[derive(Serialize, Deserialize)]
struct Scored {
    user: String,
    score: i64,
}

impl Question for Scored {
    const NAME: &str = "scored";
    type Answer = ();
}

/// The scores of all users of all nodes.
#[derive(Default)]
struct Totals(BTreeMap<String, i64>);

enum Order {
    Scored(Scored),
    Read(ReplyPort<i64>),
}

impl Actor for Totals {
    type Message = Order;

    async fn handle(&mut self, order: Order, _: &ActorContext<Self>) -> Result<(), Failure> {
        match order {
            Order::Scored(Scored { user, score }) => _ = self.0.insert(user, score),
            Order::Read(answer) => answer.send(self.0.values().sum()),
        }
        Ok(())
    }
}

/// Stands for a model: sessions that ask at once share a batch.
struct Model;

impl Worker for Model {
    type In = String;
    type Out = i64;

    fn call(&mut self, texts: Batch<String>) -> Vec<Result<i64, Failure>> {
        texts.iter().map(|text| Ok(if text.contains("good") { 1 } else { -1 })).collect()
    }
}

/// Brings each event to the session of its user, wherever that is.
struct Ingest;

impl AsyncWorker for Ingest {
    type In = Event;
    type Out = Session;

    async fn call(&self, events: Batch<Event>) -> Vec<Result<Session, Failure>> {
        let events = &events;
        let asked = events.iter().enumerate().map(|(index, event)| async move {
            let sessions = events.context(index).client()?.keyed("session");
            Ok(sessions.ask(&event.user, SECOND, event.clone()).await?)
        });
        futures_util::future::join_all(asked).await
    }
}

/// For one user on one machine. Between machines: `callboard cluster init`, and `Identity::load`.
fn edge() -> Result<QuicEdge, Problem> {
    Ok(QuicEdge::bind("127.0.0.1:0".parse()?, Identity::development()?, NetConfig::default())?)
}

fn app(store: &MemoryStore) -> App {
    let sessions =
        KeyedSpec::new("session", Arc::new(store.clone()), |_, session: Stored<Session>| async { Ok(session) });
    let model = Stage::worker("score", |_: &Replica| Ok(Model)).max_batch_size(32);
    let ingest = Stage::async_worker("ingest", |_: &Replica| Ok(Ingest)).max_batch_size(8).concurrency(8);
    App::new().keyed(sessions.accepts::<Event>()).route("/ingest", ingest).route("/score", model)
}

fn join(node: &Node, edge: &QuicEdge, other: SocketAddr) -> Result<(), Problem> {
    node.join(Cluster::start(edge, Arc::new(StaticView::try_new([other])?)))?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Problem> {
    let store = MemoryStore::new();
    let totals = ActorSpec::new("totals", |_| Totals::default()).accepts_tell(Order::Scored);
    let read_totals = totals.reference();
    let (left, left_edge) = (app(&store).actor(totals).start().await?, edge()?);
    let (right, right_edge) = (app(&store).start().await?, edge()?);
    left_edge.open(left.client());
    right_edge.open(right.client());
    join(&left, &left_edge, right_edge.address())?;
    join(&right, &right_edge, left_edge.address())?;

    for number in 1..=EVENTS {
        send_all(&left.client(), number).await?;
    }
    tokio::time::timeout(20 * SECOND, until_spread(&left, &right)).await?;
    let on_right = right.keyed("session").active();
    println!("{USERS} users have {EVENTS} events each; {on_right} sessions are active on the node that is killed now");

    right.abort();
    drop(right_edge);
    send_all(&left.client(), EVENTS + 1).await?;
    println!("after the next event each session has {} events: none was lost, and none counted twice", EVENTS + 1);
    let score = read_totals.ask(SECOND, Order::Read).await?;
    println!("the score of all is {score}");
    assert_eq!(score, 4 * (EVENTS as i64 + 1), "eight users have good days, four have bad ones");
    Ok(())
}

/// Sends an event of each user, again where nobody knows whether it was handled.
async fn send_all(client: &LocalClient, number: u64) -> Result<(), Problem> {
    for user in 0..USERS {
        let text = if user % 3 == 0 { "a bad day" } else { "a good day" };
        let event = Event { user: format!("user {user}"), number, text: text.to_owned() };
        let sending = async {
            loop {
                match client.call::<_, Session>("/ingest", event.clone()).await {
                    Ok(session) => return session,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let session = tokio::time::timeout(20 * SECOND, sending).await?;
        assert_eq!(session.events, number, "{session:?}");
    }
    Ok(())
}

/// Until each session is on one node only, and some are on each.
async fn until_spread(left: &Node, right: &Node) {
    let counts = || (left.keyed("session").active(), right.keyed("session").active());
    while !matches!(counts(), (on_left, on_right) if on_left > 0 && on_right > 0) {
        let _: Result<(), Problem> = send_all(&left.client(), EVENTS).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
