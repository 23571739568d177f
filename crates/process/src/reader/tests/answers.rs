//! Outputs, outcomes, records and samples of a child.

use super::*;

#[tokio::test]
async fn an_output_is_of_an_item_of_a_batch_that_runs() {
    for is_serial in [true, false] {
        let mut reading = Reading::new(is_serial, true).await;
        let (id, mut answers) = reading.add(2, None).await;
        let output = |item: usize| json!({ "type": "output", "id": id, "item": item });
        assert_eq!(reading.take(output(1), &[b"one"]).await, Ok(()));
        let Some(Answer::Output { item: 1, part, .. }) = answers.recv().await else { panic!("no output of item 1") };
        assert_eq!(part, "one");
        assert_eq!(reading.take(output(2), &[b""]).await, broken(NOT_ASKED));
        assert_eq!(reading.take(json!({ "type": "output", "id": 9, "item": 0 }), &[b""]).await, broken(NOT_ASKED));
        for parts in [&[][..], &[&b""[..], b""]] {
            assert_eq!(reading.take(output(0), parts).await, broken(NOT_ASKED));
        }
        if is_serial {
            let (waiting, _answers) = reading.add(1, None).await;
            let output = json!({ "type": "output", "id": waiting, "item": 0 });
            assert_eq!(reading.take(output, &[b""]).await, broken(NOT_ASKED), "it has not begun");
        }
    }
    let mut single = Reading::new(false, false).await;
    let (id, _answers) = single.add(1, None).await;
    let taken = single.take(json!({ "type": "output", "id": id, "item": 0 }), &[b""]).await;
    assert_eq!(taken, broken("it answered with a stream, and the stage gives one output"));
}

#[tokio::test]
async fn a_child_with_several_batches_has_16_outputs_ahead_of_their_reader() {
    let mut reading = Reading::new(false, true).await;
    let (id, mut answers) = reading.add(1, None).await;
    let output = || json!({ "type": "output", "id": id, "item": 0 });
    for _ in 0..CREDIT {
        assert_eq!(reading.take(output(), &[b"x"]).await, Ok(()));
    }
    answers.recv().await.unwrap();
    assert_eq!(reading.take(output(), &[b"x"]).await, Ok(()), "one was read");
    let more = "it sent more than 16 outputs of an item that were not asked for";
    assert_eq!(reading.take(output(), &[b"x"]).await, broken(more));
    assert_eq!(reading.take(output(), &[b"x"]).await, broken(NOT_ASKED));
    drop(answers);
    assert_eq!(reading.take(output(), &[b"x"]).await, Ok(()), "the caller left");
}

#[tokio::test]
async fn a_child_with_one_batch_waits_for_the_reader_of_its_outputs() {
    let mut reading = Reading::new(true, true).await;
    let (id, mut answers) = reading.add(1, None).await;
    let output = || json!({ "type": "output", "id": id, "item": 0 });
    for _ in 0..=CREDIT {
        assert_eq!(reading.take(output(), &[b"x"]).await, Ok(()));
    }
    let (taken, read) = tokio::join!(reading.take(output(), &[b"x"]), answers.recv());
    assert!(taken.is_ok() && read.is_some());
    drop(answers);
    assert_eq!(reading.take(output(), &[b"x"]).await, Ok(()), "the caller left");
}

#[tokio::test]
async fn a_batch_has_one_outcome_for_each_item_and_an_output_for_each_success() {
    let outcomes = |id: u64, items: Json| json!({ "type": "outcomes", "id": id, "items": items });
    let another_number = "it answered another number of outputs than of successes";
    for (items, answer, parts, expected) in [
        (1, json!([null]), 1, Ok(())),
        (2, json!([null, { "message": "m" }]), 1, Ok(())),
        (2, json!([{ "message": "m" }, { "message": "m" }]), 0, Ok(())),
        (1, json!([null, null]), 2, broken("it answered 2 outcomes for 1 item")),
        (1, json!([]), 0, broken("it answered 0 outcomes for 1 item")),
        (2, json!([null]), 1, broken("it answered 1 outcomes for 2 items")),
        (2, json!([null, null]), 1, broken(another_number)),
        (2, json!([null, { "message": "m" }]), 2, broken(another_number)),
    ] {
        let mut reading = Reading::new(false, false).await;
        let (id, mut answers) = reading.add(items, None).await;
        let taken = reading.take(outcomes(id, answer.clone()), &vec![&b"x"[..]; parts]).await;
        assert_eq!(taken, expected, "{answer}");
        let answered = matches!(answers.recv().await, Some(Answer::Outcomes { errors, parts: own, .. })
            if errors.len() == items && own.len() == parts);
        assert_eq!(answered, expected.is_ok(), "{answer}");
        assert_eq!(reading.take(outcomes(id, answer), &[]).await, broken(NOT_ASKED), "it is over");
    }
    let mut left = Reading::new(false, false).await;
    let (id, answers) = left.add(1, None).await;
    drop(answers);
    assert_eq!(left.take(outcomes(id, json!([null])), &[]).await, Ok(()), "nobody waits for the output");
    let mut streaming = Reading::new(false, true).await;
    let (id, _answers) = streaming.add(1, None).await;
    let single = "it answered with single outputs, and the stage streams";
    assert_eq!(streaming.take(outcomes(id, json!([null])), &[b"x"]).await, broken(single));
    let (id, _answers) = streaming.add(1, None).await;
    assert_eq!(streaming.take(outcomes(id, json!([null])), &[]).await, Ok(()));
}

