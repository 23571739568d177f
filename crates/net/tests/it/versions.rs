//! Sessions of nodes of earlier versions of this software, recorded, with a node of today in the place of their peer.
//!
//! Each file of a recording has the bytes of one stream. `CALLBOARD_RECORD=NAME cargo test --test it -- --ignored
//! records_a_session` writes one of this version; a recording of a version that users had is never made again.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use callboard_codec::wire::{Call, Credit, Done, FrameKind, Hello, Offer, VERSION, Welcome, frame_head};
use callboard_codec::{DecodeLimits, Format, Payload, Value};
use callboard_core::actor::{AskError, Question};
use callboard_core::keyed::{Answers, KeyContext, KeyedSpec, Stored};
use callboard_core::remote::RemoteStages;
use callboard_core::testing::MemoryStore;
use callboard_core::{App, Failure, Node, Pipeline, Stage, StreamPipeline, StreamStage};
use callboard_net::testing::{BareEndpoint, issued};
use callboard_net::{Authority, Cluster, Identity, MembershipProfile, NetConfig, QuicEdge, Role, StaticView};
use futures_util::{StreamExt, stream};
use quinn::{Connection, RecvStream, SendStream};

use crate::common::{LONG, directory, loopback, patient, until};

/// The name of the node whose bytes are recorded, and of its peer.
const EARLIER: &str = "earlier";
const PEER: &str = "peer";

/// A recording has this in the place of the cluster's name, which has a digest of the authority's certificate.
const CLUSTER: u8 = b'?';

fn directory_of(version: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recorded").join(version)
}

/// A cluster with the two nodes.
struct Pair {
    authority: Authority,
}

impl Pair {
    fn new(name: &str) -> Self {
        let directory = directory(name).parent().unwrap().join("authority");
        Self { authority: Authority::init(&directory, "lab").unwrap() }
    }

    fn identity(&self, name: &str) -> Identity {
        let now = SystemTime::now();
        issued(&self.authority, Role::Node, name, now - LONG, now + 60 * LONG)
    }

    /// A node of this process.
    async fn serve(&self, name: &str, app: App, config: NetConfig) -> (QuicEdge, Node) {
        let config = NetConfig { node: name.to_owned(), membership: Some(MembershipProfile::Near), ..config };
        let edge = QuicEdge::bind(loopback(), self.identity(name), config).unwrap();
        let node = app.start().await.unwrap();
        edge.open(node.client());
        (edge, node)
    }
}

/// The stages of the node that is called.
fn stages() -> App {
    let shout = Stage::each("shout", |text: &String| match text.as_str() {
        "die" => Err(Failure::new("it is out of breath")),
        text => Ok(text.to_uppercase()),
    });
    let never = Stage::<String, String>::each_async("never", |_| std::future::pending());
    let count = StreamStage::each("count", |n: &u64| stream::iter(0..=*n).map(Ok));
    App::new().route("/shout", shout).route("/never", never).route_streaming("/count", count)
}

/// A node that calls them.
fn gateway() -> App {
    App::new()
        .route("/shout", Pipeline::<String, String>::remote("shout"))
        .route("/never", Pipeline::<String, String>::remote("never"))
        .route_streaming("/count", StreamPipeline::<u64, u64>::remote("count"))
}

fn envelope<T: callboard_codec::Data>(value: T) -> Bytes {
    Payload::new(value).to_envelope().unwrap().into_bytes()
}

fn frame<H: serde::Serialize>(kind: FrameKind, entry: u16, header: &H, body: &Bytes) -> Bytes {
    [frame_head(kind, entry, header, body.len()).unwrap(), body.clone()].concat().into()
}

fn empty() -> std::collections::BTreeMap<String, u8> {
    std::collections::BTreeMap::new()
}

