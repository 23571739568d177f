//! A flood of first packets whose senders never answer.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use callboard_core::{App, CallOptions, Caller, Failure, Stage, StreamStage};
use callboard_net::testing::Faults;
use callboard_net::{Client, Identity, NetConfig, QuicEdge};
use futures_util::stream;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::rustls::crypto::ring;
use quinn::rustls::{ClientConfig as TlsConfig, RootCertStore, version};

use super::{Scale, quantile, usage};
use crate::common::{LONG, builder, loopback};
use crate::processes::{Process, directory_of_process, directory_with_identity, sigterm};

/// First packets of handshakes that are never finished, each with its own connection id.
fn first_packets(count: usize, to: SocketAddr) -> Vec<Vec<u8>> {
    let tls = TlsConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let tls = tls.with_protocol_versions(&[&version::TLS13]).unwrap();
    let mut tls = tls.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    tls.alpn_protocols = vec![b"callboard/1".to_vec()];
    let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let mut endpoint = quinn_proto::Endpoint::new(Arc::default(), None, false, None);
    let first = |_| {
        let now = Instant::now();
        let (_, mut connection) = endpoint.connect(now, config.clone(), to, "callboard").unwrap();
        let mut packet = Vec::new();
        let sent = connection.poll_transmit(now, 1, &mut packet).unwrap();
        packet.truncate(sent.size);
        packet
    };
    (0..count).map(first).collect()
}

/// Sockets on many loopback addresses, as if spoofed: the replies are never read.
fn strangers(count: u8) -> Vec<UdpSocket> {
    (1..=count).filter_map(|last| UdpSocket::bind((std::net::Ipv4Addr::new(127, 9, 0, last), 0)).ok()).collect()
}

/// Sequential calls of one caller; returns the duration of each.
async fn calls(client: &Client, going_on: impl Fn() -> bool) -> Vec<Duration> {
    let mut took = Vec::new();
    while going_on() {
        let started = Instant::now();
        let loud: String = client.call("/shout", "a".to_owned()).await.unwrap();
        assert_eq!(loud, "A");
        took.push(started.elapsed());
    }
    took
}

/// Not a test: the flooded node in its own process, so that its resources can be measured, with default settings; on
/// shared machines its links tolerate longer silence. At its end it prints the traffic by peer.
#[test]
#[ignore = "the body of a process"]
fn flooded_process() {
    let Some(directory) = directory_of_process() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let faults = Faults::new(0);
        faults.count_bytes();
        let mut config = NetConfig::default();
        if !Scale::new(0, 0).is_full {
            config.tuning.idle_timeout = LONG;
        }
        config.tuning.faults = Some(faults.clone());
        let identity = Identity::development_in(&directory.join("development")).unwrap();
        let edge = QuicEdge::bind(loopback(), identity, config).unwrap();
        let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase()));
        let count = StreamStage::each("count", |from: &u64| stream::iter((*from..).map(Ok::<u64, Failure>)));
        let node = App::new().route("/shout", shout).route_streaming("/count", count).start().await.unwrap();
        edge.open(node.client());
        println!("serving {}", edge.address());
        sigterm().await;
        let metrics = edge.metrics();
        let retried = metrics.lines().find_map(|line| line.strip_prefix("callboard_net_connections_retried_total "));
        println!("retried {}", retried.unwrap());
        for (address, of) in faults.bytes() {
            println!("bytes {address} {} {}", of.received, of.sent);
        }
    });
}

