//! QUIC streams with a gap near their beginning: the data after the gap waits in the node.
//!
//! quinn retransmits lost data, so a relay sits between it and the node. During a burst the relay drops every eighth
//! large datagram and all acknowledgements, so that the burst continues; afterwards it forwards only datagrams too
//! small to carry data. The caller's congestion window bounds the waiting data, some 100 kB on each connection; a
//! sender that ignores its window would reach the node's own limit.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use callboard::net::testing::{BareEndpoint, RawPeer};
use futures_util::future::join_all;
use tokio::time::sleep;

use crate::attack::{Attack, Target};
use crate::payloads::MIB;
use crate::payloads::msgpack::envelope_head;
use crate::quic::{IDENTITY, call, hello, run_for};

/// The largest datagram with only acknowledgements or a ping, without stream data.
const SMALL: usize = 100;

/// One in this many large datagrams of a burst is lost.
const DROPPED_ONE_OF: u64 = 8;

/// Forwards all datagrams.
const FORWARD_ALL: u8 = 0;
/// Drops every eighth large datagram, and all replies.
const BURST: u8 = 1;
/// Forwards only small datagrams.
const HOLD_LARGE: u8 = 2;

/// Relays datagrams between one caller and the node.
struct Relay {
    address: SocketAddr,
    mode: Arc<AtomicU8>,
    /// Bytes forwarded to the node in bursts.
    burst_bytes: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Relay {
    fn begin(node: SocketAddr) -> Self {
        let (front, back) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        back.connect(node).unwrap();
        for socket in [&front, &back] {
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        }
        let address = front.local_addr().unwrap();
        let relay = Self {
            address,
            mode: Arc::new(AtomicU8::new(FORWARD_ALL)),
            burst_bytes: Arc::default(),
            is_over: Arc::default(),
        };
        let (front, back) = (Arc::new(front), Arc::new(back));
        let caller = Arc::new(std::sync::Mutex::new(None));
        {
            let (front, back, caller) = (Arc::clone(&front), Arc::clone(&back), Arc::clone(&caller));
            let (mode, bytes, over) =
                (Arc::clone(&relay.mode), Arc::clone(&relay.burst_bytes), Arc::clone(&relay.is_over));
            thread::spawn(move || to_node(&front, &back, &caller, &mode, &bytes, &over));
        }
        let (mode, over) = (Arc::clone(&relay.mode), Arc::clone(&relay.is_over));
        thread::spawn(move || {
            let mut datagram = vec![0; 1 << 16];
            while !over.load(Ordering::Relaxed) {
                let Ok(count) = back.recv(&mut datagram) else { continue };
                if let (Some(caller), true) = (*caller.lock().unwrap(), mode.load(Ordering::Relaxed) != BURST) {
                    let _ = front.send_to(&datagram[..count], caller);
                }
            }
        });
        relay
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn to_node(
    front: &UdpSocket,
    back: &UdpSocket,
    caller: &std::sync::Mutex<Option<SocketAddr>>,
    mode: &AtomicU8,
    burst_bytes: &AtomicU64,
    is_over: &AtomicBool,
) {
    let mut datagram = vec![0; 1 << 16];
    let mut large = 0;
    while !is_over.load(Ordering::Relaxed) {
        let Ok((count, from)) = front.recv_from(&mut datagram) else { continue };
        *caller.lock().unwrap() = Some(from);
        let passes = match mode.load(Ordering::Relaxed) {
            _ if count <= SMALL => true,
            FORWARD_ALL => true,
            BURST => {
                large += 1;
                large % DROPPED_ONE_OF != 1
            }
            _ => false,
        };
        if passes {
            let _ = back.send(&datagram[..count]);
            if mode.load(Ordering::Relaxed) == BURST {
                burst_bytes.fetch_add(count as u64, Ordering::Relaxed);
            }
        }
    }
}

/// Shorter than the time after which the caller declares packets lost.
const BURST_DURATION: Duration = Duration::from_millis(30);

/// One caller that leaves gaps in its streams until the attack ends.
async fn hold(target: &Target) {
    let relay = Relay::begin(target.quic);
    let endpoint = BareEndpoint::calling(&IDENTITY).expect("a socket");
    let Ok(peer) = RawPeer::over(&endpoint, relay.address).await else { return target.record("not connected") };
    if peer.greet(&hello()).await.is_err() {
        return target.record("not welcomed");
    }
    // A body that is discarded opens the caller's congestion window.
    let zeros = Bytes::from(vec![0; 4 * MIB]);
    let _ = peer.exchange(vec![call("/nowhere", false, zeros.len()), zeros.clone()]).await;
    relay.mode.store(BURST, Ordering::Relaxed);
    let body = Bytes::from([envelope_head(60 * MIB), vec![0; MIB]].concat());
    // The caller sends as much of them as the node's windows allow.
    let send_bodies = async {
        let streams =
            join_all((0..8).map(|_| peer.try_begin(vec![call("/keep", false, 60 * MIB), body.clone()]))).await;
        std::future::pending::<()>().await;
        drop(streams);
    };
    let end_burst = async {
        sleep(BURST_DURATION).await;
        relay.mode.store(HOLD_LARGE, Ordering::Relaxed);
        target.record(format!("{} kB in a burst with gaps", relay.burst_bytes.load(Ordering::Relaxed) >> 10));
        sleep(target.remaining()).await;
    };
    tokio::select! {
        () = send_bodies => {}
        () = end_burst => {}
    }
}

#[test]
fn bodies_with_gaps() {
    Attack::new("quic: 12 connections × 8 streams with gaps")
        .lasting(Duration::from_secs(4))
        .must_not_block_callers()
        .run(|target| {
            run_for(target, async {
                join_all((0..12).map(|_| hold(target))).await;
            });
        });
}
