//! Nodes with a valid certificate that ask actors: unknown names and questions, forged callers and keys, floods.

use std::time::Duration;

use bytes::Bytes;
use callboard::codec::Payload;
use callboard::codec::wire::{Ask, Call, Fail, FrameKind, Origin, frame_head};
use callboard::net::testing::RawPeer;
use futures_util::future::join_all;
use tokio::time::sleep;

use crate::attack::{Attack, Target};
use crate::http1::Request;
use crate::payloads::MIB;
use crate::quic::{connect_with_hello, run_for};

/// The name of the keyed actors for other nodes.
const COUNTER: &str = "keyed:counter";

/// A text that would be a line of the log, if it got there as it is.
const LINE: &str = "\n2030-01-01T00:00:00Z ERROR forged: \u{1b}[2J\u{202e}";

fn counted() -> Request {
    Request::post("/counted", "application/json", "1")
}

fn envelope<T: callboard::codec::Data>(value: T) -> Bytes {
    Payload::new(value).to_envelope().expect("a value").into_bytes()
}

fn ask(actor: &str, question: &str, key: Option<String>) -> Ask {
    Ask { actor: actor.to_owned(), question: question.to_owned(), tell: false, key }
}

fn frames(ask: Ask, origin: Origin, body: Bytes) -> Vec<Bytes> {
    let call =
        Call { ask: Some(Box::new(ask)), origin: Some(Box::new(origin)), millis_left: 60_000, ..Call::default() };
    vec![frame_head(FrameKind::Call, 0, &call, body.len()).expect("a header"), body]
}

/// Sends questions one after another on each connection, and counts how they end.
async fn send_all(target: &Target, connections: usize, question: impl Fn(usize) -> Vec<Bytes>) {
    let asker = |first: usize| {
        let question = &question;
        async move {
            let mut number = first * 1_000_000;
            while target.is_running() {
                let Some(peer) = connect_with_hello(target).await else {
                    sleep(Duration::from_millis(20)).await;
                    continue;
                };
                while let Some(outcome) = exchange(&peer, question(number)).await {
                    number += 1;
                    target.record(outcome);
                }
                target.record("closed or reset");
            }
        }
    };
    join_all((0..connections).map(asker)).await;
}

/// The kind of the answer's error, or of its frame.
async fn exchange(peer: &RawPeer, pieces: Vec<Bytes>) -> Option<String> {
    let answers = peer.exchange(pieces).await.ok()?;
    let head = &answers.first()?.0;
    Some(match head.header::<Fail>() {
        Ok(fail) if head.kind == FrameKind::Fail => fail.kind,
        _ => head.kind.as_str().to_owned(),
    })
}

#[test]
fn unknown_questions_and_forged_names() {
    let long = "x".repeat(30_000);
    Attack::new("actors: unknown names, questions and keys, forged callers, by 4 nodes")
        .on_types()
        .honest_at(counted())
        .must_not_block_callers()
        .run(|target| {
            run_for(
                target,
                send_all(target, 4, |number| {
                    let origin = Origin { caller: format!("ann{LINE}"), ..Origin::default() };
                    let asked = match number % 9 {
                        0 => ask(&format!("nobody{LINE}"), "add", None),
                        1 => ask(&long, &long[..20_000], None),
                        2 => ask("clerk", &format!("unknown{LINE}"), None),
                        3 => ask("clerk", "echo", Some("a key of no kind".to_owned())),
                        4 => ask(COUNTER, "add", None),
                        5 => ask(COUNTER, "add", Some(format!("key{LINE}{number}"))),
                        6 => ask(COUNTER, "add", Some(long.clone())),
                        7 => ask(COUNTER, "callboard.release", Some("honest".to_owned())),
                        _ => ask(COUNTER, "callboard.watch", Some(String::new())),
                    };
                    frames(asked, origin, envelope(1_u64))
                }),
            );
        });
}

/// Far more keys than may be active, each of which is loaded for one question.
#[test]
fn a_flood_of_keys_that_are_asked_once() {
    Attack::new("actors: a new key for each question, by 8 nodes").on_types().honest_at(counted()).run(|target| {
        run_for(
            target,
            send_all(target, 8, |number| {
                frames(ask(COUNTER, "add", Some(number.to_string())), Origin::default(), envelope(1_u64))
            }),
        );
    });
}

/// Questions that arrive in part hold places of the mailbox, half of them at most.
#[test]
fn questions_that_never_arrive() {
    Attack::new("actors: 200 questions of 8 MiB that stop half-way").on_types().honest_at(counted()).run(|target| {
        run_for(target, async {
            let Some(peer) = connect_with_hello(target).await else { return };
            let text = envelope("t".repeat(8 * MIB));
            let mut begun = Vec::new();
            for _ in 0..200 {
                let mut pieces = frames(ask("clerk", "echo", None), Origin::default(), text.clone());
                pieces[1].truncate(1 << 10);
                let Some(stream) = peer.try_begin(pieces).await else { break };
                begun.push(stream);
            }
            target.record(format!("{} begun", begun.len()));
            sleep(target.remaining()).await;
        });
    });
}
