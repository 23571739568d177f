//! Rollouts: a candidate gets a share of the calls, is judged, and is promoted or rolled back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use callboard_core::actor::{Actor, ActorContext, ActorSpec, ReplyPort};
use callboard_core::description::{RolloutDescription, RolloutState, StagePart};
use callboard_core::{
    App, CallOptions, ChangeError, Contract, ErrorKind, Failure, Node, Pipeline, Replica, Rollout, RouteChange,
    RouteSpec, Stage, StreamStage,
};
use futures_util::stream;
use tokio::time::Instant;

use super::load::{Load, answering};
use super::support::{Gate, hide_panics, serve, until};

fn route(stage: Stage<u64, u64>) -> RouteSpec {
    RouteSpec::new("/route", stage)
}

fn rollout(node: &Node) -> RolloutDescription {
    node.describe().routes[0].rollout.clone().expect("there was a rollout")
}

async fn until_state(node: &Node, state: RolloutState) -> RolloutDescription {
    until(&format!("the rollout is {state:?}"), || rollout(node).state == state).await;
    rollout(node)
}

/// Calls without pause until the rollout is over. Returns the calls and the failed ones.
async fn call_while_running(node: &Node, options: &CallOptions) -> (u64, u64) {
    let (mut calls, mut failed) = (0, 0);
    while rollout(node).state == RolloutState::Running {
        let outcome = node.client().call_with::<u64, u64>("/route", calls, options.clone()).await;
        failed += u64::from(outcome.is_err());
        calls += 1;
        assert!(calls < 100_000, "the rollout never ends: {:?}", rollout(node));
    }
    (calls, failed)
}

fn fails_every_second_call() -> Stage<u64, u64> {
    let calls = AtomicU64::new(0);
    Stage::each("model", move |n: &u64| match calls.fetch_add(1, Ordering::Relaxed) % 2 {
        0 => Err(Failure::new("every second call")),
        _ => Ok(n + 2),
    })
}

