//! Refusals that need some preparation: each has its own reason, counts under it, and does not affect other callers.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use callboard_codec::Value;
use callboard_codec::wire::{Call, FrameKind, ResetCode, frame_head};
use callboard_net::testing::{RawJoiner, RawPeer};
use callboard_net::{QuicEdge, Role};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::common::{LONG, patient, until};
use crate::lab::{Lab, builder, counted, hello, serve, shout, url};

/// The node with the authority accepts members without a certificate, other nodes do not. Neither accepts their calls,
/// with or without a hello.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_without_a_certificate_may_only_request_one() {
    let lab = Lab::start("nameless").await;
    let (other, _node) = serve(lab.member(Role::Node, "left").await).await;
    let desk = lab.member(Role::Client, "desk").await;
    let refusals = |edge: &QuicEdge| counted(edge, "no_certificate");
    for edge in [&lab.edge, &other] {
        let client = builder(&desk).connect(&url(edge)).await.unwrap();
        let (streams, accepted_before) = (streams_started(edge), accepted(edge));
        // A client may see its handshake as complete before it learns of the refusal.
        if let Ok(peer) = RawPeer::anonymous(edge.address(), &desk).await {
            let greeted = tokio::time::timeout(LONG, peer.greet(&hello(lab.authority.cluster()))).await.unwrap();
            let (_, reason) = greeted.unwrap_err();
            assert!(reason == "no_certificate" || reason.contains("certificate"), "{reason}");
        }
        until(|| refusals(edge) == 1).await;
        if let Ok(peer) = RawPeer::anonymous(edge.address(), &desk).await {
            let body = Value::from("a").to_envelope().unwrap().into_bytes();
            let call = Call { route: "/shout".to_owned(), ..Call::default() };
            let pieces = vec![frame_head(FrameKind::Call, 0, &call, body.len()).unwrap(), body];
            let answered = tokio::time::timeout(LONG, peer.exchange(pieces)).await.unwrap();
            assert!(answered.is_err(), "{answered:?}");
        }
        until(|| refusals(edge) == 2).await;
        assert_eq!((streams_started(edge), accepted(edge)), (streams, accepted_before), "none of their data was read");
        assert_eq!(edge.connections(), 1, "the honest connection");
        assert_eq!(shout(&client).await, "A");
    }
}

/// The number of streams with calls so far.
fn streams_started(edge: &QuicEdge) -> u64 {
    crate::lab::total(edge, "streams")
}

/// The number of connections whose hello was answered.
fn accepted(edge: &QuicEdge) -> u64 {
    crate::lab::total(edge, "connections_accepted")
}

/// A node name in a client's hello, and a text that is no certificate request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_join_request_is_counted_and_costs_no_use_of_its_token() {
    let lab = Lab::start("wishes").await;
    let (address, cluster) = (lab.edge.address(), lab.authority.cluster());
    let (of_client, of_node) = (lab.token(|spec| spec.role = Role::Client), lab.token(|_| {}));
    let desk = RawJoiner::connect(address, &of_client).await;
    let joined = desk.ask(&desk.join_header(cluster, &of_client, "desk"), &desk.request()).await.unwrap();
    assert_eq!(joined.0, FrameKind::Certificate);
    let as_node = desk.once_more(address, &of_node).await;
    let refused = as_node.ask(&as_node.join_header(cluster, &of_node, "desk"), &as_node.request()).await.unwrap();
    assert_eq!(refused, (FrameKind::Fail, "other_role".to_owned()));
    until(|| lab.counted("other_role") == 1).await;

    for (number, request) in (1..).zip(["", "hello", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n"]) {
        let joiner = RawJoiner::with_request(address, &of_node, request.to_owned()).await;
        let refused = joiner.ask(&joiner.join_header(cluster, &of_node, "left"), request).await.unwrap();
        assert_eq!(refused, (FrameKind::Fail, "bad_request".to_owned()), "{request:?}");
        until(|| lab.counted("bad_request") == number).await;
    }
    let left = lab.join(&of_node, "left").await.unwrap();
    assert_eq!(shout(&builder(&left).connect(&url(&lab.edge)).await.unwrap()).await, "A");
}

/// A file that delivers nothing until this is dropped, and then nonsense.
#[cfg(unix)]
struct Stuck {
    path: PathBuf,
    pipe: PathBuf,
}

#[cfg(unix)]
impl Stuck {
    /// Replaces this file.
    fn at(path: PathBuf) -> Self {
        let pipe = path.with_file_name("stuck");
        let made = std::process::Command::new("mkfifo").args(["-m", "600"]).arg(&pipe).status().unwrap();
        assert!(made.success(), "{pipe:?}");
        // Open readers read the old file; no reader finds half of one.
        fs::rename(&pipe, &path).unwrap();
        Self { path, pipe }
    }
}

#[cfg(unix)]
impl Drop for Stuck {
    fn drop(&mut self) {
        let (path, pipe) = (&self.path, self.pipe.clone());
        fs::rename(path, &pipe).and_then(|()| fs::write(path, "nonsense")).expect("the directory is there");
        // Opening the pipe for writing releases its waiting readers. On a separate thread, because the open blocks
        // without a reader.
        std::thread::spawn(move || drop(fs::OpenOptions::new().write(true).open(pipe)));
    }
}

/// The maximum of parallel requests waits for a disk; one more must retry, and so must all of them once the file
/// turns out to be damaged.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_authority_with_stuck_or_damaged_files_reports_it_and_calls_continue() {
    const AT_ONCE: usize = 8;
    let mut config = patient();
    // A request waits for half of the timeout.
    config.hello_timeout = Duration::from_secs(12);
    let lab = Lab::start_with("stuck", config).await;
    let desk = builder(&lab.member(Role::Client, "desk").await).connect(&url(&lab.edge)).await.unwrap();
    let (token, other) = (lab.token(|spec| spec.uses = 99), lab.token(|_| {}));
    let mut joiners = Vec::new();
    for _ in 0..=AT_ONCE {
        joiners.push(RawJoiner::connect(lab.edge.address(), &token).await);
    }
    let stuck = Stuck::at(lab.directory.join("authority/tokens").join(token.id()));
    let asking = joiners.iter().map(|joiner| async {
        joiner.ask(&joiner.join_header(lab.authority.cluster(), &token, ""), &joiner.request()).await
    });
    let mut asking: FuturesUnordered<_> = asking.collect();
    let first = tokio::time::timeout(LONG, asking.next()).await.unwrap().unwrap();
    assert_eq!(first.unwrap_err(), (Some(ResetCode::Refused), "busy".to_owned()));
    until(|| lab.counted("busy") == 1).await;
    assert_eq!(shout(&desk).await, "A");

    drop(stuck);
    while let Some(answer) = tokio::time::timeout(LONG, asking.next()).await.unwrap() {
        assert_eq!(answer.unwrap(), (FrameKind::Fail, "authority_failed".to_owned()));
    }
    until(|| lab.counted("authority_failed") == AT_ONCE as u64).await;
    assert_eq!(shout(&desk).await, "A");
    // Another token still works.
    assert_eq!(lab.join(&other, "left").await.unwrap().role(), Role::Node);
}
