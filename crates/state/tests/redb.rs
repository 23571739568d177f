//! The store in a file: the contract of all stores, and what survives its process.
#![cfg(feature = "redb")]

use std::path::PathBuf;

use callboard_core::keyed::{Fence, StateKey, StateStore, StoreError};
use callboard_core::testing::check_state_store;
use callboard_state::{OpenStoreError, RedbStore};

/// A file that is removed with the test.
struct TestFile(PathBuf);

impl TestFile {
    fn new(name: &str) -> Self {
        let file = std::env::temp_dir().join(format!("callboard-{name}-{}.redb", std::process::id()));
        let _ = std::fs::remove_file(&file);
        Self(file)
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_keeps_the_contract_of_stores() {
    let file = TestFile::new("contract");
    check_state_store(&RedbStore::open(&file.0).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn saves_are_there_when_the_file_is_opened_again_and_old_epochs_stay_refused() {
    let file = TestFile::new("again");
    let key = StateKey { kind: "cart", key: "ann" };
    let store = RedbStore::open(&file.0).unwrap();
    let epoch = store.claim(key, "first").await.unwrap().epoch;
    assert_eq!(store.save(key, Fence { epoch, version: 0 }, "tea".into()).await, Ok(1));
    assert!(matches!(RedbStore::open(&file.0), Err(OpenStoreError::InUse)));
    drop(store);

    let store = RedbStore::open(&file.0).unwrap();
    let record = store.claim(key, "second").await.unwrap();
    assert_eq!((record.epoch, record.version, record.state.unwrap()), (epoch + 1, 1, "tea".into()));
    let late = store.save(key, Fence { epoch, version: 1 }, "late".into()).await;
    assert_eq!(late, Err(StoreError::Conflict));
    assert_eq!(store.remove(key, Fence { epoch: record.epoch, version: 1 }).await, Ok(()));
    drop(store);

    let store = RedbStore::open(&file.0).unwrap();
    assert_eq!(store.load(key).await, Ok(None));
    let new = store.claim(key, "third").await.unwrap();
    assert_eq!((new.epoch, new.version, new.state), (epoch + 2, 0, None), "the epochs of a removed record are known");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_keys_save_at_once() {
    let file = TestFile::new("many");
    let store = RedbStore::open(&file.0).unwrap();
    let keys: Vec<String> = (0..500).map(|n| n.to_string()).collect();
    let save = async |key: &str| {
        let key = StateKey { kind: "cart", key };
        let epoch = store.claim(key, "a node").await.unwrap().epoch;
        store.save(key, Fence { epoch, version: 0 }, key.key.to_owned().into()).await.unwrap();
    };
    futures_util::future::join_all(keys.iter().map(|key| save(key))).await;
    for key in &keys {
        let record = store.load(StateKey { kind: "cart", key }).await.unwrap().unwrap();
        assert_eq!(record.state.unwrap(), *key);
    }
}

#[test]
fn a_file_that_is_no_store_is_not_opened() {
    let file = TestFile::new("none");
    std::fs::write(&file.0, "something else").unwrap();
    assert!(matches!(RedbStore::open(&file.0), Err(OpenStoreError::Database(_))));
    let missing = file.0.join("in/no/directory");
    assert!(matches!(RedbStore::open(missing), Err(OpenStoreError::File(_))));
}

/// A state of this many bytes, for each key.
const LARGE: usize = 64 << 10;

/// The process of the next test, whose files may have a few megabytes. It prints the count of the keys that it saved.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a part of another test"]
async fn full_disk_process() {
    let store = RedbStore::open(std::env::var("CALLBOARD_TEST_FILE").unwrap()).unwrap();
    let mut saved = 0;
    let refused = loop {
        let name = saved.to_string();
        let key = StateKey { kind: "cart", key: &name };
        let outcome = match store.claim(key, "a node").await {
            Ok(claimed) => store.save(key, Fence { epoch: claimed.epoch, version: 0 }, vec![7; LARGE].into()).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(_) => saved += 1,
            Err(error) => break error,
        }
        assert!(saved < 1_000, "there is no limit");
    };
    assert!(matches!(&refused, StoreError::Failed(_)), "{refused:?}");
    // What was saved can be read, again and again, and the next save is refused as the first.
    for key in 0..saved {
        let record = store.load(StateKey { kind: "cart", key: &key.to_string() }).await.unwrap().unwrap();
        assert_eq!(record.state.map(|state| state.len()), Some(LARGE), "key {key}");
    }
    println!("saved {saved}");
}

/// A limit of the system on the size of a file is as a full disk: real errors of a real file.
#[cfg(unix)]
#[test]
fn what_was_saved_before_the_disk_was_full_is_there_and_saves_go_on_once_there_is_room() {
    let file = TestFile::new("full");
    // Without the trap, the signal would end the process.
    let limited = "trap '' XFSZ; ulimit -f 8192; exec \"$0\" --exact full_disk_process --ignored --nocapture";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", limited]).arg(std::env::current_exe().unwrap()).env("CALLBOARD_TEST_FILE", &file.0);
    let output = shell.output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let saved = printed.lines().find_map(|line| line.split_once("saved ")?.1.parse::<usize>().ok());
    let saved = saved.unwrap_or_else(|| panic!("{printed}{}", String::from_utf8_lossy(&output.stderr)));
    assert!(output.status.success() && saved > 3, "{saved} keys: {printed}");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = RedbStore::open(&file.0).unwrap();
        for key in 0..=saved {
            let name = key.to_string();
            let key_of = StateKey { kind: "cart", key: &name };
            let record = store.claim(key_of, "the next process").await.unwrap();
            assert_eq!(record.state.as_ref().map(|state| state.len()), (key < saved).then_some(LARGE), "key {key}");
            let fence = Fence { epoch: record.epoch, version: record.version };
            store.save(key_of, fence, "small".into()).await.unwrap();
        }
    });
}
