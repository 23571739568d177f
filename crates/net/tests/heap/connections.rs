//! The cost of an idle connection.

use callboard_codec::wire::{Hello, VERSION};
use callboard_core::App;
use callboard_net::testing::{BareEndpoint, RawPeer};

use crate::common::{IDENTITY, ServingNode, until};
use crate::counting::{alone, live};

const CONNECTIONS: usize = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_connection_takes_less_than_150_kb_of_both_ends_together() {
    let _alone = alone().await;
    let served = ServingNode::start(App::new()).await;
    let calling = BareEndpoint::calling(&IDENTITY).unwrap();
    let connect = async || {
        let peer = RawPeer::over(&calling, served.edge.address()).await.unwrap();
        let cluster = IDENTITY.cluster().to_owned();
        let hello = Hello { min_version: 1, max_version: VERSION, cluster, ..Hello::default() };
        peer.greet(&hello).await.unwrap();
        peer
    };
    let first = connect().await;
    until(|| served.edge.connections() == 1).await;
    let before = live();
    let mut peers = Vec::new();
    for _ in 0..CONNECTIONS {
        peers.push(connect().await);
    }
    until(|| served.edge.connections() == CONNECTIONS + 1).await;
    let each = (live() - before) / CONNECTIONS as isize;
    println!("an idle connection takes {each} bytes at both ends together");
    // Each end has about half of it.
    assert!(each < 150_000, "{each}");
    drop((first, peers));
}
