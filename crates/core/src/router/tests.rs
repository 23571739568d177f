//! The table against its invariants, and deaths of actors that public handles cannot cause.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::deployed_stage::DeployedStage;
use super::table::Table;
use super::{ChangeError, Rollout, RolloutState, RouteChange, RouteSpec};
use crate::app::App;
use crate::clock::Instant;
use crate::id::StageName;
use crate::metrics::NodeMetrics;
use crate::node::Node;
use crate::pipeline::Pipeline;
use crate::pool::StageState;
use crate::restart::RestartIntensity;
use crate::stage::Stage;

const ROUTES: [&str; 4] = ["/a", "/b", "/c", "/d"];

type Puts = Vec<(usize, Option<(usize, usize)>)>;

#[derive(Clone, Debug)]
enum Step {
    /// Adds or replaces or removes; each route uses two recipes by number.
    Change {
        puts: Puts,
        emptied_meanwhile: Vec<usize>,
        comes_to_be: bool,
    },
    /// A rollout of this route, of stages by number.
    RollOut {
        route: usize,
        stages: (usize, usize),
        keeps: bool,
    },
    /// The end of a rollout, or a rollback to a kept revision.
    Decide {
        route: usize,
        promotes: bool,
    },
    Release(usize),
    Empty(usize),
    End(usize),
    Renew(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let put = (0..ROUTES.len(), prop::option::weighted(0.7, (0usize..6, 0usize..6)));
    let change = (prop::collection::vec(put, 1..3), prop::collection::vec(0usize..4, 0..3), prop::bool::weighted(0.8));
    let change =
        change.prop_map(|(puts, emptied_meanwhile, comes_to_be)| Step::Change { puts, emptied_meanwhile, comes_to_be });
    prop_oneof![
        4 => change,
        3 => (0..ROUTES.len(), (0usize..6, 0usize..6), prop::bool::ANY)
            .prop_map(|(route, stages, keeps)| Step::RollOut { route, stages, keeps }),
        3 => (0..ROUTES.len(), prop::bool::ANY).prop_map(|(route, promotes)| Step::Decide { route, promotes }),
        1 => (0..ROUTES.len()).prop_map(Step::Release),
        3 => (0usize..4).prop_map(Step::Empty),
        3 => (0usize..4).prop_map(Step::End),
        1 => (0usize..4).prop_map(Step::Renew),
    ]
}

fn nth<T: Clone>(items: &[T], nth: usize) -> Option<T> {
    (!items.is_empty()).then(|| items[nth % items.len()].clone())
}

/// Two recipes for each of three names.
fn recipes() -> Vec<Stage<u64, u64>> {
    (0..6).map(|n| Stage::each(format!("stage-{}", n % 3).as_str(), |n: &u64| Ok(*n))).collect()
}

fn change_of(table: &Table, recipes: &[Stage<u64, u64>], puts: &[(usize, Option<(usize, usize)>)]) -> RouteChange {
    puts.iter().fold(RouteChange::new(), |change, (route, stages)| match stages {
        None => change.remove_route(ROUTES[*route]),
        Some((first, second)) => {
            let pipeline = Pipeline::from(recipes[*first].clone()).then(recipes[*second].clone());
            let spec = RouteSpec::new(ROUTES[*route], pipeline);
            if table.route(ROUTES[*route]).is_some() { change.replace_route(spec) } else { change.add_route(spec) }
        }
    })
}

/// The last call leaves a closed route.
fn empty(table: &mut Table, which: usize) {
    if let Some(route) = nth(table.retiring(), which) {
        table.remove_route(route.index());
        table.end_unused();
    }
}

fn stages_of_routes(table: &Table) -> Vec<Vec<StageName>> {
    table.routes().iter().map(|route| route.stages()).collect()
}

fn check(table: &Table) -> Result<(), TestCaseError> {
    let serving: HashSet<_> = table.serving().iter().map(|stage| Arc::as_ptr(&stage.pool)).collect();
    for route in table.all_routes() {
        for pool in route.graph().stages() {
            prop_assert!(serving.contains(&Arc::as_ptr(pool)), "a route needs a stage that is not served");
        }
    }
    for stage in table.serving() {
        let mut routes = table.all_routes();
        let is_used = routes.any(|route| route.graph().stages().iter().any(|pool| Arc::ptr_eq(pool, &stage.pool)));
        prop_assert!(is_used, "no route needs a served stage");
    }
    let mut named = HashSet::new();
    for stage in table.serving().iter().filter(|stage| table.is_routed(stage)) {
        prop_assert!(named.insert(stage.name().clone()), "two routed stages have one name");
    }
    let mut listed = HashSet::new();
    for stage in table.stages() {
        prop_assert!(listed.insert(Arc::as_ptr(stage)), "a stage has two parts");
    }
    for route in table.routes() {
        prop_assert!(table.route(route.name()).is_some_and(|found| Arc::ptr_eq(found, route)));
    }
    for stage in table.serving().iter().filter(|stage| table.is_routed(stage)) {
        let (route, pool) = table.routed_stage(stage.name().as_str()).expect("a route uses it");
        prop_assert!(Arc::ptr_eq(pool, &stage.pool), "another stage of this name");
        prop_assert!(table.routes().iter().any(|other| Arc::ptr_eq(other, route)), "its route takes no calls");
    }
    for name in 0..3 {
        let name = format!("stage-{name}");
        prop_assert_eq!(table.routed_stage(&name).is_some(), table.stage(&name).is_some());
    }
    for route in table.all_routes() {
        prop_assert_eq!(table.name_of(route.index()), Some(route.id()));
    }
    let indices: HashSet<_> = table.all_routes().map(|route| route.index().0).collect();
    prop_assert_eq!(indices.len(), table.all_routes().count(), "a route has two parts");
    for rollout in table.rollouts() {
        let current = table.route(rollout.route.as_str());
        prop_assert!(current.is_some(), "a rollout of a route that is not served");
        let has_trial = current.is_some_and(|route| route.has_trial());
        prop_assert_eq!(has_trial, rollout.is_running());
        prop_assert!(!rollout.is_running() || rollout.beside.as_ref().is_some_and(|route| route.is_candidate()));
    }
    let running = table.rollouts().iter().filter(|rollout| rollout.is_running()).count();
    let on_trial = table.routes().iter().chain(table.beside()).filter(|route| route.has_trial());
    prop_assert_eq!(on_trial.count(), 2 * running);
    Ok(())
}

proptest! {
    /// Whatever the order of events: a stage stays while a route or a call needs it, names are unique among served
    /// stages and routes, and nothing is left after everything is removed and over.
    #[test]
    fn keeps_only_the_stages_and_routes_in_use(steps in prop::collection::vec(step(), 0..60)) {
        let metrics = NodeMetrics::new();
        let recipes = recipes();
        let mut table = Table::default();
        for step in steps {
            match step {
                Step::Change { puts, emptied_meanwhile, comes_to_be } => {
                    let change = change_of(&table, &recipes, &puts);
                    let before = table.clone();
                    if let Ok(specs) = table.plan(&change) {
                        let revision = table.next_revision();
                        let started: Vec<_> =
                            specs.into_iter().map(|spec| table.deploy(spec, &metrics)).collect();
                        table.begin(&change);
                        table.start(&started);
                        prop_assert!(table.starting().iter().map(Arc::as_ptr).eq(started.iter().map(Arc::as_ptr)));
                        for which in emptied_meanwhile {
                            empty(&mut table, which);
                        }
                        if !comes_to_be {
                            let ended = table.abandon_start();
                            prop_assert!(started.iter().all(|stage| ended.iter().any(|other| Arc::ptr_eq(other, stage))));
                            check(&table)?;
                            continue;
                        }
                        for route in table.apply(change, Instant::now(), &metrics) {
                            prop_assert!(before.route(route.name()).is_some());
                            prop_assert!(table.retiring().iter().any(|other| Arc::ptr_eq(other, &route)));
                        }
                        prop_assert_eq!(table.next_revision(), revision + 1);
                    }
                }
                Step::RollOut { route, stages: (first, second), keeps } => {
                    let pipeline = Pipeline::from(recipes[first].clone()).then(recipes[second].clone());
                    let keep = if keeps { Duration::from_secs(1) } else { Duration::ZERO };
                    let rollout = Rollout::canary(0.5).keep(keep);
                    let change = RouteChange::new().roll_out(RouteSpec::new(ROUTES[route], pipeline), rollout);
                    if let Ok(specs) = table.plan(&change) {
                        let started: Vec<_> =
                            specs.into_iter().map(|spec| table.deploy(spec, &metrics)).collect();
                        table.begin(&change);
                        table.start(&started);
                        let current = table.route(ROUTES[route]).cloned();
                        table.apply(change, Instant::now(), &metrics);
                        let after = table.route(ROUTES[route]).cloned();
                        prop_assert_eq!(current.map(|route| route.index()), after.map(|route| route.index()));
                    }
                }
                Step::Decide { route, promotes } => {
                    let (name, now) = (ROUTES[route].into(), Instant::now());
                    let before = table.rollout(&name).and_then(|rollout| rollout.beside.clone());
                    let was_running = table.rollout(&name).is_some_and(|rollout| rollout.is_running());
                    if promotes {
                        let promoted = table.promote(&name, "", now);
                        prop_assert_eq!(promoted.is_ok(), was_running);
                    } else {
                        prop_assert_eq!(table.roll_back(&name, "", now).is_ok(), before.is_some());
                    }
                    if let Some(beside) = before.filter(|_| promotes == was_running) {
                        let current = table.route(ROUTES[route]).map(|route| route.index());
                        prop_assert_eq!(current, Some(beside.index()));
                    }
                }
                Step::Release(route) => _ = table.release_kept(&ROUTES[route].into()),
                Step::Empty(which) => empty(&mut table, which),
                Step::End(which) => {
                    if let Some(stage) = nth(table.ending(), which) {
                        table.remove_stage(&stage);
                    }
                }
                Step::Renew(which) => {
                    // The actor ends rollouts of a dead stage first.
                    let is_renewed = |dead: &Arc<DeployedStage>| table.is_routed(dead) && !table.is_beside(dead);
                    if let Some(dead) = nth(table.serving(), which).filter(is_renewed) {
                        let life = table.deploy(Arc::clone(dead.spec()), &metrics);
                        table.start(&[Arc::clone(&life)]);
                        let before = stages_of_routes(&table);
                        table.renew(&dead, &metrics);
                        prop_assert_eq!(stages_of_routes(&table), before);
                        prop_assert!(table.is_routed(&life) && !table.is_routed(&dead));
                        // Calls of the dead life end with it.
                        for route in table.retiring().to_vec() {
                            table.remove_route(route.index());
                        }
                        table.end_unused();
                    }
                }
            }
            check(&table)?;
        }
        let all = table.routes().iter().fold(RouteChange::new(), |change, route| change.remove_route(route.name()));
        prop_assert_eq!(table.plan(&all).map(|specs| specs.len()), Ok(0));
        table.apply(all, Instant::now(), &metrics);
        for route in table.retiring().to_vec() {
            table.remove_route(route.index());
        }
        table.end_unused();
        for stage in table.ending().to_vec() {
            table.remove_stage(&stage);
        }
        prop_assert_eq!(table.stages().count() + table.all_routes().count() + table.rollouts().len(), 0);
    }
}

fn echo() -> Stage<u64, u64> {
    Stage::each("echo", |n: &u64| Ok(*n))
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), wait).await.is_ok(), "never happened: {what}");
}

