//! When a child is looked at, pinged and ended, and who is told.

use super::*;

/// Looks at a child every 10 ms, after a frame or in silence: when it was looked at, and when it is ended.
fn run(is_silent: bool, is_lost_at: impl Fn(u64) -> bool) -> (Vec<u64>, Option<u64>) {
    let start = Instant::now();
    let (mut looks, mut looked_at) = (PeriodicChecks { last: start, is_suspected: false }, Vec::new());
    for millis in (0..1000).step_by(10) {
        let look = || {
            looked_at.push(millis);
            if is_lost_at(millis) { Err(LostReason::does_not_read()) } else { Ok(()) }
        };
        if looks.at(start + Duration::from_millis(millis), is_silent, look).is_err() {
            return (looked_at, Some(millis));
        }
    }
    (looked_at, None)
}

#[test]
fn a_child_that_is_never_silent_is_looked_at_and_has_one_look_more() {
    assert_eq!(run(false, |millis| millis >= 150), (vec![100, 200, 300], Some(300)));
    assert_eq!(run(true, |millis| millis >= 150), (vec![100, 200], Some(200)));
}

#[test]
fn a_silent_child_is_pinged_once_after_half_of_its_time() {
    let pings = std::cell::Cell::new(0);
    let since = Instant::now().checked_sub(Duration::from_secs(60));
    let mut silence = SilenceTimer { since, is_pinged: false };
    let mut is_too_long = |seconds| {
        let is_too_long = silence.is_too_long(Duration::from_secs(seconds), || pings.set(pings.get() + 1));
        (is_too_long, pings.get())
    };
    assert_eq!([is_too_long(1_000), is_too_long(100), is_too_long(100)], [(false, 0), (false, 1), (false, 1)]);
    assert_eq!(is_too_long(60), (true, 1));
    assert!(!SilenceTimer::default().is_too_long(Duration::from_secs(60), || panic!("it was not silent")));
}

#[test]
fn a_suspicion_ends_with_the_next_good_look() {
    let is_lost_at = |millis| millis / 100 % 2 == 0;
    assert_eq!(run(false, is_lost_at), ((100..1000).step_by(100).collect(), None));
}

#[tokio::test]
async fn a_child_that_leaves_is_told_to_stop_if_it_may_have_several_batches() {
    for (is_serial, stops) in [(true, 0), (false, 1)] {
        let mut reading = Reading::new(is_serial, false).await;
        reading.reader.let_leave().await;
        assert!(reading.reader.open.lock().is_leaving);
        let queued = reading.queued();
        assert_eq!(queued.len(), stops, "{queued:?}");
        assert!(queued.iter().all(|message| matches!(message, ToChild::Stop { timeout_ms: Some(20) })), "{queued:?}");
    }
}

#[tokio::test]
async fn only_messages_about_work_end_a_silence() {
    let mut reading = Reading::new(false, false).await;
    let since = Some(Instant::now());
    for (head, is_silent) in [
        (json!({ "type": "log", "message": "m", "request_id": null }), true),
        (json!({ "type": "metrics", "samples": [] }), true),
        (json!({ "type": "starting", "phase": "loads" }), true),
        (json!({ "type": "pong" }), false),
        (json!({ "type": "cancel_call", "id": 1 }), false),
    ] {
        reading.silence = SilenceTimer { since, is_pinged: true };
        assert_eq!(reading.take(head.clone(), &[]).await, Ok(()));
        assert_eq!((reading.silence.since.is_some(), reading.silence.is_pinged), (is_silent, is_silent), "{head}");
    }
}

#[tokio::test]
async fn a_child_with_one_batch_is_ended_when_that_is_overdue() {
    let mut reading = Reading::new(true, false).await;
    let (id, _answers) = reading.add(1, Some(Duration::ZERO)).await;
    assert_eq!(reading.look(), Ok(()), "its callers wait");
    reading.reader.open.lock().give_up(id);
    assert_eq!(reading.look(), broken("its batch has lasted longer than the stage's timeout of 0ns"));
}

#[tokio::test]
async fn a_child_with_several_batches_is_pinged_and_ended_when_it_is_silent() {
    let mut reading = Reading::new(false, false).await;
    assert_eq!(reading.look(), Ok(()));
    let (id, _answers) = reading.add(1, None).await;
    reading.silence.since = Instant::now().checked_sub(Duration::from_secs(60));
    assert_eq!(reading.look(), Ok(()), "its batch may last for ever");
    reading.reader.silence_timeout = Some(Duration::from_secs(100));
    assert_eq!(reading.look(), Ok(()));
    let queued = reading.queued();
    assert!(matches!(&queued[..], [ToChild::Ping]), "{queued:?}");
    reading.reader.silence_timeout = Some(Duration::from_secs(60));
    assert_eq!(reading.look(), broken("it has said nothing for 60s"));
    drop(reading.reader.open.lock().end(id));
    assert_eq!(reading.look(), Ok(()), "it has nothing to say");
}

