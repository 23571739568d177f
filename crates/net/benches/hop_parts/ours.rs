//! Three nodes: one that is called over QUIC, one whose stages and actors run on the first, and the latter's own
//! clients.

use std::sync::Arc;
use std::time::{Duration, Instant};

use callboard_codec::Value;
use callboard_core::actor::{Actor, ActorContext, ActorSpec, Question, RemoteRef, ReplyPort};
use callboard_core::remote::RemoteStages;
use callboard_core::{App, Caller, Failure, LocalClient, Node, Pipeline, Stage};
use callboard_net::{Client, Cluster, Identity, NetConfig, QuicEdge, StaticView};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// That of a call.
const ASK_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Ours {
    client: Client,
    gateway: LocalClient,
    echo: RemoteRef,
    started: tokio::sync::Mutex<mpsc::Receiver<()>>,
    cancelled: tokio::sync::Mutex<mpsc::Receiver<Instant>>,
    nodes: (Node, QuicEdge, Node, QuicEdge, Cluster),
}

/// An actor that echoes, as the stage does.
struct EchoActor;

/// The question for it.
#[derive(Serialize, Deserialize)]
struct Echo(Value);

impl Question for Echo {
    const NAME: &str = "echo";
    type Answer = Value;
}

impl Actor for EchoActor {
    type Message = (Value, ReplyPort<Value>);

    async fn handle(&mut self, (value, answer): Self::Message, _: &ActorContext<Self>) -> Result<(), Failure> {
        answer.send(value);
        Ok(())
    }
}

/// Says when it is dropped.
struct Dropped(mpsc::Sender<Instant>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.try_send(Instant::now());
    }
}

fn echo() -> Stage<Value, Value> {
    Stage::each("echo", |value: &Value| Ok(value.clone())).max_batch_size(32)
}

fn edge(identity: &Identity) -> QuicEdge {
    QuicEdge::bind("127.0.0.1:0".parse().unwrap(), identity.clone(), NetConfig::default()).unwrap()
}

impl Ours {
    pub(crate) async fn start(there: &Handle, identity: &Identity) -> Self {
        let (begins, started) = mpsc::channel(1);
        let (drops, cancelled) = mpsc::channel(1);
        let held = Stage::<Value, Value>::each_async("held", move |_| {
            let (begins, dropped) = (begins.clone(), Dropped(drops.clone()));
            async move {
                begins.send(()).await.unwrap();
                std::future::pending::<()>().await;
                drop(dropped);
                unreachable!("nothing ends it")
            }
        });
        let worker = {
            let identity = identity.clone();
            there.spawn(async move {
                let edge = edge(&identity);
                let actor = ActorSpec::new("echo", |_| EchoActor).accepts(|Echo(value), answer| (value, answer));
                let app = App::new().route("/echo", echo()).route("/held", held).actor(actor);
                let node = app.start().await.unwrap();
                edge.open(node.client());
                (node, edge)
            })
        };
        let (worker, worker_edge) = worker.await.unwrap();
        let gateway_edge = edge(identity);
        let app = App::new()
            .route("/stage", Pipeline::<Value, Value>::remote("echo"))
            .route("/held", Pipeline::<Value, Value>::remote("held"))
            .route("/local", Stage::each("local", |value: &Value| Ok(value.clone())).max_batch_size(32));
        let gateway = app.start().await.unwrap();
        gateway_edge.open(gateway.client());
        let cluster =
            Cluster::start(&gateway_edge, Arc::new(StaticView::try_new([worker_edge.address()]).expect("few peers")));
        gateway.handle().join(cluster.clone()).unwrap();
        let echo = gateway.remote_actor("echo");
        while !(cluster.offers("echo") && cluster.offers("held") && !echo.members().is_empty()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let url = format!("quic://{}", worker_edge.address());
        let client = Client::builder().identity(identity.clone()).connect(&url).await.unwrap();
        Self {
            client,
            gateway: gateway.client(),
            echo,
            started: started.into(),
            cancelled: cancelled.into(),
            nodes: (worker, worker_edge, gateway, gateway_edge, cluster),
        }
    }

    pub(crate) async fn route(&self, value: &Value) {
        let output: Value = self.client.call("/echo", value.clone()).await.unwrap();
        assert!(matches!(output, Value::Bytes(_)));
    }

    pub(crate) async fn stage(&self, value: &Value) {
        let output: Value = self.gateway.call("/stage", value.clone()).await.unwrap();
        assert!(matches!(output, Value::Bytes(_)));
    }

    pub(crate) async fn ask(&self, value: &Value) {
        let output = self.echo.ask(ASK_TIMEOUT, Echo(value.clone())).await.unwrap();
        assert!(matches!(output, Value::Bytes(_)));
    }

    pub(crate) async fn local(&self, value: &Value) {
        let output: Value = self.gateway.call("/local", value.clone()).await.unwrap();
        assert!(matches!(output, Value::Bytes(_)));
    }

    /// Streams that the node has answered on which the stages run.
    pub(crate) fn streams(&self) -> u64 {
        let metrics = self.nodes.1.metrics();
        let line = metrics.lines().find(|line| line.starts_with("callboard_net_streams_total ")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// The time until a worker on the peer learns that its caller has left.
    pub(crate) async fn cancel(&self) -> Duration {
        let gateway = self.gateway.clone();
        let calling = tokio::spawn(async move { gateway.call::<Value, Value>("/held", Value::Null).await });
        self.started.lock().await.recv().await.unwrap();
        let left = Instant::now();
        calling.abort();
        self.cancelled.lock().await.recv().await.unwrap().saturating_duration_since(left)
    }
}
