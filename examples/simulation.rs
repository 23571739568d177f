//! A seeded simulation of your own app: crashes, slow stages, bursts and callers that leave, on virtual time.
//!
//! Run with `cargo run --example simulation`. The app has a mistake that no ordinary call shows: a stage that charges
//! its customers is declared as idempotent. The simulation finds a seed that shows it, and the seed repeats it.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use callboard::prelude::*;
use callboard::testing::TestApp;
use callboard::{Contract, ErrorKind};

/// The number of charges per order.
type Ledger = Arc<Mutex<HashMap<u64, u32>>>;

/// The app: looks up a price, then charges it.
fn order_app(contract: Contract, ledger: &Ledger) -> App {
    let price = Stage::each_async("price", |order: Arc<u64>| async move {
        // Stands for a database.
        tokio::time::sleep(Duration::from_millis(2)).await;
        Ok(*order)
    });
    let ledger = Arc::clone(ledger);
    let charge = Stage::each("charge", move |order: &u64| {
        *ledger.lock().map_err(|_| Failure::new("poisoned"))?.entry(*order).or_default() += 1;
        Ok(*order)
    });
    let price = price.pure().concurrency(4).queue(30);
    App::new().route("/order", Pipeline::from(price).then(charge.contract(contract)))
}

/// Plays one seed, and checks all promises of the node. Returns the number of orders that were charged twice.
async fn play(contract: Contract, seed: u64) -> (usize, String) {
    let ledger = Ledger::default();
    let run = TestApp::new(order_app(contract, &ledger))
        .simulate(seed)
        .calls(
            "/order",
            100,
            |random| random.number(),
            |order: &u64, outcome: &Result<u64, CallError>| {
                assert!(outcome.as_ref().is_ok_and(|charged| charged == order) || outcome.is_err());
            },
        )
        .crashes("charge", 20)
        .delays("price", Duration::from_millis(15))
        .callers_leave(10)
        .run()
        .await;
    let double_charges = ledger.lock().map_or(0, |ledger| ledger.values().filter(|times| **times > 1).count());
    println!(
        "seed {seed:>2}: {} answered, {} overloaded, {} expired, {} lost with a worker, {} left; {double_charges} charged twice",
        run.answered(),
        run.failed(ErrorKind::Overloaded),
        run.failed(ErrorKind::DeadlineExceeded),
        run.failed(ErrorKind::WorkerFailed),
        run.left(),
    );
    (double_charges, run.to_string())
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    println!("with a contract that allows a second charge:");
    let mut found = None;
    for seed in 0..20 {
        let (double_charges, trace) = play(Contract::Idempotent, seed).await;
        if double_charges > 0 {
            found = Some((seed, trace));
            break;
        }
    }
    let (seed, trace) = found.expect("twenty seeds with crashes");
    let (_, repeated) = play(Contract::Idempotent, seed).await;
    assert_eq!(trace, repeated, "the seed repeats every event");

    println!("at most once:");
    for seed in 0..20 {
        assert_eq!(play(Contract::AtMostOnce, seed).await.0, 0);
    }
}
