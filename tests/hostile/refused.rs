//! Clients that go on sending after their request was refused.
//!
//! A node reads on for a while behind an early refusal, so that the refusal reaches its client. That must not become a
//! way to keep the node busy: what comes is thrown away, for a bounded time and up to a bounded number of bytes.

use std::thread;
use std::time::Duration;

use crate::attack::Attack;
use crate::http2::{Connection, DATA, frame, post};

/// Between two pieces of one client. The flood costs the node work, and leaves this machine's cores to others.
const PACE: Duration = Duration::from_millis(2);

const PIECE: usize = 1 << 16;

#[test]
fn bodies_that_go_on_after_a_refusal() {
    let heads = [
        "POST /nothing HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000000\r\n\r\n",
        "POST /honest HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1000000000000\r\n\r\n",
        "POST /honest HTTP/1.1\r\nhost: localhost\r\ncontent-type: a/b\r\ntransfer-encoding: chunked\r\n\r\n",
    ];
    let piece = format!("{PIECE:x}\r\n{}\r\n", " ".repeat(PIECE));
    Attack::new("h1: 32 clients that send on after 404, 413 and 415").lasting(Duration::from_secs(3)).run(|target| {
        target.crowd(32, |index| {
            while target.goes_on() {
                let Some(mut stream) = target.connect() else { return };
                let mut goes_on = target.push(&mut stream, heads[index % heads.len()].as_bytes());
                while goes_on {
                    thread::sleep(PACE);
                    goes_on = target.push(&mut stream, piece.as_bytes());
                }
                target.met(if target.goes_on() { "cut" } else { "held to the end" });
            }
        });
    });
}

#[test]
fn streams_that_go_on_after_a_refusal() {
    let headers = post("/nothing", "application/json", &[]);
    Attack::new("h2: 8 connections × 32 streams that send on after 404").lasting(Duration::from_secs(3)).run(
        |target| {
            target.crowd(8, |_| {
                while target.goes_on() {
                    let Some(connection) = Connection::open(target, &[]) else { return };
                    let mut connection = connection.drain();
                    let streams: Vec<u32> = (0..32).filter_map(|_| connection.request(&headers, 0)).collect();
                    let pieces = streams.iter().flat_map(|stream| frame(DATA, 0, *stream, &[b' '; 16_000]));
                    let pieces: Vec<u8> = pieces.collect();
                    while target.goes_on() && connection.write(&pieces) {
                        thread::sleep(PACE);
                    }
                    target.met(if target.goes_on() { "cut" } else { "held to the end" });
                }
            });
        },
    );
}
