//! What an idle node costs in a full mesh of nodes that gossip: its processor time, and how often its threads wake up.
//!
//! Run with `cargo bench -p callboard-net --bench idle_mesh`, optionally with counts of nodes. All nodes are in this
//! process, so the figures are means. Each mesh is measured twice: as it is, and with QUIC's own keep-alive of 0.2 s on
//! every connection, as in earlier versions. Linux only: the figures are from `/proc`.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and stops when something is wrong")]

use std::path::Path;
use std::time::Duration;

use callboard_core::{App, Node, Stage};
use callboard_net::{Cluster, Identity, MembershipProfile, NetConfig, QuicEdge, StaticView};

/// Links are hot for ten seconds after their last call, and new members are talked about for a while.
const SETTLE: Duration = Duration::from_secs(12);
const MEASURE: Duration = Duration::from_secs(20);

struct Member {
    edge: QuicEdge,
    cluster: Cluster,
    _node: Node,
}

#[tokio::main]
async fn main() {
    let counts: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let directory = std::env::temp_dir().join(format!("callboard-idle-mesh-{}", std::process::id()));
    println!("| nodes | keep-alive | CPU of a node | wake-ups/s of a node |");
    println!("|---|---|---|---|");
    for count in if counts.is_empty() { vec![3, 10, 30] } else { counts } {
        for keeps_alive_by_quic in [true, false] {
            measure(count, keeps_alive_by_quic, &directory).await;
        }
    }
    let _ = std::fs::remove_dir_all(&directory);
}

async fn measure(count: usize, keeps_alive_by_quic: bool, directory: &Path) {
    let identity = Identity::development_in(directory).unwrap();
    let mut members: Vec<Member> = Vec::new();
    for _ in 0..count {
        let named = members.first().map(|first| first.edge.address());
        members.push(Member::start(&identity, keeps_alive_by_quic, named).await);
    }
    while members.iter().any(|member| member.cluster.connected_peers() < count - 1) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(SETTLE).await;
    let (cpu, wakes) = usage();
    tokio::time::sleep(MEASURE).await;
    let (cpu_then, wakes_then) = usage();
    let per_node = |value: f64| value / MEASURE.as_secs_f64() / count as f64;
    let percent = per_node((cpu_then - cpu).as_secs_f64()) * 100.0;
    let interval = if keeps_alive_by_quic { "0.2 s" } else { "as it is" };
    println!("| {count} | {interval} | {percent:.3} % | {:.1} |", per_node((wakes_then - wakes) as f64));
}

impl Member {
    async fn start(identity: &Identity, keeps_alive_by_quic: bool, named: Option<std::net::SocketAddr>) -> Self {
        let mut config = NetConfig { membership: Some(MembershipProfile::Near), ..NetConfig::default() };
        config.tuning.keeps_alive_by_quic = keeps_alive_by_quic;
        let edge = QuicEdge::bind("127.0.0.1:0".parse().unwrap(), identity.clone(), config).unwrap();
        let stage = Stage::each("work", |number: &u64| Ok(*number));
        let node = App::new().route("/work", stage).start().await.unwrap();
        edge.open(node.client());
        let cluster = Cluster::start(&edge, edge.view(StaticView::try_new(named).unwrap()));
        node.handle().join(cluster.clone()).unwrap();
        Self { edge, cluster, _node: node }
    }
}

/// The processor time of this process's threads, and how often they have slept.
fn usage() -> (Duration, u64) {
    let mut sum = (Duration::ZERO, 0);
    for thread in std::fs::read_dir("/proc/self/task").unwrap() {
        let thread = thread.unwrap().path();
        // A thread may have ended meanwhile.
        let read = |file: &str| std::fs::read_to_string(thread.join(file)).unwrap_or_default();
        let nanos = read("schedstat").split_whitespace().next().and_then(|nanos| nanos.parse().ok());
        let status = read("status");
        let slept = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok());
        sum = (sum.0 + Duration::from_nanos(nanos.unwrap_or(0)), sum.1 + slept.unwrap_or(0));
    }
    sum
}
