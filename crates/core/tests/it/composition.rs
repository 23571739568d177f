//! Ensembles, switches and maps: which steps run, in which order results arrive, and which error counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use callboard_codec::{Format, Value};
use callboard_core::{App, ErrorKind, Failure, MemberError, Pipeline, Stage};

use super::support::{Gate, gated, serve, until};

fn add(name: &str, amount: u64) -> Pipeline<u64, u64> {
    Stage::each(name, move |n: &u64| Ok(n + amount)).into()
}

fn fails(name: &str) -> Pipeline<u64, u64> {
    let message = format!("{name} says no");
    Stage::each(name, move |_: &u64| -> Result<u64, Failure> { Err(Failure::new(message.clone())) }).into()
}

#[tokio::test]
async fn stages_with_computed_names_can_be_members_and_branches() {
    let add = |n: u64| Stage::each(format!("add{n}"), move |given: &u64| Ok(given + n));
    let both = Pipeline::ensemble((add(1), Pipeline::from(add(2)).then(add(3))));
    let named = Pipeline::ensemble_named([("one", Stage::each("value", |n: &u64| Ok(Value::from(*n))))]);
    let even_or_odd = Pipeline::switch("by_parity", |n: &u64| Ok((n % 2) as usize), [add(4), add(5)]);
    let app = App::new().route("/both", both).route("/named", named).route("/switch", even_or_odd);
    let node = app.route("/list", Pipeline::ensemble_of((6..9).map(add))).start().await.unwrap();
    let client = node.client();
    assert_eq!(client.call::<u64, (u64, u64)>("/both", 10).await.unwrap(), (11, 15));
    assert_eq!(client.call::<u64, Value>("/named", 10).await.unwrap().get("one"), Some(&Value::from(10_u64)));
    assert_eq!(client.call::<u64, u64>("/switch", 10).await.unwrap(), 14);
    assert_eq!(client.call::<u64, Vec<u64>>("/list", 10).await.unwrap(), [16, 17, 18]);
}

