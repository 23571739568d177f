//! S7: first packets from everywhere, whose senders never answer.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use callboard_core::{App, Caller, Stage};
use callboard_net::Client;
use callboard_net::testing::Faults;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::rustls::crypto::ring;
use quinn::rustls::{ClientConfig as TlsConfig, RootCertStore, version};

use super::Scale;
use crate::common::{Served, builder, patient, until};
use crate::lab::total;

/// First packets of handshakes that nobody means to finish, each with a connection id of its own.
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

/// Sockets on many addresses of loopback, as if they were spoofed: what comes back is never read.
fn strangers(count: u8) -> Vec<UdpSocket> {
    (1..=count).filter_map(|last| UdpSocket::bind((std::net::Ipv4Addr::new(127, 9, 0, last), 0)).ok()).collect()
}

/// The slowest of a hundred.
fn p99(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took.get((took.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default()
}

/// As many calls of one caller as fit, one after the other; how long each took.
async fn calls(client: &Client, going_on: impl Fn() -> bool) -> Vec<Duration> {
    let mut took = Vec::new();
    while going_on() {
        let begun = Instant::now();
        let loud: String = client.call("/shout", "a".to_owned()).await.unwrap();
        assert_eq!(loud, "A");
        took.push(begun.elapsed());
    }
    took
}

#[expect(clippy::disallowed_methods, reason = "a flood keeps its own pace, whatever the runtime does")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_first_packets_disturbs_nobody_and_is_not_amplified() {
    let scale = Scale::of(0, 2);
    let (packets, rate) = if scale.is_full { (4_000, 20_000_u32) } else { (300, 500) };
    let lasting = if scale.is_full { Duration::from_secs(30) } else { scale.lasting };
    let faults = Faults::new(0);
    faults.count_bytes();
    let mut config = patient();
    config.tuning.faults = Some(faults.clone());
    config.tuning.max_half_open = 64;
    let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase()));
    let served = Served::start_with(App::new().route("/shout", shout), config).await;
    let client = builder().connect(&served.url()).await.unwrap();
    let (to, strangers) = (served.edge.address(), strangers(200));
    if strangers.is_empty() {
        println!("skipped: this system has one address on loopback only");
        return;
    }
    let addresses: Vec<_> = strangers.iter().map(|socket| socket.local_addr().unwrap()).collect();
    let packets = tokio::task::spawn_blocking(move || first_packets(packets, to)).await.unwrap();
    let begun = Instant::now();
    let (over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let alone = calls(&client, || begun.elapsed() < scale.lasting.min(Duration::from_secs(2))).await;
    let flooding = std::thread::spawn({
        let (over, sent) = (Arc::clone(&over), Arc::clone(&sent));
        move || {
            let (start, mut count) = (Instant::now(), 0_usize);
            while !over.load(Ordering::Relaxed) {
                let due = (start.elapsed().as_secs_f64() * f64::from(rate)) as usize;
                while count < due {
                    // Every packet from several addresses, every address with several packets.
                    let _ = strangers[count % strangers.len()].send_to(&packets[count % packets.len()], to);
                    count += 1;
                }
                sent.store(count as u64, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    let begun = Instant::now();
    // In the midst of it somebody comes who means it, again and again.
    let coming = async {
        let mut newcomers = 0;
        while begun.elapsed() < lasting {
            let newcomer = builder().connect(&served.url()).await.unwrap();
            assert_eq!(newcomer.call::<_, String>("/shout", "b".to_owned()).await.unwrap(), "B");
            newcomers += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        newcomers
    };
    let going_on = || begun.elapsed() < lasting || sent.load(Ordering::Relaxed) < u64::from(rate);
    let (beside, newcomers) = tokio::join!(calls(&client, going_on), coming);
    println!("S7 {newcomers} newcomers were let in meanwhile");
    assert!(newcomers > 0);
    over.store(true, Ordering::Relaxed);
    flooding.join().unwrap();
    let (count, sent) = (beside.len(), sent.load(Ordering::Relaxed));
    let (alone, beside) = (p99(alone), p99(beside));
    let ratio = beside.as_secs_f64() / alone.as_secs_f64();
    println!(
        "S7 {count} calls beside {sent} first packets, none failed: p99 {beside:.1?}, alone {alone:.1?}, {ratio:.1} times"
    );
    until(|| total(&served.edge, "connections_retried") > 0).await;
    let bytes = faults.bytes();
    for address in &addresses {
        let of = bytes.get(address).copied().unwrap_or_default();
        assert!(of.sent <= of.received * 3, "{address}: {of:?}");
    }
    let (received, returned) = addresses
        .iter()
        .filter_map(|address| bytes.get(address))
        .fold((0, 0), |sum, of| (sum.0 + of.received, sum.1 + of.sent));
    println!("S7 {received} bytes from strangers, {returned} to them");
    assert!(received > 0);
    // Whoever comes now is let in as well: nothing is held for the strangers for ever.
    assert!(client.call::<_, String>("/shout", "b".to_owned()).await.is_ok());
    let newcomer = builder().connect(&served.url()).await.unwrap();
    assert!(newcomer.call::<_, String>("/shout", "b".to_owned()).await.is_ok());
}
