//! Clusters with an authority: joining, refusals, and certificates over time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use callboard_codec::Value;
use callboard_codec::wire::{Call, Fail, FrameKind, Hello, ResetCode, frame_head};
use callboard_core::edge::ErrorTraces;
use callboard_core::remote::RemoteStages;
use callboard_core::{App, Caller, ErrorKind, Pipeline};
use callboard_net::testing::{RawJoiner, RawPeer, ahead, impostor, issued};
use callboard_net::{
    Authority, BindError, Cluster, ConnectError, Identity, IdentityError, JoinError, JoinToken, NetConfig, QuicEdge,
    QuicUrl, Role, StaticView, TokenSpec, join,
};

use crate::common::{self, LONG, patient, until};
use crate::lab::{Lab, builder, counted, hello, serve, shout, total, url, word};

const LIFE: Duration = Duration::from_secs(200);

/// A member with a certificate of [`LIFE`] whose clock says that it is time for the next one, with a quarter left.
fn due(member: &Identity) -> Identity {
    ahead(member, LIFE.mul_f64(0.75))
}

/// Requests a certificate under this name as an honest holder of the token.
async fn join_as(lab: &Lab, joiner: &RawJoiner, token: &JoinToken, name: &str) -> (FrameKind, String) {
    let wish = joiner.join_header(lab.authority.cluster(), token, name);
    joiner.ask(&wish, &joiner.request()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_joins_as_a_node_serves_and_one_that_joins_as_a_client_calls() {
    let lab = Lab::start("joins").await;
    let node = lab.member(Role::Node, "left").await;
    assert_eq!((node.name().as_str(), node.role(), node.cluster()), ("left", Role::Node, lab.authority.cluster()));
    // The directory has the issued certificate.
    let node = Identity::open(&lab.directory.join("left")).unwrap();
    let (edge, _node) = serve(node).await;
    let client = lab.member(Role::Client, "desk").await;
    for url in [url(&lab.edge), url(&edge)] {
        assert_eq!(shout(&builder(&client).connect(&url).await.unwrap()).await, "A");
    }
    let listed: Vec<_> =
        lab.authority.members().unwrap().members.into_iter().map(|member| (member.name, member.role)).collect();
    assert_eq!(listed, [("desk".to_owned(), Role::Client), ("left".to_owned(), Role::Node)]);
    assert!(lab.edge.metrics().contains("callboard_net_members_joined_total 2\n"), "{}", lab.edge.metrics());
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_owners_can_read_keys_and_no_file_contains_a_token() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::start("keys").await;
    let token = lab.token(|_| {});
    lab.join(&token, "left").await.unwrap();
    let secret = token.to_string().rsplit('-').next().unwrap().to_owned();
    let mut directories = vec![lab.directory.join("authority"), lab.directory.join("left")];
    let mut files = 0;
    while let Some(directory) = directories.pop() {
        let mode = |path: &PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&directory), 0o700, "{directory:?}");
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            files += 1;
            assert_eq!(mode(&path), 0o600, "{path:?}");
            assert!(!std::fs::read_to_string(&path).unwrap().contains(&secret), "{path:?}");
        }
    }
    assert!(files >= 7, "{files}");
    for path in ["authority/authority.key", "left/identity.pem", "left/secret"] {
        let path = lab.directory.join(path);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let error = Identity::open(path.parent().unwrap()).unwrap_err();
        assert!(matches!(error, IdentityError::Exposed { .. }), "{error:?}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        Identity::open(path.parent().unwrap()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_valid_for_its_number_of_members_and_its_time() {
    let lab = Lab::start("uses").await;
    let token = lab.token(|spec| spec.uses = 2);
    for name in ["one", "two"] {
        lab.join(&token, name).await.unwrap();
    }
    assert_eq!(word(&lab.join(&token, "three").await.unwrap_err()), "used_up_token");
    assert!(Identity::open(&lab.directory.join("three")).is_err());

    let short = lab.token(|spec| spec.expires_in = Duration::from_secs(1));
    let over = SystemTime::now() + Duration::from_secs(1);
    until(|| SystemTime::now() > over).await;
    let error = lab.join(&short, "four").await.unwrap_err();
    assert_eq!(word(&error), "expired_token");
    assert!(error.to_string().contains("callboard cluster token"), "{error}");
    // Making the next token removes it.
    lab.token(|_| {});
    assert_eq!(word(&lab.join(&short, "four").await.unwrap_err()), "unknown_token");
    for reason in ["used_up_token", "expired_token", "unknown_token"] {
        until(|| lab.counted(reason) == 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_token_admits_no_further_member() {
    let lab = Lab::start("revoked").await;
    let (token, other) = (lab.token(|spec| spec.uses = 9), lab.token(|_| {}));
    lab.join(&token, "one").await.unwrap();
    assert!(lab.authority.revoke(&token.id()).unwrap());
    let error = lab.join(&token, "two").await.unwrap_err();
    assert_eq!(word(&error), "revoked_token");
    assert!(error.to_string().contains("callboard cluster token"), "{error}");
    until(|| lab.counted("revoked_token") == 1).await;
    // A member that joined with it stays, and other tokens still work.
    let members = lab.authority.members().unwrap().members;
    assert_eq!((members[0].name.as_str(), &members[0].token), ("one", &token.id()));
    lab.join(&other, "two").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_taken_once_and_a_removed_member_is_not_renewed() {
    let lab = Lab::start("names").await;
    let token = lab.token(|spec| {
        spec.uses = 9;
        spec.certificate_life = LIFE;
    });
    lab.join(&token, "left").await.unwrap();
    let again = join(&token, &lab.url(), &lab.directory.join("other"), Some("left")).await.unwrap_err();
    assert_eq!(word(&again), "name_taken");
    until(|| lab.counted("name_taken") == 1).await;
    for name in ["Left", "a.b", "authority"] {
        let error = join(&token, &lab.url(), &lab.directory.join("other"), Some(name)).await.unwrap_err();
        assert_eq!(word(&error), "bad_name", "{error}");
    }
    until(|| lab.counted("bad_name") == 3).await;
    let unnamed = join(&token, &lab.url(), &lab.directory.join("unnamed"), None).await.unwrap();
    assert!(unnamed.name().starts_with("node-"), "{}", unnamed.name());

    let removed = lab.join(&token, "gone").await.unwrap();
    assert!(lab.authority.remove("gone").unwrap());
    assert!(!lab.authority.remove("gone").unwrap());
    // It asks for a new certificate as soon as it has an endpoint.
    let _edge = QuicEdge::bind(common::loopback(), due(&removed), patient()).unwrap();
    until(|| lab.counted("removed_member") > 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_shown_only_to_its_own_authority() {
    let (lab, other) = (Lab::start("own").await, Lab::start("other").await);
    let token = lab.token(|_| {});
    let error = join(&token, &other.url(), &lab.directory.join("x"), None).await.unwrap_err();
    assert!(matches!(error, JoinError::OtherAuthority { .. }), "{error:?}");
    until(|| other.counted("unknown_authority") == 1).await;
    // A node of the cluster that issues no certificates is not asked either.
    let (edge, _node) = serve(lab.member(Role::Node, "left").await).await;
    let error = join(&token, &url(&edge).parse().unwrap(), &lab.directory.join("x"), None).await.unwrap_err();
    assert!(matches!(error, JoinError::NoIssuer { .. }), "{error:?}");
    until(|| counted(&edge, "other_protocol") > 0).await;
    // The token still works.
    lab.join(&token, "right").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proof_of_another_connection_is_refused() {
    let lab = Lab::start("replay").await;
    let (token, cluster) = (lab.token(|_| {}), lab.authority.cluster());
    let address = lab.edge.address();
    // Recorded on one connection, where it was never sent.
    let honest = RawJoiner::connect(address, &token).await;
    let recorded = honest.join_header(cluster, &token, "left");
    let relay = RawJoiner::connect(address, &token).await;
    let refused = relay.ask(&recorded, &honest.request()).await.unwrap();
    assert_eq!(refused, (FrameKind::Fail, "replayed_token".to_owned()));
    // The right connection, and another key.
    let refused = honest.ask(&recorded, &relay.request()).await.unwrap();
    assert_eq!(refused, (FrameKind::Fail, "replayed_token".to_owned()));
    until(|| lab.counted("replayed_token") == 2).await;

    let other = RawJoiner::connect(address, &token).await;
    let refused =
        other.ask(&other.join_header("lab-0123456789abcdef", &token, "left"), &other.request()).await.unwrap();
    assert_eq!(refused, (FrameKind::Fail, "other_cluster".to_owned()));
    let damaged = RawJoiner::connect(address, &token).await;
    let request = damaged.request().replace('A', "B");
    let refused = damaged.ask(&damaged.join_header(cluster, &token, "left"), &request).await.unwrap();
    assert_eq!(refused.1, "replayed_token");
    // None of them has used it.
    lab.join(&token, "left").await.unwrap();
}

/// The same key asks again after a lost answer and is the same member; under another name it is another member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_has_used_a_token_is_refused_under_a_second_name() {
    let lab = Lab::start("second-name").await;
    let token = lab.token(|_| {});
    let first = RawJoiner::connect(lab.edge.address(), &token).await;
    assert_eq!(join_as(&lab, &first, &token, "left").await, (FrameKind::Certificate, String::new()));
    let again = first.once_more(lab.edge.address(), &token).await;
    assert_eq!(join_as(&lab, &again, &token, "left").await.0, FrameKind::Certificate);
    for name in ["right", ""] {
        let second = first.once_more(lab.edge.address(), &token).await;
        assert_eq!(join_as(&lab, &second, &token, name).await, (FrameKind::Fail, "used_up_token".to_owned()));
    }
    assert_eq!(lab.names(), ["left"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_member_cannot_return_with_its_used_token() {
    let lab = Lab::start("removed-use").await;
    let token = lab.token(|_| {});
    let first = RawJoiner::connect(lab.edge.address(), &token).await;
    assert_eq!(join_as(&lab, &first, &token, "left").await.0, FrameKind::Certificate);
    assert!(lab.authority.remove("left").unwrap());
    let second = first.once_more(lab.edge.address(), &token).await;
    assert_eq!(join_as(&lab, &second, &token, "left").await, (FrameKind::Fail, "used_up_token".to_owned()));
    assert_eq!(lab.names(), Vec::<String>::new());
    // With another token the same key is accepted.
    let other = lab.token(|_| {});
    let third = first.once_more(lab.edge.address(), &other).await;
    assert_eq!(join_as(&lab, &third, &other, "left").await.0, FrameKind::Certificate);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_join_request_is_refused_and_affects_no_other_member() {
    let lab = Lab::start("nonsense").await;
    let token = lab.token(|_| {});
    let too_long = frame_head(FrameKind::Join, 0, &Hello::default(), 1 << 20).unwrap();
    for pieces in [
        vec![too_long],
        vec![bytes::Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n")],
        vec![frame_head(FrameKind::Hello, 0, &Hello::default(), 0).unwrap()],
    ] {
        let joiner = RawJoiner::connect(lab.edge.address(), &token).await;
        let (code, reason) = joiner.ask_in_bytes(pieces).await.unwrap_err();
        assert_eq!((code, reason.as_str()), (Some(ResetCode::Refused), "no_request"));
    }
    assert_eq!(lab.counted("no_request"), 3);
    let renewal = frame_head(FrameKind::Renew, 0, &Hello::default(), 0).unwrap();
    let joiner = RawJoiner::connect(lab.edge.address(), &token).await;
    let refused = joiner.ask_in_bytes(vec![renewal]).await.unwrap();
    assert_eq!(refused, (FrameKind::Fail, "no_certificate".to_owned()));
    until(|| lab.counted("no_certificate") == 1).await;
    lab.join(&token, "left").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_with_only_a_token_may_send_little_and_on_one_stream() {
    let mut config = patient();
    config.hello_timeout = Duration::from_secs(3);
    let lab = Lab::start_with("stuffed", config).await;
    let desk = builder(&lab.member(Role::Client, "desk").await).connect(&url(&lab.edge)).await.unwrap();
    let joiner = RawJoiner::connect(lab.edge.address(), &lab.token(|_| {})).await;
    let stuffing = tokio::spawn(async move { joiner.flood().await });
    assert_eq!(shout(&desk).await, "A");
    let sent = tokio::time::timeout(LONG, stuffing).await.expect("it is closed").unwrap();
    assert_eq!(sent, (1, 1), "streams and bytes");
    until(|| lab.counted("hello_timeout") == 1).await;
    assert_eq!(shout(&desk).await, "A");
}

/// A member has a share of the connections, clients and operators leave some to nodes, and joining needs none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn greedy_clients_block_neither_nodes_nor_renewals() {
    let mut config = patient();
    (config.max_connections, config.max_connections_per_member) = (8, 4);
    let lab = Lab::start_with("shares", config).await;
    let cluster = lab.authority.cluster();
    let mut open = Vec::new();
    for (role, name, most) in [(Role::Client, "desk", 4), (Role::Operator, "lap", 3)] {
        let client = lab.member(role, name).await;
        for _ in 0..most {
            let peer = RawPeer::connect(lab.edge.address(), &client).await.unwrap();
            peer.greet(&hello(cluster)).await.unwrap();
            open.push(peer);
            until(|| lab.edge.connections() == open.len()).await;
        }
        assert_eq!(lab.edge.connections(), open.len());
        let beyond = RawPeer::connect(lab.edge.address(), &client).await.unwrap();
        // The welcome may be in flight already; nothing follows it.
        let _ = beyond.greet(&hello(cluster)).await;
        let ended = tokio::time::timeout(LONG, beyond.closed()).await.expect("it is closed");
        assert_eq!(ended, (Some(ResetCode::Refused), "too_many".to_owned()), "{name}");
    }
    let node = lab.member(Role::Node, "left").await;
    let peer = RawPeer::connect(lab.edge.address(), &node).await.unwrap();
    peer.greet(&hello(cluster)).await.unwrap();
    until(|| lab.edge.connections() == 8).await;
    // None is left, but members join and renew.
    let brief = lab.token(|spec| spec.certificate_life = LIFE);
    let renewed = lab.join(&brief, "right").await.unwrap();
    let _edge = QuicEdge::bind(common::loopback(), due(&renewed), patient()).unwrap();
    until(|| total(&lab.edge, "members_renewed") > 0).await;
    assert_eq!(lab.edge.connections(), 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_is_kept_from_clients_if_it_is_for_the_log_and_nodes_get_it() {
    for (traces, of_client) in [(ErrorTraces::Loopback, true), (ErrorTraces::Log, false)] {
        let name = if of_client { "traces" } else { "no-traces" };
        let lab = Lab::start_with(name, NetConfig { error_traces: traces, ..patient() }).await;
        for (role, is_sent) in [(Role::Client, of_client), (Role::Node, true)] {
            let member = lab.member(role, &role.to_string()).await;
            let client = builder(&member).connect(&url(&lab.edge)).await.unwrap();
            let error = client.call::<_, String>("/shout", "die".to_owned()).await.unwrap_err();
            assert_eq!(error.message(), "it is out of breath");
            assert_eq!(error.remote_trace().is_some(), is_sent, "{traces:?} {role}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_not_accepted_as_a_node_by_any_protocol() {
    let lab = Lab::start("roles").await;
    let client = lab.member(Role::Client, "desk").await;
    let error = QuicEdge::bind(common::loopback(), client.clone(), patient()).unwrap_err();
    assert!(matches!(error, BindError::Identity(IdentityError::Role { role: Role::Client })), "{error:?}");
    assert!(error.to_string().contains("role node"), "{error}");

    let cluster = lab.authority.cluster();
    let as_node = RawPeer::connect(lab.edge.address(), &client).await.unwrap();
    let hello_of_node = Hello { address: "127.0.0.1:1".to_owned(), ..hello(cluster) };
    let refused = as_node.greet(&hello_of_node).await.unwrap_err();
    assert_eq!(refused, (Some(ResetCode::Refused), "wrong_role".to_owned()));
    assert_eq!(lab.counted("wrong_role"), 1);

    // Stages are for nodes, and routes for all members.
    let peer = RawPeer::connect(lab.edge.address(), &client).await.unwrap();
    let shown = peer.greet(&hello(cluster)).await.unwrap().body_bytes;
    let body = Value::from("a").to_envelope().unwrap().into_bytes();
    let stage = Call { stages: vec!["shout".to_owned()], ..Call::default() };
    let call = vec![frame_head(FrameKind::Call, 0, &stage, body.len()).unwrap(), body];
    let answers = peer.exchange(call).await.unwrap();
    let fail: Fail = answers[0].0.header().unwrap();
    assert_eq!((fail.kind.as_str(), fail.started), (ErrorKind::PermissionDenied.as_str(), false));
    assert!(fail.message.contains("role node"), "{}", fail.message);
    assert!(lab.edge.metrics().contains("callboard_net_calls_refused_total{kind=\"permission_denied\"} 1\n"));
    assert_eq!(shout(&builder(&client).connect(&url(&lab.edge)).await.unwrap()).await, "A");

    // A client that serves is not trusted, neither as a node nor as the authority.
    let (address, _impostor) = impostor(&client);
    let caller = lab.member(Role::Client, "caller").await;
    let error = builder(&caller).connect(&format!("quic://{address}")).await.unwrap_err();
    let ConnectError::Refused { reason, .. } = &error else { panic!("{error:?}") };
    assert!(reason.starts_with("wrong_role: "), "{reason}");
    let url: QuicUrl = format!("quic://{address}").parse().unwrap();
    let error = join(&lab.token(|_| {}), &url, &lab.directory.join("x"), None).await.unwrap_err();
    assert!(matches!(error, JoinError::OtherAuthority { .. } | JoinError::NoIssuer { .. }), "{error:?}");

    // A node is not trusted as another node.
    let node = lab.member(Role::Node, "left").await;
    let peer = RawPeer::connect(lab.edge.address(), &node).await.unwrap();
    let shown_to_a_node = peer.greet(&hello(cluster)).await.unwrap().body_bytes;
    assert!(shown > 0 && shown < shown_to_a_node, "stages are shown to nodes: {shown}, {shown_to_a_node}");
    let peer = RawPeer::connect(lab.edge.address(), &node).await.unwrap();
    let refused = peer.greet(&Hello { node: "right".to_owned(), ..hello(cluster) }).await.unwrap_err();
    assert_eq!(refused.1, "other_name");
    until(|| lab.counted("other_name") == 1).await;
    assert_eq!(shout(&builder(&client).connect(&lab.url().to_string()).await.unwrap()).await, "A");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_with_a_certificate_of_another_authority_is_refused_with_advice_to_join() {
    let lab = Lab::start("bare").await;
    let other = Lab::start("bare-other").await;
    let stranger = other.member(Role::Client, "stranger").await;
    let error = builder(&stranger).connect(&url(&lab.edge)).await.unwrap_err();
    let ConnectError::Refused { reason, .. } = &error else { panic!("{error:?}") };
    assert!(reason.starts_with("unknown_authority: ") && reason.contains("callboard cluster join"), "{reason}");
    // A client that trusts the node, but presents an untrusted certificate.
    let known = lab.member(Role::Client, "known").await;
    let shown = callboard_net::testing::presenting(&known, &stranger);
    let error = builder(&shown).connect(&url(&lab.edge)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    until(|| lab.counted("unknown_authority") == 2).await;
    // A client of this authority that names another cluster.
    let peer = RawPeer::connect(lab.edge.address(), &known).await.unwrap();
    assert_eq!(peer.greet(&hello("another")).await.unwrap_err().1, "other_cluster");
    assert_eq!(shout(&builder(&known).connect(&url(&lab.edge)).await.unwrap()).await, "A");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_or_future_certificate_is_refused_with_that_reason() {
    let lab = Lab::start("times").await;
    let unaffected = builder(&lab.member(Role::Client, "beside").await).connect(&url(&lab.edge)).await.unwrap();
    let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
    let cases = [
        ("expired_certificate", now - 2 * hour, now - hour, "join again"),
        ("not_yet_valid_certificate", now + hour, now + 2 * hour, "clocks"),
    ];
    for (word, from, until_then, advice) in cases {
        let client = issued(&lab.authority, Role::Client, "desk", from, until_then);
        let error = builder(&client).connect(&url(&lab.edge)).await.unwrap_err();
        let ConnectError::Refused { reason, .. } = &error else { panic!("{error:?}") };
        assert!(reason.starts_with(word) && reason.contains(advice), "{reason}");
        until(|| lab.counted(word) == 1).await;
        // A node with such a certificate is not trusted either.
        let node = issued(&lab.authority, Role::Node, "left", from, until_then);
        let (edge, _node) = serve(node).await;
        let client =
            lab.member(Role::Client, &format!("client-{}", lab.counted(word) + u64::from(word.starts_with('n')))).await;
        let error = builder(&client).connect(&url(&edge)).await.unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        until(|| counted(&edge, word) == 1).await;
        assert_eq!(shout(&unaffected).await, "A");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_ends_with_its_certificate() {
    let lab = Lab::start("outlived").await;
    let unaffected = builder(&lab.member(Role::Client, "beside").await).connect(&url(&lab.edge)).await.unwrap();
    let now = SystemTime::now();
    let brief =
        issued(&lab.authority, Role::Client, "desk", now - Duration::from_secs(60), now + Duration::from_secs(6));
    let peer = RawPeer::connect(lab.edge.address(), &brief).await.unwrap();
    peer.greet(&hello(lab.authority.cluster())).await.unwrap();
    let ended = tokio::time::timeout(LONG, peer.closed()).await.unwrap();
    assert_eq!(ended, (Some(ResetCode::Refused), "outlived_certificate".to_owned()));
    assert!(SystemTime::now() >= now + Duration::from_secs(5), "not before");
    until(|| lab.counted("outlived_certificate") == 1).await;
    assert_eq!(shout(&unaffected).await, "A");
}

/// Its connection would be kept until a better one, which never exists.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_with_an_expired_certificate_does_not_count_as_connected() {
    let lab = Lab::start("unlinked").await;
    let now = SystemTime::now();
    let brief = issued(&lab.authority, Role::Node, "left", now - Duration::from_secs(60), now + Duration::from_secs(6));
    let (edge, _node) = serve(brief).await;
    let gate_edge = QuicEdge::bind(common::loopback(), lab.member(Role::Node, "gate").await, patient()).unwrap();
    let cluster = Cluster::start(&gate_edge, Arc::new(StaticView::try_new([edge.address()]).unwrap()));
    let counted = |peers| gate_edge.metrics().contains(&format!("callboard_net_peers_connected {peers}\n"));
    until(|| cluster.connected_peers() == 1 && counted(1)).await;
    until(|| cluster.connected_peers() == 0 && counted(0)).await;
}

/// For longer than the life of a certificate, with calls all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_renewed_without_effect_on_calls() {
    let lab = Lab::start("renewed").await;
    let life = Duration::from_secs(12);
    let short = |role| {
        lab.token(move |spec| {
            spec.role = role;
            spec.certificate_life = life;
        })
    };
    let node = lab.join(&short(Role::Node), "left").await.unwrap();
    let client = lab.join(&short(Role::Client), "desk").await.unwrap();
    let (edge, _node) = serve(node.clone()).await;
    let calling = builder(&client).connect(&url(&edge)).await.unwrap();
    // A node whose calls run their stage on the other.
    let gate = lab.join(&short(Role::Node), "gate").await.unwrap();
    let gate_edge = QuicEdge::bind(common::loopback(), gate, patient()).unwrap();
    let gate_app = App::new().route("/run", Pipeline::<String, String>::remote("shout"));
    let gate_node = gate_app.start().await.unwrap();
    gate_edge.open(gate_node.client());
    let cluster = Cluster::start(&gate_edge, Arc::new(StaticView::try_new([edge.address()]).unwrap()));
    gate_node.handle().join(cluster.clone()).unwrap();
    until(|| cluster.offers("shout")).await;
    let gate_client = gate_node.client();
    let end = SystemTime::now() + life + Duration::from_secs(1);
    let mut calls = 0;
    while SystemTime::now() < end {
        assert_eq!(shout(&calling).await, "A");
        assert_eq!(gate_client.call::<_, String>("/run", "a".to_owned()).await.unwrap(), "A");
        assert_eq!(cluster.connected_peers(), 1);
        calls += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(calls > 10, "{calls}");
    for (identity, name) in [(&node, "left"), (&client, "desk")] {
        assert!(identity.time_left() > Duration::ZERO);
        // The renewed certificate is saved.
        assert!(Identity::open(&lab.directory.join(name)).is_ok());
    }
    assert!(total(&edge, "certificate_renewals") > 0, "{}", edge.metrics());
    assert!(total(&lab.edge, "members_renewed") > 0, "{}", lab.edge.metrics());
}

/// The file is edited, or the authority's node has connected to the member by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_renewed_where_the_authority_has_moved_to() {
    let lab = Lab::start("moved").await;
    let brief = lab.token(|spec| {
        spec.role = Role::Node;
        spec.uses = 2;
        spec.certificate_life = Duration::from_secs(12);
    });
    let (edited, _edited) = serve(lab.join(&brief, "edited").await.unwrap()).await;
    let (linked, _linked) = serve(lab.join(&brief, "linked").await.unwrap()).await;
    let directory = lab.directory.clone();
    drop(lab);
    let (moved, _node) = serve(Identity::open(&directory.join("authority")).unwrap()).await;
    std::fs::write(directory.join("edited/issuers"), url(&moved)).unwrap();
    let _cluster = Cluster::start(&moved, Arc::new(StaticView::try_new([linked.address()]).unwrap()));
    for edge in [&edited, &linked] {
        until(|| total(edge, "certificate_renewals") > 0).await;
    }
}

#[test]
fn invalid_cluster_settings_are_refused_with_a_reason() {
    let directory = common::directory("refused-names").parent().unwrap().to_owned();
    let error = Authority::init(&directory.join("a"), "Lab!").unwrap_err();
    assert!(matches!(error, IdentityError::Name { .. }), "{error:?}");
    let authority = Authority::init(&directory.join("a"), "lab").unwrap();
    let error = Authority::init(&directory.join("a"), "lab").unwrap_err();
    assert!(matches!(error, IdentityError::Occupied { .. }), "{error:?}");
    let error = Identity::open(&directory.join("b")).unwrap_err();
    assert!(error.to_string().contains("callboard cluster join"), "{error}");
    let limits: [fn(&mut TokenSpec); 4] = [
        |spec| spec.uses = 0,
        |spec| spec.uses = 1001,
        |spec| spec.expires_in = Duration::ZERO,
        |spec| spec.certificate_life = Duration::from_secs(91 * 24 * 3600),
    ];
    for change in limits {
        let mut spec = TokenSpec::default();
        change(&mut spec);
        let error = authority.token(&spec).unwrap_err();
        assert!(matches!(error, IdentityError::Limit { .. }), "{error:?}");
    }
}
