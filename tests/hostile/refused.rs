//! Clients that continue to send after a refusal.
//!
//! After an early refusal a node reads on for a while, so that the refusal reaches its client. This must not keep the
//! node busy: the data is discarded, within limits of time and bytes.

use std::thread;
use std::time::Duration;

use crate::attack::Attack;
use crate::http2::{Connection, DATA, frame, post};

/// The pause between two pieces of one client. The flood should load the node, not this machine's cores.
const PACE: Duration = Duration::from_millis(2);

const PIECE: usize = 1 << 16;

#[test]
fn bodies_that_continue_after_a_refusal() {
    let heads = [
        "POST /nothing HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000000\r\n\r\n",
        "POST /honest HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1000000000000\r\n\r\n",
        "POST /honest HTTP/1.1\r\nhost: localhost\r\ncontent-type: a/b\r\ntransfer-encoding: chunked\r\n\r\n",
    ];
    let piece = format!("{PIECE:x}\r\n{}\r\n", " ".repeat(PIECE));
    Attack::new("h1: 32 clients that send on after 404, 413 and 415").lasting(Duration::from_secs(3)).run(|target| {
        target.run_clients(32, |index| {
            while target.is_running() {
                let Some(mut stream) = target.connect() else { return };
                let mut is_open = target.push(&mut stream, heads[index % heads.len()].as_bytes());
                while is_open {
                    thread::sleep(PACE);
                    is_open = target.push(&mut stream, piece.as_bytes());
                }
                target.record(if target.is_running() { "cut" } else { "held to the end" });
            }
        });
    });
}

#[test]
fn streams_that_continue_after_a_refusal() {
    let headers = post("/nothing", "application/json", &[]);
    Attack::new("h2: 8 connections × 32 streams that send on after 404").lasting(Duration::from_secs(3)).run(
        |target| {
            target.run_clients(8, |_| {
                while target.is_running() {
                    let Some(connection) = Connection::open(target, &[]) else { return };
                    let mut connection = connection.drain();
                    let streams: Vec<u32> = (0..32).filter_map(|_| connection.request(&headers, 0)).collect();
                    let pieces = streams.iter().flat_map(|stream| frame(DATA, 0, *stream, &[b' '; 16_000]));
                    let pieces: Vec<u8> = pieces.collect();
                    while target.is_running() && connection.write(&pieces) {
                        thread::sleep(PACE);
                    }
                    target.record(if target.is_running() { "cut" } else { "held to the end" });
                }
            });
        },
    );
}