#[tokio::test]
async fn a_canary_gets_its_share_and_is_promoted_after_enough_good_calls() {
    let node = serve(answering("model", 1)).await;
    let policy = Rollout::canary(0.1).min_calls(50);
    let begun = node.roll_out(route(answering("model", 2)), policy).await.unwrap();
    begun.settled().await;
    let mut of_candidate = 0;
    while rollout(&node).state == RolloutState::Running {
        let answer = node.client().call::<u64, u64>("/route", 0).await.unwrap();
        of_candidate += u64::from(answer == 2);
        tokio::task::yield_now().await;
    }
    // How many calls it takes is chance; the share has a test with a seed.
    assert!((50..60).contains(&of_candidate), "{of_candidate}");
    let seen = rollout(&node);
    assert_eq!((seen.state, seen.share), (RolloutState::Promoted, 0.0));
    assert!(seen.reason.as_deref().unwrap().starts_with("0 of 50 calls failed"), "{seen:?}");
    assert_eq!(node.client().call::<u64, u64>("/route", 0).await.unwrap(), 2);
    let metrics = node.metrics();
    assert!(metrics.contains(r#"rollout_decisions_total{route="/route",decision="promoted",cause="sound"} 1"#));
    assert!(
        metrics.contains(r#"rollout_calls_total{route="/route",revision="candidate",outcome="ok"} 50"#),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_canary_that_fails_every_second_call_is_rolled_back_with_its_reason() {
    let node = serve(answering("model", 1)).await;
    node.roll_out(route(fails_every_second_call()), Rollout::canary(0.05)).await.unwrap();
    let (calls, failed) = call_while_running(&node, &CallOptions::new()).await;
    assert!(failed <= 15, "{failed} of {calls}");
    let seen = rollout(&node);
    assert_eq!(seen.state, RolloutState::RolledBack);
    assert!(seen.reason.as_deref().unwrap().contains("calls failed"), "{seen:?}");
    assert!(seen.candidate.error_rate >= 0.5 && seen.current.failed == 0, "{seen:?}");
    assert!(node.metrics().contains(r#"decision="rolled_back",cause="error_rate"} 1"#));
    until("the candidate has ended", || node.describe().stages.len() == 1).await;
    assert_eq!(node.client().call::<u64, u64>("/route", 0).await.unwrap(), 1);
    assert!(node.health().ready);
}

#[tokio::test]
async fn errors_that_are_not_the_revisions_fault_do_not_count() {
    let node = serve(answering("model", 1)).await;
    let picky = Stage::each("model", |n: &u64| match n % 3 {
        0 => Err(Failure::invalid_input("not this one")),
        1 => Err(Failure::new("gone").with_status(410)),
        _ => Ok(n + 2),
    });
    node.roll_out(route(picky), Rollout::canary(0.5).min_calls(20)).await.unwrap();
    call_while_running(&node, &CallOptions::new()).await;
    assert_eq!((rollout(&node).state, rollout(&node).candidate.failed), (RolloutState::Promoted, 0));
}

#[tokio::test(start_paused = true)]
async fn a_slow_canary_is_rolled_back() {
    let node = serve(sleeping(10)).await;
    node.roll_out(route(sleeping(30)), Rollout::canary(0.1)).await.unwrap();
    call_while_running(&node, &CallOptions::new()).await;
    let seen = rollout(&node);
    assert_eq!(seen.state, RolloutState::RolledBack);
    assert!(seen.reason.as_deref().unwrap().contains("took longer than"), "{seen:?}");
    assert!(node.metrics().contains(r#"cause="latency"} 1"#));
}

/// Takes this long, on the runtime's clock.
fn sleeping(ms: u64) -> Stage<u64, u64> {
    Stage::each_async("model", move |n: Arc<u64>| async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        Ok(*n)
    })
}

#[tokio::test(start_paused = true)]
async fn without_calls_the_time_limit_rolls_back() {
    let node = serve(answering("model", 1)).await;
    let began = Instant::now();
    let policy = Rollout::canary(0.5).time_limit(Duration::from_secs(10));
    node.roll_out(route(answering("model", 2)), policy).await.unwrap();
    let seen = until_state(&node, RolloutState::RolledBack).await;
    assert_eq!(began.elapsed().as_secs(), 10);
    assert!(seen.reason.as_deref().unwrap().contains("time limit"), "{seen:?}");
}

#[tokio::test]
async fn a_session_stays_on_one_revision() {
    let node = serve(answering("model", 1)).await;
    node.roll_out(route(answering("model", 2)), Rollout::canary(0.5).min_calls(u64::MAX)).await.unwrap();
    let mut seen = [false; 3];
    for user in 0..20 {
        let options = CallOptions::new().with_session_key(format!("user {user}"));
        let client = node.client();
        let call = || client.call_with::<u64, u64>("/route", 0, options.clone());
        let first = call().await.unwrap();
        for _ in 0..5 {
            assert_eq!(call().await.unwrap(), first);
        }
        seen[first as usize] = true;
    }
    assert_eq!(seen, [false, true, true], "both revisions have sessions");
}

#[tokio::test]
async fn a_candidate_that_does_not_start_is_no_rollout() {
    let node = serve(answering("model", 1)).await;
    let broken = Stage::worker("model", |_: &Replica| Err::<super::load::Healthy, _>(Failure::new("no such file")));
    let error = node.roll_out(route(broken), Rollout::canary(0.5)).await.unwrap_err();
    assert!(error.to_string().contains("no such file"), "{error}");
    assert!(node.describe().routes[0].rollout.is_none());
    assert_eq!(node.client().call::<u64, u64>("/route", 0).await.unwrap(), 1);
}

#[tokio::test]
async fn wrong_rollouts_are_refused_and_name_the_field() {
    let node = serve(answering("model", 1)).await;
    let refused = async |spec: RouteSpec, rollout: Rollout| node.roll_out(spec, rollout).await.unwrap_err().to_string();
    let next = || route(answering("model", 2));
    let cases = [
        (Rollout::canary(0.0), "canary is a share above 0 and below 1, not 0"),
        (Rollout::canary(1.0), "canary is a share above 0 and below 1, not 1"),
        (Rollout::shadow(f64::NAN), "shadow is a share above 0 and up to 1, not NaN"),
        (Rollout::canary(0.5).min_calls(0), "min_calls is at least 1, not 0"),
        (Rollout::canary(0.5).max_error_rate(1.5), "max_error_rate is a part from 0 to 1, not 1.5"),
        (Rollout::canary(0.5).max_latency(0.5), "max_latency is a factor of at least 1, not 0.5"),
        (Rollout::canary(0.5).keep(Duration::from_secs(1 << 40)), "keep is at most seven days"),
        (Rollout::shadow(0.5), "stage `model` is at_most_once"),
    ];
    for (rollout, message) in cases {
        let error = refused(next(), rollout).await;
        assert!(error.contains(message), "{error}");
    }
    let other_type = RouteSpec::new("/route", Stage::each("model", |n: &u64| Ok(n.to_string())));
    assert!(refused(other_type, Rollout::canary(0.5)).await.contains("another output type"));
    let remote = RouteSpec::new("/route", Pipeline::<u64, u64>::remote("elsewhere"));
    assert!(refused(remote, Rollout::canary(0.5)).await.contains("stage `elsewhere` runs on other nodes"));
    let unknown = RouteSpec::new("/unknown", answering("model", 2));
    assert!(refused(unknown, Rollout::canary(0.5)).await.contains("there is no route `/unknown`"));
    assert!(matches!(node.promote_route("/route").await, Err(ChangeError::NoRollout { .. })));
    assert!(matches!(node.roll_back_route("/unknown").await, Err(ChangeError::NoSuchRoute { .. })));
    node.roll_out(next(), Rollout::canary(0.5)).await.unwrap();
    assert!(refused(next(), Rollout::canary(0.5)).await.contains("a rollout of `/route` is running"));
}

#[tokio::test]
async fn a_stage_that_another_route_shares_is_not_rolled_out_alone() {
    let shared = answering("model", 1);
    let node = App::new().route("/route", shared.clone()).route("/other", shared).start().await.unwrap();
    let error = node.roll_out(route(answering("model", 2)), Rollout::canary(0.5)).await.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("route `/other` has a stage `model` as well"), "{error}");
}

#[tokio::test]
async fn orders_promote_and_roll_back_also_to_a_kept_revision() {
    let node = serve(answering("model", 1)).await;
    let answer = async || node.client().call::<u64, u64>("/route", 0).await.unwrap();
    let policy = || Rollout::canary(0.1).min_calls(u64::MAX);
    node.roll_out(route(answering("model", 2)), policy()).await.unwrap();
    node.promote_route("/route").await.unwrap();
    assert_eq!(answer().await, 2);
    let seen = rollout(&node);
    assert_eq!((seen.state, seen.can_roll_back), (RolloutState::Promoted, true));
    let parts: Vec<_> = node.describe().stages.iter().map(|stage| (stage.revision, stage.part)).collect();
    assert_eq!(parts, [(2, StagePart::Serving), (1, StagePart::Beside)], "the old revision is warm");

    node.roll_back_route("/route").await.unwrap();
    assert_eq!((answer().await, rollout(&node).can_roll_back), (1, false));
    until("the candidate has ended", || node.describe().stages.len() == 1).await;
    assert!(node.roll_back_route("/route").await.is_err());

    node.roll_out(route(answering("model", 3)), policy()).await.unwrap();
    node.roll_back_route("/route").await.unwrap();
    assert_eq!(answer().await, 1);
    assert!(node.metrics().contains(r#"decision="rolled_back",cause="order"} 2"#));
}

#[tokio::test(start_paused = true)]
async fn a_kept_revision_ends_when_its_time_is_over() {
    let node = serve(answering("model", 1)).await;
    let policy = Rollout::canary(0.1).min_calls(u64::MAX).keep(Duration::from_secs(10));
    node.roll_out(route(answering("model", 2)), policy).await.unwrap();
    node.promote_route("/route").await.unwrap();
    let began = Instant::now();
    until("the old revision has ended", || node.describe().stages.len() == 1).await;
    assert_eq!(began.elapsed().as_secs(), 10);
    assert!(!rollout(&node).can_roll_back);
}

#[tokio::test]
async fn a_route_that_is_replaced_or_removed_loses_its_candidate() {
    let node = serve(answering("model", 1)).await;
    node.roll_out(route(answering("model", 2)), Rollout::canary(0.5)).await.unwrap();
    let replaced = node.replace_route(route(answering("model", 3))).await.unwrap();
    replaced.settled().await;
    assert_eq!(rollout(&node).reason.as_deref(), Some("the route was replaced"));
    for _ in 0..10 {
        assert_eq!(node.client().call::<u64, u64>("/route", 0).await.unwrap(), 3);
    }
    node.roll_out(route(answering("model", 4)), Rollout::canary(0.5)).await.unwrap();
    node.remove_route("/route").await.unwrap().settled().await;
    assert_eq!((node.describe().stages.len(), node.describe().routes.len()), (0, 0));
}

#[tokio::test]
async fn calls_finish_in_the_candidate_where_they_began() {
    let node = serve(answering("model", 1)).await;
    let gate = Gate::default();
    let pass = gate.clone();
    let slow = Stage::each("model", move |n: &u64| {
        pass.pass();
        Ok(n + 2)
    });
    node.roll_out(route(slow.on_threads()), Rollout::canary(0.9).min_calls(u64::MAX)).await.unwrap();
    let client = node.client();
    let call = tokio::spawn(async move {
        // Until a call has come to the candidate: its answer is 2.
        while client.call::<u64, u64>("/route", 0).await.unwrap() == 1 {}
    });
    until("a call is in the candidate", || gate.arrived() == 1).await;
    node.roll_back_route("/route").await.unwrap();
    gate.open();
    call.await.unwrap();
    assert_eq!(gate.arrived(), 1);
    assert_eq!(node.client().call::<u64, u64>("/route", 0).await.unwrap(), 1);
}

/// The way of callers to decide a rollout by themselves: a deadline that nothing can meet.
#[tokio::test(start_paused = true)]
async fn late_calls_count_if_they_had_the_time_of_the_route() {
    let node = App::new().mount(route(sleeping(10)).default_timeout(Duration::from_secs(1))).start().await.unwrap();
    let slow = || route(sleeping(5_000)).default_timeout(Duration::from_secs(1));
    node.roll_out(slow(), Rollout::canary(0.5)).await.unwrap();
    let short = CallOptions::new().with_timeout(Duration::from_millis(1));
    for n in 0..200 {
        let error = node.client().call_with::<u64, u64>("/route", n, short.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    }
    let seen = rollout(&node);
    assert_eq!((seen.current.calls, seen.candidate.calls, seen.state), (0, 0, RolloutState::Running), "{seen:?}");
    call_while_running(&node, &CallOptions::new()).await;
    let seen = rollout(&node);
    assert_eq!((seen.state, seen.candidate.error_rate), (RolloutState::RolledBack, 1.0), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_rollouts_under_load_fail_no_call() {
    let node = serve(answering("model", 0)).await;
    let load = Load::on(&node.client(), "/route");
    for answer in 1..=20u64 {
        let stage = answering("model", answer);
        let stage = if answer % 2 == 0 { stage.on_threads() } else { stage };
        let policy = Rollout::canary(0.2).min_calls(20).max_latency(1e6).keep(Duration::from_millis(answer % 3));
        node.roll_out(route(stage), policy).await.unwrap();
        match answer % 4 {
            0 => _ = node.roll_back_route("/route").await,
            1 => _ = node.promote_route("/route").await,
            _ => until("it is decided", || rollout(&node).state != RolloutState::Running).await,
        }
    }
    let answers = load.end().await;
    assert!(answers.len() > 100, "{} calls", answers.len());
    until("the other revisions have ended", || node.describe().stages.len() == 1).await;
    until("nothing is in flight", || node.describe().in_flight == 0).await;
    let description = node.describe();
    assert_eq!((description.admitted, description.outcomes), (answers.len() as u64, answers.len() as u64));
}

fn pure(name: &str, answer: impl Fn(u64) -> Result<f64, Failure> + Send + Sync + 'static) -> Stage<u64, f64> {
    Stage::each(name, move |n: &u64| answer(*n)).contract(Contract::Pure)
}

async fn shadowed(candidate: Stage<u64, f64>, policy: Rollout) -> (Node, u64) {
    let node = serve(pure("model", |n| Ok(n as f64))).await;
    node.roll_out(RouteSpec::new("/route", candidate), policy).await.unwrap();
    let mut calls = 0;
    while rollout(&node).state == RolloutState::Running {
        let answer = node.client().call::<u64, f64>("/route", calls).await;
        assert_eq!(answer.unwrap(), calls as f64, "callers get the current revision's answer");
        calls += 1;
        tokio::task::yield_now().await;
        assert!(calls < 100_000, "the rollout never ends: {:?}", rollout(&node));
    }
    (node, calls)
}

#[tokio::test]
async fn a_shadow_that_agrees_is_promoted_and_its_calls_are_not_counted_as_calls() {
    let (node, calls) = shadowed(pure("model", |n| Ok(n as f64 * 1.000_1)), Rollout::shadow(1.0).min_calls(50)).await;
    let seen = rollout(&node);
    assert_eq!((seen.state, seen.agreement), (RolloutState::Promoted, Some(1.0)), "{seen:?}");
    until("no copy runs", || node.describe().in_flight == 0).await;
    assert_eq!(node.describe().outcomes, calls);
    assert!(node.metrics().contains(r#"rollout_compared_total{route="/route",result="agrees"} 50"#));
}

#[tokio::test]
async fn a_shadow_that_answers_otherwise_is_rolled_back_and_no_caller_notices() {
    let wrong = pure("model", |n| Ok(if n % 4 == 0 { -1.0 } else { n as f64 }));
    let (node, _) = shadowed(wrong, Rollout::shadow(1.0)).await;
    let seen = rollout(&node);
    assert_eq!(seen.state, RolloutState::RolledBack);
    assert!(seen.reason.as_deref().unwrap().contains("answers differ"), "{seen:?}");
}

#[tokio::test]
async fn a_shadow_that_panics_is_rolled_back_and_no_caller_notices() {
    hide_panics();
    let (node, _) = shadowed(pure("model", |_| panic!("meant to panic")), Rollout::shadow(0.5)).await;
    assert_eq!(rollout(&node).state, RolloutState::RolledBack);
}

#[tokio::test]
async fn a_shadow_that_hangs_delays_no_caller_and_is_bounded() {
    let gate = Gate::default();
    let pass = gate.clone();
    let hanging = pure("model", move |n| {
        pass.pass();
        Ok(n as f64)
    });
    let node = serve(pure("model", |n| Ok(n as f64))).await;
    let policy = Rollout::shadow(1.0).max_latency(1e9);
    node.roll_out(RouteSpec::new("/route", hanging.on_threads()), policy).await.unwrap();
    for n in 0..100_u64 {
        assert_eq!(node.client().call::<u64, f64>("/route", n).await.unwrap(), n as f64);
        tokio::task::yield_now().await;
    }
    assert_eq!((node.describe().in_flight, rollout(&node).skipped), (16, 84));
    gate.open();
    until("the copies have ended", || node.describe().in_flight == 0).await;
    assert_eq!(rollout(&node).compared, 16);
}

struct Echo;

impl Actor for Echo {
    type Message = (u64, ReplyPort<u64>);

    async fn handle(&mut self, (n, answer): Self::Message, _: &ActorContext<Self>) -> Result<(), Failure> {
        answer.send(n);
        Ok(())
    }
}

#[tokio::test]
async fn a_shadow_has_no_effects_unless_asked() {
    let actor = ActorSpec::new("echo", |_| Echo);
    let asking = Pipeline::ask("ask", actor.reference(), |n: &u64, answer| (*n, answer));
    let node = App::new().actor(actor).route("/route", answering("model", 0)).start().await.unwrap();
    let spec = || RouteSpec::new("/route", asking.clone());
    let error = node.roll_out(spec(), Rollout::shadow(1.0)).await.unwrap_err().to_string();
    assert!(error.contains("asks an actor"), "{error}");
    node.roll_out(spec(), Rollout::shadow(1.0).min_calls(5).max_latency(1e9).run_effects_twice()).await.unwrap();
    call_while_running(&node, &CallOptions::new()).await;
    assert_eq!(rollout(&node).state, RolloutState::Promoted);
}

#[tokio::test]
async fn a_stream_has_a_canary_that_is_judged_by_its_end_and_no_shadow() {
    let streaming = |fails: bool| {
        let end = move || fails.then(|| Err(Failure::new("at the end")));
        let stage = StreamStage::each("count", move |n: &u64| stream::iter((0..*n).map(Ok).chain(end())));
        RouteSpec::streaming("/route", stage)
    };
    let node = App::new().mount(streaming(false)).start().await.unwrap();
    let error = node.roll_out(streaming(true), Rollout::shadow(0.5)).await.unwrap_err().to_string();
    assert!(error.contains("stream"), "{error}");
    node.roll_out(streaming(true), Rollout::canary(0.5)).await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    for _ in 0..1_000 {
        let mut replies = node.client().replies::<u64, u64>("/route", 3).unwrap();
        while replies.next().await.is_some() {}
        if rollout(&node).state == RolloutState::RolledBack {
            over.store(true, Ordering::Relaxed);
            break;
        }
    }
    assert!(over.load(Ordering::Relaxed), "{:?}", rollout(&node));
}

#[tokio::test]
async fn one_change_may_begin_rollouts_of_several_routes() {
    let node = App::new().route("/a", answering("a", 1)).route("/b", answering("b", 1)).start().await.unwrap();
    let change = RouteChange::new()
        .roll_out(RouteSpec::new("/a", answering("a", 2)), Rollout::canary(0.5))
        .roll_out(RouteSpec::new("/b", answering("b", 2)), Rollout::canary(0.5));
    node.change(change).await.unwrap();
    node.promote_route("/a").await.unwrap();
    let answer = async |name: &str| node.client().call::<u64, u64>(name, 0).await.unwrap();
    assert_eq!(answer("/a").await, 2);
    let states: Vec<_> = node.describe().routes.iter().map(|route| route.rollout.as_ref().unwrap().state).collect();
    assert_eq!(states, [RolloutState::Promoted, RolloutState::Running]);
    assert_eq!(node.client().call::<u64, u64>("/c", 0).await.unwrap_err().kind(), ErrorKind::NotFound);
}
