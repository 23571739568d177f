//! A stage gets more or fewer replicas while it serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use callboard_core::description::StageState;
use callboard_core::{ChangeError, Failure, Replica, RouteSpec, Stage};

use super::load::{Counts, Healthy, Load, answering};
use super::support::{Gate, gated, serve, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scaling_up_and_down_fails_no_call() {
    let counts = Counts::default();
    let node = serve(counts.stage("model", 7).max_batch_size(4)).await;
    let load = Load::on(&node.client(), "/route");
    for replicas in [4, 1, 3, 2, 8, 1, 5, 1] {
        node.scale_stage("model", replicas).await.unwrap();
        assert_eq!(counts.alive(), replicas);
        assert_eq!(node.describe().stages[0].replicas.len(), replicas);
    }
    assert!(load.end().await.into_iter().all(|answer| answer == 7));
    assert_eq!(node.health().stages[0].state, StageState::Ready);
    assert_eq!(node.describe().stages[0].restarts, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scaling_quick_code_fails_no_call() {
    let node = serve(answering("quick", 7).max_batch_size(4)).await;
    let load = Load::on(&node.client(), "/route");
    for replicas in [4, 1, 3, 2, 8, 1, 5, 1].repeat(5) {
        node.scale_stage("quick", replicas).await.unwrap();
    }
    assert!(load.end().await.into_iter().all(|answer| answer == 7));
}

#[tokio::test]
async fn the_next_revision_has_as_many_replicas_unless_its_settings_differ() {
    let node = serve(answering("model", 1).replicas(2)).await;
    let replace = async |stage| {
        node.replace_route(RouteSpec::new("/route", stage)).await.unwrap().settled().await;
        let described = node.describe();
        (described.stages[0].health.name.to_string(), described.stages[0].replicas.len())
    };
    node.scale_stage("model", 4).await.unwrap();
    assert_eq!(replace(answering("model", 2).replicas(2)).await, ("model".to_owned(), 4));
    assert_eq!(replace(answering("other", 3).replicas(2)).await, ("other".to_owned(), 4), "it replaces `model`");
    assert_eq!(replace(answering("other", 4).replicas(3)).await, ("other".to_owned(), 3));
    assert_eq!(replace(answering("other", 5).replicas_between(1, 3)).await, ("other".to_owned(), 1));
    node.scale_stage("other", 2).await.unwrap();
    assert_eq!(replace(answering("other", 6).replicas_between(1, 3)).await, ("other".to_owned(), 2));
}

#[tokio::test]
async fn a_replica_that_leaves_finishes_its_batch_and_cleans_up() {
    let gate = Gate::default();
    let node = serve(gated(&gate).replicas(2)).await;
    let client = node.client();
    let call = |n: u64| {
        let client = client.clone();
        tokio::spawn(async move { client.call::<u64, u64>("/route", n).await })
    };
    let calls = [call(1), call(2)];
    until("both replicas are busy", || gate.arrived() == 2).await;
    let handle = node.handle();
    let scaling = tokio::spawn(async move { handle.scale_stage("gated", 1).await });
    let described = node.describe();
    assert_eq!(described.calls.len(), 2);
    assert!(described.calls[0].age >= described.calls[1].age && described.calls[0].route.as_str() == "/route");
    assert_eq!(described.stages[0].mean_batch_size, 1.0);
    until("one is leaving", || node.describe().stages[0].replicas.iter().any(|replica| replica.leaving)).await;
    gate.open();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    scaling.await.unwrap().unwrap();
    let replicas = &node.describe().stages[0].replicas;
    assert_eq!(replicas.iter().map(|replica| replica.index).collect::<Vec<_>>(), [0]);
    assert!(node.metrics().contains("callboard_stage_replicas{stage=\"gated\"} 1\n"));
}

#[tokio::test]
async fn a_stage_that_cannot_scale_up_keeps_its_replicas() {
    let allowed = Arc::new(AtomicUsize::new(2));
    let left = Arc::clone(&allowed);
    let stage = Stage::worker("model", move |replica: &Replica| {
        match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Ok(Healthy),
            Err(_) => Err(Failure::new(format!("no device for {}", replica.index()))),
        }
    });
    let node = serve(stage.replicas(2)).await;
    allowed.store(1, Ordering::SeqCst);
    let error = node.scale_stage("model", 4).await.unwrap_err();
    assert!(error.to_string().contains("no device for"), "{error}");
    until("the stage has its earlier replicas", || {
        let stage = &node.describe().stages[0];
        stage.replicas.len() == 2 && stage.health.state == StageState::Ready
    })
    .await;
    assert_eq!(node.client().call::<u64, u64>("/route", 3).await.unwrap(), 3);
    allowed.store(1, Ordering::SeqCst);
    node.scale_stage("model", 3).await.unwrap();
}

#[tokio::test]
async fn the_later_of_two_scalings_wins() {
    let gate = Gate::default();
    let hold = gate.clone();
    let stage = Stage::worker("model", move |replica: &Replica| {
        if replica.index() > 0 {
            hold.pass();
        }
        Ok(Healthy)
    });
    let node = serve(stage).await;
    let scale = |replicas| {
        let handle = node.handle();
        tokio::spawn(async move { handle.scale_stage("model", replicas).await })
    };
    let up = scale(3);
    until("the construction of two replicas runs", || gate.arrived() == 2).await;
    scale(1).await.unwrap().unwrap();
    assert_eq!(up.await.unwrap(), Err(ChangeError::Superseded));
    let again = scale(2);
    until("the construction of another replica runs", || gate.arrived() == 3).await;
    gate.open();
    again.await.unwrap().unwrap();
    until("the late replicas have left", || {
        node.describe().stages[0].replicas.iter().map(|replica| (replica.index, replica.leaving)).collect::<Vec<_>>()
            == [(0, false), (1, false)]
    })
    .await;
}
