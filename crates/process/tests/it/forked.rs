//! Children that a fork server starts.

use std::fs;

use super::*;

fn forking(mode: &str) -> ProcessConfig {
    let mut config = config("");
    config.fork_server = Some(vec![env!("CARGO_BIN_EXE_misbehaving-worker").into(), mode.into()]);
    config
}

fn worker() -> Stage<Value, Value> {
    stage("child", &forking("fork server"))
}

fn parent(pid: Pid) -> Pid {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    Pid::from_raw(fields.split(' ').nth(1).unwrap().parse().unwrap()).unwrap()
}

fn own_pid() -> Pid {
    rustix::process::getpid()
}

#[tokio::test]
async fn replicas_are_children_of_one_fork_server_in_groups_of_their_own() {
    let node = started(worker()).await;
    let first = pid(&node).await;
    let server = parent(first);
    assert_eq!(parent(server), own_pid());
    assert_eq!(rustix::process::getpgid(Some(first)).unwrap(), first);
    node.handle().scale_stage("child", 3).await.unwrap();
    kill_process(first, Signal::KILL).unwrap();
    until_gone(first).await;
    for _ in 0..20 {
        assert_eq!(parent(pid(&node).await), server);
    }
}

/// Those with other variables have another one: they were there for the import.
#[tokio::test]
async fn stages_of_one_app_share_a_fork_server_and_other_variables_have_their_own() {
    let servers = ForkServers::default();
    let shared = |target: &str, device: Option<&str>| {
        let mut config = forking("fork server");
        config.fork_target = Some(target.to_owned());
        config.env.extend(device.map(|device| ("CUDA_VISIBLE_DEVICES".to_owned(), device.to_owned())));
        servers.stage(target, &config)
    };
    let node = App::new()
        .route("/child", shared("a", None))
        .route("/b", shared("b", None))
        .route("/c", shared("c", Some("1")))
        .start()
        .await
        .unwrap();
    let parent_of = async |route: &str| {
        let pid: Value = node.client().call(route, Value::from("pid")).await.unwrap();
        parent(Pid::from_raw(i32::try_from(pid.as_i64().unwrap()).unwrap()).unwrap())
    };
    let server = parent_of("/child").await;
    assert_eq!((parent(server), parent_of("/b").await), (own_pid(), server));
    let other = parent_of("/c").await;
    assert!(other != server && parent(other) == own_pid());
    // It ends with the last of its stages.
    node.handle().remove_route("/child").await.unwrap().settled().await;
    assert_eq!(parent_of("/b").await, server);
    node.handle().remove_route("/b").await.unwrap().settled().await;
    until_gone(server).await;
}

#[tokio::test]
async fn the_end_of_a_forked_child_is_explained() {
    let node = started(worker()).await;
    for (item, reason) in [
        ("exit", "exited with code 7"),
        ("exit with words", "exited with code 7: SystemExit: the licence has expired"),
        ("abort", "was killed by signal 6 (SIGABRT)"),
    ] {
        let error = call(&node, item).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WorkerFailed);
        assert!(error.message().contains(reason), "{error}");
        assert_eq!(call(&node, "again").await.unwrap(), Value::from("again"));
    }
    // While it has nothing to do.
    let killed = pid(&node).await;
    kill_process(killed, Signal::KILL).unwrap();
    until("the replica is back", || restarts(&node) == 4).await;
    assert_ne!(pid(&node).await, killed);
}

#[tokio::test]
async fn a_forked_child_that_hangs_is_killed_with_its_group() {
    let node = started(worker().timeout(Duration::from_millis(300))).await;
    let grandchild = call(&node, "grandchild").await.unwrap().as_i64().unwrap();
    let first = pid(&node).await;
    let error = call(&node, "hang").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    assert_eq!(call(&node, "again").await.unwrap(), Value::from("again"));
    until_gone(first).await;
    until_gone(Pid::from_raw(i32::try_from(grandchild).unwrap()).unwrap()).await;
}

#[tokio::test]
async fn a_fork_server_that_is_killed_takes_its_children_along_and_is_started_again() {
    let node = started(worker().contract(Contract::Idempotent).replicas(2)).await;
    for _ in 0..5 {
        let child = pid(&node).await;
        let server = parent(child);
        kill_process(server, Signal::KILL).unwrap();
        until_gone(child).await;
        until_gone(server).await;
        let child = pid(&node).await;
        assert_ne!(parent(child), server);
    }
}

#[tokio::test]
async fn the_end_of_a_fork_server_is_the_reason_that_a_caller_reads() {
    let node = started(worker()).await;
    let server = parent(pid(&node).await);
    let hanging = tokio::spawn({
        let client = node.client();
        async move { client.call::<Value, Value>("/child", Value::from("hang")).await }
    });
    until("the call runs", || node.describe().stages[0].replicas[0].busy).await;
    kill_process(server, Signal::KILL).unwrap();
    let error = hanging.await.unwrap().unwrap_err();
    assert!(error.message().contains("the process ended with its fork server"), "{error}");
}

/// The node itself is the parent of these.
#[tokio::test]
async fn a_fork_server_that_refuses_is_not_asked_again() {
    let node = started(stage("child", &forking("refuses"))).await;
    for _ in 0..2 {
        let child = pid(&node).await;
        assert_eq!(parent(child), own_pid());
        kill_process(child, Signal::KILL).unwrap();
        until_gone(child).await;
    }
}

#[tokio::test]
async fn a_fork_server_that_does_not_start_tells_its_reason() {
    let mut slow = forking("silent");
    slow.start_timeout = Some(Duration::from_millis(200));
    let mut missing = forking("");
    missing.fork_server = Some(vec!["/no/such/program".into()]);
    for (config, reason) in [
        (forking("exits"), "worker `: the process exited with code 3: no licence was found"),
        (forking("fails to fork"), "worker `: no such module"),
        (forking("garbage"), "the process was killed: it sent a message that is not known: "),
        (forking("forks nothing"), "it forked no process"),
        (slow, "it was not ready within 200ms (start_timeout)"),
        (missing, "cannot be started: No such file or directory"),
    ] {
        let error = App::new().route("/child", stage("child", &config).replicas(3)).start().await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[tokio::test]
async fn forked_children_that_are_killed_leave_no_descriptor_thread_or_process() {
    let node = started(worker()).await;
    let server = parent(pid(&node).await);
    let of_server = || fs::read_dir(format!("/proc/{}/fd", server.as_raw_nonzero())).unwrap().count();
    let (descriptors, threads, servers) = (own("fd"), own("task"), of_server());
    for _ in 0..100 {
        let killed = pid(&node).await;
        kill_process(killed, Signal::KILL).unwrap();
        until_gone(killed).await;
    }
    assert_eq!(parent(pid(&node).await), server);
    until("descriptors and threads are as before", || {
        own("fd") <= descriptors && own("task") <= threads && of_server() <= servers
    })
    .await;
}

#[tokio::test]
async fn a_fork_server_ends_with_its_node() {
    let node = started(worker().replicas(2)).await;
    let child = pid(&node).await;
    let server = parent(child);
    assert_eq!(node.shutdown(Duration::from_secs(5)).await, Drained::Completely);
    until_gone(child).await;
    until_gone(server).await;
}

#[tokio::test]
async fn a_fork_server_ends_with_the_last_route_of_its_stage() {
    let node = started(worker()).await;
    let server = parent(pid(&node).await);
    node.handle().remove_route("/child").await.unwrap().settled().await;
    until_gone(server).await;
}
