//! The store in PostgreSQL, on a server that the test starts: the contract of all stores, and a server that goes away.
//!
//! Without the programs of the server the tests are skipped with one line, unless `CALLBOARD_REQUIRE` names `postgres`.
#![cfg(all(unix, feature = "postgres"))]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

#[path = "../server/mod.rs"]
mod server;
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::keyed::{Fence, StateKey, StateStore, StoreError, StoreFuture, StoredState};
use callboard_core::testing::check_state_store;
use callboard_state::PostgresStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use self::server::{Server, store_at};

/// `None` if the programs are not here.
fn server(name: &str) -> Option<Server> {
    let started = Server::try_start(name, None);
    if let Err(missing) = &started {
        let required = std::env::var("CALLBOARD_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|tool| tool == "postgres"), "CALLBOARD_REQUIRE names postgres: missing");
        eprintln!("skipped: {missing}");
    }
    started.ok()
}

/// Two connections that take turns, as those of two nodes.
#[derive(Debug)]
struct InTurns {
    stores: [PostgresStore; 2],
    turn: AtomicUsize,
}

impl InTurns {
    fn next(&self) -> &PostgresStore {
        &self.stores[self.turn.fetch_add(1, Ordering::SeqCst) % 2]
    }
}

impl StateStore for InTurns {
    fn claim<'a>(&'a self, key: StateKey<'a>, owner: &'a str) -> StoreFuture<'a, StoredState> {
        self.next().claim(key, owner)
    }

    fn load<'a>(&'a self, key: StateKey<'a>) -> StoreFuture<'a, Option<StoredState>> {
        self.next().load(key)
    }

    fn save<'a>(&'a self, key: StateKey<'a>, fence: Fence, state: bytes::Bytes) -> StoreFuture<'a, u64> {
        self.next().save(key, fence, state)
    }

    fn remove<'a>(&'a self, key: StateKey<'a>, fence: Fence) -> StoreFuture<'a, ()> {
        self.next().remove(key, fence)
    }

    fn is_local(&self) -> bool {
        false
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_keeps_the_contract_of_stores() {
    let Some(server) = server("contract") else { return };
    server.until_up().await;
    check_state_store(&InTurns { stores: [server.store(), server.store()], turn: AtomicUsize::new(0) }).await;

    // Two nodes, with a connection each.
    let (key, store, other) = (StateKey { kind: "cart", key: "ann" }, server.store(), server.store());
    let old = store.claim(key, "left").await.unwrap().epoch;
    let new = other.claim(key, "right").await.unwrap().epoch;
    let late = store.save(key, Fence { epoch: old, version: 0 }, "late".into()).await;
    assert_eq!(late, Err(StoreError::Conflict));
    assert_eq!(other.save(key, Fence { epoch: new, version: 0 }, "tea".into()).await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_needs_no_rights_but_those_that_the_page_names() {
    let Some(server) = server("rights") else { return };
    server.until_up().await;
    let text = format!("host={} dbname=postgres", server.directory.display());
    let (operator, connection) =
        tokio_postgres::connect(&format!("{text} user=callboard"), tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let rights = "CREATE USER node; REVOKE CREATE ON SCHEMA public FROM public; \
                  GRANT SELECT, INSERT, UPDATE, DELETE ON callboard_keyed_actors TO node; \
                  GRANT USAGE ON SEQUENCE callboard_keyed_epochs TO node";
    operator.batch_execute(rights).await.unwrap();
    drop(operator);
    connection.await.unwrap().unwrap();
    let store = PostgresStore::try_new(&format!("{text} user=node")).unwrap().making_table();
    check_state_store(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn epochs_go_on_from_the_records_of_a_table_that_is_older_than_the_sequence() {
    let Some(server) = server("older") else { return };
    server.until_up().await;
    let text = format!("host={} user=callboard dbname=postgres", server.directory.display());
    let (operator, connection) = tokio_postgres::connect(&text, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let older = "DROP SEQUENCE callboard_keyed_epochs; \
                 INSERT INTO callboard_keyed_actors VALUES ('cart', 'ann', 50, 0, 'a node')";
    operator.batch_execute(older).await.unwrap();
    let store = server.store();
    let claimed = async |key| store.claim(StateKey { kind: "cart", key }, "a node").await.unwrap().epoch;
    store.create_table().await.unwrap();
    assert_eq!(claimed("bob").await, 51);
    // A sequence that was made anew is behind, too.
    operator.batch_execute("SELECT setval('callboard_keyed_epochs', 7)").await.unwrap();
    store.create_table().await.unwrap();
    assert_eq!(claimed("eve").await, 52);
    // It does not go back when the records have gone.
    operator.batch_execute("DELETE FROM callboard_keyed_actors").await.unwrap();
    store.create_table().await.unwrap();
    assert_eq!(claimed("ann").await, 53);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_killed_has_what_was_saved_and_is_connected_again() {
    let Some(mut server) = server("killed") else { return };
    server.until_up().await;
    let (store, key) = (server.store(), StateKey { kind: "cart", key: "ann" });
    let epoch = store.claim(key, "a node").await.unwrap().epoch;
    assert_eq!(store.save(key, Fence { epoch, version: 0 }, "tea".into()).await, Ok(1));
    server.stop();
    let away = store.save(key, Fence { epoch, version: 1 }, "jam".into()).await;
    assert!(matches!(away, Err(StoreError::Failed(_))), "{away:?}");
    server.run();
    server.until_up().await;
    assert_eq!(store.load(key).await.unwrap().unwrap().state.unwrap(), "tea");
    assert_eq!(store.save(key, Fence { epoch, version: 1 }, "jam".into()).await, Ok(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_row_does_not_hold_up_others() {
    let Some(server) = server("locked") else { return };
    server.until_up().await;
    let (store, ann) = (server.store(), StateKey { kind: "cart", key: "ann" });
    let epoch = store.claim(ann, "a node").await.unwrap().epoch;
    let config = format!("host={} user=callboard dbname=postgres", server.directory.display());
    let (mut client, connection) = tokio_postgres::connect(&config, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let transaction = client.transaction().await.unwrap();
    transaction.execute("SELECT 1 FROM callboard_keyed_actors FOR UPDATE", &[]).await.unwrap();
    let bob = StateKey { kind: "cart", key: "bob" };
    let (locked, free) = tokio::join!(
        store.save(ann, Fence { epoch, version: 0 }, "tea".into()),
        tokio::time::timeout(Duration::from_secs(8), store.claim(bob, "a node")),
    );
    assert!(matches!(locked, Err(StoreError::Failed(_))), "{locked:?}");
    assert!(free.expect("it waits for the lock of another row at most").is_ok());
    transaction.rollback().await.unwrap();
    assert_eq!(store.save(ann, Fence { epoch, version: 0 }, "tea".into()).await, Ok(1));
}

/// A server behind a socket that forwards nothing once `is_silent`, for the connections that it has then.
fn behind_a_proxy(server: &Server, is_silent: Arc<AtomicBool>) -> PostgresStore {
    let directory = server.directory.join("proxy");
    std::fs::create_dir_all(&directory).unwrap();
    let listener = tokio::net::UnixListener::bind(directory.join(".s.PGSQL.5432")).unwrap();
    let target = server.directory.join(".s.PGSQL.5432");
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            is_silent.store(false, Ordering::SeqCst);
            let (is_silent, target) = (Arc::clone(&is_silent), target.clone());
            tokio::spawn(async move {
                let far = tokio::net::UnixStream::connect(target).await.unwrap();
                let ((mut from, mut back), (mut answers, mut to)) = (near.into_split(), far.into_split());
                let backward = tokio::spawn(async move { tokio::io::copy(&mut answers, &mut back).await });
                let mut bytes = [0; 8_192];
                while let Ok(read @ 1..) = from.read(&mut bytes).await {
                    if is_silent.load(Ordering::SeqCst) {
                        std::future::pending::<()>().await;
                    }
                    to.write_all(&bytes[..read]).await.unwrap();
                }
                backward.abort();
            });
        }
    });
    store_at(&directory)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_silent_is_replaced_when_an_operation_was_given_up() {
    let Some(server) = server("silent") else { return };
    server.until_up().await;
    let is_silent = Arc::<AtomicBool>::default();
    let (store, ann) = (behind_a_proxy(&server, Arc::clone(&is_silent)), StateKey { kind: "cart", key: "ann" });
    let first = store.claim(ann, "a node").await.unwrap().epoch;
    is_silent.store(true, Ordering::SeqCst);
    let given_up = tokio::time::timeout(Duration::from_millis(1_200), store.claim(ann, "a node")).await;
    assert!(given_up.is_err(), "{given_up:?}");
    let again = tokio::time::timeout(Duration::from_secs(8), store.claim(ann, "a node")).await;
    assert!(again.expect("over a new connection").unwrap().epoch > first);
}
