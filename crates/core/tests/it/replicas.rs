//! The settings of a replica, and the placement of its thread.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use callboard_codec::{Map, Value};
use callboard_core::{Batch, Failure, Replica, Stage, Worker};

use super::support::serve;

/// Answers with the data of its construction.
struct Told {
    device: String,
    cores: Vec<usize>,
}

impl Worker for Told {
    type In = u64;
    type Out = (String, Vec<usize>);

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<(String, Vec<usize>), Failure>> {
        batch.iter().map(|_| Ok((self.device.clone(), self.cores.clone()))).collect()
    }
}

fn told(seen: &Arc<Mutex<BTreeSet<(usize, String)>>>) -> Stage<u64, (String, Vec<usize>)> {
    let seen = Arc::clone(seen);
    Stage::worker("told", move |replica: &Replica| {
        let device = replica.settings().get("device").and_then(Value::as_str).unwrap_or("none").to_owned();
        seen.lock().unwrap().insert((replica.index(), device.clone()));
        let cores = core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect();
        Ok(Told { device, cores })
    })
}

fn device(name: &str) -> Map {
    [("device".to_owned(), Value::from(name))].into_iter().collect()
}

#[tokio::test]
async fn each_replica_has_its_own_settings_and_starts_over_where_there_are_fewer() {
    let seen = Arc::default();
    let stage = told(&seen).replicas(3).replica_settings([device("first"), device("second")]);
    let node = serve(stage).await;
    let expected = [(0, "first"), (1, "second"), (2, "first")].map(|(index, name)| (index, name.to_owned()));
    assert_eq!(*seen.lock().unwrap(), expected.into());
    drop(node);

    let seen = Arc::default();
    let node = serve(told(&seen)).await;
    let (device, _) = node.client().call::<u64, (String, Vec<usize>)>("/route", 1).await.unwrap();
    assert_eq!(device, "none", "without settings there is nothing");
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_pinned_replica_runs_on_its_core() {
    let all: Vec<usize> = core_affinity::get_core_ids().unwrap().into_iter().map(|core| core.id).collect();
    let last = *all.last().unwrap();
    let node = serve(told(&Arc::default()).pinned_to([last])).await;
    let (_, cores) = node.client().call::<u64, (String, Vec<usize>)>("/route", 1).await.unwrap();
    assert_eq!(cores, [last]);

    let node = serve(told(&Arc::default())).await;
    let (_, cores) = node.client().call::<u64, (String, Vec<usize>)>("/route", 1).await.unwrap();
    assert_eq!(cores, all, "not pinned, it may run anywhere");
}
