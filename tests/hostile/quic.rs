//! Callers over QUIC with a valid certificate: bodies that unpack, stalled streams, connections without a hello.

use std::net::UdpSocket;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use callboard::codec::wire::{Call, FrameKind, Hello, VERSION, frame_head};
use callboard::net::Identity;
use callboard::net::testing::{BareEndpoint, RawPeer, RawStream};
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use crate::attack::{Attack, Target};
use crate::node::directory;
use crate::payloads::MIB;
use crate::payloads::arrow::null_rows;
use crate::payloads::msgpack::{FRAME, Pack, argument, envelope, envelope_head, ext, variants};

/// The identity of this user on this machine, shared with the node.
pub(crate) static IDENTITY: LazyLock<Identity> =
    LazyLock::new(|| Identity::development_in(&directory().join("callboard/development")).expect("an identity"));

/// Runs one client, no longer than the attack lasts.
pub(crate) fn run_for(target: &Target, client: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        if timeout(target.remaining(), client).await.is_err() {
            target.record("left at the end");
        }
    });
    runtime.shutdown_timeout(Duration::from_millis(200));
}

pub(crate) fn hello() -> Hello {
    Hello { min_version: 1, max_version: VERSION, cluster: IDENTITY.cluster().to_owned(), ..Hello::default() }
}

/// A connection after its hello.
pub(crate) async fn connect_with_hello(target: &Target) -> Option<RawPeer> {
    let peer = RawPeer::connect(target.quic, &IDENTITY).await;
    let peer = peer.inspect_err(|_| target.record("not connected")).ok()?;
    peer.greet(&hello()).await.inspect_err(|_| target.record("not welcomed")).ok()?;
    Some(peer)
}

/// The frame of a call with a deadline of an hour and a body of this length.
pub(crate) fn call(route: &str, function: bool, bytes: usize) -> Bytes {
    let call = Call { route: route.to_owned(), function, millis_left: 3_600_000, ..Call::default() };
    frame_head(FrameKind::Call, 0, &call, bytes).expect("a header")
}

