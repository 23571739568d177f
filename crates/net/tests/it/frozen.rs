//! A member that is stopped for long: it is out, and back soon after it goes on, and nothing stale is done.

#![allow(clippy::print_stdout, reason = "figures are part of the output")]

use std::time::{Duration, Instant};

use callboard_core::Contract;
use callboard_core::remote::RemoteStages;
use callboard_net::{MembershipProfile, NetConfig};

use crate::common::until;
use crate::gossip::metric;
use crate::processes::{Gateway, Shape, Worker, directory_with_identity, execution_log};
use crate::promises::{Scale, offer};

/// The time of each call, which a stop outlasts.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Stops one of two workers for this time, under a load through a gateway. A fourth node knows all of them.
async fn stopped_for(name: &str, frost: Duration) {
    let scale = Scale::new(40, frost.as_secs() + 8);
    let directory = directory_with_identity(name);
    let config = || NetConfig { membership: Some(MembershipProfile::Near), ..NetConfig::default() };
    let named = Gateway::start_naming(&directory, &[], config()).await;
    let shape = Shape::new(Contract::AtMostOnce);
    let [stopped, other] = [(); 2].map(|()| Worker::start_naming(&directory, shape, named.edge.address()));
    let gateway = Gateway::start_naming(&directory, &[named.edge.address()], config()).await;
    let members = async |up: i64| {
        for node in [&gateway, &named] {
            until(|| metric(&node.edge, "members_up") == up && node.cluster.connected_peers() == up as usize).await;
        }
    };
    members(3).await;
    let is_up = |worker: &Worker| {
        let address = worker.process.address.to_string();
        let mut members = gateway.cluster.members().into_iter().chain(named.cluster.members());
        members.all(|member| member.address != address || !member.state.is_gone())
    };
    let of_both = |name| [&gateway, &named].map(|node| metric(&node.edge, name));
    let script = async {
        tokio::time::sleep(TIMEOUT).await;
        let stops = Instant::now();
        stopped.signal("STOP");
        members(2).await;
        println!("stopped for {frost:.1?}: out after {:.2?}", stops.elapsed());
        while stops.elapsed() < frost {
            assert!(is_up(&other), "nobody else is called down");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let before = execution_log(&directory).executions().len();
        let suspected = of_both("suspected_total");
        stopped.signal("CONT");
        let continues = Instant::now();
        members(3).await;
        let back = continues.elapsed();
        let id = u64::from(stopped.process.id());
        until(|| execution_log(&directory).executions()[before..].iter().any(|execution| execution.worker == id)).await;
        (back, continues.elapsed(), suspected)
    };
    let client = gateway.node.client();
    let calls = offer(&client, scale.rate, scale.lasting, |_| TIMEOUT);
    let (calls, (back, used, suspected)) = tokio::join!(calls, script);
    let executions = execution_log(&directory).executions();
    let sums = calls.ledger.check(calls.count(), &executions, Contract::AtMostOnce, scale.lateness());
    println!("stopped for {frost:.1?}: {sums:?}");
    scale.started_in_time("stopped", &executions);
    scale.hold("stopped: a member again, and connected", back, Duration::from_secs(3));
    scale.hold("stopped: used again", used, Duration::from_secs(5));
    // For seconds after its return, too. On a busy machine some are suspected, and say in time that they are up.
    let and_after = of_both("suspected_total");
    println!("stopped: gateways suspected while it was stopped {suspected:?}, and in all {and_after:?}");
    scale.at_most("stopped: suspicions of others", and_after.iter().sum::<i64>() as f64, 0.0, "suspicions");
    assert_eq!(of_both("members_down_total"), [1; 2]);
    assert!(is_up(&stopped) && is_up(&other));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_member_that_is_stopped_for_ten_seconds_is_out_and_comes_back() {
    stopped_for("stopped-10", Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "takes 40 s"]
async fn a_member_that_is_stopped_for_half_a_minute_is_out_and_comes_back() {
    stopped_for("stopped-30", Duration::from_secs(30)).await;
}
