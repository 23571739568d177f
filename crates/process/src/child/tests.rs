//! What is logged of a child, and how its end is said.

use super::*;
use crate::testing::{CapturedLog, WaitingNode};

/// The lines of a child in the log at `info`.
fn logged(say: impl FnOnce(&ChildLog)) -> String {
    let (captured, _capturing) = CapturedLog::start();
    let log = ChildLog { stage: StageName::new("s"), replica: 3, limit: ChildLogLimit::default() };
    say(&log);
    drop(log);
    captured.text()
}

#[test]
fn a_spare_has_a_share_of_the_memory_as_well() {
    let config = |spare: bool, memory_limit: MemoryLimit| ProcessConfig {
        spare,
        memory_limit,
        ..ProcessConfig::new(["worker"])
    };
    let share = |spare: bool, replicas: usize| measured_limit(&config(spare, MemoryLimit::Share), replicas);
    assert_eq!((share(false, 2), share(true, 2)), (default_memory_limit(2), default_memory_limit(3)));
    for limit in [MemoryLimit::Unlimited, MemoryLimit::Bytes(7)] {
        assert_eq!(measured_limit(&config(true, limit), 1), None);
    }
}

#[tokio::test]
async fn how_a_child_has_ended_is_said() {
    let node = WaitingNode::start().await;
    let run = |script: &str| {
        let config = ProcessConfig { memory_limit: MemoryLimit::Unlimited, ..ProcessConfig::new(["sh", "-c", script]) };
        let child = ChildProcess::start(&config, &ForkServer::new(&config), &node.replica).unwrap();
        assert!(script.contains("sleep") || child.has_ended_within(Duration::from_secs(10)));
        child
    };
    let exit = |script: &str, limit: Option<u64>| {
        let mut child = run(script);
        child.memory_limit = limit;
        child.exit().reason().to_owned()
    };
    let (none, much) = (None, Some(1 << 40));
    for (script, limit, expected) in [
        ("exit 3", none, "the process exited with code 3"),
        ("kill -TERM $$", none, "the process was killed by signal 15 (SIGTERM)"),
        ("echo callboard.worker: no licence; exit 3", none, "the process exited with code 3: no licence"),
        ("echo MemoryError; exit 3", none, "the process exited with code 3"),
        ("echo other; exit 3", much, "the process exited with code 3"),
        (
            "echo MemoryError; exit 3",
            much,
            "the process exited with code 3; it has reached its memory limit of 1099511627776 bytes",
        ),
        ("exec sleep 1000 <&-", none, "the process has closed its socket"),
    ] {
        assert_eq!(exit(script, limit), expected, "{script} {limit:?}");
    }
    let mut killed = run("exec sleep 1000");
    assert!(!killed.has_ended_within(Duration::from_millis(1)));
    killed.kill_for("it was told to");
    assert!(killed.has_ended_within(Duration::from_secs(10)));
    assert_eq!(killed.exit().reason(), "the process was killed: it was told to");
    let printed = run("echo a last line; exit 3");
    assert_eq!(printed.last_lines().text().as_deref(), Some("a last line"));
}

/// Of a control group.
#[tokio::test]
async fn a_child_that_the_kernel_has_killed_at_its_memory_limit_says_so() {
    let node = WaitingNode::start().await;
    let killed = "the process was killed by the kernel at its memory limit of 7 bytes";
    for (events, expected) in [("oom_kill 1\n", killed), ("oom_kill 0\n", "the process exited with code 3")] {
        let config =
            ProcessConfig { memory_limit: MemoryLimit::Unlimited, ..ProcessConfig::new(["sh", "-c", "exit 3"]) };
        let mut child = ChildProcess::start(&config, &ForkServer::new(&config), &node.replica).unwrap();
        assert!(child.has_ended_within(Duration::from_secs(10)));
        let Group::Spawned(program) = &mut child.group else { panic!("it has no fork server") };
        program.memory = Some(MemoryGroup::with_events(events));
        child.memory_limit = Some(7);
        assert_eq!(child.exit().reason(), expected);
    }
}

#[tokio::test]
async fn a_child_that_holds_more_memory_than_it_may_is_to_end() {
    let node = WaitingNode::start().await;
    let mut child = node.silent_child().child;
    assert_eq!(child.why_to_end(false), None);
    child.watched = Some(WatchedMemory::new(child.meter(), 1));
    assert!(child.why_to_end(false).unwrap().contains("more than its memory limit of 1 bytes"));
    child.watched = Some(WatchedMemory::new(child.meter(), u64::MAX));
    assert_eq!(child.why_to_end(false), None);
    child.device = Some("no such device".to_owned());
    assert_eq!(child.why_to_end(false), None);
}

