//! Five times the capacity in calls: the node keeps working at its capacity.

use std::time::{Duration, Instant};

use callboard_core::{Contract, ErrorKind};

use super::usage::Process;
use super::{Scale, offer, quantile};
use crate::common::{LONG, until};
use crate::processes::{Gateway, Shape, Worker, directory_with_identity, execution_log};

/// The duration of one call, with as many seats as make the capacity.
const SERVICE_TIME: Duration = Duration::from_millis(50);

/// Resident memory of both workers.
fn resident(workers: &[Worker; 2], of: impl Fn(Process) -> Option<u64>) -> Option<u64> {
    workers.iter().map(|worker| of(Process::Child(worker.process.id()))).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overload_is_refused_and_leaks_nothing() {
    let mut scale = Scale::new(80, 3);
    if scale.is_full {
        // Five times this rate is a thousand a second.
        scale.rate = 200;
    }
    let directory = directory_with_identity("promised-overload");
    let seats = (f64::from(scale.rate) * SERVICE_TIME.as_secs_f64()) as u32 / 2;
    let (service_millis, queue) = (SERVICE_TIME.as_millis() as u64, seats as usize / 2);
    let shape = Shape { service_millis, seats, queue, is_patient: true, ..Shape::new(Contract::AtMostOnce) };
    let workers = [(); 2].map(|()| Worker::start(&directory, shape));
    let gateway = Gateway::start(&directory, &[&workers[0], &workers[1]]).await;
    let client = gateway.node.client();
    let before = offer(&client, scale.rate * 4 / 5, scale.lasting / 4, |_| LONG).await;
    let (first, steady) = (execution_log(&directory).executions().len(), resident(&workers, Process::resident_kib));
    // The gateway and its callers share this process: their memory is printed, not checked.
    let own = Process::Own.resident_kib();
    let five = offer(&client, scale.rate * 5, scale.lasting, |_| LONG).await;
    if let (Some(own), Some(now)) = (own, Process::Own.resident_kib()) {
        println!("overload: resident memory of the gateway and all callers: {own} kB before, {now} kB behind it");
    }
    let ended = Instant::now();
    let executions = execution_log(&directory).executions().split_off(first);
    let sums = five.ledger.check(five.count(), &executions, Contract::AtMostOnce, Duration::ZERO);
    println!("overload: {sums:?}, of {} a second", scale.rate);
    for call in five.calls.iter().filter(|call| call.outcome.is_err()) {
        let error = call.outcome.as_ref().unwrap_err();
        assert!(error.kind() == ErrorKind::Overloaded && error.is_retryable(), "{error}");
        assert!(error.retry_after().is_some(), "{error}");
    }
    let share = sums.done as f64 / (f64::from(scale.rate) * five.calls.len() as f64 / f64::from(scale.rate * 5));
    scale.at_least("overload: goodput, of the capacity", share * 100.0, 90.0, "%");
    scale.hold("overload: p99 of those admitted", five.p99(), before.p99() * 2);
    let refusals = five.calls.iter().filter(|call| call.outcome.is_err()).map(|call| call.took);
    scale.hold("overload: p99 of refusals", quantile(refusals.collect(), 0.99), Duration::from_millis(50));
    if let (Some(steady), Some(most)) = (steady, resident(&workers, Process::most_resident_kib)) {
        scale.at_most(
            "overload: resident memory of the workers, of the steady",
            most as f64 / steady as f64,
            1.5,
            "times",
        );
    }
    until(|| gateway.node.describe().in_flight == 0).await;
    let after = offer(&client, scale.rate / 2, Duration::from_secs(1), |_| LONG).await;
    scale.at_least(
        "overload: goodput at half of the capacity after it",
        after.goodput(Duration::ZERO, LONG, Duration::from_secs(1)) * 100.0,
        99.0,
        "%",
    );
    scale.hold("overload: back to normal", ended.elapsed() - Duration::from_secs(1), Duration::from_secs(2));
}
