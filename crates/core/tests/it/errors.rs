//! Errors of a stage's own calls reach the stage's caller as errors, not as text.

use std::time::Duration;

use callboard_codec::Value;
use callboard_core::actor::{Actor, ActorContext, ActorSpec, AskError, ReplyPort};
use callboard_core::{App, CallError, Contract, ErrorKind, Failure, LocalClient, Node, Pipeline, Stage};

use super::support::{PATIENCE, hide_panics, serve};

/// Fails in four ways, and dies.
fn inner() -> Stage<u64, u64> {
    Stage::each("inner", |n: &u64| match n {
        0 => Err(Failure::new("pay").with_status(402).with_type("Unpaid").with_details(Value::from(7))),
        1 => Err(Failure::overloaded("busy").with_retry_after(Duration::from_secs(5))),
        2 => Err(Failure::unavailable("away")),
        3 => Err(Failure::invalid_input("odd")),
        _ => panic!("last words"),
    })
}

/// Calls the inner route, and passes on its error in one of the possible ways.
fn outer(name: &str, client: LocalClient, hand_on: fn(CallError) -> Failure) -> Stage<u64, u64> {
    Stage::each_async(name, move |n: std::sync::Arc<u64>| {
        let client = client.clone();
        async move { client.call::<u64, u64>("/route", *n).await.map_err(hand_on) }
    })
}

#[derive(Debug, thiserror::Error)]
#[error("the bill was not settled")]
struct Unsettled(#[source] CallError);

fn by_question_mark(error: CallError) -> Failure {
    let propagated = || -> Result<(), Failure> { Err(error)? };
    propagated().unwrap_err()
}

fn by_anyhow(error: CallError) -> Failure {
    let propagated = || -> Result<(), Failure> { Err(anyhow::Error::from(error))? };
    propagated().unwrap_err()
}

fn by_anyhow_with_context(error: CallError) -> Failure {
    anyhow::Error::from(error).context("the bill was not settled").into()
}

fn by_own_error_type(error: CallError) -> Failure {
    Unsettled(error).into()
}

async fn error_of(node: &Node, hand_on: fn(CallError) -> Failure, input: u64) -> CallError {
    let app = App::new().route("/outer", outer("outer", node.client(), hand_on));
    let outer = app.start().await.unwrap();
    outer.client().call::<u64, u64>("/outer", input).await.unwrap_err()
}

#[tokio::test]
async fn the_error_of_an_inner_call_reaches_the_outer_caller_with_all_details() {
    hide_panics();
    let node = serve(inner()).await;
    for hand_on in [by_question_mark, by_anyhow, by_anyhow_with_context, by_own_error_type] {
        let error = error_of(&node, hand_on, 0).await;
        assert_eq!((error.kind(), error.status()), (ErrorKind::Failed, Some(402)), "{error:?}");
        assert_eq!((error.error_type(), error.stage()), (Some("Unpaid"), Some("outer > inner")));
        assert_eq!(error.details(), Some(&Value::from(7)));
        assert!(["pay", "the bill was not settled: pay"].contains(&error.message()), "{error}");
        let error = error_of(&node, hand_on, 1).await;
        assert_eq!((error.kind(), error.retry_after()), (ErrorKind::Overloaded, Some(Duration::from_secs(5))));
        assert!(error.was_started() && !error.is_retryable(), "the outer stage has run, and may not run twice");
        assert_eq!(error_of(&node, hand_on, 2).await.kind(), ErrorKind::Unavailable);
        assert_eq!(error_of(&node, hand_on, 3).await.kind(), ErrorKind::InvalidInput);
        let error = error_of(&node, hand_on, 9).await;
        assert_eq!(error.kind(), ErrorKind::WorkerFailed);
        assert!(error.remote_trace().is_some_and(|trace| trace.contains("last words")), "{error:?}");
    }
}

#[tokio::test]
async fn a_stage_can_report_that_it_has_not_started() {
    let node = serve(inner()).await;
    let error = node.client().call::<u64, u64>("/route", 1).await.unwrap_err();
    assert_eq!((error.was_started(), error.is_refusal(), error.is_retryable()), (true, false, true), "{error:?}");
    assert!(!error.may_have_run(), "{error:?}");
    let node = serve(Stage::each("full", |_: &u64| -> Result<u64, Failure> { Err(Failure::overloaded("full")) })).await;
    let error = node.client().call::<u64, u64>("/route", 1).await.unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(1)), "the default of the stage");
}

