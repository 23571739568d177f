//! Issuers below a root that is on no node: who may sign, which chains are refused, and the loss of an issuer.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use callboard_net::testing::{RawPeer, issued, issued_below, lists, signed_list};
use callboard_net::{
    Authority, Client, Cluster, Identity, IdentityError, MembershipProfile, NetConfig, QuicEdge, Role, StaticView,
    TokenSpec, join,
};

use crate::common::{self, LONG, patient, until};
use crate::lab::{builder, counted, gauge, serve, serve_with, shout, total, url, word};

const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);

/// A cluster without a node.
struct Offline {
    directory: PathBuf,
    root: Authority,
}

impl Offline {
    fn new(name: &str) -> Self {
        let directory = common::directory(name).parent().unwrap().to_owned();
        let root = Authority::init(&directory.join("root"), "lab").unwrap();
        Self { directory, root }
    }

    fn issuer(&self, name: &str, life: Duration) -> Authority {
        issuer(&self.root, &self.directory.join(name), name, life).unwrap()
    }
}

fn issuer(root: &Authority, directory: &Path, name: &str, life: Duration) -> Result<Authority, IdentityError> {
    let request = Authority::request_issuer(directory)?;
    let (_, chain) = root.certify_issuer(&request, name, life, SystemTime::now())?;
    Ok(Authority::install_issuer(directory, &chain, SystemTime::now())?.1)
}

fn hour() -> (SystemTime, SystemTime) {
    (SystemTime::now(), SystemTime::now() + 60 * LONG)
}

