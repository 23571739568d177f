//! Calls that code makes to routes of its node.

use super::*;

fn calls_of(node: &Node, item: usize) -> ItemCalls {
    ItemCalls { node: node.clone(), batch: 7, item }
}

fn value(payload: Result<Payload, CallError>) -> Value {
    payload.unwrap().into_inner().unwrap()
}

#[tokio::test]
async fn calls_of_a_batch_have_numbers_in_order_and_their_own_results() {
    let (mut node, mut messages, child) = FakeNode::started(|_| ());
    let calls: Vec<_> = (0..3)
        .map(|item| tokio::spawn(calls_of(&child, item).call("/twice", Payload::new(Value::from(item as i64)))))
        .collect();
    tokio::task::yield_now().await;
    for expected in 1..=3 {
        let (FromChild::Call(call), parts) = node.next() else { panic!("a call") };
        assert_eq!((call.id, call.batch, &*call.route, call.timeout_ms), (expected, 7, "/twice", None));
        assert_eq!((call.credit, call.credit_bytes), (None, None));
        let sent = Value::decode(Format::Envelope, &parts[0], &limits(MAX_BYTES)).unwrap();
        assert_eq!(sent, Value::from(call.item.unwrap() as i64));
    }
    // In another order, with one that failed and one whose caller is refused.
    node.send(&ToChild::Result { id: 3, error: None }, &[Value::from("three")]);
    let unavailable =
        ItemError { message: "no room".to_owned(), kind: Some("overloaded".to_owned()), ..ItemError::default() };
    node.send(&ToChild::Result { id: 1, error: Some(unavailable) }, &[]);
    let failed = ItemError { message: "no weights".to_owned(), ..ItemError::default() };
    node.send(&ToChild::Result { id: 2, error: Some(failed) }, &[]);
    // Of a call that is not open.
    node.send(&ToChild::Result { id: 9, error: None }, &[Value::Null]);
    messages.look().unwrap();
    let mut results = Vec::new();
    for call in calls {
        results.push(call.await.unwrap());
    }
    let [Err(refused), Err(failed), Ok(_)] = &results[..] else { panic!("{results:?}") };
    assert_eq!((refused.kind(), refused.message()), (ErrorKind::Overloaded, "no room"));
    assert_eq!((failed.kind(), failed.message()), (ErrorKind::Failed, "no weights"));
    assert_eq!(value(results.pop().unwrap()), Value::from("three"));
    assert!(node.is_silent(), "calls with a result are not cancelled");
}

#[tokio::test]
async fn a_call_that_is_dropped_is_cancelled_and_one_of_a_batch_that_is_over_ends() {
    let (mut node, mut messages, child) = FakeNode::started(|_| ());
    let other = tokio::spawn(ItemCalls { batch: 8, ..calls_of(&child, 0) }.call("/other", Payload::new(Value::Null)));
    let over = tokio::spawn(calls_of(&child, 0).call("/slow", Payload::new(Value::Null)));
    let mut dropped = calls_of(&child, 0).call("/slow", Payload::new(Value::Null));
    tokio::task::yield_now().await;
    assert!((&mut dropped).now_or_never().is_none());
    for _ in 0..3 {
        assert!(matches!(node.next().0, FromChild::Call(_)));
    }
    drop(dropped);
    let (FromChild::CancelCall(cancelled), _) = node.next() else { panic!("a cancellation") };
    assert_eq!(cancelled.id, 3);

    child.calls().end_all_of(7);
    let error = over.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Cancelled, "the call that it was made for has ended"));
    assert!(node.is_silent(), "the node has ended it");
    node.send(&ToChild::Result { id: 1, error: None }, &[Value::from(1)]);
    messages.look().unwrap();
    assert_eq!(value(other.await.unwrap()), Value::from(1));
}

#[tokio::test]
async fn a_call_is_refused_if_its_input_is_too_large_or_the_node_is_gone() {
    let (node, _messages, child) = FakeNode::started(|start| start.max_bytes = 100);
    // Its envelope has some bytes more.
    let bytes = |count: usize| Payload::new(Value::from("a".repeat(count)));
    let fits = (0..100).rev().find(|count| bytes(*count).to_envelope().unwrap().len() == 100).unwrap();
    let error = calls_of(&child, 0).call("/x", bytes(fits + 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(error.message(), "the input has 101 bytes, more than 100 (max_batch_bytes)");
    assert!(node.is_silent());
    assert!(calls_of(&child, 0).call("/x", bytes(fits)).now_or_never().is_none(), "it waits for its result");
    drop(node);
    let error = calls_of(&child, 0).call("/x", bytes(1)).await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Unavailable, "the node has ended"));
}

/// A stream of outputs that has begun.
fn begun(node: &mut FakeNode, child: &Node) -> PayloadReplies {
    let mut replies = calls_of(child, 0).replies("/items", Payload::new(Value::Null));
    assert!(replies.next().now_or_never().is_none());
    let (FromChild::Call(call), _) = node.next() else { panic!("a call") };
    assert_eq!((call.credit, call.credit_bytes), (Some(CREDIT), Some(CREDIT_BYTES)));
    replies
}

