//! Batches that are in the child's socket while it works on another.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use callboard_process::Isolate;
use tokio::task::JoinHandle;

use super::*;

/// A path that does not exist, of this test alone.
pub(crate) fn new_path() -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("callboard-ahead-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    std::env::temp_dir().join(name)
}

fn spawn_call(node: &Node, item: String) -> JoinHandle<Result<Value, CallError>> {
    let client = node.client();
    tokio::spawn(async move { client.call("/child", Value::from(item)).await })
}

/// A child that works until a path is there, and a call that was handed over meanwhile.
async fn busy(
    item: String,
    config: ProcessConfig,
) -> (Node, PathBuf, JoinHandle<Result<Value, CallError>>, JoinHandle<Result<Value, CallError>>) {
    busy_stage(item, stage("child", &config)).await
}

async fn busy_stage(
    item: String,
    stage: Stage<Value, Value>,
) -> (Node, PathBuf, JoinHandle<Result<Value, CallError>>, JoinHandle<Result<Value, CallError>>) {
    let node = started(stage).await;
    let path = new_path();
    let running = spawn_call(&node, format!("until {}", path.display()));
    until("it runs", || node.describe().stages[0].replicas[0].busy).await;
    let ahead = spawn_call(&node, item);
    until("the other is in the child's socket", || {
        let node = node.describe();
        node.in_flight == 2 && node.stages[0].queued == 0
    })
    .await;
    (node, path, running, ahead)
}

#[tokio::test]
async fn a_call_ahead_is_lost_with_no_child_that_has_not_begun_it() {
    let (node, path, running, ahead) = busy("pid".to_owned(), config("")).await;
    let first = fs::read_to_string(path.with_extension("pid")).unwrap().parse().unwrap();
    kill_process(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    let error = running.await.unwrap().unwrap_err();
    assert!(error.message().contains("was killed by signal 9"), "{error}");
    let second = ahead.await.unwrap().unwrap();
    assert_ne!(second, Value::from(first));
    assert_eq!(restarts(&node), 1);
    let _ = fs::remove_file(path.with_extension("pid"));
}

#[tokio::test]
async fn a_call_ahead_that_is_cancelled_never_runs() {
    let touched = new_path();
    let (node, path, running, ahead) = busy(format!("touch {}", touched.display()), config("")).await;
    ahead.abort();
    until("it has left", || node.describe().in_flight == 1).await;
    // The child reads in order: what is asked after the cancellation is answered after it.
    let next = spawn_call(&node, "calls".to_owned());
    fs::write(&path, "").unwrap();
    assert!(running.await.unwrap().is_ok());
    assert_eq!(next.await.unwrap().unwrap(), Value::from(2));
    assert!(!touched.exists());
    fs::remove_file(path.with_extension("pid")).unwrap();
    fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn a_child_that_knows_no_batch_ahead_works_as_before() {
    let (node, path, running, ahead) = busy("echo".to_owned(), config("not ahead")).await;
    fs::write(&path, "").unwrap();
    assert!(running.await.unwrap().is_ok());
    assert_eq!(ahead.await.unwrap().unwrap(), Value::from("echo"));
    assert_eq!(restarts(&node), 0);
    fs::remove_file(path.with_extension("pid")).unwrap();
    fs::remove_file(path).unwrap();
}

/// Works until a path is there, or touches one, in a replica of this program.
fn isolated() -> Stage<Value, Value> {
    let stage = Stage::each("child", |item: &Value| {
        let (what, path) = item.as_str().and_then(|item| item.split_once(' ')).ok_or("`until` or `touch`")?;
        match what {
            "until" => {
                while !std::path::Path::new(path).exists() {
                    std::thread::yield_now();
                }
            }
            _ => fs::write(path, "")?,
        }
        Ok(Value::Null)
    });
    stage.isolate_with(isolate::only_this_test)
}

#[tokio::test]
async fn an_isolated_replica_has_the_next_batch_before_it_has_answered() {
    let touched = new_path();
    let (_node, path, running, ahead) = busy_stage(format!("touch {}", touched.display()), isolated()).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    // The node is on this thread, and hands nothing over now.
    fs::write(&path, "").unwrap();
    let since = std::time::Instant::now();
    while !touched.exists() {
        assert!(since.elapsed() < Duration::from_secs(10), "the batch was not handed ahead");
        std::thread::yield_now();
    }
    assert!(running.await.unwrap().is_ok() && ahead.await.unwrap().is_ok());
    fs::remove_file(touched).unwrap();
    fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn a_call_ahead_of_an_isolated_replica_that_is_cancelled_never_runs() {
    let [touched, next] = [new_path(), new_path()];
    let (node, path, running, ahead) = busy_stage(format!("touch {}", touched.display()), isolated()).await;
    ahead.abort();
    until("it has left", || node.describe().in_flight == 1).await;
    // The child reads in order: what is asked after the cancellation is answered after it.
    let after = spawn_call(&node, format!("touch {}", next.display()));
    fs::write(&path, "").unwrap();
    assert!(running.await.unwrap().is_ok() && after.await.unwrap().is_ok());
    assert!(!touched.exists());
    fs::remove_file(next).unwrap();
    fs::remove_file(path).unwrap();
}

/// Many callers at once: each gets its own answer.
#[tokio::test(flavor = "multi_thread")]
async fn batches_ahead_keep_items_and_outcomes_together() {
    let node = started(worker().max_batch_size(4)).await;
    let answers = futures_util::future::join_all((0..400).map(|number| call(&node, number))).await;
    for (number, answer) in (0..).zip(answers) {
        assert_eq!(answer.unwrap(), Value::from(number));
    }
    assert_eq!(restarts(&node), 0);
}
