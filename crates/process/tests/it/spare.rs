//! Children that wait for the next replica: each start takes two seconds.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::*;

/// Less than a start takes.
const SOON: Duration = Duration::from_millis(1500);

/// The pids of a stage's children, in the order in which they were ready.
struct Pids(PathBuf);

impl Pids {
    fn all(&self) -> Vec<Pid> {
        let lines = fs::read_to_string(&self.0).unwrap_or_default();
        // A line that is being written has no end.
        let whole = lines.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        whole.map(|line| Pid::from_raw(line.parse().unwrap()).unwrap()).collect()
    }

    async fn nth(&self, count: usize) -> Pid {
        until("a child is ready", || self.all().len() >= count).await;
        self.all()[count - 1]
    }
}

impl Drop for Pids {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

async fn slow() -> (Node, Pids) {
    let path = ahead::new_path();
    let mut config = ProcessConfig { spare: true, ..config("") };
    config.env.insert("PIDS_OF_SLOW_STARTS".to_owned(), path.to_str().unwrap().to_owned());
    (started(stage("child", &config)).await, Pids(path))
}

/// Until a child that has written its number waits for messages: it has said that it is ready.
async fn until_it_waits(pid: Pid) {
    let call = Path::new("/proc").join(pid.as_raw_pid().to_string()).join("syscall");
    until("it waits", || fs::read_to_string(&call).is_ok_and(|call| !call.starts_with("running"))).await;
}

#[tokio::test]
async fn a_lost_replica_is_replaced_by_the_spare_at_once_and_the_spare_by_another_one() {
    let (node, pids) = slow().await;
    let mut running = pid(&node).await;
    for count in 2..4 {
        let spare = pids.nth(count).await;
        until_it_waits(spare).await;
        let killed_at = Instant::now();
        kill_process(running, Signal::KILL).unwrap();
        until_gone(running).await;
        running = pid(&node).await;
        println!("a crash to the next answer: {:?}", killed_at.elapsed());
        assert_eq!(running, spare);
        assert!(killed_at.elapsed() < SOON, "{:?}", killed_at.elapsed());
    }
    let last = pids.nth(4).await;
    drop(node);
    until_gone(running).await;
    until_gone(last).await;
}

#[tokio::test]
async fn a_spare_that_has_ended_is_replaced_while_it_waits() {
    let (node, pids) = slow().await;
    let first = pids.nth(2).await;
    until_it_waits(first).await;
    kill_process(first, Signal::KILL).unwrap();
    let second = pids.nth(3).await;
    until_it_waits(second).await;
    until_gone(first).await;
    kill_process(pid(&node).await, Signal::KILL).unwrap();
    until("the replica is back", || restarts(&node) == 1).await;
    assert_eq!(pid(&node).await, second);
}