/// The next frame of a stream, as it is.
async fn next_frame(stream: &mut RecvStream) -> Option<Bytes> {
    let mut bytes = vec![0; 20];
    stream.read_exact(&mut bytes).await.ok()?;
    let header = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
    let body = u64::from_le_bytes(bytes[12..20].try_into().unwrap()) as usize;
    bytes.resize(20 + header + body, 0);
    stream.read_exact(&mut bytes[20..]).await.ok()?;
    Some(bytes.into())
}

fn kind_of(frame: &[u8]) -> u8 {
    frame[4]
}

/// The messages of gossip in a recorded or received one-way frame.
fn gossip_of(frame: &[u8]) -> &[u8] {
    let header = u32::from_le_bytes(frame[8..12].try_into().unwrap()) as usize;
    &frame[20 + header..]
}

/// The one-way streams of a connection, as they come.
fn notices(connection: &Connection) -> Arc<Mutex<Vec<Bytes>>> {
    let (notices, connection) = (Arc::<Mutex<Vec<Bytes>>>::default(), connection.clone());
    // The accepting side allows none before the hello.
    connection.set_max_concurrent_uni_streams(16_u32.into());
    let received = Arc::clone(&notices);
    tokio::spawn(async move {
        while let Ok(mut stream) = connection.accept_uni().await {
            if let Some(frame) = next_frame(&mut stream).await {
                received.lock().unwrap().push(frame);
            }
        }
    });
    notices
}

/// Waits for a notice that fulfils this.
async fn notice(notices: &Mutex<Vec<Bytes>>, is_wanted: impl Fn(&Bytes) -> bool) -> Bytes {
    let found = || notices.lock().unwrap().iter().find(|notice| is_wanted(notice)).cloned();
    until(|| found().is_some()).await;
    found().unwrap()
}

fn is_gossip(frame: &Bytes, kind: u8) -> bool {
    kind_of(frame) == FrameKind::Gossip.number() && gossip_of(frame)[1] == kind
}

async fn send_notice(connection: &Connection, frame: &[u8]) {
    let mut stream = connection.open_uni().await.unwrap();
    stream.write_all(frame).await.unwrap();
    stream.finish().unwrap();
}

/// A message of gossip of the peer, which has no process of its own.
async fn send_gossip(connection: &Connection, kind: u8, rest: &[u8]) {
    let identity = [&[PEER.len() as u8], PEER.as_bytes(), &[4, 127, 0, 0, 1, 0, 1], &[0; 7], &[9], &[0; 4]].concat();
    let message = [&[1, kind], &*identity, rest].concat();
    send_notice(connection, &frame(FrameKind::Gossip, 0, &empty(), &message.into())).await;
}

async fn open(connection: &Connection, request: &[u8], is_last: bool) -> (SendStream, RecvStream) {
    let (mut send, receive) = connection.open_bi().await.unwrap();
    send.write_all(request).await.unwrap();
    if is_last {
        send.finish().unwrap();
    }
    (send, receive)
}