fn kill_supervisor(node: &Node) {
    let table = node.shared().router.table();
    table.stage("echo").and_then(|stage| stage.supervisor()).expect("it is deployed").kill();
}

/// The route's number in the table, which changes with every life of its stages.
fn life(node: &Node) -> u32 {
    node.client().route("/echo").expect("it is served").index().0
}

#[tokio::test]
async fn a_stage_whose_supervisor_dies_restarts_with_the_same_number_of_replicas() {
    let node = App::new().route("/echo", echo()).start().await.unwrap();
    node.scale_stage("echo", 3).await.unwrap();
    let before = life(&node);
    kill_supervisor(&node);
    until("another life of the stage serves", || life(&node) != before).await;
    assert_eq!(node.client().call::<u64, u64>("/echo", 5).await.unwrap(), 5);
    until("the dead life is gone", || node.describe().stages.len() == 1).await;
    let description = node.describe();
    assert_eq!(description.stages[0].replicas.len(), 3);
    assert!(node.health().ready && node.health().live);
}

#[tokio::test]
async fn the_stages_that_replicas_run_come_back_with_them() {
    let each = |n: Arc<u64>| async move { Ok(*n) };
    let host = Stage::each_async("echo", each);
    let hosted = Stage::each_async("hosted", each).hosted_by(&host.as_host());
    let node = App::new().route("/echo", host).route("/hosted", hosted).start().await.unwrap();
    let before = life(&node);
    kill_supervisor(&node);
    until("another life of the stages serves", || life(&node) != before).await;
    assert_eq!(node.client().call::<u64, u64>("/hosted", 5).await.unwrap(), 5);
    assert_eq!(node.client().call::<u64, u64>("/echo", 6).await.unwrap(), 6);
    until("the dead lives are gone", || node.describe().stages.len() == 2).await;
    assert!(node.health().ready && node.health().live);
}

