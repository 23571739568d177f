//! Members with a valid certificate that lie in gossip, beside callers of a stage on another member.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use callboard::codec::wire::{FrameKind, Hello, frame_head};
use callboard::net::testing::{BareEndpoint, GossipForger};
use callboard::net::{Cluster, MembershipProfile, NetConfig, QuicEdge, StaticView};
use callboard::prelude::*;
use futures_util::future::join_all;
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};

use crate::attack::{Attack, Target};
use crate::http1::Request;
use crate::quic::{IDENTITY, hello, run_for};

/// The messages of a forger before one that stays incomplete.
const COMPLETE: usize = 40;

/// An honest member that runs the stage of the gateway.
struct HonestMember {
    runtime: Runtime,
    edge: QuicEdge,
    _node: Node,
}

impl HonestMember {
    fn start() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let (edge, node) = runtime.block_on(async {
            let config = NetConfig { membership: Some(MembershipProfile::Near), ..NetConfig::default() };
            let edge = QuicEdge::bind("127.0.0.1:0".parse().unwrap(), IDENTITY.clone(), config).expect("a socket");
            let stage = Stage::each("bomb", |value: &Value| Ok(value.clone())).pure();
            let node = App::new().route("/bomb", stage).start().await.expect("a node");
            let view = edge.view(StaticView::try_new([]).expect("no peers"));
            node.join(Cluster::start(&edge, view)).expect("its only cluster");
            edge.open(node.client());
            (edge, node)
        });
        Self { runtime, edge, _node: node }
    }

    fn address(&self) -> SocketAddr {
        self.edge.address()
    }

    /// The nodes that it is connected to.
    fn members_up(&self) -> u64 {
        let metrics = self.runtime.block_on(async { self.edge.metrics() });
        let line = metrics.lines().find_map(|line| line.strip_prefix("callboard_net_members_up "));
        line.and_then(|count| count.parse().ok()).expect("a gauge")
    }
}

/// A member that says hello, listens, and lies until the end of the attack.
async fn lie(target: &Target, number: u64, pause: Duration) {
    let name = format!("development-forger{number}");
    let mut forger = GossipForger::new(&name, number);
    let features = ["gossip", "reports", "removals"].map(str::to_owned).to_vec();
    let generation = forger.generation();
    let hello = Hello { node: name.clone(), generation, member: name, features, ..hello() };
    let hello = frame_head(FrameKind::Hello, 0, &hello, 0).expect("a header");
    let endpoint = BareEndpoint::calling(&IDENTITY).expect("a socket");
    while target.is_running() {
        let Ok(connection) = endpoint.connect(target.quic).await else {
            target.record("not connected");
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        connection.set_max_concurrent_uni_streams(16_u32.into());
        let heard = Arc::new(Mutex::new(Vec::<Bytes>::new()));
        let (listening, kept) = (connection.clone(), Arc::clone(&heard));
        tokio::spawn(async move {
            while let Ok(mut stream) = listening.accept_uni().await {
                if let Ok(bytes) = stream.read_to_end(128 << 10).await
                    && let Some(body) = body(&bytes)
                {
                    kept.lock().unwrap().push(body);
                }
            }
        });
        let Ok((mut control, mut welcomed)) = connection.open_bi().await else { continue };
        let greeted = control.write_all(&hello).await.is_ok() && welcomed.read_chunk(1, true).await.is_ok();
        target.record(if greeted { "welcomed" } else { "refused" });
        let (mut unfinished, mut sent) = (Vec::new(), 0_usize);
        while target.is_running() {
            heard.lock().unwrap().drain(..).for_each(|message| forger.heard(&message));
            let message = forger.forge();
            let head = frame_head(FrameKind::Gossip, 0, &(), message.len()).expect("a header");
            let Ok(Ok(mut stream)) = timeout(Duration::from_millis(200), connection.open_uni()).await else {
                // Each incomplete message holds a stream.
                unfinished.clear();
                if connection.close_reason().is_some() {
                    target.record("closed");
                    break;
                }
                continue;
            };
            sent += 1;
            let is_cut = sent.is_multiple_of(COMPLETE);
            let message = if is_cut { message.slice(..message.len() / 2) } else { message };
            if stream.write_all(&head).await.is_err() || stream.write_all(&message).await.is_err() {
                target.record("stopped");
                continue;
            }
            if is_cut {
                unfinished.push(stream);
            } else {
                let _ = stream.finish();
            }
            target.record("sent");
            if !pause.is_zero() {
                sleep(pause).await;
            }
        }
        if forger.victims() > 0 {
            target.record("has victims");
        }
    }
}

/// The body of a frame.
fn body(frame: &[u8]) -> Option<Bytes> {
    let header = u32::from_le_bytes(frame.get(8..12)?.try_into().ok()?) as usize;
    Some(Bytes::copy_from_slice(frame.get(20 + header..)?))
}

fn forgers(name: &'static str, count: u64, pause: Duration) {
    needs_binary!();
    let honest = HonestMember::start();
    let request = Request::post("/bomb", "application/json", "1");
    let attack = Attack::new(name).joined_to(&[honest.address()]).honest_at(request).leaving_members();
    attack.lasting(Duration::from_secs(4)).run(|target| {
        run_for(target, async {
            join_all((0..count).map(|number| lie(target, number, pause))).await;
        });
        assert!(honest.members_up() >= 1, "the honest member still knows the gateway");
    });
}

/// What a member says of others is bounded by its certificate only: it is a node of the cluster.
#[test]
fn members_that_make_up_call_dead_and_contradict() {
    forgers("gossip: 2 members that lie 50 times a second", 2, Duration::from_millis(20));
}

#[test]
fn members_that_lie_as_fast_as_they_can() {
    forgers("gossip: 4 members that lie without a pause", 4, Duration::ZERO);
}
