//! The certificates of the nodes of a test.

use std::path::PathBuf;

use callboard_core::App;
use callboard_net::{Authority, Identity, NetConfig, QuicEdge, QuicUrl, TokenSpec};

/// The directory with the identities of the nodes. It ends with the test.
pub(crate) struct Members(PathBuf);

impl Members {
    /// Nodes with the numbers from 1 on.
    pub(crate) fn join(name: &str, nodes: usize) -> Self {
        let directory = std::env::temp_dir().join(format!("callboard-{name}-members-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        let members = Self(directory);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(members.issue(nodes));
        members
    }

    async fn issue(&self, nodes: usize) {
        let authority = Authority::init(&self.0.join("authority"), "lab").unwrap();
        let node = App::new().start().await.unwrap();
        let identity = Identity::open(&self.0.join("authority")).unwrap();
        let edge = QuicEdge::bind("127.0.0.1:0".parse().unwrap(), identity, NetConfig::default()).unwrap();
        edge.open(node.client());
        let url: QuicUrl = format!("quic://{}", edge.address()).parse().unwrap();
        for number in 1..=nodes {
            let (token, name) = (authority.token(&TokenSpec::default()).unwrap(), name_of(number));
            callboard_net::join(&token, &url, &self.0.join(&name), Some(&name)).await.unwrap();
        }
    }

    pub(crate) fn identity(&self, number: usize) -> Identity {
        Identity::open(&self.0.join(name_of(number))).unwrap()
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn name_of(number: usize) -> String {
    format!("node-{number}")
}