#[tokio::test]
async fn what_callers_cancelled_is_told_when_there_is_room() {
    let mut reading = Reading::new(false, false).await;
    let (frames, mut queued) = mpsc::channel(2);
    let ping = || OutgoingFrame::new(&ToChild::Ping, Vec::new());
    (0..2).for_each(|_| frames.try_send(ping()).unwrap());
    reading.reader.open.lock().cancel(&frames, 7, 0..1);
    assert!((0..2).all(|_| queued.try_recv().is_ok()) && queued.try_recv().is_err());
    assert!(reading.reader.look(&frames, &mut reading.silence).is_ok());
    assert!(matches!(queued.try_recv().unwrap().message(), ToChild::Cancel { id: 7, item: 0 }));
}

/// A writer ends when the child has closed its socket, or with the child.
#[tokio::test]
async fn a_child_that_cannot_be_written_to_is_ended_unless_it_has_ended() {
    let mut reading = Reading::new(false, false).await;
    assert_eq!(reading.look(), Ok(()));
    reading.reader.writer = tokio::spawn(async { Ok(()) });
    while !reading.reader.writer.is_finished() {
        tokio::task::yield_now().await;
    }
    assert_eq!(reading.look(), broken("it does not read any more"));
    let child = &reading.reader.connection.child;
    kill_process(child.pid(), Signal::KILL).unwrap();
    assert!(child.has_ended_within(Duration::from_secs(10)));
    assert_eq!(reading.look(), Ok(()), "its last frames and its end say more");
}

#[tokio::test]
async fn a_child_that_leaves_no_room_for_results_is_ended_after_some_time() {
    let mut reading = Reading::new(false, false).await;
    for _ in 0..=MAX_OPEN {
        reading.frames.try_send(OutgoingFrame::new(&ToChild::Ping, Vec::new())).unwrap();
    }
    let since = Instant::now();
    let lost = timeout(Duration::from_secs(10), reading.reader.read()).await.expect("it is noticed");
    assert_eq!(lost.map(why), Some("it did not read what it was sent".to_owned()));
    assert!(since.elapsed() >= reading.reader.stuck_after);
}

#[tokio::test]
async fn a_child_whose_queue_is_full_is_ended_at_once() {
    let mut reading = Reading::new(false, false).await;
    reading.reader.open.lock().is_stuck = true;
    reading.reader.stuck_after = Duration::from_secs(1000);
    let lost = timeout(Duration::from_secs(10), reading.reader.read()).await.expect("it is noticed");
    assert_eq!(lost.map(why), Some("it did not read what it was sent".to_owned()));
}

#[tokio::test]
async fn the_end_of_a_child_is_told_to_its_callers_and_to_its_replica() {
    let mut reading = Reading::new(false, false).await;
    let (_, mut answers) = reading.add(1, None).await;
    kill_process(reading.reader.connection.child.pid(), Signal::TERM).unwrap();
    let (sender, ended) = watch::channel(None);
    let open = Arc::clone(&reading.reader.open);
    let Reading { reader, node, frames: _frames, queued: _queued, .. } = reading;
    timeout(Duration::from_secs(10), reader.run(sender)).await.expect("it ends");
    let end = ended.borrow().clone().unwrap();
    assert_eq!(end.exit.reason(), "the process was killed by signal 15 (SIGTERM)");
    assert!(!end.is_announced && answers.recv().await.is_none());
    assert!(open.lock().is_leaving && open.lock().is_empty());
    timeout(Duration::from_secs(10), async {
        while node.node.describe().stages[0].restarts == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("its replica is started again");
}

#[tokio::test]
async fn a_child_without_a_worker_is_ended_and_reports_nothing() {
    let reading = Reading::new(false, false).await;
    let Reading { reader, frames, queued, node, .. } = reading;
    drop((frames, queued));
    let (sender, ended) = watch::channel(None);
    timeout(Duration::from_secs(10), reader.run(sender)).await.expect("it ends");
    assert_eq!(ended.borrow().clone().unwrap().exit.reason(), "its replica has ended");
    assert_eq!(node.node.describe().stages[0].restarts, 0);
}
