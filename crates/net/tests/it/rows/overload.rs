//! R8: five times what it can do, and it goes on doing what it can.

use std::time::{Duration, Instant};

use callboard_core::{App, Contract, ErrorKind};

use super::{Offer, Scale, cluster, offer, quantile, working};
use crate::common::LONG;
use crate::ledger::Book;

/// How long one call works, on as many seats as make the capacity.
const TAKES: Duration = Duration::from_millis(50);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overload_is_shed_and_leaves_nothing_behind() {
    let mut scale = Scale::of(80, 3);
    if scale.is_full {
        // Five times of it are a thousand a second.
        scale.rate = 200;
    }
    let book = Book::in_memory();
    let seats = (f64::from(scale.rate) * TAKES.as_secs_f64()) as u32 / 2;
    let work = |worker| working(&book, worker, TAKES).concurrency(seats).queue(seats as usize / 2);
    let (gateway, workers) = cluster((0..2).map(|n| App::new().route("/work", work(n))).collect()).await;
    let client = gateway.served.node.client();
    let before = offer(&client, scale.rate * 4 / 5, scale.lasting / 4, |_| LONG).await;
    let first = book.executions().len();
    let five = offer(&client, scale.rate * 5, scale.lasting, |_| LONG).await;
    let ended = Instant::now();
    let executions = book.executions().split_off(first);
    let sums = five.ledger.check(five.count(), &executions, Contract::AtMostOnce, Duration::ZERO);
    println!("R8 {sums:?}, of {} a second", scale.rate);
    for call in five.calls.iter().filter(|call| call.outcome.is_err()) {
        let error = call.outcome.as_ref().unwrap_err();
        assert!(error.kind() == ErrorKind::Overloaded && error.is_retryable(), "{error}");
        assert!(error.retry_after().is_some(), "{error}");
    }
    // Half of what it could do even where others have the machine; nearly all of it where nobody has.
    let share = sums.done as f64 / (f64::from(scale.rate) * five.calls.len() as f64 / f64::from(scale.rate * 5));
    println!("R8 goodput: {:.0} % of the capacity", share * 100.0);
    assert!(share >= if scale.is_full { 0.9 } else { 0.5 }, "{share}");
    let took = |offer: &Offer| quantile(offer.done().map(|call| call.took).collect(), 0.99);
    scale.hold("R8 p99 of those admitted", took(&five), took(&before) * 2);
    let refusals = five.calls.iter().filter(|call| call.outcome.is_err()).map(|call| call.took);
    scale.hold("R8 p99 of refusals", quantile(refusals.collect(), 0.99), Duration::from_millis(50));
    for worker in &workers {
        worker.comes_to_rest().await;
    }
    gateway.served.comes_to_rest().await;
    let after = offer(&client, scale.rate / 2, Duration::from_secs(1), |_| LONG).await;
    // A queue of one or two has no place now and then, on a machine that others have.
    let share = after.goodput(Duration::ZERO, LONG);
    assert!(share >= if scale.is_full { 0.99 } else { 0.8 }, "as before, and not {share}");
    scale.hold("R8 back to normal", ended.elapsed() - Duration::from_secs(1), Duration::from_secs(2));
}
