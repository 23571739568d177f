//! The settings of a replica, and the placement of its thread.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use callboard_codec::{Map, Value};
use callboard_core::{Batch, Failure, Replica, Stage, Worker};

use super::support::serve;

/// Answers with the data of its construction.
struct Placed {
    device: String,
    cores: Vec<usize>,
}

impl Worker for Placed {
    type In = u64;
    type Out = (String, Vec<usize>);

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<(String, Vec<usize>), Failure>> {
        batch.iter().map(|_| Ok((self.device.clone(), self.cores.clone()))).collect()
    }
}

fn placed(placements: &Arc<Mutex<BTreeSet<(usize, String)>>>) -> Stage<u64, (String, Vec<usize>)> {
    let placements = Arc::clone(placements);
    Stage::worker("placed", move |replica: &Replica| {
        let device = replica.settings().get("device").and_then(Value::as_str).unwrap_or("none").to_owned();
        placements.lock().unwrap().insert((replica.index(), device.clone()));
        let cores = core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect();
        Ok(Placed { device, cores })
    })
}

fn device(name: &str) -> Map {
    [("device".to_owned(), Value::from(name))].into_iter().collect()
}

#[tokio::test]
async fn each_replica_has_its_own_settings_and_a_short_list_repeats() {
    let placements = Arc::default();
    let stage = placed(&placements).replicas(3).replica_settings([device("first"), device("second")]);
    let node = serve(stage).await;
    let expected = [(0, "first"), (1, "second"), (2, "first")].map(|(index, name)| (index, name.to_owned()));
    assert_eq!(*placements.lock().unwrap(), expected.into());
    drop(node);

    let placements = Arc::default();
    let node = serve(placed(&placements)).await;
    let (device, _) = node.client().call::<u64, (String, Vec<usize>)>("/route", 1).await.unwrap();
    assert_eq!(device, "none", "without settings, no device is set");
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_pinned_replica_runs_on_its_core() {
    let all: Vec<usize> = core_affinity::get_core_ids().unwrap().into_iter().map(|core| core.id).collect();
    let last = *all.last().unwrap();
    let node = serve(placed(&Arc::default()).pinned_to([last])).await;
    let (_, cores) = node.client().call::<u64, (String, Vec<usize>)>("/route", 1).await.unwrap();
    assert_eq!(cores, [last]);

    let node = serve(placed(&Arc::default())).await;
    let (_, cores) = node.client().call::<u64, (String, Vec<usize>)>("/route", 1).await.unwrap();
    assert_eq!(cores, all, "an unpinned replica may run on any core");
}
