//! Helpers of a node, as shell scripts: when they are ready, what their ends mean, and what is left of them.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use callboard_core::{App, BackoffPolicy, Drained, Failure, Node, RestartIntensity, Stage, StartError};
use callboard_process::{HelperConfig, HttpUrl, Readiness, helper};
use rustix::process::{Pid, test_kill_process};

use crate::{until, until_gone};

/// A directory of this test, which is removed at its end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("callboard-helper-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A helper that runs this script here.
    fn helper(&self, script: &str, ready: Readiness) -> HelperConfig {
        let mut config = HelperConfig::new("helper", ["sh", "-c", script]);
        config.directory = Some(self.0.clone());
        config.ready = ready;
        config
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn pid(&self, name: &str) -> Pid {
        let text = fs::read_to_string(self.path(name)).unwrap();
        Pid::from_raw(text.trim().parse().unwrap()).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn app() -> App {
    App::new().route("/double", Stage::each("double", |number: &i64| Ok(number * 2)))
}

async fn started(config: HelperConfig) -> Result<Node, StartError> {
    app().actors(helper(config)).start().await
}

fn line(text: &str) -> Readiness {
    Readiness::Line(text.to_owned())
}

#[tokio::test]
async fn stages_start_when_a_file_exists_and_end_before_the_helper() {
    let directory = Directory::new();
    let path = directory.path("ready");
    let script = "trap 'touch bye; exit 0' TERM; sleep 0.2; touch ready; while :; do sleep 0.02; done";
    let config = directory.helper(script, Readiness::File(path.clone()));
    /// Sees in which order things happen.
    struct Watching(PathBuf);
    impl callboard_core::Worker for Watching {
        type In = i64;
        type Out = i64;
        fn call(&mut self, batch: callboard_core::Batch<i64>) -> Vec<Result<i64, Failure>> {
            batch.into_inputs().into_iter().map(Ok).collect()
        }
        fn cleanup(&mut self) {
            fs::write(self.0.with_file_name("order"), format!("{}", self.0.with_file_name("bye").exists())).unwrap();
        }
    }
    let stage = Stage::worker("watching", move |_| {
        let ready = path.exists().then(|| Watching(path.clone()));
        ready.ok_or_else(|| Failure::new("the helper is not ready"))
    });
    let node = App::new().actors(helper(config)).route("/watching", stage).start().await.unwrap();
    assert!(node.health().ready);
    assert_eq!(node.shutdown(Duration::from_secs(5)).await, Drained::Completely);
    assert_eq!(fs::read_to_string(directory.path("order")).unwrap(), "false", "the helper has ended after the stage");
    assert!(directory.path("bye").exists(), "it was asked to end");
}

#[tokio::test]
async fn a_helper_is_ready_by_a_line_on_either_output() {
    for redirect in ["", ">&2"] {
        let directory = Directory::new();
        let script =
            format!("echo starts; sleep 0.1; touch before; echo 'now ready to accept' {redirect}; exec sleep 1000");
        let node = started(directory.helper(&script, line("ready to accept"))).await.unwrap();
        assert!(directory.path("before").exists());
        drop(node);
    }
}

#[tokio::test]
async fn a_helper_is_ready_when_it_accepts_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let directory = Directory::new();
    let config = directory.helper("exec sleep 1000", Readiness::Tcp(address.clone()));
    drop(started(config.clone()).await.unwrap());
    drop(listener);
    let error = started(HelperConfig { ready_timeout: Duration::from_millis(200), ..config }).await.unwrap_err();
    let error = error.to_string();
    assert!(error.contains(&format!("was not ready within 200ms: {address} accepts no connection")), "{error}");
}

#[tokio::test]
async fn a_helper_is_ready_when_a_url_is_answered_with_success() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/health", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&asked);
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut request = [0; 1024];
            let read = stream.read(&mut request).unwrap_or(0);
            assert!(request[..read].starts_with(b"GET /health HTTP/1.1\r\n"));
            let status = if counted.fetch_add(1, Ordering::SeqCst) < 2 { "503 Not Yet" } else { "204 No Content" };
            let _ = stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").as_bytes());
        }
    });
    let directory = Directory::new();
    let config = directory.helper("exec sleep 1000", Readiness::Http(HttpUrl::parse(&url).unwrap()));
    drop(started(config).await.unwrap());
    assert_eq!(asked.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_helper_that_is_never_ready_stops_the_start_with_its_last_lines() {
    let directory = Directory::new();
    let script = "echo one; echo two; echo $$ > pid; exec sleep 1000";
    let config = directory.helper(script, line("ready"));
    let error = started(HelperConfig { ready_timeout: Duration::from_millis(300), ..config }).await.unwrap_err();
    let error = error.to_string();
    let expected = "actor `helper` did not start: it was not ready within 300ms: it has printed no line with `ready`; its \
                    last lines: one | two";
    assert_eq!(error, expected);
    until_gone(directory.pid("pid")).await;

    let error = started(directory.helper("echo 'no such database'; exit 3", line("ready"))).await.unwrap_err();
    let expected = "actor `helper` did not start: the process exited with code 3; its last lines: no such database";
    assert_eq!(error.to_string(), expected);
    let error = started(HelperConfig::new("helper", ["/no/such/program"])).await.unwrap_err();
    assert!(error.to_string().contains("`/no/such/program` cannot be started"), "{error}");
}

/// The guard is this program again, with the helper's command as its arguments: a script with this test's name.
#[tokio::test]
async fn a_program_that_does_not_begin_as_a_guard_becomes_one_at_its_first_guarded_helper() {
    let directory = Directory::new();
    let current = thread::current();
    let test = current.name().unwrap();
    let script = "#!/bin/sh\ntrap 'exit 0' TERM\necho $$ > pid\necho ready\nwhile :; do sleep 0.02; done\n";
    let mut config = HelperConfig::new("helper", [test, "--exact", "--nocapture"]);
    config.guarded = true;
    config.directory = Some(directory.0.clone());
    config.env.insert("PATH".to_owned(), format!("{}:{}", directory.0.display(), std::env::var("PATH").unwrap()));
    config.ready = line("ready");
    let is_guard = std::env::var_os("_CALLBOARD_GUARD").is_some();
    if !is_guard {
        fs::write(directory.path(test), script).unwrap();
        fs::set_permissions(directory.path(test), fs::Permissions::from_mode(0o700)).unwrap();
    }
    let group = helper(config);
    assert!(!is_guard, "this process is a guard, and went on");
    let node = app().actors(group).start().await.unwrap();
    let pid = directory.pid("pid");
    assert_eq!(node.shutdown(Duration::from_secs(5)).await, Drained::Completely);
    until_gone_or_zombie(pid).await;
}

fn down(node: &Node) -> String {
    node.health().down_actors.into_iter().filter_map(|actor| actor.reason).collect()
}

#[tokio::test]
async fn a_helper_that_dies_is_started_again_and_the_node_is_not_ready_meanwhile() {
    let directory = Directory::new();
    let script = "echo x >> starts; if [ $(wc -l < starts) -lt 2 ]; then while [ ! -e die ]; do sleep 0.02; done; \
                  exit 3; fi; while [ ! -e live ]; do sleep 0.02; done; echo ready; exec sleep 1000";
    let mut config = directory.helper(script, Readiness::Started);
    config.ready = Readiness::File(directory.path("starts"));
    let node = started(config).await.unwrap();
    assert!(node.health().ready);
    fs::write(directory.path("die"), "").unwrap();
    until("it was started again", || node.describe().actors[0].restarts == 1).await;
    assert_eq!(node.describe().actors[0].reasons, ["the process exited with code 3"]);
    assert!(node.health().ready);
}

#[tokio::test]
async fn a_helper_that_keeps_dying_waits_longer_and_the_node_says_so() {
    let directory = Directory::new();
    let mut config = directory.helper("echo ready; sleep 0.1; kill -SEGV $$", line("ready"));
    config.intensity = RestartIntensity { max_restarts: 2, within: Duration::from_secs(60) };
    config.backoff = BackoffPolicy { initial: Duration::from_millis(20), ..BackoffPolicy::default() };
    let node = started(config).await.unwrap();
    until("it is not ready", || !node.health().ready).await;
    assert!(down(&node).contains("killed by signal 11"), "{}", down(&node));
    until("it waits longer", || down(&node).contains("more than 2 crashes")).await;
    assert!(!node.health().ready);
}

#[tokio::test]
async fn nothing_is_left_of_a_helper_whose_children_live_on() {
    let directory = Directory::new();
    // The grandchild does not hear of the signal, and its parent does not care.
    let script = "trap '' TERM; echo $$ > pid; sleep 1000 & echo $! > grandchild; echo ready; wait; wait";
    let mut config = directory.helper(script, line("ready"));
    config.stop_timeout = Duration::from_millis(100);
    for is_orderly in [true, false] {
        let node = started(config.clone()).await.unwrap();
        let pids = [directory.pid("pid"), directory.pid("grandchild")];
        assert!(pids.iter().all(|pid| test_kill_process(*pid).is_ok()));
        if is_orderly {
            assert_eq!(node.shutdown(Duration::from_secs(5)).await, Drained::Completely);
        } else {
            drop(node);
        }
        for pid in pids {
            until_gone_or_zombie(pid).await;
        }
    }
}

/// A grandchild belongs to the process that collects orphans, which may take its time.
async fn until_gone_or_zombie(pid: Pid) {
    let status = format!("/proc/{}/stat", pid.as_raw_pid());
    until("the process is gone", || {
        test_kill_process(pid).is_err()
            || fs::read_to_string(Path::new(&status)).is_ok_and(|status| status.contains(") Z "))
    })
    .await;
}
