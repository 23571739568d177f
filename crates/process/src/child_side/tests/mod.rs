//! What the child's side makes of the messages of a node, and what it answers. The node of these tests is the other end
//! of a socket.

mod calls;

use std::io::BufReader;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::{Envelope, Format, Map, Payload, Value};
use callboard_core::edge::PayloadReplies;
use callboard_core::isolation::InnerCalls as _;
use callboard_core::{CallError, ErrorKind, Instant};
use futures_util::{FutureExt as _, StreamExt as _};
use rustix::event::Timespec;

use super::calls::ItemCalls;
use super::messages::{EndReason, Messages, is_readable};
use super::node::Node;
use super::*;
use crate::frame::{FrameReader, limits, write_frame};
use crate::message::{self, CREDIT, CREDIT_BYTES, CallHead, FromChild, ItemError, PROTOCOL, Start, ToChild};
use crate::shared_memory;
use crate::socket::Inbox;

/// The most bytes of a frame of these tests.
const MAX_BYTES: u64 = 4 << 20;

/// The other end of a child's socket.
pub(super) struct FakeNode {
    stream: BufReader<Inbox>,
    reader: FrameReader,
    socket: UnixStream,
}

impl FakeNode {
    /// With a child that got no message yet.
    pub(super) fn new() -> (Self, Messages, Node) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (messages, node) = Messages::over(theirs).unwrap();
        let (reader, stream) = (FrameReader::new(MAX_BYTES), BufReader::new(Inbox::new(ours.try_clone().unwrap())));
        (Self { stream, reader, socket: ours }, messages, node)
    }

    /// With a child that was told its start.
    pub(super) fn started(change: impl FnOnce(&mut Start)) -> (Self, Messages, Node) {
        let (mut node, mut messages, child) = Self::new();
        let mut start = start();
        change(&mut start);
        node.send(&ToChild::Start(start), &[]);
        assert!(messages.start().unwrap().is_some());
        (node, messages, child)
    }

    fn send(&mut self, message: &ToChild, parts: &[Value]) {
        let head = message::encode(message).unwrap();
        let parts: Vec<Envelope> = parts.iter().map(envelope).collect();
        let parts = parts.iter().map(|part| (part.len(), part.parts()));
        write_frame(&mut self.socket, &head, parts, 0).unwrap();
    }

    pub(super) fn batch(&mut self, id: u64, items: &[i64]) {
        let heads = items.iter().map(|_| CallHead::default()).collect();
        let parts: Vec<Value> = items.iter().map(|item| Value::from(*item)).collect();
        self.send(&ToChild::Batch { id, method: None, items: heads }, &parts);
    }

    /// The next message of the child, and its parts.
    fn next(&mut self) -> (FromChild, Vec<Bytes>) {
        let frame = self.reader.read(&mut self.stream).unwrap().expect("the child has said something");
        (FromChild::decode(&frame.head).unwrap(), frame.parts)
    }

    fn is_silent(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        self.stream.buffer().is_empty() && !is_readable(self.stream.get_ref(), Some(&now)).unwrap()
    }
}

fn start() -> Start {
    Start {
        protocol: PROTOCOL,
        stage: "stage".to_owned(),
        replica: 0,
        generation: 0,
        max_batch_size: 8,
        max_bytes: MAX_BYTES,
        shared_memory: false,
        settings: Map::new(),
        max_batches: None,
        ahead: None,
        credit: None,
        files: None,
        progress: false,
        metrics: false,
        methods: Vec::new(),
        contracts: Vec::new(),
    }
}

fn envelope(value: &Value) -> Envelope {
    Payload::new(value.clone()).to_envelope().unwrap()
}

fn why(read: Result<Option<Start>, ServeWorkerError>) -> String {
    read.expect_err("it is refused").to_string()
}