fn stage_call(stage: &str) -> Call {
    Call { stages: vec![stage.to_owned()], millis_left: 60_000, ..Call::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes a recording"]
async fn records_a_session() {
    let version = std::env::var("CALLBOARD_RECORD").expect("CALLBOARD_RECORD has the name of the recording");
    let (directory, pair) = (directory_of(&version), Pair::new("recording"));
    std::fs::create_dir_all(&directory).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(directory.join(format!("{name}.bin")), bytes).unwrap();
    let features: Vec<String> = ["gossip", "reports"].map(str::to_owned).to_vec();

    // It calls the peer.
    let peer = BareEndpoint::serving(loopback(), &pair.identity(PEER)).unwrap();
    let (edge, node) = pair.serve(EARLIER, gateway(), patient()).await;
    let address = peer.endpoint().local_addr().unwrap();
    let cluster = Cluster::start(&edge, edge.view(StaticView::try_new([address]).unwrap()));
    node.handle().join(cluster.clone()).unwrap();
    let connection = peer.endpoint().accept().await.unwrap().await.unwrap();
    let (mut control, mut hello) = connection.accept_bi().await.unwrap();
    let name = pair.authority.cluster().as_bytes();
    let mut hello = next_frame(&mut hello).await.unwrap().to_vec();
    let at = hello.windows(name.len()).position(|window| window == name).unwrap();
    hello[at..at + name.len()].fill(CLUSTER);
    write("hello", &hello);
    let offers: Vec<_> = [("shout", false), ("never", false), ("count", true)]
        .map(|(name, streams)| Offer { name: name.to_owned(), stage: true, streams, ..Offer::default() })
        .into();
    let welcome = Welcome {
        version: 1,
        max_body_bytes: 1 << 26,
        max_stages: 16,
        features: features.clone(),
        ..Welcome::default()
    };
    control.write_all(&frame(FrameKind::Welcome, 0, &welcome, &envelope(offers))).await.unwrap();
    let received = notices(&connection);
    write("digest", &notice(&received, |frame| is_gossip(frame, 2)).await);
    send_gossip(&connection, 3, &[0; 512]).await;
    write("members", &notice(&received, |frame| is_gossip(frame, 4)).await);
    if features_of(&hello).contains(&"reports") {
        write("versions", &notice(&received, |frame| is_gossip(frame, 6)).await);
        send_gossip(&connection, 7, &[0; 8]).await;
        write("report", &notice(&received, |frame| is_gossip(frame, 8)).await);
    }

    let done = |value: &str| frame(FrameKind::Done, 0, &Done::default(), &envelope(value.to_owned()));
    until(|| cluster.offers("shout")).await;
    let shout = |route: &'static str| {
        let client = node.client();
        tokio::spawn(async move { client.call::<_, String>(route, "hello".to_owned()).await })
    };
    let calling = shout("/shout");
    let (mut send, mut receive) = connection.accept_bi().await.unwrap();
    write("call", &next_frame(&mut receive).await.unwrap());
    send.write_all(&done("HELLO")).await.unwrap();
    send.finish().unwrap();
    assert_eq!(calling.await.unwrap().unwrap(), "HELLO");

    // Calls that are made together share a stream, mostly.
    let pack = loop {
        let calls = ["/shout", "/never", "/shout"].map(shout);
        let (_send, mut receive) = connection.accept_bi().await.unwrap();
        let mut pack = Vec::new();
        while let Ok(Some(frame)) = tokio::time::timeout(Duration::from_millis(200), next_frame(&mut receive)).await {
            pack.push(frame);
        }
        calls[1].abort();
        if pack.len() == 3
            && let Ok(Some(cancel)) = tokio::time::timeout(LONG, next_frame(&mut receive)).await
        {
            pack.push(cancel);
            calls.iter().for_each(tokio::task::JoinHandle::abort);
            break pack;
        }
        calls.iter().for_each(tokio::task::JoinHandle::abort);
        while tokio::time::timeout(Duration::from_millis(200), connection.accept_bi()).await.is_ok() {}
    };
    assert_eq!(kind_of(&pack[3]), FrameKind::Cancel.number());
    write("pack", &pack.concat());

    let client = node.client();
    let counting = tokio::spawn(async move {
        let all = client.replies::<u64, u64>("/count", 99).unwrap();
        all.map(Result::unwrap).collect::<Vec<_>>().await.len()
    });
    let (mut send, mut receive) = connection.accept_bi().await.unwrap();
    write("stream", &next_frame(&mut receive).await.unwrap());
    let item = |n: u64| frame(FrameKind::Item, 0, &empty(), &envelope(n));
    for n in 0..16 {
        send.write_all(&item(n)).await.unwrap();
    }
    write("credit", &next_frame(&mut receive).await.unwrap());
    send.write_all(&frame(FrameKind::Done, 0, &Done::default(), &Bytes::new())).await.unwrap();
    send.finish().unwrap();
    assert_eq!(counting.await.unwrap(), 16);
    drop((cluster, node));
    edge.shutdown(Duration::ZERO).await;

    // The peer calls it.
    let (edge, node) = pair.serve(EARLIER, stages(), patient()).await;
    let calling = BareEndpoint::calling(&pair.identity(PEER)).unwrap();
    let connection = calling.connect(edge.address()).await.unwrap();
    let cluster = pair.authority.cluster().to_owned();
    let hello = Hello { min_version: 1, max_version: VERSION, cluster, features, ..Hello::default() };
    let (_control, mut welcome) = open(&connection, &frame(FrameKind::Hello, 0, &hello, &Bytes::new()), false).await;
    write("welcome", &next_frame(&mut welcome).await.unwrap());
    let received = notices(&connection);
    for (name, call, input) in [
        ("done", stage_call("shout"), envelope("hello".to_owned())),
        ("fail", stage_call("shout"), envelope("die".to_owned())),
        ("items", Call { credit: 8, ..stage_call("count") }, envelope(4_u64)),
    ] {
        let (_send, mut answer) = open(&connection, &frame(FrameKind::Call, 0, &call, &input), call.credit == 0).await;
        write(name, &answer.read_to_end(1 << 20).await.unwrap());
    }
    let draining = tokio::spawn(async move { edge.shutdown(LONG).await });
    write("goaway", &notice(&received, |frame| kind_of(frame) == FrameKind::Goaway.number()).await);
    drop((connection, node));
    draining.await.unwrap();
}

/// The features in the header of a hello or welcome.
fn features_of(frame: &[u8]) -> Vec<&'static str> {
    let all = ["gossip", "reports", "orders"];
    all.into_iter().filter(|name| frame.windows(name.len()).any(|window| window == name.as_bytes())).collect()
}

