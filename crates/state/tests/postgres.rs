//! The store in PostgreSQL, on a server that the test starts: the contract of all stores, and a server that goes away.
//!
//! Without the programs of the server the tests are skipped with one line, unless `CALLBOARD_REQUIRE` names `postgres`.
#![cfg(all(unix, feature = "postgres"))]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use callboard_core::keyed::{Fence, StateKey, StateStore, StoreError};
use callboard_core::testing::check_state_store;
use callboard_state::PostgresStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A server on a socket in its own directory. It ends with the test.
struct Server {
    programs: PathBuf,
    directory: PathBuf,
    child: Option<Child>,
}

/// The user who may run the server: it refuses to run as root.
fn server_user() -> Option<u32> {
    if std::fs::metadata("/proc/self").ok()?.uid() != 0 {
        return None;
    }
    let id = Command::new("id").args(["-u", "postgres"]).output().ok()?;
    String::from_utf8(id.stdout).ok()?.trim().parse().ok()
}

fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<PathBuf> = versions.filter_map(|version| Some(version.ok()?.path().join("bin"))).collect();
    found.retain(|programs| programs.join("postgres").exists() && programs.join("initdb").exists());
    found.sort();
    found.pop()
}

impl Server {
    /// `None` if the programs are not here.
    fn start(name: &str) -> Option<Self> {
        let Some(programs) = programs() else {
            let required = std::env::var("CALLBOARD_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|tool| tool == "postgres"), "CALLBOARD_REQUIRE names postgres: missing");
            eprintln!("skipped: PostgreSQL is not in /usr/lib/postgresql");
            return None;
        };
        let directory = std::env::temp_dir().join(format!("callboard-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let mut server = Self { programs, directory, child: None };
        if let Some(user) = server_user() {
            chown(&server.directory, Some(user), None).unwrap();
        }
        let data = server.data();
        let made = server.command("initdb").args(["-A", "trust", "-U", "callboard", "-N", "-D"]).arg(&data).output();
        let made = made.unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        server.run();
        Some(server)
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.current_dir("/").stdin(Stdio::null());
        if let Some(user) = server_user() {
            command.uid(user);
        }
        command
    }

    fn run(&mut self) {
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data()).arg("-k").arg(&self.directory).args(["-c", "listen_addresses="]);
        let log = std::fs::File::create(self.directory.join("log")).unwrap();
        self.child = Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // An immediate shutdown is as a crash, and takes the processes of the connections along.
            let stopped = Command::new("kill").args(["-QUIT", &child.id().to_string()]).status();
            assert!(stopped.is_ok_and(|status| status.success()));
            let _ = child.wait();
        }
    }

    fn store(&self) -> PostgresStore {
        store_at(&self.directory)
    }

    /// Waits until it answers.
    async fn until_up(&self) {
        let trying = async {
            while let Err(error) = self.store().create_table().await {
                drop(error);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), trying).await.expect("the server starts");
    }
}

fn store_at(directory: &Path) -> PostgresStore {
    PostgresStore::try_new(&format!("host={} user=callboard dbname=postgres", directory.display())).unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_keeps_the_contract_of_stores() {
    let Some(server) = Server::start("contract") else { return };
    server.until_up().await;
    let store = server.store();
    store.create_table().await.unwrap();
    check_state_store(&store).await;

    // Two nodes, with a connection each.
    let (key, other) = (StateKey { kind: "cart", key: "ann" }, server.store());
    let old = store.claim(key, "left").await.unwrap().epoch;
    let new = other.claim(key, "right").await.unwrap().epoch;
    let late = store.save(key, Fence { epoch: old, version: 0 }, "late".into()).await;
    assert_eq!(late, Err(StoreError::Conflict));
    assert_eq!(other.save(key, Fence { epoch: new, version: 0 }, "tea".into()).await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_killed_has_what_was_saved_and_is_connected_again() {
    let Some(mut server) = Server::start("killed") else { return };
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
    let Some(server) = Server::start("locked") else { return };
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
    assert_eq!(free.expect("it waits for the lock of another row at most").unwrap().epoch, 1);
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
    let Some(server) = Server::start("silent") else { return };
    server.until_up().await;
    let is_silent = Arc::<AtomicBool>::default();
    let (store, ann) = (behind_a_proxy(&server, Arc::clone(&is_silent)), StateKey { kind: "cart", key: "ann" });
    assert_eq!(store.claim(ann, "a node").await.unwrap().epoch, 1);
    is_silent.store(true, Ordering::SeqCst);
    let given_up = tokio::time::timeout(Duration::from_millis(1_200), store.claim(ann, "a node")).await;
    assert!(given_up.is_err(), "{given_up:?}");
    let again = tokio::time::timeout(Duration::from_secs(8), store.claim(ann, "a node")).await;
    assert_eq!(again.expect("over a new connection").unwrap().epoch, 2);
}
