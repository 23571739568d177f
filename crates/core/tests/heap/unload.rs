//! Unloading frees memory.

use callboard_core::{App, Batch, Failure, Replica, RouteSpec, Stage, Worker};

use crate::{block_on, heap};

/// The memory of a model.
const WEIGHTS: usize = 4 << 20;

struct Model(Vec<u8>);

impl Worker for Model {
    type In = usize;
    type Out = u8;

    fn call(&mut self, batch: Batch<usize>) -> Vec<Result<u8, Failure>> {
        batch.iter().map(|at| Ok(self.0[*at])).collect()
    }
}

#[test]
fn a_hundred_loads_and_unloads_free_every_byte_of_the_model() {
    let _turn = heap::turn();
    block_on(load_and_unload());
}

async fn load_and_unload() {
    let before = heap::live();
    let node = App::new().start().await.unwrap();
    let mut first_rounds = 0;
    for round in 0..110 {
        let model = Stage::worker("model", |_: &Replica| Ok(Model(vec![7; WEIGHTS])));
        node.add_route(RouteSpec::new("/model", model.replicas(2).max_batch_size(8))).await.unwrap();
        assert!(heap::live() > 2 * WEIGHTS, "both replicas hold their weights");
        assert_eq!(node.client().call::<usize, u8>("/model", round).await.unwrap(), 7);
        node.remove_route("/model").await.unwrap().settled().await;
        // The threads' last frees may come after the notice of their end.
        while heap::live().saturating_sub(before) > WEIGHTS {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        if round == 9 {
            first_rounds = heap::live();
        }
    }
    let growth = heap::live().saturating_sub(first_rounds);
    println!("{growth} bytes more after a hundred rounds");
    assert!(growth < 64 * 1024, "{growth} bytes remain after a hundred rounds");
}