#[test]
fn the_start_comes_first_and_once_and_says_how_long_frames_are() {
    let (mut node, mut messages, _child) = FakeNode::new();
    node.batch(1, &[1]);
    assert!(why(messages.start()).contains("a batch before the start, or a second start"));

    for shares in [false, true] {
        let (mut node, mut messages, _child) = FakeNode::new();
        node.send(&ToChild::Start(Start { shared_memory: shares, ..start() }), &[]);
        let start = messages.start().unwrap().unwrap();
        assert_eq!(start.shared_memory, shares && shared_memory::IS_SUPPORTED);
    }

    let (mut node, mut messages, child) = FakeNode::started(|start| start.max_bytes = 100);
    assert_eq!(child.limits(), limits(100));
    node.send(&ToChild::Start(start()), &[]);
    assert!(why(messages.read()).contains("a batch before the start, or a second start"));
    node.send(&ToChild::Batch { id: 1, method: None, items: vec![CallHead::default()] }, &["a".repeat(200).into()]);
    assert!(
        matches!(messages.read(), Err(ServeWorkerError::Socket(error)) if error.to_string().contains("limit of 100"))
    );

    let (mut node, mut messages, _child) = FakeNode::new();
    let long = Value::from("a".repeat(2 << 20));
    node.socket.set_nonblocking(true).unwrap();
    let head = message::encode(&ToChild::Ping).unwrap();
    let long = envelope(&long);
    let _ = write_frame(&mut node.socket, &head, [(long.len(), long.parts())].into_iter(), 0);
    let error = messages.start().expect_err("nothing is long before the start");
    assert!(matches!(&error, ServeWorkerError::Socket(error) if error.to_string().contains("limit of")), "{error:?}");
}

#[test]
fn a_node_that_wants_no_worker_or_is_gone_starts_none() {
    for (stops, reason) in [(true, EndReason::Stop), (false, EndReason::Gone)] {
        let (mut node, mut messages, _child) = FakeNode::new();
        if stops {
            node.send(&ToChild::Stop { timeout_ms: None }, &[]);
        }
        let kept = stops.then_some(node);
        assert!(messages.start().unwrap().is_none());
        assert_eq!(messages.end, Some(reason));
        drop(kept);
    }
}

#[test]
fn frames_that_came_together_are_all_read_and_nothing_after_the_stop() {
    let (mut node, mut messages, _child) = FakeNode::started(|_| ());
    assert!(messages.next().unwrap().is_none(), "it does not wait");
    node.batch(1, &[1]);
    node.send(&ToChild::Ping, &[]);
    node.batch(2, &[2, 3]);
    let ids: Vec<u64> = std::iter::from_fn(|| messages.next().unwrap()).map(|batch| batch.id).collect();
    assert_eq!((ids, messages.end), (vec![1, 2], None));
    assert!(matches!(node.next().0, FromChild::Pong));
    assert!(node.is_silent());
    node.send(&ToChild::Stop { timeout_ms: None }, &[]);
    node.batch(3, &[4]);
    messages.look().unwrap();
    assert_eq!(messages.end, Some(EndReason::Stop));
    assert!(messages.next().unwrap().is_none());
}

#[test]
fn a_batch_has_a_part_for_each_item() {
    for (items, parts) in [(1, 2), (2, 1), (1, 0)] {
        let (mut node, mut messages, _child) = FakeNode::started(|_| ());
        let items = (0..items).map(|_| CallHead::default()).collect();
        node.send(&ToChild::Batch { id: 1, method: None, items }, &vec![Value::Null; parts]);
        assert!(why(messages.read()).contains("another count of items than of parts"));
    }
    let (mut node, mut messages, _child) = FakeNode::started(|_| ());
    let method = Some("other".to_owned());
    node.send(&ToChild::Batch { id: 1, method, items: vec![CallHead::default()] }, &[Value::Null]);
    assert!(messages.read().is_err(), "a child in Rust has no methods");
}

#[test]
fn an_item_is_not_run_if_its_caller_left_or_its_input_cannot_be_read() {
    let (mut node, mut messages, _child) = FakeNode::started(|_| ());
    let late = CallHead { remaining_ms: Some(0), ..CallHead::default() };
    let items = vec![CallHead::default(), CallHead::default(), late, CallHead::default()];
    let parts = [1, 2, 3, 4].map(|number| envelope(&Value::from(number)).into_bytes());
    let head = message::encode(&ToChild::Batch { id: 7, method: None, items }).unwrap();
    let broken = [Bytes::from_static(b"no envelope")];
    let whole = parts.each_ref().map(|part| [part.clone()]);
    let written =
        [(parts[0].len(), &whole[0][..]), (parts[1].len(), &whole[1]), (parts[2].len(), &whole[2]), (11, &broken)];
    write_frame(&mut node.socket, &head, written.into_iter(), 0).unwrap();
    // One that is not there, and one of a batch that is not there.
    for (id, item) in [(7, 1), (7, 9), (8, 0)] {
        node.send(&ToChild::Cancel { id, item }, &[]);
    }
    let batch = messages.next().unwrap().unwrap();
    let outcomes: Vec<_> = batch.items(&limits(MAX_BYTES)).map(|(input, _)| input).collect();
    let [Ok(first), Err(left), Err(late), Err(unread)] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!(**first.value().unwrap(), Value::from(1));
    for error in [left, late] {
        assert_eq!((error.kind, &*error.message), (ErrorKind::Cancelled, "its caller has left"));
    }
    assert_eq!(unread.kind, ErrorKind::Failed, "the node has checked it");
    let wanted: Vec<bool> = batch.open.calls.iter().map(|call| call.is_wanted(Instant::now())).collect();
    assert_eq!(wanted, [true, false, false, true]);
    assert!(batch.open.cancelled.notified().now_or_never().is_some(), "asynchronous code is told");
}

