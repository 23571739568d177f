//! Clusters with an authority on its own node, for tests of members and certificates.

use std::path::PathBuf;

use callboard_codec::wire::{Hello, VERSION};
use callboard_core::{App, Caller, Failure, Node, Stage};
use callboard_net::{
    Authority, Client, ClientBuilder, Identity, JoinError, JoinToken, NetConfig, QuicEdge, QuicUrl, Role, TokenSpec,
    join,
};

use crate::common::{self, patient};

pub(crate) fn app() -> App {
    let shout = Stage::each("shout", |text: &String| match text.as_str() {
        "die" => Err(Failure::new("it is out of breath").with_trace("File \"app.py\", line 3")),
        text => Ok(text.to_uppercase()),
    });
    App::new().route("/shout", shout)
}

/// A cluster's authority on its own node.
pub(crate) struct Lab {
    pub(crate) directory: PathBuf,
    pub(crate) authority: Authority,
    pub(crate) edge: QuicEdge,
    _node: Node,
}

impl Lab {
    pub(crate) async fn start(name: &str) -> Self {
        Self::start_with(name, patient()).await
    }

    pub(crate) async fn start_with(name: &str, config: NetConfig) -> Self {
        let directory = common::directory(name).parent().unwrap().to_owned();
        let authority = Authority::init(&directory.join("authority"), "lab").unwrap();
        let identity = Identity::open(&directory.join("authority")).unwrap();
        let (edge, node) = serve_with(identity, config).await;
        Self { directory, authority, edge, _node: node }
    }

    pub(crate) fn token(&self, change: impl FnOnce(&mut TokenSpec)) -> JoinToken {
        let mut spec = TokenSpec::default();
        change(&mut spec);
        self.authority.token(&spec).unwrap()
    }

    pub(crate) fn url(&self) -> QuicUrl {
        url(&self.edge).parse().unwrap()
    }

    pub(crate) async fn join(&self, token: &JoinToken, name: &str) -> Result<Identity, JoinError> {
        join(token, &self.url(), &self.directory.join(name), Some(name)).await
    }

    pub(crate) async fn member(&self, role: Role, name: &str) -> Identity {
        self.join(&self.token(|spec| spec.role = role), name).await.unwrap()
    }

    pub(crate) fn counted(&self, reason: &str) -> u64 {
        counted(&self.edge, reason)
    }

    /// The names of the members.
    pub(crate) fn names(&self) -> Vec<String> {
        self.authority.members().unwrap().members.into_iter().map(|member| member.name).collect()
    }
}

pub(crate) async fn serve(identity: Identity) -> (QuicEdge, Node) {
    serve_with(identity, patient()).await
}

pub(crate) async fn serve_with(identity: Identity, config: NetConfig) -> (QuicEdge, Node) {
    serve_app(identity, config, app()).await
}

pub(crate) async fn serve_app(identity: Identity, config: NetConfig, app: App) -> (QuicEdge, Node) {
    let edge = QuicEdge::bind(common::loopback(), identity, config).unwrap();
    let node = app.start().await.unwrap();
    edge.open(node.client());
    (edge, node)
}

pub(crate) fn url(edge: &QuicEdge) -> String {
    format!("quic://{}", edge.address())
}

pub(crate) fn builder(identity: &Identity) -> ClientBuilder {
    common::builder().identity(identity.clone())
}

/// The connections refused for this reason.
pub(crate) fn counted(edge: &QuicEdge, reason: &str) -> u64 {
    let metrics = edge.metrics();
    let start = format!("callboard_net_connections_refused_total{{reason=\"{reason}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&start)).map_or(0, |number| number.parse().unwrap())
}

pub(crate) fn word(error: &JoinError) -> &str {
    match error {
        JoinError::Refused { word, .. } => word,
        error => panic!("{error:?}"),
    }
}

pub(crate) async fn shout(client: &Client) -> String {
    client.call::<_, String>("/shout", "a".to_owned()).await.unwrap()
}

pub(crate) fn hello(cluster: &str) -> Hello {
    Hello { min_version: 1, max_version: VERSION, cluster: cluster.to_owned(), ..Hello::default() }
}

/// A counter without labels, which exists from the start.
pub(crate) fn total(edge: &QuicEdge, name: &str) -> u64 {
    // A counter of a family is named with its label.
    let end = if name.ends_with('}') { " " } else { "_total " };
    let (metrics, start) = (edge.metrics(), format!("callboard_net_{name}{end}"));
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("no metric {name}")).parse().unwrap()
}

/// A gauge of an edge.
pub(crate) fn gauge(edge: &QuicEdge, name: &str) -> usize {
    let (metrics, start) = (edge.metrics(), format!("callboard_net_{name} "));
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("no metric {name}")).parse().unwrap()
}