/// All connections send the same call repeatedly.
async fn repeat(target: &Target, route: &str, function: bool, body: Vec<u8>, connections: usize) {
    let body = Bytes::from(body);
    let caller = |_| async {
        while target.is_running() {
            let Some(peer) = connect_with_hello(target).await else {
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            while let Ok(frames) = peer.exchange(vec![call(route, function, body.len()), body.clone()]).await {
                target.record(
                    frames.first().map_or_else(|| "no frame".to_owned(), |(head, _)| head.kind.as_str().to_owned()),
                );
            }
            target.record("closed or reset");
            sleep(Duration::from_millis(20)).await;
        }
    };
    join_all((0..connections).map(caller)).await;
}

#[test]
fn billions_of_null_rows_of_a_client() {
    let body = envelope(&ext(FRAME, &null_rows(5000)));
    Attack::new("quic: 5,000 batches of 2^20 nulls for a model").run(|target| {
        run_for(target, repeat(target, "/digits", false, body, 2));
    });
}

#[test]
fn billions_of_null_rows_in_place_of_arguments() {
    let body = envelope(&ext(FRAME, &null_rows(5000)));
    Attack::new("quic: the same in place of arguments").run(|target| {
        run_for(target, repeat(target, "/digits", true, body, 2));
    });
}

#[test]
fn billions_of_null_rows_for_a_typed_map() {
    let body = envelope(&ext(FRAME, &null_rows(5000)));
    Attack::new("quic: the same for a typed map").on_types().run(|target| {
        run_for(target, repeat(target, "/words", false, body, 2));
    });
}

#[test]
fn a_recursive_enum() {
    let body = envelope(&variants("N", 100_000, "Leaf"));
    Attack::new("quic: 100,000 levels of a recursive enum").on_types().run(|target| {
        run_for(target, repeat(target, "/tree", false, body, 2));
    });
}

#[test]
fn a_million_empty_maps() {
    let list = Pack::default().list(MIB as u32 - 8).raw(&vec![0x80; MIB - 8]).0;
    let body = envelope(&argument(&list));
    Attack::new("quic: 16 × a million empty maps").run(|target| {
        run_for(target, repeat(target, "/pick", true, body, 16));
    });
}

#[test]
fn announced_bodies_that_trickle() {
    Attack::new("quic: 4 streams that announce 64 MiB and bring 1.2 kB/s")
        .lasting(Duration::from_secs(3))
        .must_not_block_callers()
        .run(|target| {
            run_for(target, async {
                let Some(peer) = connect_with_hello(target).await else { return };
                let mut streams: Vec<RawStream> = Vec::new();
                for _ in 0..4 {
                    streams.push(
                        peer.begin(vec![call("/keep", false, 64 * MIB), Bytes::from(envelope_head(64 * MIB))]).await,
                    );
                }
                target.record("4 streams open");
                loop {
                    sleep(Duration::from_millis(100)).await;
                    for stream in &mut streams {
                        stream.write(vec![Bytes::from_static(&[0; 120])]).await;
                    }
                }
            });
        });
}

#[test]
fn streams_that_stay_empty() {
    Attack::new("quic: 8 connections × 250 streams without a byte").must_not_block_callers().run(|target| {
        run_for(target, async {
            let holder = |_| async {
                let peer = connect_with_hello(target).await?;
                let streams = peer.begin_unwritten(250).await;
                Some((peer, streams))
            };
            let held = join_all((0..8).map(holder)).await;
            target.record(format!("held, {}", held.iter().flatten().count()));
            sleep(target.remaining()).await;
        });
    });
}

/// The caller sends whole calls and reads no answer.
#[test]
fn unread_answers() {
    let zeros = Pack::default().raw(&[0xc6]).raw(&(8 * MIB as u32).to_be_bytes()).raw(&vec![0; 8 * MIB]).0;
    let body = Bytes::from(envelope(&zeros));
    Attack::new("quic: 64 answers of 8 MiB, unread").lasting(Duration::from_secs(2)).run(|target| {
        run_for(target, async {
            let holder = |_| async {
                let peer = connect_with_hello(target).await?;
                let mut streams = Vec::new();
                for _ in 0..16 {
                    streams.push(peer.begin(vec![call("/keep", false, body.len()), body.clone()]).await);
                }
                Some((peer, streams))
            };
            let held = join_all((0..4).map(holder)).await;
            target.record(format!("held, {}", held.iter().flatten().count()));
            sleep(target.remaining()).await;
        });
    });
}

#[test]
fn connections_closed_after_hello() {
    Attack::new("quic: hello and away, by 8 clients").run(|target| {
        run_for(target, async {
            let endpoint = BareEndpoint::calling(&IDENTITY).expect("a socket");
            let caller = |_| async {
                while target.is_running() {
                    if let Ok(peer) = RawPeer::over(&endpoint, target.quic).await {
                        let is_welcome = peer.greet(&hello()).await.is_ok();
                        target.record(if is_welcome { "welcomed" } else { "refused" });
                    } else {
                        target.record("not connected");
                        sleep(Duration::from_millis(10)).await;
                    }
                }
            };
            join_all((0..8).map(caller)).await;
        });
    });
}

#[test]
fn connections_that_never_say_hello() {
    Attack::new("quic: 100 connections that fill their windows before hello").must_not_block_callers().run(|target| {
        run_for(target, async {
            let endpoint = BareEndpoint::calling(&IDENTITY).expect("a socket");
            let stuffing = |_| async {
                let peer = RawPeer::over(&endpoint, target.quic).await.ok()?;
                let (streams, bytes) = peer.flood().await;
                target.record(format!("{streams} streams, {bytes} bytes"));
                Some(())
            };
            join_all((0..100).map(stuffing)).await;
        });
    });
}

/// Hellos with the longest possible header, of the wrong shape.
#[test]
fn oversized_hellos() {
    let long_hello = Hello { cluster: "c".repeat(60_000), node: "n".repeat(4000), ..hello() };
    Attack::new("quic: hellos of 64 kB").run(|target| {
        run_for(target, async {
            let endpoint = BareEndpoint::calling(&IDENTITY).expect("a socket");
            let caller = |_| async {
                while target.is_running() {
                    let Ok(peer) = RawPeer::over(&endpoint, target.quic).await else {
                        sleep(Duration::from_millis(10)).await;
                        continue;
                    };
                    let outcome = peer.greet(&long_hello).await;
                    target.record(if outcome.is_ok() { "welcomed" } else { "refused" });
                }
            };
            join_all((0..8).map(caller)).await;
        });
    });
}

/// Datagrams that look like the first of a connection, and random ones.
#[test]
fn first_packets_without_a_connection() {
    Attack::new("quic: datagrams of noise and of first packets").run(|target| {
        target.run_clients(2, |index| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let mut random = 0x9e37_79b9_7f4a_7c15_u64 + index as u64;
            let mut packet = [0_u8; 1200];
            while target.is_running() {
                for _ in 0..20 {
                    for byte in packet.iter_mut() {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        *byte = (random >> 56) as u8;
                    }
                    // A long header, the first type, version 1, ids of eight bytes.
                    if index == 0 {
                        packet[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
                        packet[14] = 8;
                    }
                    let _ = socket.send_to(&packet, target.quic);
                }
                thread::sleep(Duration::from_millis(2));
            }
            target.record("sent");
        });
    });
}