#[test]
fn a_stream_has_the_credit_of_the_start_and_what_is_added() {
    let credit_of = |credit: Option<usize>, added: &[usize]| {
        let (mut node, mut messages, _child) = FakeNode::started(|start| start.credit = credit);
        node.batch(1, &[1]);
        added.iter().for_each(|outputs| node.send(&ToChild::Credit { id: 1, item: 0, outputs: *outputs }, &[]));
        node.send(&ToChild::Credit { id: 2, item: 0, outputs: 1 }, &[]);
        messages.next().unwrap().unwrap().open.credit.available_permits()
    };
    assert_eq!(credit_of(Some(3), &[]), 3);
    assert_eq!(credit_of(Some(3), &[1, 2]), 6);
    assert_eq!(credit_of(Some(3), &[usize::MAX]), 3 + CREDIT, "no more than may wait anywhere");
    assert_eq!(credit_of(None, &[]), tokio::sync::Semaphore::MAX_PERMITS);
}

#[test]
fn a_worker_says_what_it_can_and_why_it_is_not_there() {
    let (mut node, _messages, child) = FakeNode::started(|_| ());
    child.ready(false, (3, 1), Some("one by one")).unwrap();
    let (FromChild::Ready(ready), _) = node.next() else { panic!("ready") };
    assert_eq!((ready.protocol, ready.max_batches, ready.ahead), (PROTOCOL, 3, 1));
    assert_eq!((ready.shared_memory, ready.methods, ready.note.as_deref()), (false, false, Some("one by one")));
    assert!(ready.worker.starts_with("rust, callboard "), "{}", ready.worker);
    child.failed(&callboard_core::Failure::new("no device")).unwrap();
    let (FromChild::Failed(failed), _) = node.next() else { panic!("failed") };
    assert_eq!((&*failed.message, failed.trace), ("no device", None));
}

#[test]
fn the_outputs_of_a_batch_share_the_room_of_a_frame() {
    let (mut node, _messages, child) = FakeNode::started(|start| start.max_bytes = 100);
    let text = |count: usize| Payload::new(Value::from("a".repeat(count)));
    let bytes = |count: usize| text(count).to_envelope().unwrap().len();
    let (half, rest) = (30, (0..100).find(|count| bytes(30) + bytes(*count) == 100).unwrap());
    let mut outcomes = child.outcomes();
    for count in [half, rest + 1, rest, 0] {
        outcomes.push(Ok(Some(text(count))), None);
    }
    // Of a stream, whose outputs went before.
    outcomes.push(Ok(None), None);
    outcomes.send(7, &child).unwrap();
    let (FromChild::Outcomes(sent), parts) = node.next() else { panic!("outcomes") };
    let errors: Vec<bool> = sent.items.iter().map(Option::is_some).collect();
    assert_eq!((sent.id, errors, parts.len(), sent.last), (7, vec![false, true, false, true, false], 2, false));
    let reason = sent.items[1].as_ref().unwrap().message.clone();
    assert_eq!(reason, format!("the outputs of the batch exceed the {} bytes that are left of it", bytes(rest)));
    assert!(sent.responses.is_empty());
    assert!(child.output(&text((0..100).find(|count| bytes(*count) == 100).unwrap())).is_ok());
    assert!(child.output(&text(100)).is_err());
}

#[test]
fn nothing_is_readable_before_something_came() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let within = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let begun = Instant::now();
    assert!(!is_readable(&ours, Some(&within)).unwrap());
    assert!(begun.elapsed() >= Duration::from_millis(1));
    drop(theirs);
    assert!(is_readable(&ours, None).unwrap(), "an end can be read");
}
