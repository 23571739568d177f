//! Calls of a child to routes of its node.

use super::*;

const BAD_CALL: &str = "a call of it has one input, and an id above those of its earlier calls";

fn call(id: u64, batch: u64) -> Json {
    json!({ "type": "call", "id": id, "batch": batch, "item": 0, "route": "/child" })
}

#[tokio::test]
async fn a_call_has_one_input_and_an_id_above_the_last() {
    let input = Value::Null.encode(Format::Envelope).unwrap();
    let mut reading = Reading::new(false, false).await;
    let (batch, _answers) = reading.add(1, None).await;
    assert_eq!(reading.take(call(3, batch), &[&input]).await, Ok(()));
    assert_eq!(reading.take(call(4, batch), &[&input]).await, Ok(()));
    assert_eq!((reading.open_calls(), reading.queued().len()), (2, 0));
    for id in [4, 3, 0] {
        assert_eq!(reading.take(call(id, batch), &[&input]).await, broken(BAD_CALL), "{id}");
    }
    for parts in [&[][..], &[&input[..], &input[..]]] {
        assert_eq!(reading.take(call(9, batch), parts).await, broken(BAD_CALL));
    }
    assert_eq!(reading.open_calls(), 2);
}

/// Which the child reads as the result of the call.
#[tokio::test]
async fn a_call_of_a_batch_that_does_not_run_is_refused() {
    let input = Value::Null.encode(Format::Envelope).unwrap();
    let mut reading = Reading::new(true, false).await;
    let (_running, (waiting, _answers)) = (reading.add(1, None).await, reading.add(1, None).await);
    for (id, batch, item, kind) in
        [(1, waiting, 0, ErrorKind::Cancelled), (2, 99, 0, ErrorKind::Cancelled), (3, 0, 1, ErrorKind::Cancelled)]
    {
        let mut head = call(id, batch);
        head["item"] = json!(item);
        assert_eq!(reading.take(head, &[&input]).await, Ok(()));
        let queued = reading.queued();
        let [ToChild::Result { id: of, error: Some(error) }] = &queued[..] else { panic!("{queued:?}") };
        assert_eq!((*of, error.kind.as_deref()), (id, Some(kind.as_str())));
    }
    assert_eq!(reading.take(call(4, 0), &[b"no envelope"]).await, Ok(()));
    let queued = reading.queued();
    assert!(matches!(&queued[..], [ToChild::Result { id: 4, error: Some(_) }]), "{queued:?}");
    assert_eq!(reading.open_calls(), 0);
}

#[tokio::test]
async fn a_call_ends_when_the_child_cancels_it_or_its_batch_is_answered() {
    let input = Value::Null.encode(Format::Envelope).unwrap();
    let mut reading = Reading::new(false, false).await;
    let (batch, _answers) = reading.add(1, None).await;
    for id in 1..=3 {
        assert_eq!(reading.take(call(id, batch), &[&input]).await, Ok(()));
    }
    for (id, left) in [(2, 2), (2, 2), (7, 2)] {
        assert_eq!(reading.take(json!({ "type": "cancel_call", "id": id }), &[]).await, Ok(()));
        assert_eq!(reading.open_calls(), left);
    }
    let outcomes = json!({ "type": "outcomes", "id": batch, "items": [{ "message": "m" }] });
    assert_eq!(reading.take(outcomes, &[]).await, Ok(()));
    assert_eq!(reading.open_calls(), 0);
}

#[tokio::test]
async fn a_child_asks_for_outputs_of_a_call_within_limits() {
    let input = Value::Null.encode(Format::Envelope).unwrap();
    let excess = Err(why(LostReason::excess_credit()));
    let mut reading = Reading::new(false, false).await;
    let (batch, _answers) = reading.add(1, None).await;
    let with_credit = |id: u64, outputs: usize, bytes: Option<u64>| {
        let mut head = call(id, batch);
        (head["credit"], head["credit_bytes"]) = (json!(outputs), json!(bytes));
        head
    };
    for (id, outputs, bytes) in [(1, 0, None), (2, MAX_CREDIT + 1, None), (3, 1, Some(0))] {
        assert_eq!(reading.take(with_credit(id, outputs, bytes), &[&input]).await, excess);
    }
    assert_eq!(reading.take(with_credit(4, 1, Some(100)), &[&input]).await, Ok(()));
    assert_eq!(reading.take(call(5, batch), &[&input]).await, Ok(()));
    let credit = |id: u64, outputs: usize, bytes: u64| json!({ "type": "call_credit", "id": id, "outputs": outputs, "bytes": bytes });
    assert_eq!(reading.take(credit(4, 1, 0), &[]).await, Ok(()));
    for wrong in [credit(4, 0, 0), credit(4, MAX_CREDIT, 0), credit(4, 1, 1)] {
        assert_eq!(reading.take(wrong.clone(), &[]).await, excess, "{wrong}");
    }
    for (id, reason) in [(5, "it takes no stream"), (9, "it may be over")] {
        assert_eq!(reading.take(credit(id, 0, 0), &[]).await, Ok(()), "{reason}");
    }
}

/// The caller of an item that left gets no call of the child.
#[tokio::test]
async fn a_call_for_all_items_is_of_one_whose_caller_waits() {
    let input = Value::Null.encode(Format::Envelope).unwrap();
    let mut reading = Reading::new(false, false).await;
    let (batch, _answers) = reading.add(1, None).await;
    let mut whole = call(1, batch);
    whole["item"] = Json::Null;
    assert_eq!(reading.take(whole.clone(), &[&input]).await, Ok(()));
    assert_eq!(reading.open_calls(), 1);
    let context = reading.reader.open.lock().running(batch).unwrap().contexts[0].clone();
    reading.node.leave(0);
    while !context.is_cancelled() {
        tokio::task::yield_now().await;
    }
    whole["id"] = json!(2);
    assert_eq!(reading.take(whole, &[&input]).await, Ok(()));
    let queued = reading.queued();
    assert!(queued.iter().any(|message| matches!(message, ToChild::Result { id: 2, error: Some(_) })), "{queued:?}");
}