/// A recorded version: what its nodes can do beyond version 1 of the protocol.
struct Recorded {
    version: &'static str,
    /// The highest number of a kind of frame, and of a kind of gossip, that its nodes know.
    newest: (u8, u8),
}

const BEFORE_REPORTS: Recorded = Recorded { version: "before-reports", newest: (15, 4) };
const FIRST_REPORTS: Recorded = Recorded { version: "first-reports", newest: (17, 8) };

impl Recorded {
    fn read(&self, name: &str) -> Bytes {
        let path = directory_of(self.version).join(format!("{name}.bin"));
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
    }

    fn has_reports(&self) -> bool {
        self.newest.1 > 4
    }

    /// The hello, of this cluster.
    fn hello(&self, cluster: &str) -> Vec<u8> {
        let (mut hello, hole) = (self.read("hello").to_vec(), vec![CLUSTER; cluster.len()]);
        let at = hello.windows(hole.len()).position(|window| window == hole).expect("a hole for the cluster");
        hello[at..at + hole.len()].copy_from_slice(cluster.as_bytes());
        hello
    }
}

/// The header of the welcome, as those versions read it.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct EarlierWelcome {
    version: u8,
    max_body_bytes: u64,
    draining: bool,
    max_stages: u32,
    features: Vec<String>,
    observed: String,
}

/// Reads a frame whole, as any version does: the prelude, then the header by its fields.
fn header<H: serde::de::DeserializeOwned + Default>(frame: &Bytes) -> H {
    let mut reader = callboard_codec::wire::FrameReader::new(callboard_codec::wire::FrameLimits::default());
    reader.push(frame.clone());
    match reader.next_part().unwrap() {
        Some(callboard_codec::wire::FramePart::Head(head)) => head.header().unwrap(),
        part => panic!("{part:?}"),
    }
}

fn value(frame: &[u8]) -> Value {
    Value::decode(Format::Envelope, &Bytes::copy_from_slice(gossip_of(frame)), &DecodeLimits::default()).unwrap()
}