#[tokio::test]
async fn lines_that_were_left_out_are_told_when_the_child_is_looked_at() {
    let (log, _capturing) = CapturedLog::start();
    let node = WaitingNode::start().await;
    let child = node.silent_child().child;
    for _ in 0..5000 {
        child.log_note("info", "a note".to_owned());
    }
    let begin = Instant::now();
    while !log.text().lines().last().unwrap().contains("lines left out") && begin.elapsed() < Duration::from_secs(10) {
        child.log_left_out();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(log.text().contains("lines left out"));
}

#[tokio::test]
async fn notes_and_tracebacks_of_a_child_are_records_of_it() {
    let (log, _capturing) = CapturedLog::start();
    let node = WaitingNode::start().await;
    let child = node.silent_child().child;
    child.log_note("warn", "a note".to_owned());
    child.log_waiting("a start");
    child.log_trace("error", "one\ntwo\n\n", Some("r-1"));
    let text = log.text();
    for expected in [
        "WARN callboard_process::output: a note stage=\"child\" replica=0",
        "WARN callboard_process::output: a start stage=\"child\" replica=0",
        "ERROR callboard_process::output: one\ntwo stage=\"child\" replica=0 request_id=\"r-1\"",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    assert_eq!(child.why_to_end(false), None);
}

#[test]
fn a_record_is_cut_in_all_fields() {
    let long = || "x".repeat(1 << 20);
    let record = || LogMessage { level: long(), target: long(), message: long(), request_id: Some(long()) };
    let text = logged(|log| log.record(record(), |_| true));
    assert!(text.contains("INFO") && text.contains("replica=3"));
    assert!(text.len() < MAX_MESSAGE_CHARS + 2 * MAX_NAME_CHARS + 200, "{}", text.len());
}

#[test]
fn the_call_of_a_record_is_looked_for_only_within_the_limit() {
    let asked = std::cell::Cell::new(0_usize);
    let text = logged(|log| {
        for _ in 0..3000 {
            let record = LogMessage { request_id: Some("r".to_owned()), ..LogMessage::default() };
            log.record(record, |_| {
                asked.set(asked.get() + 1);
                true
            });
        }
    });
    assert_eq!(text.matches("request_id=\"r\"").count(), asked.get());
}

#[test]
fn a_record_has_its_level_logger_and_call() {
    let text = logged(|log| {
        for level in ["error", "warn", "info", "debug", "other"] {
            let (target, request_id) = (format!("of {level}"), Some("r-1".to_owned()));
            let (level, message) = (level.to_owned(), "words".to_owned());
            log.record(LogMessage { level, target, message, request_id }, |id| id == "r-1");
        }
        log.record(LogMessage { request_id: Some("r-2".to_owned()), ..LogMessage::default() }, |_| false);
        log.printed("a line");
        log.warn("a note");
    });
    let lines: Vec<_> = text.lines().filter_map(|line| line.split_once("Z ")).map(|(_, line)| line.trim()).collect();
    let record = |level: &str, name: &str| {
        format!(
            "{level} callboard_process::output: words stage=\"s\" replica=3 logger=\"of {name}\" request_id=\"r-1\""
        )
    };
    let expected = [
        record("ERROR", "error"),
        record("WARN", "warn"),
        record("INFO", "info"),
        record("INFO", "other"),
        "INFO callboard_process::output:  stage=\"s\" replica=3".to_owned(),
        "INFO callboard_process::output: a line stage=\"s\" replica=3".to_owned(),
        "WARN callboard_process::output: a note stage=\"s\" replica=3".to_owned(),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn the_bytes_of_message_and_logger_count_together() {
    let (message, target) = ("m".repeat(6_000), "t".repeat(150));
    let text = logged(|log| {
        for _ in 0..400 {
            let (message, target) = (message.clone(), target.clone());
            log.record(LogMessage { message, target, ..LogMessage::default() }, |_| true);
        }
    });
    let shown = text.lines().filter(|line| line.contains(&message)).count();
    assert!(shown.is_multiple_of((1 << 20) / 6_150) && shown > 0, "{shown}");
}

#[test]
fn a_flood_is_left_out_and_counted_and_what_is_not_shown_does_not_count() {
    let begin = Instant::now();
    let text = logged(|log| {
        for _ in 0..2000 {
            log.record(LogMessage { level: "debug".to_owned(), ..LogMessage::default() }, |_| true);
        }
        for _ in 0..3000 {
            log.printed("y");
        }
    });
    let windows = begin.elapsed().as_secs() as usize + 1;
    let shown = text.lines().filter(|line| line.ends_with(" y stage=\"s\" replica=3")).count();
    let counts = text.lines().filter_map(|line| line.split_once(" lines left out")?.0.rsplit(' ').next());
    let left_out: usize = counts.filter_map(|count| count.parse::<usize>().ok()).sum();
    assert_eq!(shown + left_out, 3000, "{text}");
    assert!(shown >= 1000 && shown <= 1000 * windows, "{shown}");
}
