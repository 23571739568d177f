//! Keyed actors as a step of a pipeline.

use std::sync::Arc;
use std::time::Duration;

use callboard_codec::Payload;
use callboard_core::actor::Question;
use callboard_core::keyed::{Answers, KeyContext, KeyedSpec, Stored};
use callboard_core::testing::MemoryStore;
use callboard_core::{App, CallOptions, ErrorKind, Failure, Node, Pipeline, Stage};
use futures_util::future::join_all;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::support::hide_panics;

/// Adds to the total of a key.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct Add {
    key: String,
    by: u64,
}

impl Add {
    fn new(key: &str, by: u64) -> Self {
        Self { key: key.to_owned(), by }
    }
}

/// The total of a key, and what the actor saw of the call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Seen {
    total: u64,
    caller: Option<String>,
    request_id: Option<String>,
    tag: Option<String>,
    has_deadline_of_call: bool,
}

impl Question for Add {
    const NAME: &str = "add";
    type Answer = Seen;
}

impl Answers<Add> for Stored<u64> {
    async fn answer(&mut self, Add { by, .. }: Add, context: &KeyContext) -> Result<Seen, Failure> {
        assert!(by != 666, "poison");
        if by == 0 {
            std::future::pending::<()>().await;
        }
        **self += by;
        let options = context.options();
        Ok(Seen {
            total: **self,
            caller: options.caller().map(str::to_owned),
            request_id: options.request_id().map(str::to_owned),
            tag: options.tags().find(|(name, _)| *name == "flag").map(|(_, value)| value.to_owned()),
            has_deadline_of_call: context.deadline().instant() <= Instant::now() + Duration::from_secs(7),
        })
    }
}

async fn node() -> Node {
    let load = |context: KeyContext, total: Stored<u64>| async move {
        if context.key() == "broken" { Err(Failure::new("no such key")) } else { Ok(total) }
    };
    let totals = KeyedSpec::new("total", Arc::new(MemoryStore::new()), load);
    let key = |add: &Add| {
        assert!(add.by < 1_000, "too much");
        add.key.clone()
    };
    let double = Stage::each("double", |add: &Add| Ok(Add { by: 2 * add.by, ..add.clone() }));
    let total = Pipeline::from(double).then(Pipeline::ask_key("total", key));
    let total = total.map("total", |seen: &Seen| Ok(seen.total));
    App::new()
        .keyed(totals.accepts::<Add>())
        .route("/add", Pipeline::ask_key("total", key))
        .route("/double", total)
        .start()
        .await
        .unwrap()
}

#[tokio::test]
async fn an_item_is_a_question_to_the_actor_of_its_key_between_other_steps() {
    let node = node().await;
    for expected in [4, 8] {
        assert_eq!(node.client().call::<_, u64>("/double", Add::new("a", 2)).await.unwrap(), expected);
    }
    assert_eq!(node.client().call::<_, u64>("/double", Add::new("b", 2)).await.unwrap(), 4);
    let step: Pipeline<Add, Seen> = Pipeline::ask_key("total", |add: &Add| add.key.clone());
    assert_eq!(step.to_string(), "<total>");
}

#[tokio::test]
async fn each_item_has_its_own_outcome() {
    hide_panics();
    let node = node().await;
    let client = node.client();
    let adds = [Add::new("a", 1), Add::new("broken", 1), Add::new("a", 666), Add::new("a", 1_000), Add::new("b", 1)];
    let outcomes = join_all(adds.map(|add| client.call::<_, Seen>("/add", add))).await;
    let outcomes: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().map(|seen| seen.total)).collect();
    assert_eq!((outcomes[0].as_ref().ok(), outcomes[4].as_ref().ok()), (Some(&1), Some(&1)));
    let error = |index: usize| outcomes[index].as_ref().unwrap_err();
    assert_eq!((error(1).kind(), error(1).stage()), (ErrorKind::Unavailable, Some("total")));
    assert!(error(1).message().contains("no such key"), "{}", error(1));
    assert_eq!(error(2).kind(), ErrorKind::WorkerFailed, "its actor crashed with it");
    assert!(error(2).was_started() && !error(1).was_started());
    assert_eq!(error(3).kind(), ErrorKind::WorkerFailed, "the code that gives its key panicked");
    assert_eq!(client.call::<_, Seen>("/add", Add::new("a", 1)).await.unwrap().total, 2, "the key goes on");
}

/// A key stays active long after its calls: it must not hold what they charged to the node.
#[tokio::test]
async fn an_active_key_holds_nothing_of_a_call_that_has_its_answer() {
    let node = node().await;
    let client = node.client();
    let route = client.route("/add").unwrap();
    for key in ["a", "b"] {
        let admission = client.edge().admit(&route, 1_000).unwrap();
        // As an edge does until it has written the answer.
        let account = admission.account();
        let asked = Payload::new(Add::new(key, 1));
        client.edge().submit(admission, asked, CallOptions::new()).await.unwrap();
        drop(account);
        assert_eq!(node.describe().in_flight_bytes, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_has_caller_trace_and_deadline_of_its_call() {
    let node = node().await;
    let options = CallOptions::new()
        .with_caller("ann")
        .with_request_id("r1")
        .with_tag("flag", "on")
        .with_timeout(Duration::from_secs(7));
    let seen: Seen = node.client().call_with("/add", Add::new("a", 1), options.clone()).await.unwrap();
    let text = |text: &str| Some(text.to_owned());
    let expected =
        Seen { total: 1, caller: text("ann"), request_id: text("r1"), tag: text("on"), has_deadline_of_call: true };
    assert_eq!(seen, expected);
    let began = Instant::now();
    let late = node.client().call_with::<_, Seen>("/add", Add::new("a", 0), options).await.unwrap_err();
    assert_eq!((late.kind(), began.elapsed().as_secs()), (ErrorKind::DeadlineExceeded, 7));
    assert!(late.was_started(), "the actor has taken it");
}
