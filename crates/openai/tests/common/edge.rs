//! A node with models behind an edge, without a socket.

use std::sync::Arc;
use std::time::Duration;

use callboard_core::{App, Node};
use callboard_http::protocol::Protocol;
use callboard_http::{ApiInfo, HttpConfig, HttpEdge};
use callboard_openai::{CohereProtocol, MessagesProtocol, OpenAiProtocol};

/// The longest time after an answer in which all of its call is given back.
const SETTLED_WITHIN: Duration = Duration::from_secs(10);

pub(crate) struct Served {
    pub(crate) edge: HttpEdge,
    pub(crate) node: Node,
}

impl Served {
    pub(crate) async fn start(app: App) -> Self {
        Self::with(app, HttpConfig::default()).await
    }

    pub(crate) async fn with(app: App, config: HttpConfig) -> Self {
        let node = app.start().await.expect("a node");
        let protocols: Vec<Arc<dyn Protocol>> =
            vec![Arc::new(OpenAiProtocol::new()), Arc::new(MessagesProtocol), Arc::new(CohereProtocol)];
        let edge = HttpEdge::try_new(node.client(), config, ApiInfo::default(), protocols).expect("an edge");
        Self { edge, node }
    }

    /// Waits until all calls have ended and nothing is charged.
    ///
    /// # Panics
    ///
    /// If that takes too long.
    pub(crate) async fn until_settled(&self) {
        let client = self.node.client();
        let rest = || (client.in_flight(), client.edge().charged_bytes());
        let settled = async {
            while rest() != (0, 0) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(SETTLED_WITHIN, settled).await.is_err() {
            panic!("calls in flight and bytes charged: {:?}", rest());
        }
    }
}