#[tokio::test]
async fn a_call_may_be_repeated_only_if_all_earlier_stages_permit_it() {
    let node = serve(inner()).await;
    for (first, second, may_repeat) in [
        (Contract::Pure, Contract::Idempotent, true),
        (Contract::Pure, Contract::AtMostOnce, false),
        (Contract::AtMostOnce, Contract::Pure, false),
    ] {
        let echo = Stage::each("echo", |n: &u64| Ok(*n)).contract(first);
        let calls = outer("calls", node.client(), by_question_mark).contract(second);
        let app = App::new().route("/both", Pipeline::from(echo).then(calls)).start().await.unwrap();
        let error = app.client().call::<u64, u64>("/both", 2).await.unwrap_err();
        assert_eq!((error.was_started(), error.is_retryable()), (true, may_repeat), "{first:?} {second:?}: {error:?}");
        assert!(error.may_have_run(), "{first:?} {second:?}: {error:?}");
    }
}

#[tokio::test]
async fn texts_and_errors_become_failures_by_a_question_mark() {
    let fails = |how: u64| -> Result<u64, Failure> {
        match how {
            0 => Err("a word")?,
            1 => Err("a word".to_owned())?,
            2 => Err(anyhow::anyhow!("a word").context("another"))?,
            3 => Err(Box::<dyn std::error::Error + Send + Sync>::from("a word"))?,
            _ => Ok("x".parse()?),
        }
    };
    let node = serve(Stage::each("fails", move |n: &u64| fails(*n))).await;
    let mut errors = Vec::new();
    for how in 0..5 {
        let error = node.client().call::<u64, u64>("/route", how).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Failed);
        errors.push((error.message().to_owned(), error.error_type().map(str::to_owned)));
    }
    let errors: Vec<(&str, Option<&str>)> =
        errors.iter().map(|(message, kind)| (message.as_str(), kind.as_deref())).collect();
    let number = ("invalid digit found in string", Some("core::num::error::ParseIntError"));
    assert_eq!(
        errors,
        [("a word", None), ("a word", None), ("another: a word", Some("anyhow::Error")), ("a word", None), number]
    );
}

/// An actor without money.
struct Purse;

struct Pay(ReplyPort<u64>);

impl Actor for Purse {
    type Message = Pay;

    async fn handle(&mut self, Pay(answer): Pay, _: &ActorContext<Self>) -> Result<(), Failure> {
        answer.fail(Failure::new("empty").with_status(402).with_details(Value::from(7)));
        Ok(())
    }
}

#[tokio::test]
async fn an_actors_failure_reaches_the_caller_through_stages_and_steps() {
    let spec = ActorSpec::new("purse", |_| Purse);
    let (purse, reference) = (spec.reference(), spec.reference());
    let asks = Stage::each_async("asks", move |_: std::sync::Arc<u64>| {
        let purse = purse.clone();
        async move { Ok(purse.ask(PATIENCE, Pay).await?) }
    });
    let step = Pipeline::<u64, u64>::ask("step", spec.reference(), |_: &u64, answer| Pay(answer));
    let app = App::new().actor(spec).route("/stage", asks).route("/step", step);
    let node = app.start().await.unwrap();
    let failed = reference.ask(PATIENCE, Pay).await.unwrap_err();
    assert!(matches!(&failed, AskError::Failed(failure) if failure.message() == "empty"), "{failed}");
    for (route, stage) in [("/stage", "asks"), ("/step", "purse")] {
        let error = node.client().call::<u64, u64>(route, 1).await.unwrap_err();
        assert_eq!((error.message(), error.status(), error.stage()), ("empty", Some(402), Some(stage)));
        assert_eq!((error.details(), error.was_started()), (Some(&Value::from(7)), true));
    }
    // The stage had started, and may not run twice: the actor's refusal does not hold for the whole call.
    let full = Failure::from(AskError::Failed(Failure::overloaded("busy")));
    let stage = Stage::each("full", move |_: &u64| Err::<u64, _>(full.clone()));
    let node = App::new().route("/full", stage).start().await.unwrap();
    let error = node.client().call::<u64, u64>("/full", 1).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Overloaded, false), "{error:?}");
}
