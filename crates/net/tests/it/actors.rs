//! Questions to actors of another node, over real connections.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::wire::{Ask, Call, Fail, FrameKind, Hello, Origin, VERSION, frame_head};
use callboard_codec::{Data, Payload};
use callboard_core::actor::{Actor, ActorContext, ActorSpec, AskError, Question, RemoteRef, ReplyPort};
use callboard_core::{App, CallOptions, Failure};
use callboard_net::testing::{RawPeer, cutter};
use callboard_net::{Cluster, Identity, NetConfig, QuicEdge, Role, StaticView};
use serde::{Deserialize, Serialize};

use crate::common::{LONG, Member, ServingNode, patient, peer, until};
use crate::lab::{Lab, hello, serve_app};

/// Adds numbers, and keeps the ports of those who wait.
#[derive(Default)]
pub(crate) struct Desk {
    sum: u64,
    held: Vec<ReplyPort<()>>,
}

pub(crate) enum Order {
    Add(Add),
    Sum(ReplyPort<u64>),
    Hold(ReplyPort<()>),
    Held(ReplyPort<u64>),
    /// Takes this long.
    Sleep(Duration, ReplyPort<()>),
    Caller(String, ReplyPort<String>),
    Echo(Echo, ReplyPort<Vec<u8>>),
    Fail(ReplyPort<()>),
}

