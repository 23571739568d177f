//! Batches of a child that is not there: what is queued for it, and what its callers see.

use bytes::Bytes;

use super::*;
use crate::testing::WaitingNode;

/// The callers' side of a child, with its queue of frames, and its end.
pub(crate) struct Callers {
    pub(crate) child: RunningChild,
    pub(crate) queued: mpsc::Receiver<OutgoingFrame>,
    has_ended: watch::Sender<Option<ChildEnd>>,
    pub(crate) node: WaitingNode,
}

impl Callers {
    pub(crate) async fn new(is_serial: bool) -> Self {
        let ((frames, queued), (has_ended, ended)) = (mpsc::channel(64), watch::channel(None));
        let open = Arc::new(Mutex::new(OpenBatches::new(is_serial)));
        let (room, limits) = (Arc::new(Semaphore::new(2)), limits(1 << 20));
        let (timeout, stop_timeout) = (Some(Duration::ZERO), Duration::from_millis(30));
        let child = RunningChild { frames, open, room, limits, max_items: 9, ended, timeout, stop_timeout };
        Self { child, queued, has_ended, node: WaitingNode::start().await }
    }

    async fn part(&mut self, items: usize) -> BatchPart {
        let mut part = BatchPart::default();
        for index in 0..items {
            part.indices.push(index);
            part.contexts.push(self.node.call().await);
        }
        part
    }
}

pub(crate) fn taken(queued: &mut mpsc::Receiver<OutgoingFrame>) -> Vec<ToChild> {
    std::iter::from_fn(|| queued.try_recv().ok()).map(|frame| frame.message()).collect()
}

fn end(reason: &str) -> ChildEnd {
    ChildEnd { exit: WorkerExit::new(reason), is_announced: true }
}

/// The items that the child is told of as cancelled.
fn cancelled(queued: &mut mpsc::Receiver<OutgoingFrame>) -> Vec<usize> {
    let item = |message: ToChild| match message {
        ToChild::Cancel { id: 0, item } => item,
        other => panic!("{other:?}"),
    };
    taken(queued).into_iter().map(item).collect()
}

fn output(item: usize) -> Answer {
    Answer::Output { item, part: Bytes::new(), response: None, _unread: None }
}

fn outcomes() -> Answer {
    Answer::Outcomes { errors: Vec::new(), parts: Vec::new(), responses: Vec::new() }
}

impl RunningPart<'_> {
    async fn answer(&self, answer: Answer) {
        let answers = self.child.open.lock().running(self.id).unwrap().answers.clone();
        assert!(answers.send(answer).await.is_ok());
    }
}

#[test]
fn all_batches_calls_and_outputs_of_a_child_have_places() {
    assert_eq!([places_of(1), places_of(5)], [8 + 2048 + 256, 40 + 2048 + 256]);
}

#[tokio::test]
async fn a_batch_waits_until_the_child_has_room_and_is_written_with_its_method() {
    let mut callers = Callers::new(false).await;
    let (first, second, third) = (callers.part(1).await, callers.part(2).await, callers.part(1).await);
    let Callers { child, mut queued, .. } = callers;
    let method = ProcessMethod { name: "other".to_owned(), timeout: None, contract: Default::default() };
    let first = child.begin(first, None, Turn::default()).await.ok().unwrap();
    let second = child.begin(second, Some(&method), Turn::default()).await.ok().unwrap();
    let messages = taken(&mut queued);
    let [ToChild::Batch { id: 0, method: None, items }, ToChild::Batch { id: 1, method: Some(name), items: two }] =
        &messages[..]
    else {
        panic!("{messages:?}")
    };
    assert_eq!((items.len(), name.as_str(), two.len()), (1, "other", 2));
    let wait = timeout(Duration::from_millis(50), child.begin(third, None, Turn::default()));
    assert!(wait.await.is_err(), "it has no room");
    assert_eq!((first.indices.len(), second.contexts.len()), (1, 2));
}

#[tokio::test]
async fn a_child_that_leaves_gets_no_batch_and_its_end_is_told() {
    let mut callers = Callers::new(false).await;
    let (first, second) = (callers.part(1).await, callers.part(1).await);
    let Callers { child, mut queued, has_ended, node: _node } = callers;
    let mut running = child.begin(first, None, Turn::default()).await.ok().unwrap();
    taken(&mut queued);
    drop(child.open.lock().close());
    has_ended.send(Some(end("it left"))).unwrap();
    let refused = child.begin(second, None, Turn::default()).await.err().unwrap();
    assert_eq!((refused.exit.reason(), refused.is_announced), ("it left", true));
    assert_eq!(running.next().await.err().unwrap().exit.reason(), "it left");
    drop(running);
    assert!(taken(&mut queued).is_empty(), "there is nothing to cancel");
    drop(has_ended);
    assert_eq!(child.end().await.exit.reason(), "it left");
}

