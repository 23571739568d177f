//! `callboard actors` against the admin listener of a node whose keyed actors are in Rust.

use std::net::SocketAddr;
use std::sync::Arc;

use callboard::actor::Question;
use callboard::actor::keyed::{Answers, KeyContext, KeyedSpec, Stored};
use callboard::http::{Admin, ApiInfo, HttpConfig, HttpEdge, serve_admin};
use callboard::testing::MemoryStore;
use callboard::{App, Failure, Node};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::support::run;

/// Adds an item. The answer is the count of items.
#[derive(Serialize, Deserialize)]
struct Add {
    item: String,
}

impl Question for Add {
    const NAME: &str = "add";
    type Answer = usize;
}

impl Answers<Add> for Stored<Vec<String>> {
    async fn answer(&mut self, Add { item }: Add, _: &KeyContext) -> Result<usize, Failure> {
        self.push(item);
        Ok(self.len())
    }
}

struct Shop {
    _node: Node,
    admin: SocketAddr,
    serving: JoinHandle<()>,
}

impl Shop {
    async fn open() -> Self {
        let carts =
            KeyedSpec::new("cart", Arc::new(MemoryStore::new()), |_, cart: Stored<Vec<String>>| async { Ok(cart) });
        let node = App::new().keyed(carts.accepts::<Add>()).start().await.unwrap();
        let edge = HttpEdge::try_new(node.client(), HttpConfig::default(), ApiInfo::default(), Vec::new()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let admin = listener.local_addr().unwrap();
        let serving =
            serve_admin(listener, Admin::new(node.handle(), &edge), HttpConfig::default(), std::future::pending());
        let serving = tokio::spawn(async { serving.await.unwrap() });
        Self { _node: node, admin, serving }
    }

    /// What `callboard actors` prints: stdout and stderr, and whether it succeeded.
    async fn actors(&self, args: &[&str]) -> (String, bool) {
        let url = format!("http://{}", self.admin);
        let args: Vec<String> = ["actors"].iter().chain(args).map(|&arg| arg.to_owned()).chain([url]).collect();
        let ran = spawn_blocking(move || run(&args.iter().map(String::as_str).collect::<Vec<_>>()));
        let output = ran.await.unwrap();
        let printed = [output.stdout, output.stderr].concat();
        (String::from_utf8(printed).unwrap().trim_end().to_owned(), output.status.success())
    }

    async fn succeeds(&self, args: &[&str]) -> String {
        let (printed, succeeded) = self.actors(args).await;
        assert!(succeeded, "{args:?}: {printed}");
        printed
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_asked_listed_and_asked_to_end() {
    let shop = Shop::open().await;
    let tea = ["--value", r#"{"item": "tea"}"#];
    for (key, count) in [("ann", "1"), ("ann", "2"), ("b b", "1")] {
        assert_eq!(shop.succeeds(&[&["ask", "cart", key, "add"][..], &tea].concat()).await, count, "{key}");
    }
    let kinds = shop.succeeds(&["list"]).await;
    let row: Vec<&str> = kinds.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row, ["cart", "2", "0", "0", "0", "-"], "{kinds}");
    let keys = shop.succeeds(&["list", "--kind", "cart"]).await;
    let mut keys: Vec<&str> = keys.lines().collect();
    keys.sort_unstable();
    assert_eq!(keys, ["ann", "b b"]);

    for (verb, key) in [("passivate", "ann"), ("release", "b b")] {
        assert_eq!(shop.succeeds(&[verb, "cart", key]).await, format!("{key}: was asked to save its state and end"));
        while shop.succeeds(&["list", "--kind", "cart"]).await.lines().any(|line| line == key) {}
        assert_eq!(shop.succeeds(&[verb, "cart", key]).await, format!("{key}: is not active on this node"));
    }
    assert_eq!(shop.succeeds(&[&["ask", "cart", "ann", "add"][..], &tea].concat()).await, "3", "it was saved");

    assert_eq!(shop.succeeds(&["forget", "cart", "ann"]).await, "ann: was forgotten");
    assert_eq!(shop.succeeds(&[&["ask", "cart", "ann", "add"][..], &tea].concat()).await, "1", "it begins anew");
    let (error, succeeded) = shop.actors(&["release", "basket", "ann"]).await;
    assert!(!succeeded && error.contains("this node has no keyed actors `basket`"), "{error}");
}