#[tokio::test]
async fn a_stage_whose_supervisor_dies_too_often_fails_and_other_stages_continue() {
    let steady = Stage::each("steady", |n: &u64| Ok(*n));
    let node = App::new().route("/echo", echo()).route("/steady", steady).start().await.unwrap();
    for _ in 0..RestartIntensity::default().max_restarts {
        let before = life(&node);
        kill_supervisor(&node);
        until("another life of the stage serves", || life(&node) != before).await;
    }
    kill_supervisor(&node);
    let failed = || node.health().stages[0].reason.clone().is_some_and(|reason| reason.contains("more than 5 times"));
    until("the stage is given up", failed).await;
    assert_eq!(node.health().stages[0].state, StageState::Failed);
    let error = node.client().call::<u64, u64>("/echo", 5).await.unwrap_err();
    assert!(error.message().contains("its supervisor died") && error.retry_after().is_some(), "{error:?}");
    let scaled = node.scale_stage("echo", 2).await.unwrap_err().to_string();
    assert!(scaled.contains("its supervisor died"), "{scaled}");
    assert_eq!(node.client().call::<u64, u64>("/steady", 5).await.unwrap(), 5);
    until("it is tried again", || node.health().ready).await;
    assert_eq!(node.client().call::<u64, u64>("/echo", 5).await.unwrap(), 5);
    assert!(node.health().ready);
}