#[tokio::test]
async fn a_batch_that_is_dropped_before_its_outcomes_is_cancelled() {
    for (answer, is_over) in [(None, false), (Some(output(0)), false), (Some(outcomes()), true)] {
        let mut callers = Callers::new(true).await;
        let part = callers.part(2).await;
        let Callers { child, mut queued, has_ended: _has_ended, node: _node } = callers;
        let mut running = child.begin(part, None, Turn::default()).await.ok().unwrap();
        taken(&mut queued);
        if let Some(answer) = answer {
            running.answer(answer).await;
            assert!(running.next().await.is_ok());
        }
        drop(running);
        assert_eq!(cancelled(&mut queued), if is_over { vec![] } else { vec![0, 1] });
        // It had no time, and its callers left.
        assert_eq!(child.open.lock().overdue().is_some(), !is_over);
    }
}

#[tokio::test]
async fn each_caller_of_several_that_leaves_is_told_once() {
    let mut callers = Callers::new(false).await;
    let part = callers.part(3).await;
    let Callers { child, mut queued, has_ended: _has_ended, node } = callers;
    let mut running = child.begin(part, None, Turn::default()).await.ok().unwrap();
    taken(&mut queued);
    for left in [1, 0, 2] {
        assert!(timeout(3 * TICK, running.next()).await.is_err());
        assert!(cancelled(&mut queued).is_empty());
        node.leave(left);
        while !running.contexts[left].is_cancelled() {
            tokio::task::yield_now().await;
        }
        assert!(timeout(5 * TICK, running.next()).await.is_err());
        assert_eq!(cancelled(&mut queued), [left]);
    }
    drop(running);
    assert!(cancelled(&mut queued).is_empty());
}

/// Its future is dropped when its caller leaves.
#[tokio::test]
async fn the_caller_of_a_single_item_is_not_looked_at() {
    let mut callers = Callers::new(false).await;
    let part = callers.part(1).await;
    let Callers { child, mut queued, has_ended: _has_ended, node } = callers;
    let mut running = child.begin(part, None, Turn::default()).await.ok().unwrap();
    taken(&mut queued);
    node.leave(0);
    while !running.contexts[0].is_cancelled() {
        tokio::task::yield_now().await;
    }
    assert!(timeout(3 * TICK, running.next()).await.is_err());
    assert!(cancelled(&mut queued).is_empty());
    drop(running);
    assert_eq!(cancelled(&mut queued), [0]);
}

#[tokio::test]
async fn a_child_with_several_batches_gets_credit_for_half_of_its_outputs_at_a_time() {
    for (is_serial, expected) in [(false, 2), (true, 0)] {
        let mut callers = Callers::new(is_serial).await;
        let part = callers.part(1).await;
        let Callers { child, mut queued, has_ended: _has_ended, node: _node } = callers;
        let mut running = child.begin(part, None, Turn::default()).await.ok().unwrap();
        taken(&mut queued);
        (0..CREDIT / 2 - 1).for_each(|_| running.give_credit());
        assert!(taken(&mut queued).is_empty());
        (0..CREDIT / 2 + 1).for_each(|_| running.give_credit());
        let messages = taken(&mut queued);
        assert_eq!(messages.len(), expected);
        assert!(messages.iter().all(|message| matches!(message, ToChild::Credit { id: 0, item: 0, outputs: 8 })));
    }
}

#[tokio::test]
async fn a_batch_has_places_for_the_outputs_ahead_and_its_outcome() {
    let mut callers = Callers::new(false).await;
    let part = callers.part(1).await;
    let running = callers.child.begin(part, None, Turn::default()).await.ok().unwrap();
    let answers = callers.child.open.lock().running(running.id).unwrap().answers.clone();
    assert_eq!(answers.max_capacity(), 17);
}

#[tokio::test]
async fn a_child_is_told_to_stop_and_waited_for() {
    let Callers { child, mut queued, has_ended, .. } = Callers::new(true).await;
    let begin = Instant::now();
    child.stop().await;
    assert!(begin.elapsed() >= child.stop_timeout, "it has not ended");
    let messages = taken(&mut queued);
    assert!(matches!(&messages[..], [ToChild::Stop { timeout_ms: Some(30) }]), "{messages:?}");
    has_ended.send(Some(end("it stopped"))).unwrap();
    child.stop().await;
    drop(has_ended);
    let Callers { child, has_ended, .. } = Callers::new(true).await;
    drop(has_ended);
    assert_eq!(child.end().await.exit.reason(), "its child has ended");
}
