//! Streams of calls: endless, with false frames, and from clients that only write.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use crate::attack::Attack;
use crate::http1::Request;
use crate::payloads::MIB;
use crate::payloads::arrow::null_rows;
use crate::payloads::msgpack::{FRAME, Pack, argument, envelope, envelope_head, ext, variants};

const STREAM: &str = "application/vnd.callboard.envelope-stream";

/// A call as a frame of a stream.
fn frame(call: &[u8]) -> Vec<u8> {
    let envelope = envelope(call);
    let mut frame = vec![0; 4];
    frame.extend_from_slice(&(envelope.len() as u32).to_le_bytes());
    frame.extend(envelope);
    frame
}

/// `[0.9, 0.1]` as the argument of the honest route.
fn honest() -> Vec<u8> {
    argument(&[0x92, 0xcb, 0x3f, 0xe0, 0, 0, 0, 0, 0, 0, 0xcb, 0x3f, 0xe0, 0, 0, 0, 0, 0, 0])
}

#[test]
fn a_hundred_thousand_calls() {
    let request = Request::post("/v1/call/honest", STREAM, frame(&honest()).repeat(100_000));
    Attack::new("stream: 100,000 calls, read").run(|target| target.repeat(&request, 4));
}

#[test]
fn calls_of_a_client_that_only_writes() {
    let request = Request::post("/v1/call/honest", STREAM, frame(&honest()).repeat(100_000));
    Attack::new("stream: 100,000 calls, answers unread").run(|target| {
        target.run_clients(16, |_| {
            let Some(mut stream) = target.connect() else { return };
            let is_taken = target.push(&mut stream, &request.bytes());
            target.record(if is_taken { "all taken" } else { "stopped" });
            thread::sleep(target.remaining());
        });
    });
}

#[test]
fn large_calls_of_clients_that_only_write() {
    let call = argument(&Pack::default().list(MIB as u32 / 2).raw(&vec![0x80; MIB / 2]).0);
    let request = Request::post("/v1/call/keep", STREAM, frame(&call).repeat(32));
    Attack::new("stream: 8 × 32 calls of half a million maps, answers unread").run(|target| {
        target.run_clients(8, |_| {
            let Some(mut stream) = target.connect() else { return };
            let is_taken = target.push(&mut stream, &request.bytes());
            target.record(if is_taken { "all taken" } else { "stopped" });
            thread::sleep(target.remaining());
        });
    });
}

#[test]
fn frames_that_announce_missing_bytes() {
    let head = Request::post("/v1/call/honest", STREAM, "").head_announcing(1 << 30);
    let bytes = 64 * MIB;
    let request_start = [head.as_bytes(), &[0; 4], &(bytes as u32).to_le_bytes(), &envelope_head(bytes)].concat();
    Attack::new("stream: 64 × frames that announce 64 MiB, 1 kB/s")
        .lasting(Duration::from_secs(2))
        .must_not_block_callers()
        .run(|target| target.trickle(&request_start, &[0; 100], Duration::from_millis(100), 64));
}

#[test]
fn frames_of_null_rows() {
    let call = argument(&ext(FRAME, &null_rows(1000)));
    let request = Request::post("/v1/call/keep", STREAM, frame(&call).repeat(8));
    Attack::new("stream: calls with 1,000 batches of 2^20 nulls").run(|target| target.repeat(&request, 2));
}

#[test]
fn recursive_frames() {
    let call = argument(&variants("N", 100_000, "Leaf"));
    let request = Request::post("/v1/call/tree", STREAM, frame(&call).repeat(4));
    Attack::new("stream: calls with 100,000 levels of a recursive enum")
        .on_types()
        .run(|target| target.repeat(&request, 2));
}

/// The client reads the start of each answer, and then almost nothing.
#[test]
fn unread_outcomes() {
    let request = Request::post("/count", "application/json", "1000000").accept("application/x-ndjson");
    Attack::new("stream: 100 × a million lines, read at 4 kB/s").on_types().run(|target| {
        target.run_clients(50, |_| {
            let Some(mut stream) = target.connect() else { return };
            let _ = stream.write_all(&request.bytes());
            let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
            let mut chunk = [0; 400];
            while target.is_running() && stream.read(&mut chunk).is_ok() {
                thread::sleep(Duration::from_millis(100));
            }
            target.record("left");
        });
    });
}