/// In both directions: as a client, and as a server.
async fn refusals(served: &QuicEdge, trusted: &Identity, false_one: &Identity) -> (String, String) {
    let as_client = match RawPeer::connect(served.address(), false_one).await {
        Ok(peer) => peer.greet(&crate::lab::hello("")).await.unwrap_err().1,
        Err(reason) => reason,
    };
    let (edge, _node) = serve(false_one.clone()).await;
    let as_server = builder(trusted).start_up_wait(Duration::ZERO).connect(&url(&edge)).await.unwrap_err();
    (as_client, as_server.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_two_issuers_and_of_the_root_call_each_other() {
    let lab = Offline::new("two-issuers");
    let [left, right] = ["left", "right"].map(|name| lab.issuer(name, MONTH));
    let mut served = Vec::new();
    for identity in [&left, &right, &lab.root] {
        served.push(serve(Identity::from_authority((*identity).clone()).unwrap()).await);
    }
    let (mut clients, client) = (Vec::new(), |authority: &Authority| {
        authority.token(&TokenSpec { role: Role::Client, ..TokenSpec::default() }).unwrap()
    });
    for (authority, (edge, _)) in [&left, &right, &lab.root].into_iter().zip(&served) {
        let directory = lab.directory.join(format!("client-{}", clients.len()));
        // Only one of the named issuers has made the token.
        let urls: Vec<String> = served.iter().map(|(edge, _)| edge.address().to_string()).collect();
        let all = format!("quic://{}", urls.join(",")).parse().unwrap();
        clients.push(join(&client(authority), &all, &directory, None).await.unwrap());
        let (token, elsewhere) = (client(authority), url(&served[clients.len() % 3].0).parse().unwrap());
        let error = join(&token, &elsewhere, &lab.directory.join("nowhere"), None).await.unwrap_err();
        assert_eq!(word(&error), "unknown_token");
        assert_eq!(total(edge, "members_joined"), 1);
    }
    for identity in &clients {
        for (edge, _) in &served {
            assert_eq!(shout(&builder(identity).connect(&url(edge)).await.unwrap()).await, "A");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuer_below_an_issuer_and_one_that_is_no_authority_are_refused() {
    let lab = Offline::new("four");
    let left = lab.issuer("left", MONTH);
    let trusted = Identity::from_authority(left.clone()).unwrap();
    let (edge, _node) = serve(trusted.clone()).await;
    let (from, to) = hour();
    let honest = issued(&left, Role::Node, "honest", from, to);
    assert_eq!(shout(&builder(&honest).connect(&url(&edge)).await.unwrap()).await, "A");
    // Root, issuer, issuer, member; root, what is no authority, member; and both together.
    for (authority, is_authority) in [(&left, true), (&lab.root, false), (&left, false)] {
        let (as_client, as_server) = refusals(&edge, &trusted, &issued_below(authority, "false", is_authority)).await;
        assert!(as_client.contains("certificate"), "{as_client}");
        assert!(as_server.contains("certificate"), "{as_server}");
    }
    // The same with one certificate fewer is a chain of three: the names are no reason.
    let below = issued_below(&lab.root, "below", true);
    assert_eq!(shout(&builder(&below).connect(&url(&edge)).await.unwrap()).await, "A");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_an_ended_issuer_is_refused_although_its_own_certificate_goes_on() {
    let lab = Offline::new("ended");
    let life = Duration::from_secs(5);
    let [left, right] = [lab.issuer("left", life), lab.issuer("right", MONTH)];
    let trusted = Identity::from_authority(right).unwrap();
    let (edge, _node) = serve(trusted.clone()).await;
    let (from, to) = hour();
    let member = issued(&left, Role::Node, "member", from, to);
    assert_eq!(shout(&builder(&member).connect(&url(&edge)).await.unwrap()).await, "A");
    // Certificates are compared in whole seconds.
    let end = left.issuer().unwrap().unwrap().validity.not_after + Duration::from_secs(1);
    until(|| SystemTime::now() > end).await;
    let (as_client, as_server) = refusals(&edge, &trusted, &member).await;
    assert!(as_client.contains("expired"), "{as_client}");
    assert!(as_server.contains("expired"), "{as_server}");
    until(|| counted(&edge, "expired_certificate") > 0).await;
    // It signs nothing more, and says why.
    let error = Identity::from_authority(left).unwrap_err();
    assert!(matches!(error, IdentityError::EndedIssuer { .. }), "{error}");
}

/// A client that has connected to another issuer renews there; its directory names only the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_renews_at_an_issuer_that_it_has_met_when_its_first_one_is_gone() {
    let lab = Offline::new("met");
    let [left, right] = ["left", "right"].map(|name| lab.issuer(name, MONTH));
    let (first, first_node) = serve_with(Identity::from_authority(left.clone()).unwrap(), patient()).await;
    let (second, _node) = serve_with(Identity::from_authority(right.clone()).unwrap(), patient()).await;
    let spec = TokenSpec { role: Role::Client, certificate_life: Duration::from_secs(4), ..TokenSpec::default() };
    let token = left.token(&spec).unwrap();
    let desk = join(&token, &url(&first).parse().unwrap(), &lab.directory.join("desk"), None).await.unwrap();
    let client: Client = builder(&desk).connect(&url(&second)).await.unwrap();
    first.shutdown(Duration::ZERO).await;
    drop(first_node);
    until(|| total(&second, "members_renewed") > 1).await;
    assert_eq!(shout(&client).await, "A");
    assert_eq!(total(&second, "members_joined"), 0);
    assert_eq!(right.members().unwrap().members.len(), 1, "it is remembered there");
}

fn gossiping() -> NetConfig {
    // The poll comes too late to tell anybody.
    NetConfig { membership: Some(MembershipProfile::Near), removals_every: LONG, ..patient() }
}

/// A node that gossips with all others.
struct Gossiping {
    identity: Identity,
    edge: QuicEdge,
    _node: (callboard_core::Node, Cluster),
}

impl Gossiping {
    async fn start(identity: Identity, named: &[&Self]) -> Self {
        let (edge, node) = serve_with(identity.clone(), gossiping()).await;
        let named = StaticView::try_new(named.iter().map(|node| node.edge.address())).unwrap();
        let cluster = Cluster::start(&edge, edge.view(named));
        Self { identity, edge, _node: (node, cluster) }
    }

    /// Waits until it refuses the client, and says how long that took.
    async fn until_refused(&self, since: Instant) -> Duration {
        until(|| counted(&self.edge, "removed_member") > 0).await;
        since.elapsed()
    }
}

/// Three nodes with a connection of the same client each: two issuers, and a member of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_at_either_issuer_is_known_to_all_nodes_within_five_seconds() {
    let lab = Offline::new("removals");
    let [left, right] = ["left", "right"].map(|name| lab.issuer(name, MONTH));
    let one = Gossiping::start(Identity::from_authority(left.clone()).unwrap(), &[]).await;
    let two = Gossiping::start(Identity::from_authority(right.clone()).unwrap(), &[&one]).await;
    let join = async |name: &str, role: Role| {
        let token = left.token(&TokenSpec { role, ..TokenSpec::default() }).unwrap();
        join(&token, &url(&one.edge).parse().unwrap(), &lab.directory.join(name), Some(name)).await.unwrap()
    };
    let three = Gossiping::start(join("three", Role::Node).await, &[&two]).await;
    let [desk, other] = [join("desk", Role::Client).await, join("other", Role::Client).await];
    for node in [&one, &two, &three] {
        until(|| gauge(&node.edge, "members_up") == 2).await;
    }
    let mut open = Vec::new();
    for node in [&one, &two, &three] {
        let client = builder(&desk).connect(&url(&node.edge)).await.unwrap();
        let honest = builder(&other).connect(&url(&node.edge)).await.unwrap();
        assert_eq!((shout(&client).await, shout(&honest).await), ("A".to_owned(), "A".to_owned()));
        open.push((client, honest));
    }
    // The client has joined at the first issuer, and has connected to the second.
    let knows = || right.members().unwrap().members.iter().any(|member| member.name == "desk");
    until(knows).await;
    let removed = Instant::now();
    assert!(right.remove("desk").unwrap());
    for node in [&one, &two, &three] {
        let took = node.until_refused(removed).await;
        println!("known after {took:?}");
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
    for (_, honest) in &open {
        assert_eq!(shout(honest).await, "A");
    }
    // The other issuer keeps it, and signs it as well: the removal outlives the one that has ordered it.
    until(|| left.members().unwrap().members.iter().all(|member| member.name != "desk")).await;
    until(|| lists(&three.identity).len() == 2).await;
    let late = Gossiping::start(join("late", Role::Node).await, &[&three]).await;
    until(|| lists(&late.identity).len() == 2).await;
    let error = builder(&desk).connect(&url(&late.edge)).await.unwrap_err();
    assert!(error.to_string().contains("removed"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_a_foreign_and_an_old_list_change_nothing() {
    let (lab, other_lab) = (Offline::new("forged"), Offline::new("forged-elsewhere"));
    let [left, right] = ["left", "right"].map(|name| lab.issuer(name, MONTH));
    let of_left = Identity::from_authority(left.clone()).unwrap();
    let taking = Identity::from_authority(right).unwrap();
    let ids = ["0123456789abcdef"];
    let (from, to) = hour();
    let refused = |list: &[u8], reason: &str| {
        let error = taking.take_list(list).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert!(lists(&taking).is_empty(), "{error}");
    };
    // Of a member, of another cluster's issuer and root, and of an issuer that another issuer has made.
    let mut forged = issued(&left, Role::Node, "three", from, to);
    refused(&signed_list(&forged, 1, &ids), "not of an issuer");
    forged = issued_below(&left, "three", true);
    refused(&signed_list(&forged, 1, &ids), "not of an issuer");
    for authority in [other_lab.issuer("left", MONTH), other_lab.root] {
        refused(&signed_list(&Identity::from_authority(authority).unwrap(), 1, &ids), "not of an issuer");
    }
    // Each changed byte.
    let list = signed_list(&of_left, 5, &ids);
    for at in 0..list.len() {
        let mut changed = list.clone();
        changed[at] ^= 1;
        assert!(taking.take_list(&changed).is_err(), "byte {at}");
        assert!(lists(&taking).is_empty());
    }
    assert_eq!(taking.take_list(&list), Ok(true));
    assert_eq!(taking.take_list(&list), Ok(false), "again");
    assert_eq!(taking.take_list(&signed_list(&of_left, 4, &["fedcba9876543210"])), Ok(false), "an old one");
    let held = lists(&taking);
    assert_eq!(held.iter().map(|(_, version, _)| *version).collect::<Vec<_>>(), [5]);
    // The list of an issuer that another one has removed.
    let id = left.issuer().unwrap().unwrap().id;
    let root = Identity::from_authority(lab.root).unwrap();
    assert_eq!(taking.take_list(&signed_list(&root, 1, &[&id])), Ok(true));
    let error = taking.take_list(&signed_list(&of_left, 6, &ids)).unwrap_err();
    assert!(error.to_string().contains("removed"), "{error}");
}
