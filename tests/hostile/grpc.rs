//! gRPC: prefixes that announce what never comes, messages that stop, silent streams, bombs, countless arrays, and
//! values of gateways.

use std::thread;
use std::time::Duration;

use crate::attack::{Attack, Target};
use crate::http2::{Connection, DATA, END_STREAM, frame, post};
use crate::payloads::{MIB, gzip};

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";
const GRPC: &str = "application/grpc";

/// The largest payload of a frame, unless a node allows more.
const FRAME_BYTES: usize = 16 * 1024;

/// A message with this flag, of which this many bytes are announced.
fn message(flag: u8, announced: u32, bytes: &[u8]) -> Vec<u8> {
    [&[flag][..], &announced.to_be_bytes(), bytes].concat()
}

fn whole(flag: u8, bytes: &[u8]) -> Vec<u8> {
    message(flag, bytes.len() as u32, bytes)
}

/// A `ModelInferRequest` to this model, with these bytes after its name.
fn infer(model: &str, rest: &[u8]) -> Vec<u8> {
    [&[0x0a, model.len() as u8][..], model.as_bytes(), rest].concat()
}

/// Holds connections, each with this many requests that have this body and no end.
fn hold(target: &Target, path: &str, body: &[u8], connections: usize, streams: usize) {
    let headers = post(path, GRPC, &[("te", "trailers")]);
    let held: Vec<Connection> = (0..connections)
        .filter_map(|_| {
            let mut connection = Connection::open(target, &[])?.drain();
            for _ in 0..streams {
                let stream = connection.request(&headers, 0)?;
                connection.write(&frame(DATA, 0, stream, body));
            }
            Some(connection)
        })
        .collect();
    target.record(format!("held, {}", held.len()));
    thread::sleep(target.remaining());
}

/// Sends this body, which fits into a window, on new streams for as long as the attack lasts.
fn flood(target: &Target, headers: &[u8], body: &[u8], connections: usize) {
    target.run_clients(connections, |_| {
        while target.is_running() {
            let Some(mut connection) = Connection::open(target, &[]) else { return };
            connection = connection.drain();
            let mut is_open = true;
            // The connection has one window of 64 KiB more than its streams.
            for _ in 0..8 {
                let Some(stream) = connection.request(headers, 0) else { break };
                let frames: Vec<&[u8]> = body.chunks(FRAME_BYTES).collect();
                for (index, piece) in frames.iter().enumerate() {
                    let flags = if index + 1 == frames.len() { END_STREAM } else { 0 };
                    is_open &= connection.write(&frame(DATA, flags, stream, piece));
                }
            }
            target.record(if is_open { "sent" } else { "cut" });
            thread::sleep(Duration::from_millis(20));
        }
    });
}

#[test]
fn prefixes_that_announce_four_gigabytes() {
    let body = message(0, u32::MAX, &[0; 200]);
    Attack::new("grpc: 65 connections × 256 prefixes of 4 GiB")
        .lasting(Duration::from_secs(3))
        .must_not_block_callers()
        .run(|target| hold(target, INFER, &body, 65, 256));
}

#[test]
fn messages_that_stop() {
    let body = message(0, 1_000_000, &[0; 200]);
    Attack::new("grpc: 65 connections × 256 messages of 1 MB that stop at 200 bytes")
        .lasting(Duration::from_secs(3))
        .must_not_block_callers()
        .run(|target| hold(target, INFER, &body, 65, 256));
}

#[test]
fn streams_that_stop_in_a_message() {
    let body = [whole(0, &infer("nobody", &[])), message(0, 1_000_000, &[0; 200])].concat();
    Attack::new("grpc: 16 connections × 256 streams that stop in their second message")
        .lasting(Duration::from_secs(3))
        .must_not_block_callers()
        .run(|target| hold(target, STREAM, &body, 16, 256));
}

/// Half of them ask for the services, and would be told.
#[test]
fn streams_that_stay_silent() {
    const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    Attack::new("grpc: 64 connections × 200 streams without a message")
        .lasting(Duration::from_secs(3))
        .must_not_block_callers()
        .run(|target| {
            let target = &*target;
            thread::scope(|scope| {
                for path in [STREAM, REFLECTION] {
                    scope.spawn(move || hold(target, path, &[], 32, 200));
                }
            });
        });
}

#[test]
fn compressed_bombs() {
    needs_binary!();
    let headers = post(INFER, GRPC, &[("te", "trailers"), ("grpc-encoding", "gzip")]);
    // Raw contents of zeros, within the limit of a message.
    let zeros = vec![0; 48 * MIB];
    let length = [0x3a, 0x80, 0x80, 0x80, 0x18];
    let body = whole(1, &gzip(&infer("honest", &[&length[..], &zeros].concat())));
    assert!(body.len() < 60 * 1024, "{}", body.len());
    Attack::new("grpc: 16 × bombs of 48 MiB")
        .lasting(Duration::from_secs(3))
        .run(|target| flood(target, &headers, &body, 16));
}

/// `2a 00` is an input, `3a 00` an entry of raw bytes.
#[test]
fn thousands_of_empty_arrays() {
    let headers = post(INFER, GRPC, &[("te", "trailers")]);
    let body = whole(0, &infer("honest", &[[0x2a, 0], [0x3a, 0]].concat().repeat(14_000)));
    Attack::new("grpc: 16 × 28,000 empty arrays")
        .lasting(Duration::from_secs(3))
        .run(|target| flood(target, &headers, &body, 16));
}

/// A field of protobuf with this content.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let (mut length, mut field) = (content.len(), vec![number << 3 | 2]);
    while length >= 0x80 {
        field.push(length as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    [&field[..], content].concat()
}

/// Lists in lists, and a list of 14,000 times nothing, as gateways of evaluations send values.
#[test]
fn relayed_values_that_are_deep_or_many() {
    const NONE: [u8; 2] = [0x28, 1];
    let headers = post("/kaggle_evaluation_client.KaggleEvaluationService/Send", GRPC, &[("te", "trailers")]);
    let deep = (0..6000).fold(NONE.to_vec(), |inner, _| field(6, &field(1, &inner)));
    let wide = field(6, &field(1, &NONE).repeat(14_000));
    let bodies = [deep, wide].map(|value| whole(0, &[field(1, b"keep"), field(2, &value)].concat()));
    Attack::new("relay: 2 × 8 × lists in lists, and of nothing").relayed().lasting(Duration::from_secs(3)).run(
        |target| {
            let (target, headers) = (&*target, &headers);
            thread::scope(|scope| {
                for body in &bodies {
                    scope.spawn(move || flood(target, headers, body, 8));
                }
            });
        },
    );
}