#[tokio::test]
async fn a_child_that_says_it_ends_finishes_what_has_begun() {
    let outcomes = |id: u64, last: bool| json!({ "type": "outcomes", "id": id, "items": [null], "last": last });
    let mut several = Reading::new(false, false).await;
    let (first, _answers) = several.add(1, None).await;
    let (second, _answers) = several.add(1, None).await;
    assert_eq!(several.take(outcomes(first, true), &[b"x"]).await, Ok(()));
    assert!(several.reader.open.lock().is_leaving);
    several.until_restarted().await;
    assert_eq!(several.take(outcomes(second, false), &[b"x"]).await, broken("it leaves"));

    let mut one = Reading::new(true, false).await;
    let (first, _answers) = one.add(1, None).await;
    let (_, mut waiting) = one.add(1, None).await;
    assert_eq!(one.take(outcomes(first, true), &[b"x"]).await, broken("it leaves"));
    assert!(waiting.recv().await.is_none(), "it goes back to the queue");
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(one.restarts(), 0, "its replica waits for its end");

    let mut stays = Reading::new(true, false).await;
    let (first, _answers) = stays.add(1, None).await;
    let (second, _answers) = stays.add(1, None).await;
    assert_eq!(stays.take(outcomes(first, false), &[b"x"]).await, Ok(()));
    assert!(stays.reader.open.lock().running(second).is_some(), "the next one begins");
}

/// The traceback of an item that failed by itself; equal ones of a batch have one record.
#[tokio::test]
async fn tracebacks_are_logged_once_with_their_calls() {
    let (log, _capturing) = CapturedLog::start();
    let mut reading = Reading::new(false, false).await;
    let (id, _answers) = reading.add(6, None).await;
    let error = |trace: &str| json!({ "message": "m", "trace": trace });
    let mut inner = error("of an inner call");
    inner["kind"] = json!("failed");
    let items = json!([null, error("one"), error("one"), { "message": "m" }, inner, error("two")]);
    assert_eq!(reading.take(json!({ "type": "outcomes", "id": id, "items": items }), &[b"x"]).await, Ok(()));
    let text = log.text();
    let records: Vec<_> = text.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(records.len(), 2, "{text}");
    for (record, (trace, call)) in records.iter().zip([("one", "call-1"), ("two", "call-5")]) {
        assert!(record.contains(trace) && record.contains(&format!("request_id=\"{call}\"")), "{text}");
    }
}

#[tokio::test]
async fn a_record_names_only_a_call_that_runs() {
    let (log, _capturing) = CapturedLog::start();
    let mut reading = Reading::new(true, false).await;
    let (_running, _waiting) = (reading.add(1, None).await, reading.add(1, None).await);
    for call in ["call-0", "call-1", "another"] {
        let record = json!({ "type": "log", "level": "warn", "message": format!("of {call}"), "request_id": call });
        assert_eq!(reading.take(record, &[]).await, Ok(()));
    }
    let text = log.text();
    assert_eq!((text.matches("of ").count(), text.matches("request_id=").count()), (3, 1), "{text}");
    assert!(text.contains("request_id=\"call-0\""), "{text}");
}

/// The node leaves a sample out whose name is its own; it does not with others.
#[tokio::test]
async fn samples_are_given_to_the_node_and_one_without_a_value_ends_the_child() {
    let (log, _capturing) = CapturedLog::start();
    let mut reading = Reading::new(false, false).await;
    let sample = |name: &str| json!({ "type": "metrics", "samples": [{ "name": "other", "add": 3 }, { "name": name, "add": 3 }] });
    assert_eq!(reading.take(sample("answers"), &[]).await, Ok(()));
    assert!(!log.text().contains("left out"), "{}", log.text());
    assert_eq!(reading.take(sample("callboard_answers"), &[]).await, Ok(()));
    assert!(log.text().contains("a metric is left out of /metrics"), "{}", log.text());
    let nothing = json!({ "type": "metrics", "samples": [{ "name": "answers" }] });
    assert_eq!(reading.take(nothing, &[]).await, broken("a sample of it has one of `add`, `set` and `observed`"));
}

#[tokio::test]
async fn what_belongs_to_a_start_ends_a_child_that_has_started() {
    let mut reading = Reading::new(false, false).await;
    let twice = broken("it said twice whether it has started");
    assert_eq!(reading.take(json!({ "type": "ready", "protocol": 1 }), &[]).await, twice);
    assert_eq!(reading.take(json!({ "type": "failed", "message": "m", "trace": null }), &[]).await, twice);
    assert_eq!(reading.take(json!({ "type": "starting", "phase": "loads" }), &[]).await, Ok(()));
    assert_eq!(reading.take(json!({ "type": "pong" }), &[]).await, Ok(()));
    let mut serial = Reading::new(true, false).await;
    assert_eq!(serial.take(json!({ "type": "pong" }), &[]).await, broken(NOT_ASKED));
}