/// Reads an endless stream until `over` is set; returns the number of outputs.
async fn reads_on(client: Client, over: Arc<AtomicBool>) -> u64 {
    let options = CallOptions::new().with_timeout(Duration::from_secs(3600));
    let mut outputs = client.replies_with::<u64, u64>("/count", 0, options).unwrap();
    let mut expected = 0;
    while !over.load(Ordering::Relaxed) {
        assert_eq!(outputs.next().await.expect("it never ends").unwrap(), expected);
        expected += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    expected
}

#[expect(clippy::disallowed_methods, reason = "the pace of a flood is independent of the runtime")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_first_packets_affects_no_caller_and_is_not_amplified() {
    let scale = Scale::new(0, 2);
    // More than are accepted before address validation, and a prime: each packet comes from every address in turn. A
    // repeated packet of an accepted handshake goes to its connection; the others are new each time.
    let (packets, rate) = if scale.is_full { (8_009, 20_000_u32) } else { (307, 500) };
    let lasting = if scale.is_full { Duration::from_secs(30) } else { scale.lasting };
    let directory = directory_with_identity("promised-flooded");
    let mut flooded = Process::start("promises::flood::flooded_process", &directory, &[]);
    let (to, strangers) = (flooded.address, strangers(200));
    if strangers.is_empty() {
        println!("skipped: this system has one address on loopback only");
        return;
    }
    let identity = Identity::development_in(&directory.join("development")).unwrap();
    let url = format!("quic://{to}");
    let connect = || builder().identity(identity.clone()).connect(&url);
    let client = connect().await.unwrap();
    let addresses: Vec<_> = strangers.iter().map(|socket| socket.local_addr().unwrap()).collect();
    let packets = tokio::task::spawn_blocking(move || first_packets(packets, to)).await.unwrap();
    let packet_bytes = packets[0].len() as u64;
    assert!(packets.iter().all(|packet| packet.len() as u64 == packet_bytes));
    let started = Instant::now();
    let (over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let reading = tokio::spawn(reads_on(client.clone(), Arc::clone(&over)));
    let alone = calls(&client, || started.elapsed() < scale.lasting.min(Duration::from_secs(2))).await;
    let before = usage::Process::Child(flooded.id()).resident_kib();
    let flooding = std::thread::spawn({
        let (over, sent) = (Arc::clone(&over), Arc::clone(&sent));
        move || {
            let (start, mut count) = (Instant::now(), 0_usize);
            // If the system accepts no more, nothing was sent.
            let mut taken = 0_u64;
            while !over.load(Ordering::Relaxed) {
                let due = (start.elapsed().as_secs_f64() * f64::from(rate)) as usize;
                while count < due {
                    let packet = &packets[count % packets.len()];
                    taken += u64::from(strangers[count % strangers.len()].send_to(packet, to).is_ok());
                    count += 1;
                }
                sent.store(taken, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
            taken as f64 / start.elapsed().as_secs_f64()
        }
    });
    let started = Instant::now();
    // During the flood, an honest client connects again and again.
    let coming = async {
        let mut newcomers = 0_u64;
        while started.elapsed() < lasting {
            let newcomer = connect().await.unwrap();
            assert_eq!(newcomer.call::<_, String>("/shout", "b".to_owned()).await.unwrap(), "B");
            newcomers += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        newcomers
    };
    let going_on = || started.elapsed() < lasting || sent.load(Ordering::Relaxed) < u64::from(rate);
    let (during, newcomers) = tokio::join!(calls(&client, going_on), coming);
    println!("flood: {newcomers} newcomers were let in meanwhile");
    assert!(newcomers > 0);
    over.store(true, Ordering::Relaxed);
    let per_second = flooding.join().unwrap();
    scale.at_least("flood: first packets a second", per_second, 0.95 * f64::from(rate), "packets");
    let outputs = reading.await.expect("the open stream continues");
    let (count, sent) = (during.len(), sent.load(Ordering::Relaxed));
    let (alone, during) = (quantile(alone, 0.99), quantile(during, 0.99));
    let ratio = during.as_secs_f64() / alone.as_secs_f64();
    println!("flood: p99 beside {sent} first packets {during:.1?}, alone {alone:.1?}: {ratio:.1} times");
    println!(
        "figures: flood: existing streams failed: asked 0, got 0 of {count} calls and a stream of {outputs} outputs"
    );
    if let (Some(before), Some(most)) = (before, usage::Process::Child(flooded.id()).most_resident_kib()) {
        let more = most.saturating_sub(before) as f64 / 1024.0;
        scale.at_most("flood: resident memory more than before", more, 64.0, "MiB");
        assert!(more <= 64.0, "{more} MiB");
    }
    // A later client is accepted as well: nothing is held for the strangers forever.
    assert!(client.call::<_, String>("/shout", "b".to_owned()).await.is_ok());
    let newcomer = connect().await.unwrap();
    assert!(newcomer.call::<_, String>("/shout", "b".to_owned()).await.is_ok());

    flooded.signal("TERM");
    let words = tokio::task::spawn_blocking(move || flooded.remaining_output()).await.unwrap();
    let retried = words.lines().find_map(|line| line.strip_prefix("retried ")).unwrap();
    let retried: u64 = retried.parse().unwrap();
    let (mut received, mut returned, mut most) = (0, 0, 0.0_f64);
    for line in words.lines().filter_map(|line| line.strip_prefix("bytes ")) {
        let [address, from, back] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        if addresses.contains(&address.parse().unwrap()) {
            let (from, back): (u64, u64) = (from.parse().unwrap(), back.parse().unwrap());
            (received, returned, most) = (received + from, returned + back, most.max(back as f64 / from as f64));
        }
    }
    println!("flood: {received} bytes from strangers, {returned} to them");
    // Each packet belongs to an accepted connection, or its sender was asked to validate its address. Newcomers too.
    let arrived = received / packet_bytes;
    scale.at_least("flood: packets that came, of those sent", arrived as f64 / sent as f64 * 100.0, 90.0, "%");
    scale.at_least(
        "flood: callers asked for a proof, of those that came",
        retried as f64 / arrived as f64 * 100.0,
        80.0,
        "%",
    );
    assert!(retried > 0 && retried <= arrived + 2 * newcomers, "{retried} of {arrived}: addresses have to be proven");
    scale.at_most("flood: bytes out for each in, of any address", most, 3.0, "times");
    assert!(received > 0 && most <= 3.0, "{most} times");
}
