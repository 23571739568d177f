//! A fork server that does not start, and what is said of one that is lost.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, PipeWriter};
use std::os::fd::AsFd as _;

use super::*;
use crate::testing::{CapturedLog, Scratch, WaitingNode};

const FILE: &str = "started";

/// A fork server that is this script, with the name of a file in the directory.
fn script(script: &str, directory: &Scratch) -> ProcessConfig {
    let mut config = ProcessConfig::new(["sleep", "1000"]);
    config.fork_server = Some(vec!["sh".into(), "-c".into(), script.into(), directory.0.join(FILE).into()]);
    config
}

fn output() -> PipeWriter {
    io::pipe().unwrap().1
}

#[tokio::test]
async fn a_fork_server_that_could_not_start_is_started_again_for_the_next_child() {
    let (node, started) = (WaitingNode::start().await, Scratch::new("failed-fork-server"));
    let server = ForkServer::new(&script("echo started >> \"$0\"; echo no licence; exit 3", &started));
    let (socket, _theirs) = UnixDatagram::pair().unwrap();
    for count in 1..=2 {
        let failure = server.fork(None, &node.replica, socket.as_fd(), output().as_fd()).err().unwrap();
        assert!(failure.message().contains("exited with code 3: no licence"), "{failure}");
        assert_eq!(started.text(FILE).lines().count(), count);
    }
}

/// Children that wait for one start have its answer.
#[tokio::test]
async fn children_that_wait_for_a_fork_server_start_it_once() {
    let (node, started) = (WaitingNode::start().await, Scratch::new("awaited-fork-server"));
    let server = ForkServer::new(&script("echo started >> \"$0\"; sleep 2; exit 3", &started));
    let (socket, _theirs) = UnixDatagram::pair().unwrap();
    let fork = || server.fork(None, &node.replica, socket.as_fd(), output().as_fd()).err().unwrap().to_string();
    thread::scope(|scope| {
        let first = scope.spawn(fork);
        while started.text(FILE).is_empty() {
            thread::yield_now();
        }
        assert_eq!(fork(), first.join().unwrap());
    });
    assert_eq!(started.text(FILE), "started\n");
}

#[tokio::test]
async fn a_fork_server_that_refuses_is_not_asked_again_and_the_log_says_why() {
    let (node, started) = (WaitingNode::start().await, Scratch::new("refusing-fork-server"));
    let refused = BTreeMap::from([("type", "refused"), ("message", "it has threads")]);
    let answer = started.0.join("answer");
    fs::write(&answer, message::encode(&refused).unwrap()).unwrap();
    let refuse = format!("echo started >> \"$0\"; cat {} >&0; exec sleep 1000", answer.display());
    let server = ForkServer::new(&script(&refuse, &started));
    let (socket, _theirs) = UnixDatagram::pair().unwrap();
    let (log, _guard) = CapturedLog::start();
    for _ in 0..2 {
        let forked = server.fork(None, &node.replica, socket.as_fd(), output().as_fd());
        assert!(forked.unwrap().is_none(), "children are started by their command");
    }
    assert_eq!(started.text(FILE), "started\n");
    assert_eq!(log.text().matches("each replica imports the service by itself: it has threads").count(), 1);
}

#[tokio::test]
async fn a_failure_of_an_import_is_one_line_and_its_trace_is_in_the_log() {
    let node = WaitingNode::start().await;
    let server = ForkServer::new(&ProcessConfig::new(["python3", "-m", "callboard.worker"]));
    let failed = |trace: &str| ForkServerError::Failed { message: "no weights".to_owned(), trace: trace.to_owned() };
    for (trace, logged) in [("File \"app.py\", line 3\n", true), ("", false)] {
        let (log, _guard) = CapturedLog::start();
        let failure = server.failure(failed(trace), &node.replica);
        assert!(failure.message().ends_with("no weights") && !failure.message().contains("app.py"), "{failure}");
        assert_eq!(log.text().contains("app.py") && log.text().contains("ERROR"), logged, "{}", log.text());
        assert_eq!(log.text().is_empty(), !logged);
    }
    let ended = server.failure(ForkServerError::Ended("it has ended".to_owned()), &node.replica);
    assert!(ended.message().ends_with("it has ended"), "{ended}");
}

/// A fork server that has not been asked for anything.
async fn parent(text: &str, file: &Scratch) -> Parent {
    let node = WaitingNode::start().await;
    let config = script(text, file);
    let command = config.fork_server.clone().unwrap();
    Parent::spawn(&config, &command, &node.replica).unwrap()
}

#[tokio::test]
async fn a_lost_fork_server_is_asked_nothing_more_and_says_why() {
    let file = Scratch::new("lost-fork-server");
    let parent = parent("exec sleep 1000", &file).await;
    let reason = |error: ForkServerError| match error {
        ForkServerError::Ended(reason) => reason,
        _ => panic!("it has ended"),
    };
    for kind in [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof] {
        assert_eq!(reason(parent.lost(&kind.into(), LOOK_INTERVAL)), "it has ended");
    }
    for kind in [ErrorKind::WouldBlock, ErrorKind::TimedOut] {
        assert_eq!(reason(parent.lost(&kind.into(), LOOK_INTERVAL)), "it did not answer within 100ms");
    }
    assert_eq!(reason(parent.lost(&io::Error::other("no memory"), LOOK_INTERVAL)), "no memory");
    let asked = parent.ask(&ToServer::Reap { pid: 7 }, &[], LOOK_INTERVAL).err().unwrap();
    assert_eq!(reason(asked), "it has not answered before");

    let parent = self::parent("exit 3", &file).await;
    parent.ended.lock().take().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
    parent.lost(&ErrorKind::BrokenPipe.into(), LOOK_INTERVAL);
    let asked = parent.ask(&ToServer::Reap { pid: 7 }, &[], LOOK_INTERVAL).err().unwrap();
    assert_eq!(reason(asked), "it has ended");
}

/// It has the end of its socket to go by.
#[tokio::test]
async fn a_fork_server_that_is_not_needed_ends_by_itself() {
    let file = Scratch::new("ended-fork-server");
    drop(parent("cat > /dev/null; echo done > \"$0\"", &file).await);
    let begun = Instant::now();
    while file.text(FILE) != "done\n" {
        assert!(begun.elapsed() < Duration::from_secs(20), "it was killed");
        thread::yield_now();
    }
}