macro_rules! questions {
    ($($name:ident($($field:ty)?) = $word:literal -> $answer:ty,)*) => {
        $(
            #[derive(Serialize, Deserialize)]
            pub(crate) struct $name($(pub(crate) $field)?);

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
    Hold() = "hold" -> (),
    Held() = "held" -> u64,
    Sleep(u64) = "sleep" -> (),
    WhoAsks() = "who_asks" -> String,
    Echo(Vec<u8>) = "echo" -> Vec<u8>,
    FailNow() = "fail" -> (),
    Unknown() = "unknown" -> (),
}

impl Actor for Desk {
    type Message = Order;

    async fn handle(&mut self, order: Order, _: &ActorContext<Self>) -> Result<(), Failure> {
        match order {
            Order::Add(Add(number)) => self.sum += number,
            Order::Sum(answer) => answer.send(self.sum),
            Order::Hold(answer) => self.held.push(answer),
            Order::Held(answer) => {
                self.held.retain(ReplyPort::is_wanted);
                answer.send(self.held.len() as u64);
            }
            Order::Sleep(time, answer) => {
                tokio::time::sleep(time).await;
                answer.send(());
            }
            Order::Caller(caller, answer) => answer.send(caller),
            Order::Echo(Echo(bytes), answer) => answer.send(bytes),
            Order::Fail(answer) => answer.fail(Failure::new("not today").with_status(418)),
        }
        Ok(())
    }
}

pub(crate) fn desk(name: &str, messages: usize) -> ActorSpec<Order> {
    ActorSpec::with_mailbox(name, messages, |_| Desk::default())
        .accepts_tell(Order::Add)
        .accepts(|Sum(), answer| Order::Sum(answer))
        .accepts(|Hold(), answer| Order::Hold(answer))
        .accepts(|Held(), answer| Order::Held(answer))
        .accepts(|Sleep(millis), answer| Order::Sleep(Duration::from_millis(millis), answer))
        .accepts(Order::Echo)
        .accepts(|FailNow(), answer| Order::Fail(answer))
        .accepts_with(|WhoAsks(), answer, options: &CallOptions| {
            Order::Caller(options.caller().unwrap_or_default().to_owned(), answer)
        })
}

/// Asks until the actor is found.
pub(crate) async fn until_found(actor: &RemoteRef) {
    let asking = async {
        while let Err(error) = actor.ask(LONG, Sum()).await {
            assert!(matches!(error, AskError::Unreachable { .. }), "{error:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, asking).await.expect("it is published");
}

/// A node with an actor, another one, and a reference there.
async fn two(messages: usize) -> (ServingNode, Member, RemoteRef) {
    let served = ServingNode::start(App::new().actor(desk("desk", messages))).await;
    let asking = Member::start(App::new(), &[&served.edge]).await;
    let desk = asking.served.node.remote_actor("desk");
    until_found(&desk).await;
    (served, asking, desk)
}

/// Waits until the actor has this many ports whose askers wait.
async fn until_held(desk: &RemoteRef, count: u64) {
    let asking = async {
        while desk.ask(LONG, Held()).await.unwrap() != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, asking).await.expect("they arrive or leave");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_actor_of_another_node_answers_by_its_name() {
    let (_served, asking, desk) = two(64).await;
    desk.tell(LONG, Add(3)).await.unwrap();
    desk.tell(LONG, Add(4)).await.unwrap();
    assert_eq!(desk.ask(LONG, Sum()).await.unwrap(), 7);
    let ann = CallOptions::new().with_caller("ann").with_timeout(LONG);
    assert_eq!(desk.ask(ann, WhoAsks()).await.unwrap(), "ann");
    // Larger than what shares a stream.
    let bytes = vec![7; 300 << 10];
    assert_eq!(desk.ask(LONG, Echo(bytes.clone())).await.unwrap(), bytes);
    let AskError::Failed(failure) = desk.ask(LONG, FailNow()).await.unwrap_err() else { panic!("it fails") };
    let parts = failure.into_parts();
    assert_eq!((parts.message.as_str(), parts.status), ("not today", Some(418)));

    let error = desk.ask(LONG, Unknown()).await.unwrap_err();
    assert_eq!(error, AskError::NotAccepted { reason: "`desk` accepts no `unknown`".to_owned() });
    let error = desk.tell(LONG, Sum()).await.unwrap_err();
    assert_eq!(error, AskError::NotAccepted { reason: "`desk` accepts `sum` as an ask only".to_owned() });
    let error = asking.served.node.remote_actor("nobody").ask(LONG, Sum()).await.unwrap_err();
    let AskError::Unreachable { reason } = &error else { panic!("{error:?}") };
    assert!(reason.ends_with("publishes the actor `nobody`: none of 1 connected nodes does"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_mailbox_and_a_deadline_refuse_what_the_actor_never_sees() {
    let (_served, _asking, desk) = two(1).await;
    let sleeping = desk.clone();
    let in_hand = tokio::spawn(async move {
        // A question below may have the only place first.
        loop {
            let answer = sleeping.ask(LONG, Sleep(1_500)).await;
            if answer != Err(AskError::Full) {
                return answer;
            }
        }
    });
    while !matches!(desk.ask(Duration::from_millis(50), Sum()).await, Err(AskError::DeadlineExceeded { .. })) {}
    // One waits in the only place until its deadline; the mailbox is full meanwhile.
    let mut refused = 0;
    while refused == 0 {
        let (first, second) = tokio::join!(
            desk.tell(Duration::from_millis(100), Add(1)),
            desk.ask(Duration::from_millis(100), Sleep(0)),
        );
        refused += u32::from(first == Err(AskError::Full)) + u32::from(second == Err(AskError::Full));
        assert!(!in_hand.is_finished(), "the mailbox was full meanwhile");
    }
    let late = desk.ask(Duration::from_millis(50), Sleep(0)).await.unwrap_err();
    assert!(matches!(late, AskError::DeadlineExceeded { .. } | AskError::Full), "{late:?}");
    in_hand.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_asker_that_leaves_is_not_waited_for() {
    let (served, _asking, desk) = two(64).await;
    let (first, second) = (desk.clone(), desk.clone());
    let first = tokio::spawn(async move { first.ask(LONG, Hold()).await });
    let second = tokio::spawn(async move { second.ask(LONG, Hold()).await });
    until_held(&desk, 2).await;
    first.abort();
    until_held(&desk, 1).await;
    second.abort();
    until_held(&desk, 0).await;
    served.until_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_whose_connection_is_lost_may_have_been_handled() {
    let (served, _asking, desk) = two(64).await;
    let asking = desk.clone();
    let asked = tokio::spawn(async move { asking.ask(LONG, Hold()).await });
    until_held(&desk, 1).await;
    cutter(&served.edge)();
    let lost = asked.await.unwrap().unwrap_err();
    assert!(lost == AskError::Lost && lost.was_taken(), "{lost:?}");
    // It is connected again.
    until_found(&desk).await;
    until_held(&desk, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_questions_of_one_moment_share_a_stream() {
    let (served, _asking, desk) = two(1024).await;
    let before = served.streams_started();
    let asked = futures_util::future::join_all((0..256).map(|_| desk.ask(LONG, Sum()))).await;
    assert!(asked.into_iter().all(|sum| sum == Ok(0)));
    let streams = served.streams_started() - before;
    assert!(streams < 64, "{streams} streams for 256 questions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_choose_the_same_of_several_and_an_own_actor_first() {
    let both = [ServingNode::start(App::new().actor(desk("desk", 64))).await, {
        ServingNode::start(App::new().actor(desk("desk", 64))).await
    }];
    let edges = both.each_ref().map(|served| &served.edge);
    let askers = [Member::start(App::new(), &edges).await, Member::start(App::new(), &edges).await];
    for asker in &askers {
        asker.until_connected(2).await;
        let desk = asker.served.node.remote_actor("desk");
        until_found(&desk).await;
        desk.tell(LONG, Add(1)).await.unwrap();
    }
    let mut sums = Vec::new();
    for served in &both {
        sums.push(served.node.remote_actor("desk").ask(LONG, Sum()).await.unwrap());
    }
    sums.sort_unstable();
    assert_eq!(sums, [0, 2]);
}

/// A question as a node writes it.
fn frames(actor: &str, question: &str, body: Vec<u8>) -> Vec<Bytes> {
    let ask = Ask { actor: actor.to_owned(), question: question.to_owned(), tell: false, key: None };
    let call = Call { ask: Some(Box::new(ask)), millis_left: 60_000, ..Call::default() };
    vec![frame_head(FrameKind::Call, 0, &call, body.len()).unwrap(), body.into()]
}

fn body(value: impl Data) -> Vec<u8> {
    Payload::new(value).to_envelope().unwrap().into_bytes().to_vec()
}

async fn refusal(peer: &RawPeer, pieces: Vec<Bytes>) -> (String, bool) {
    let answers = peer.exchange(pieces).await.unwrap();
    assert_eq!(answers[0].0.kind, FrameKind::Fail);
    let fail: Fail = answers[0].0.header().unwrap();
    (fail.kind, fail.started)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_refused_and_takes_no_place_of_the_mailbox() {
    let served = ServingNode::start(App::new().actor(desk("desk", 1))).await;
    let peer = peer(&served).await;
    for (actor, question, body, kind) in [
        ("desk", "echo", vec![0xc1; 40], "invalid_input"),
        ("desk", "echo", body("not a list".to_owned()), "invalid_input"),
        ("desk", "add", body(1_u64), "invalid_input"),
        ("desk", "", body(1_u64), "invalid_input"),
        ("desk", "sum", vec![], "invalid_input"),
        ("", "", body(1_u64), "unavailable"),
        ("nobody", "sum", body(1_u64), "unavailable"),
    ] {
        assert_eq!(refusal(&peer, frames(actor, question, body)).await, (kind.to_owned(), false), "{actor} {question}");
    }
    let answers = peer.exchange(frames("desk", "sum", body(Sum()))).await.unwrap();
    assert_eq!(answers[0].0.kind, FrameKind::Done, "the only place is free");
    // Half of a question, whose sender leaves.
    let mut pieces = frames("desk", "echo", body(Echo(vec![1; 4_000])));
    pieces[1].truncate(2_000);
    let begun = peer.begin(pieces).await;
    until(|| served.node.describe().actors[0].waiting == 1).await;
    let full = refusal(&peer, frames("desk", "sum", body(Sum()))).await;
    assert_eq!(full.0, "overloaded", "the place is reserved before the body has arrived");
    drop(begun);
    let free = async {
        while peer.exchange(frames("desk", "sum", body(Sum()))).await.unwrap()[0].0.kind != FrameKind::Done {}
    };
    tokio::time::timeout(LONG, free).await.expect("the place is free again");
}

/// A member that sends frames by hand.
async fn greeted(edge: &QuicEdge, identity: &Identity) -> RawPeer {
    let peer = RawPeer::connect(edge.address(), identity).await.unwrap();
    peer.greet(&Hello { max_version: VERSION, ..hello(identity.cluster()) }).await.unwrap();
    peer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_nodes_ask_actors() {
    let lab = Lab::start("askers").await;
    let serves = lab.member(Role::Node, "serves").await;
    let (edge, node) = serve_app(serves, patient(), App::new().actor(desk("desk", 8))).await;
    for (role, name) in [(Role::Client, "guest"), (Role::Operator, "chief")] {
        let peer = greeted(&edge, &lab.member(role, name).await).await;
        let refused = refusal(&peer, frames("desk", "sum", body(Sum()))).await;
        assert_eq!(refused, ("permission_denied".to_owned(), false), "{role}");
    }
    let peer = greeted(&edge, &lab.member(Role::Node, "other").await).await;
    let answers = peer.exchange(frames("desk", "sum", body(Sum()))).await.unwrap();
    assert_eq!(answers[0].0.kind, FrameKind::Done);
    assert_eq!(node.remote_actor("desk").ask(LONG, Sum()).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_actor_is_asked_only_by_members_that_may_ask_it() {
    let lab = Lab::start("may-ask").await;
    let serves = lab.member(Role::Node, "serves").await;
    let config = NetConfig { asks: "web=desk,*=board".parse().unwrap(), ..patient() };
    let app = App::new().actor(desk("desk", 1)).actor(desk("board", 1));
    let (edge, node) = serve_app(serves, config, app).await;
    let web = greeted(&edge, &lab.member(Role::Node, "web").await).await;
    let other = greeted(&edge, &lab.member(Role::Node, "other").await).await;
    let sum = |actor: &str| frames(actor, "sum", body(Sum()));
    for (peer, actor) in [(&web, "desk"), (&web, "board"), (&other, "board")] {
        assert_eq!(peer.exchange(sum(actor)).await.unwrap()[0].0.kind, FrameKind::Done, "{actor}");
    }
    let refused = ("permission_denied".to_owned(), false);
    assert_eq!(refusal(&other, sum("desk")).await, refused);
    // Whatever a member says of itself and of its question.
    let mut named = sum("desk");
    let ask = Ask { actor: "desk".to_owned(), question: "sum".to_owned(), tell: true, key: Some("a".to_owned()) };
    let origin = Some(Box::new(Origin { caller: "web".to_owned(), ..Origin::default() }));
    let call = Call { ask: Some(Box::new(ask)), millis_left: 60_000, origin, ..Call::default() };
    named[0] = frame_head(FrameKind::Call, 0, &call, named[1].len()).unwrap();
    assert_eq!(refusal(&other, named).await, refused);
    // It holds no place meanwhile: a refusal comes before the body.
    let mut pieces = frames("desk", "echo", body(Echo(vec![1; 4_000])));
    pieces[1].truncate(2_000);
    let _begun = other.begin(pieces).await;
    assert_eq!(web.exchange(sum("desk")).await.unwrap()[0].0.kind, FrameKind::Done);
    // The code of this node needs no permission.
    assert_eq!(node.remote_actor("desk").ask(LONG, Sum()).await.unwrap(), 0);

    let asks = lab.member(Role::Node, "asks").await;
    let (asking_edge, asking) = serve_app(asks, NetConfig { node: "asks".to_owned(), ..patient() }, App::new()).await;
    let view = StaticView::try_new([edge.address()]).unwrap();
    asking.join(Cluster::start(&asking_edge, Arc::new(view))).unwrap();
    until_found(&asking.remote_actor("board")).await;
    let error = asking.remote_actor("desk").ask(LONG, Sum()).await.unwrap_err();
    let AskError::NotAccepted { reason } = &error else { panic!("{error:?}") };
    assert_eq!(reason, "the member \"asks\" may not ask the actor \"desk\" of this node (quic.asks)");
    assert!(!error.was_taken());
}
