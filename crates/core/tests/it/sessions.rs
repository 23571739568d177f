//! Calls of one session reach the same replica.

use std::collections::HashMap;
use std::time::Duration;

use callboard_core::description::StageState;
use callboard_core::{Batch, CallOptions, Failure, LocalClient, Stage, Worker};

use super::support::{Gate, serve, until};

/// Answers with the index of its replica; 13 waits at the gate, 666 kills the replica.
struct ReplicaIndex {
    index: u64,
    gate: Gate,
}

impl Worker for ReplicaIndex {
    type In = u64;
    type Out = u64;

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        assert!(!batch.iter().any(|n| *n == 666), "the number of the beast");
        if batch.iter().any(|n| *n == 13) {
            self.gate.pass();
        }
        batch.iter().map(|_| Ok(self.index)).collect()
    }
}

fn replica_index(gate: &Gate) -> Stage<u64, u64> {
    let gate = gate.clone();
    Stage::worker("who", move |replica| Ok(ReplicaIndex { index: replica.index() as u64, gate: gate.clone() }))
        .replicas(4)
        .max_batch_size(8)
}

async fn ask(client: &LocalClient, session: u64, n: u64) -> Result<u64, callboard_core::CallError> {
    client.call_with("/route", n, CallOptions::new().with_session_key(format!("session {session}"))).await
}

/// The replica of each of twenty sessions.
async fn replicas_by_session(client: &LocalClient) -> HashMap<u64, u64> {
    let mut replicas_by_session = HashMap::new();
    for session in 0..20 {
        replicas_by_session.insert(session, ask(client, session, 0).await.unwrap());
    }
    replicas_by_session
}

#[tokio::test]
async fn a_session_reaches_the_same_replica_under_load() {
    let node = serve(replica_index(&Gate::default())).await;
    let client = node.client();
    let replicas_by_session = replicas_by_session(&client).await;
    assert_eq!(
        replicas_by_session.values().collect::<std::collections::HashSet<_>>().len(),
        4,
        "all replicas have sessions"
    );
    let calls: Vec<_> = (0..400u64)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                if n % 3 == 0 {
                    client.call::<u64, u64>("/route", 0).await.unwrap();
                }
                (n % 20, ask(&client, n % 20, 0).await.unwrap())
            })
        })
        .collect();
    for call in calls {
        let (session, replica) = call.await.unwrap();
        assert_eq!(replica, replicas_by_session[&session], "session {session}");
    }
}

#[tokio::test]
async fn a_session_that_waits_for_its_replica_delays_no_other_session() {
    let gate = Gate::default();
    let node = serve(replica_index(&gate)).await;
    let client = node.client();
    let replicas_by_session = replicas_by_session(&client).await;
    let hot = {
        let client = client.clone();
        tokio::spawn(async move { ask(&client, 0, 13).await })
    };
    until("its replica is busy", || gate.arrived() == 1).await;
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { ask(&client, 0, 0).await })
        })
        .collect();
    until("its other calls wait", || node.describe().stages[0].queued == 10).await;

    for session in (1..20).filter(|session| replicas_by_session[session] != replicas_by_session[&0]) {
        assert_eq!(ask(&client, session, 0).await.unwrap(), replicas_by_session[&session]);
    }
    for _ in 0..10 {
        let anybody = client.call::<u64, u64>("/route", 0).await.unwrap();
        assert_ne!(anybody, replicas_by_session[&0], "this replica is busy");
    }
    assert_eq!(node.describe().stages[0].queued, 10);
    gate.open();
    for call in waiting {
        assert_eq!(call.await.unwrap().unwrap(), replicas_by_session[&0]);
    }
    hot.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_sessions_of_a_dead_replica_move_with_their_waiting_calls() {
    let gate = Gate::default();
    let node = serve(replica_index(&gate)).await;
    let client = node.client();
    let before = replicas_by_session(&client).await;
    // One call of the session waits at the gate in the replica, and the next call kills it.
    let blocked = {
        let client = client.clone();
        tokio::spawn(async move { ask(&client, 0, 13).await })
    };
    until("its replica is busy", || gate.arrived() == 1).await;
    let killer = {
        let client = client.clone();
        tokio::spawn(async move { ask(&client, 0, 666).await })
    };
    until("the killer waits", || node.describe().stages[0].queued == 1).await;
    gate.open();
    blocked.await.unwrap().unwrap();
    killer.await.unwrap().unwrap_err();
    let moved = tokio::time::timeout(Duration::from_secs(10), ask(&client, 0, 0)).await.unwrap();
    assert!(moved.is_ok(), "{moved:?}");
    until("the replica is back", || node.describe().stages[0].health.state == StageState::Ready).await;
    until("all are up", || node.describe().stages[0].replicas.len() == 4).await;
    // The batcher learns of the new replica later; then the sessions are back.
    until("the batcher knows the new replica", || node.describe().stages[0].queued == 0).await;
    let after = replicas_by_session(&client).await;
    let strayed = before.iter().filter(|(session, home)| **home != before[&0] && after[*session] != **home);
    assert_eq!(strayed.count(), 0, "other sessions stayed");
}

#[tokio::test]
async fn calls_that_wait_for_a_lost_replica_move_at_once() {
    let gate = Gate::default();
    let passed = gate.clone();
    let stage = Stage::worker("who", move |replica| match replica.generation() {
        0 => Ok(ReplicaIndex { index: replica.index() as u64, gate: passed.clone() }),
        _ => Err(Failure::new("gone for good")),
    });
    // In batches of one, so that the last call is not in the killer's batch.
    let node = serve(stage.replicas(2)).await;
    let client = node.client();
    let before = replicas_by_session(&client).await[&0];
    let mut calls = Vec::new();
    for (position, n) in [13, 666, 0].into_iter().enumerate() {
        let client = client.clone();
        calls.push(tokio::spawn(async move { ask(&client, 0, n).await }));
        until("its replica is busy", || gate.arrived() == 1).await;
        until("the others wait in order", || node.describe().stages[0].queued == position).await;
    }
    gate.open();
    let last = tokio::time::timeout(Duration::from_secs(10), calls.pop().unwrap()).await.unwrap().unwrap();
    assert_eq!(last.unwrap(), 1 - before, "the other replica answers");
}