#[tokio::test]
async fn a_router_that_dies_is_replaced_and_routing_continues() {
    let node = App::new().route("/echo", echo()).start().await.unwrap();
    node.shared().router.kill_actor();
    let added = || async {
        let other = Stage::each("other", |n: &u64| Ok(n + 1));
        node.add_route(RouteSpec::new("/other", other)).await
    };
    while let Err(error) = added().await {
        assert_eq!(error, ChangeError::Ending, "only until its successor runs");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(node.client().call::<u64, u64>("/other", 5).await.unwrap(), 6);
    node.remove_route("/echo").await.unwrap().settled().await;
    assert_eq!(node.describe().stages.len(), 1);
}

#[tokio::test]
async fn a_candidate_whose_supervisor_dies_is_rolled_back_and_the_route_stays() {
    let node = App::new().route("/echo", echo()).start().await.unwrap();
    let next = Stage::each("next", |n: &u64| Ok(n + 1));
    node.roll_out(RouteSpec::new("/echo", next), Rollout::canary(0.5)).await.unwrap();
    let table = node.shared().router.table();
    let candidate = table.serving().iter().find(|stage| stage.name().as_str() == "next").cloned();
    candidate.as_ref().and_then(|stage| stage.supervisor()).expect("it is deployed").kill();
    let rollout = || node.describe().routes[0].rollout.clone().expect("there was one");
    until("the candidate is rolled back", || rollout().state == RolloutState::RolledBack).await;
    assert!(rollout().reason.is_some_and(|reason| reason.contains("`next` died")));
    until("its stage is gone", || node.describe().stages.len() == 1).await;
    for n in 0..10 {
        assert_eq!(node.client().call::<u64, u64>("/echo", n).await.unwrap(), n);
    }
}

#[tokio::test]
async fn a_rollout_survives_the_death_of_the_router() {
    let node = App::new().route("/echo", echo()).start().await.unwrap();
    let next = Stage::each("next", |n: &u64| Ok(n + 1));
    node.roll_out(RouteSpec::new("/echo", next), Rollout::canary(0.5).min_calls(20)).await.unwrap();
    node.shared().router.kill_actor();
    // A decision that is made while there is no actor is carried out by the next one.
    for n in 0..100 {
        node.client().call::<u64, u64>("/echo", n).await.unwrap();
    }
    let state = || node.describe().routes[0].rollout.as_ref().map(|rollout| rollout.state);
    until("the candidate is promoted", || state() == Some(RolloutState::Promoted)).await;
    assert_eq!(node.client().call::<u64, u64>("/echo", 5).await.unwrap(), 6);
}