#[tokio::test]
async fn a_reader_of_a_stream_asks_for_more_when_it_has_read_half_of_the_outputs_or_a_quarter_of_the_bytes() {
    let (mut node, mut messages, child) = FakeNode::started(|_| ());
    let mut replies = begun(&mut node, &child);
    let asked = |node: &mut FakeNode| match node.next().0 {
        FromChild::CallCredit(credit) => (credit.id, credit.outputs, credit.bytes),
        other => panic!("{other:?}"),
    };
    let small = envelope(&Value::from(1)).len() as u64;
    for _ in 0..2 {
        for number in 1..=CREDIT / 2 {
            node.send(&ToChild::CallOutput { id: 1 }, &[Value::from(1)]);
            messages.look().unwrap();
            assert_eq!(value(replies.next().await.unwrap()), Value::from(1));
            assert_eq!(node.is_silent(), number < CREDIT / 2, "{number}");
        }
        assert_eq!(asked(&mut node), (1, CREDIT / 2, CREDIT as u64 / 2 * small));
    }
    // Two outputs of an eighth.
    let eighth = Value::from("a".repeat(CREDIT_BYTES as usize / 8));
    for number in 1..=2 {
        let (mut sending, eighth) = (node.socket.try_clone().unwrap(), envelope(&eighth));
        let head = message::encode(&ToChild::CallOutput { id: 1 }).unwrap();
        let sent = std::thread::spawn(move || {
            write_frame(&mut sending, &head, [(eighth.len(), eighth.parts())].into_iter(), 0).unwrap();
        });
        assert!(messages.read().unwrap().is_none());
        sent.join().unwrap();
        assert!(replies.next().await.unwrap().is_ok());
        assert_eq!(node.is_silent(), number == 1);
    }
    let (_, outputs, bytes) = asked(&mut node);
    assert!(outputs == 2 && bytes > CREDIT_BYTES / 4, "{outputs} {bytes}");

    node.send(&ToChild::Result { id: 1, error: None }, &[]);
    messages.look().unwrap();
    assert!(replies.next().await.is_none());
    drop(replies);
    assert!(node.is_silent(), "it is over");
}

#[tokio::test]
async fn a_stream_ends_with_its_error_or_with_the_one_output_of_a_route_that_does_not_stream() {
    let (mut node, mut messages, child) = FakeNode::started(|_| ());
    let mut replies = begun(&mut node, &child);
    // As many as there may be, and the end behind them.
    (0..CREDIT).for_each(|number| node.send(&ToChild::CallOutput { id: 1 }, &[Value::from(number as i64)]));
    let failed = ItemError { message: "no weights".to_owned(), ..ItemError::default() };
    node.send(&ToChild::Result { id: 1, error: Some(failed) }, &[]);
    messages.look().unwrap();
    for number in 0..CREDIT {
        assert_eq!(value(replies.next().await.unwrap()), Value::from(number as i64));
    }
    assert!(matches!(node.next().0, FromChild::CallCredit(_)));
    assert!(matches!(node.next().0, FromChild::CallCredit(_)));
    assert_eq!(replies.next().await.unwrap().unwrap_err().message(), "no weights");
    assert!(replies.next().await.is_none());

    let mut replies = calls_of(&child, 0).replies("/one", Payload::new(Value::Null));
    assert!(replies.next().now_or_never().is_none());
    node.next();
    node.send(&ToChild::Result { id: 2, error: None }, &[Value::from("one")]);
    messages.look().unwrap();
    assert_eq!(value(replies.next().await.unwrap()), Value::from("one"));
    assert!(replies.next().await.is_none());
    assert!(node.is_silent());

    // A dropped one is cancelled, and its outputs are nobody's.
    let mut replies = calls_of(&child, 0).replies("/items", Payload::new(Value::Null));
    assert!(replies.next().now_or_never().is_none());
    node.next();
    drop(replies);
    assert!(matches!(node.next().0, FromChild::CancelCall(call) if call.id == 3));
    node.send(&ToChild::CallOutput { id: 3 }, &[Value::Null]);
    messages.look().unwrap();
}

#[tokio::test]
async fn outputs_without_credit_and_of_calls_with_one_output_break_the_protocol() {
    let (mut node, mut messages, child) = FakeNode::started(|_| ());
    let _replies = begun(&mut node, &child);
    (0..CREDIT).for_each(|_| node.send(&ToChild::CallOutput { id: 1 }, &[Value::Null]));
    messages.look().unwrap();
    node.send(&ToChild::CallOutput { id: 1 }, &[Value::Null]);
    assert!(why(messages.read()).contains("an output of a call without credit"));

    let mut call = calls_of(&child, 0).call("/one", Payload::new(Value::Null));
    assert!((&mut call).now_or_never().is_none());
    node.send(&ToChild::CallOutput { id: 2 }, &[Value::Null]);
    assert!(why(messages.read()).contains("a stream for a call of one output"));
}