/// A recorded node connects, gossips, and calls.
async fn is_served(recorded: Recorded) {
    let pair = Pair::new(&format!("served-{}", recorded.version));
    // It has no process, so that nobody can call it.
    let (edge, node) = pair.serve(PEER, stages(), NetConfig { calls_back: false, ..patient() }).await;
    let cluster = Cluster::start(&edge, edge.view(StaticView::try_new([]).unwrap()));
    node.handle().join(cluster.clone()).unwrap();
    let calling = BareEndpoint::calling(&pair.identity(EARLIER)).unwrap();
    let connection = calling.connect(edge.address()).await.unwrap();
    let (_control, mut welcomed) = open(&connection, &recorded.hello(pair.authority.cluster()), false).await;
    let welcome: EarlierWelcome = header(&next_frame(&mut welcomed).await.unwrap());
    assert_eq!((welcome.version, welcome.draining), (1, false));
    assert!(welcome.max_body_bytes > 0 && welcome.max_stages > 1 && !welcome.observed.is_empty(), "{welcome:?}");
    assert!(welcome.features.contains(&"gossip".to_owned()), "{welcome:?}");

    let received = notices(&connection);
    send_notice(&connection, &recorded.read("digest")).await;
    let theirs = notice(&received, |frame| is_gossip(frame, 3)).await;
    assert_eq!(gossip_of(&theirs)[2..3 + PEER.len()], *[&[PEER.len() as u8], PEER.as_bytes()].concat());
    send_notice(&connection, &recorded.read("members")).await;
    let member = || cluster.members().into_iter().find(|member| member.name == EARLIER);
    until(|| member().is_some()).await;
    if recorded.has_reports() {
        send_notice(&connection, &recorded.read("versions")).await;
        notice(&received, |frame| is_gossip(frame, 7)).await;
        send_notice(&connection, &recorded.read("report")).await;
        until(|| member().is_some_and(|member| member.report.is_some())).await;
        let report = member().unwrap().report.unwrap();
        assert_eq!(report.routes.len(), 3, "{report:?}");
    }

    let (_, mut answer) = open(&connection, &recorded.read("call"), true).await;
    let done = next_frame(&mut answer).await.unwrap();
    assert_eq!((kind_of(&done), value(&done)), (FrameKind::Done.number(), Value::from("HELLO")));
    let (_send, mut answers) = open(&connection, &recorded.read("pack"), false).await;
    for _ in 0..2 {
        let done = next_frame(&mut answers).await.unwrap();
        assert_eq!((kind_of(&done), value(&done)), (FrameKind::Done.number(), Value::from("HELLO")));
    }
    until(|| edge.metrics().contains("callboard_net_calls_cancelled_total 1")).await;
    let (mut send, mut items) = open(&connection, &recorded.read("stream"), false).await;
    let (granted, credit) =
        (header::<Call>(&recorded.read("stream")).credit, header::<Credit>(&recorded.read("credit")));
    assert!(granted > 0 && credit.items > 0);
    for n in 0..granted + credit.items {
        if n == granted {
            send.write_all(&recorded.read("credit")).await.unwrap();
        }
        let item = next_frame(&mut items).await.unwrap();
        assert_eq!((kind_of(&item), value(&item)), (FrameKind::Item.number(), Value::from(u64::from(n))));
    }

    // Nothing that it does not know was sent to it.
    let (frames, messages) = recorded.newest;
    for notice in received.lock().unwrap().iter() {
        let is_known = match kind_of(notice) {
            14 => gossip_of(notice)[1] <= messages,
            kind => kind <= frames,
        };
        assert!(is_known, "{notice:?}");
    }
    // The stream of outputs has no end without further credit.
    drop((send, items));
    let draining = tokio::spawn(async move { edge.shutdown(LONG).await });
    let goaway = notice(&received, |frame| kind_of(frame) == FrameKind::Goaway.number()).await;
    assert!(goaway.len() > 20);
    drop(connection);
    draining.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_from_before_reports_is_served_and_hears_nothing_that_it_does_not_know() {
    is_served(BEFORE_REPORTS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_the_first_reports_is_served_and_hears_nothing_that_it_does_not_know() {
    is_served(FIRST_REPORTS).await;
}

/// A node of today calls a recorded one, until that leaves.
async fn is_called(recorded: Recorded) {
    let pair = Pair::new(&format!("called-{}", recorded.version));
    let endpoint = BareEndpoint::serving(loopback(), &pair.identity(EARLIER)).unwrap();
    let (edge, node) = pair.serve(PEER, gateway(), patient()).await;
    let address = endpoint.endpoint().local_addr().unwrap();
    let cluster = Cluster::start(&edge, edge.view(StaticView::try_new([address]).unwrap()));
    node.handle().join(cluster.clone()).unwrap();
    let connection = endpoint.endpoint().accept().await.unwrap().await.unwrap();
    let (mut control, mut hello) = connection.accept_bi().await.unwrap();
    let hello: Hello = header(&next_frame(&mut hello).await.unwrap());
    assert_eq!((hello.min_version, hello.node.as_str()), (1, PEER));
    control.write_all(&recorded.read("welcome")).await.unwrap();
    let received = notices(&connection);
    until(|| cluster.offers("shout")).await;
    let answers = async {
        for name in ["done", "fail", "items"] {
            let (mut send, mut receive) = connection.accept_bi().await.unwrap();
            let call: Call = header(&next_frame(&mut receive).await.unwrap());
            assert_eq!((call.route.as_str(), call.stages.len()), ("", 1));
            send.write_all(&recorded.read(name)).await.unwrap();
            send.finish().unwrap();
        }
    };
    let client = node.client();
    let calls = async {
        assert_eq!(client.call::<_, String>("/shout", "hello".to_owned()).await.unwrap(), "HELLO");
        let error = client.call::<_, String>("/shout", "die".to_owned()).await.unwrap_err();
        assert_eq!((error.kind(), error.stage()), (callboard_core::ErrorKind::Failed, Some("shout")));
        let all: Vec<u64> = client.replies::<u64, u64>("/count", 4).unwrap().map(Result::unwrap).collect().await;
        assert_eq!(all, [0, 1, 2, 3, 4]);
    };
    tokio::join!(answers, calls);
    notice(&received, |frame| is_gossip(frame, 2)).await;
    // A notice of a later version is no reason to end.
    send_notice(&connection, &[b"CBQ\x01\xc8".as_slice(), &[0; 15]].concat()).await;
    send_notice(&connection, &recorded.read("goaway")).await;
    until(|| !cluster.offers("shout")).await;
    assert!(connection.close_reason().is_none());
    for notice in received.lock().unwrap().iter().filter(|notice| kind_of(notice) == FrameKind::Gossip.number()) {
        assert!(gossip_of(notice)[1] <= recorded.newest.1, "{notice:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_from_before_reports_is_called_until_it_leaves() {
    is_called(BEFORE_REPORTS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_the_first_reports_is_called_until_it_leaves() {
    is_called(FIRST_REPORTS).await;
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Add(u64);

impl Question for Add {
    const NAME: &str = "add";
    type Answer = u64;
}

impl Answers<Add> for Stored<u64> {
    async fn answer(&mut self, Add(by): Add, _: &KeyContext) -> Result<u64, Failure> {
        **self += by;
        Ok(**self)
    }
}

/// A node of today has actors, and its only peer has never heard of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_that_only_a_node_without_actors_could_answer_ends_at_once() {
    let pair = Pair::new("without-actors");
    let endpoint = BareEndpoint::serving(loopback(), &pair.identity(EARLIER)).unwrap();
    let kind = KeyedSpec::new("total", Arc::new(MemoryStore::new()), |_, total: Stored<u64>| async { Ok(total) });
    let config = NetConfig { join_within: Duration::from_millis(100), ..patient() };
    let (edge, node) = pair.serve(PEER, gateway().keyed(kind.accepts::<Add>()), config).await;
    let address = endpoint.endpoint().local_addr().unwrap();
    let cluster = Cluster::start(&edge, edge.view(StaticView::try_new([address]).unwrap()));
    node.handle().join(cluster.clone()).unwrap();
    let connection = endpoint.endpoint().accept().await.unwrap().await.unwrap();
    let (mut control, mut hello) = connection.accept_bi().await.unwrap();
    next_frame(&mut hello).await.unwrap();
    control.write_all(&BEFORE_REPORTS.read("welcome")).await.unwrap();
    until(|| cluster.offers("shout")).await;

    let desk = node.remote_actor("desk");
    // Far less than the time of the question.
    let at_once = Duration::from_secs(10);
    let asked = tokio::time::timeout(at_once, desk.ask(LONG, Add(1))).await.expect("nobody is waited for");
    let told = tokio::time::timeout(at_once, desk.tell(LONG, Add(1))).await.expect("nobody is waited for");
    let watched = tokio::time::timeout(at_once, desk.watch(LONG)).await.expect("nobody is waited for");
    for error in [asked.unwrap_err(), told.unwrap_err(), watched.unwrap_err()] {
        let AskError::Unreachable { reason } = &error else { panic!("{error:?}") };
        assert!(reason.contains("`desk`") && reason.ends_with("1 of them are too old for actors"), "{reason}");
        assert!(!error.was_taken());
    }
    assert!(desk.members().is_empty());
    // All keys are this node's.
    for key in ["ann", "bob", "eve"] {
        assert_eq!(node.keyed("total").ask(key, LONG, Add(1)).await, Ok(1));
    }
    let received = tokio::time::timeout(Duration::from_millis(100), connection.accept_bi()).await;
    assert!(received.is_err(), "it was asked nothing: {received:?}");
}

/// What a later version may send: fields, features and notices that are not known yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_later_version_is_served() {
    #[derive(serde::Serialize)]
    struct LaterHello {
        #[serde(flatten)]
        known: Hello,
        shape: Vec<u64>,
    }
    let pair = Pair::new("later");
    let (edge, _node) = pair.serve(PEER, stages(), NetConfig { calls_back: false, ..patient() }).await;
    let calling = BareEndpoint::calling(&pair.identity(EARLIER)).unwrap();
    let connection = calling.connect(edge.address()).await.unwrap();
    let features = (0..1_000).map(|n| format!("feature-{n}")).chain(["gossip".to_owned()]).collect();
    let cluster = pair.authority.cluster().to_owned();
    let known = Hello { min_version: 1, max_version: VERSION + 1, cluster, features, ..Hello::default() };
    let hello = frame(FrameKind::Hello, 0, &LaterHello { known, shape: vec![1, 2] }, &Bytes::new());
    let (_control, mut welcomed) = open(&connection, &hello, false).await;
    assert_eq!(header::<EarlierWelcome>(&next_frame(&mut welcomed).await.unwrap()).version, VERSION);
    for notice in [[b"CBQ\x01\xc8".as_slice(), &[0; 15]].concat(), b"CBQ\x01\x03".to_vec(), vec![7; 100]] {
        send_notice(&connection, &notice).await;
    }
    // Gossip of a later version, with its own first byte.
    send_notice(&connection, &frame(FrameKind::Gossip, 0, &empty(), &Bytes::from_static(&[2, 1, 7]))).await;
    until(|| edge.metrics().contains("callboard_net_gossip_refused_total 1")).await;
    let call = frame(FrameKind::Call, 0, &stage_call("shout"), &envelope("hello".to_owned()));
    let (_, mut answer) = open(&connection, &call, true).await;
    assert_eq!(value(&next_frame(&mut answer).await.unwrap()), Value::from("HELLO"));
}