#[tokio::test]
async fn an_ensemble_gives_its_members_results_in_their_order() {
    let text = Stage::each("text", |n: &u64| Ok(n.to_string()));
    let both = Pipeline::ensemble((add("one", 1), text, add("ten", 10).then(add("more", 1))));
    let node = serve(both).await;
    let out: (u64, String, u64) = node.client().call("/route", 5u64).await.unwrap();
    assert_eq!(out, (6, "5".to_owned(), 16));

    let many = Pipeline::ensemble_of((0..7).map(|n| add(&format!("add{n}"), n)));
    let node = serve(many).await;
    let out: Vec<u64> = node.client().call("/route", 100u64).await.unwrap();
    assert_eq!(out, (100..107).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_members_of_an_ensemble_run_concurrently() {
    // Each member waits until all five have started: in sequence they would wait for ever.
    let barrier = Arc::new(std::sync::Barrier::new(5));
    let member = |n: u64| -> Pipeline<u64, u64> {
        let barrier = Arc::clone(&barrier);
        let meet = move |input: &u64| {
            barrier.wait();
            Ok(input * n)
        };
        Stage::each(format!("member{n}").as_str(), meet).on_threads().into()
    };
    let node = serve(Pipeline::ensemble_of((1..=5).map(member))).await;
    let out: Vec<u64> = node.client().call("/route", 10u64).await.unwrap();
    assert_eq!(out, [10, 20, 30, 40, 50]);
}

#[tokio::test]
async fn the_first_error_of_an_ensemble_is_its_outcome_and_cancels_the_rest() {
    let gate = Gate::default();
    let slow: Pipeline<u64, u64> = gated(&gate).into();
    let after_slow = Arc::new(AtomicBool::new(false));
    let ran = Arc::clone(&after_slow);
    let later = Stage::each("later", move |n: &u64| {
        ran.store(true, Ordering::SeqCst);
        Ok(*n)
    });
    let node = serve(Pipeline::ensemble_of(vec![slow.then(later), fails("bad")])).await;
    let error = node.client().call::<u64, Vec<u64>>("/route", 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert_eq!(error.message(), "1 of 2 members of the ensemble failed: bad says no");
    assert_eq!(error.stage(), Some("bad"));
    gate.open();
    until("nothing is left", || {
        node.describe().stages.iter().all(|stage| stage.queued == 0 && stage.replicas.iter().all(|r| !r.busy))
    })
    .await;
    assert!(!after_slow.load(Ordering::SeqCst), "a cancelled member continued");
}

#[tokio::test]
async fn a_partial_ensemble_keeps_the_successful_results() {
    let node = serve(Pipeline::ensemble_partial(vec![add("one", 1), fails("bad"), add("two", 2)])).await;
    let out: Vec<Result<u64, MemberError>> = node.client().call("/route", 5u64).await.unwrap();
    assert_eq!((out[0].as_ref(), out[2].as_ref()), (Ok(&6), Ok(&7)));
    assert_eq!(out[1].as_ref().unwrap_err().message, "bad says no");

    let node = serve(Pipeline::ensemble_partial(vec![fails("a"), fails("b"), fails("c")])).await;
    let call = node.client().call::<u64, Vec<Result<u64, MemberError>>>("/route", 5).await;
    assert_eq!(call.unwrap_err().message(), "all 3 members of the ensemble failed, the first: a says no");
}

#[tokio::test]
async fn a_fail_fast_part_of_a_partial_ensemble_gives_up_only_itself() {
    let gate = Gate::default();
    let strict = Pipeline::ensemble_of(vec![add("one", 1), fails("bad")])
        .map("sum", |parts: &Vec<u64>| Ok(parts.iter().sum::<u64>()));
    let patient: Pipeline<u64, u64> = gated(&gate).into();
    let node = Arc::new(serve(Pipeline::ensemble_partial(vec![strict, patient])).await);
    let client = node.client();
    let call = tokio::spawn(async move { client.call::<u64, Vec<Result<u64, MemberError>>>("/route", 5).await });
    until("the patient member runs", || gate.arrived() == 1).await;
    gate.open();
    let out = call.await.unwrap().unwrap();
    assert!(out[0].is_err());
    assert_eq!(out[1], Ok(5));
}

#[tokio::test]
async fn a_switch_chooses_by_content_and_its_failure_fails_only_its_item() {
    let choose = |n: &u64| match n {
        13 => Err(Failure::invalid_input("unlucky")),
        14 => panic!("worse"),
        n => Ok(*n as usize),
    };
    let node = serve(Pipeline::switch("by_number", choose, vec![add("ten", 10), Pipeline::pass_through()])).await;
    let client = node.client();
    assert_eq!(client.call::<u64, u64>("/route", 0).await.unwrap(), 10);
    assert_eq!(client.call::<u64, u64>("/route", 1).await.unwrap(), 1);
    let out_of_range = client.call::<u64, u64>("/route", 2).await.unwrap_err();
    assert_eq!(out_of_range.message(), "switch `by_number` chose branch 2 of 2");
    assert_eq!(client.call::<u64, u64>("/route", 13).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    let panicked = client.call::<u64, u64>("/route", 14).await.unwrap_err();
    assert_eq!((panicked.kind(), panicked.message()), (ErrorKind::WorkerFailed, "`by_number` panicked: worse"));
    assert_eq!(client.call::<u64, u64>("/route", 0).await.unwrap(), 10);
}

#[test]
fn a_pipeline_prints_as_its_diagram() {
    let inner = Pipeline::switch("choose", |_: &u64| Ok(0), vec![add("x", 1), Pipeline::pass_through()]);
    let drawn = add("first", 1).then(Pipeline::ensemble_of(vec![inner, add("y", 1).then(add("z", 1))]));
    assert_eq!(drawn.map("sum", |n: &Vec<u64>| Ok(n.len())).to_string(), "first → (choose{x / ·} | y → z) → [sum]");
}

#[tokio::test]
async fn a_refusal_after_the_first_stage_ran_is_not_offered_for_a_retry() {
    let gate = Gate::default();
    let first = Stage::each("charge", |n: &u64| Ok(*n));
    let second = gated(&gate).queue(1);
    let node = serve(Pipeline::from(first.clone()).then(second)).await;
    let client = node.client();
    let send = |n: u64| {
        let client = client.clone();
        tokio::spawn(async move { client.call::<u64, u64>("/route", n).await })
    };
    let (running, waiting) = (send(1), send(2));
    until("one runs and one waits", || gate.arrived() == 1 && node.describe().stages[1].queued == 1).await;
    let error = client.call::<u64, u64>("/route", 3).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Overloaded);
    assert!(error.was_started() && !error.is_retryable(), "the first stage has run");
    gate.open();
    running.await.unwrap().unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_named_ensemble_gives_a_map_in_member_order_and_a_partial_one_errors_in_place() {
    let good = Stage::each("good", |n: &i64| Ok(Value::from(n * 2)));
    let bad = Stage::each("bad", |_: &i64| -> Result<Value, Failure> { Err(Failure::invalid_input("too odd")) });
    let members = |fails: [bool; 3]| -> Vec<(String, Pipeline<i64, Value>)> {
        let stage = |fails| if fails { bad.clone() } else { good.clone() };
        ["z", "a", "m"].into_iter().zip(fails).map(|(name, fails)| (name.to_owned(), stage(fails).into())).collect()
    };
    let app = App::new()
        .route("/all", Pipeline::ensemble_named(members([false; 3])))
        .route("/strict", Pipeline::ensemble_named(members([false, true, false])))
        .route("/partial", Pipeline::ensemble_named_partial(members([false, true, false])))
        .route("/none", Pipeline::ensemble_named_partial(members([true; 3])));
    let node = app.start().await.unwrap();
    let json = |value: Value| String::from_utf8(value.encode(Format::Json).unwrap().to_vec()).unwrap();
    let call = async |route: &str| node.client().call::<i64, Value>(route, 4).await.map(json);
    assert_eq!(call("/all").await.unwrap(), r#"{"z":8,"a":8,"m":8}"#);
    let error = call("/strict").await.unwrap_err();
    assert_eq!(error.message(), "1 of 3 members of the ensemble failed: too odd");
    let partial = call("/partial").await.unwrap();
    assert_eq!(partial, r#"{"z":8,"a":{"error":{"kind":"invalid_input","message":"too odd"}},"m":8}"#);
    let error = call("/none").await.unwrap_err();
    assert_eq!(error.message(), "all 3 members of the ensemble failed, the first: too odd");
}

#[tokio::test(start_paused = true)]
async fn five_members_take_the_time_of_the_slowest() {
    let waits = |name: &str, millis: u64| -> Pipeline<u64, u64> {
        Stage::each_async(name, move |n: Arc<u64>| async move {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            Ok(*n)
        })
        .into()
    };
    let members = [("a", 100), ("b", 200), ("c", 300), ("d", 400), ("e", 500)];
    let members = members.into_iter().map(|(name, millis)| waits(name, millis));
    let node = serve(Pipeline::ensemble_of(members)).await;
    let started = tokio::time::Instant::now();
    let all: Vec<u64> = node.client().call("/route", 7u64).await.unwrap();
    assert_eq!(all, [7; 5]);
    assert_eq!(started.elapsed().as_millis(), 500);
}
