//! Bytes with a number and a length on quinn's streams: what both benches of bare QUIC send, and who waits for what
//! comes back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quinn::{Connection, RecvStream, SendStream};
use tokio::sync::{mpsc, oneshot};

/// As many as one of our packs.
pub(crate) const BATCH: usize = 32;
/// Nothing in these benchmarks is larger.
const MAX_BYTES: usize = 2 << 20;

/// What is to be echoed, and who waits for its length.
pub(crate) type Job = (Bytes, oneshot::Sender<usize>);

/// A request with a stream to itself.
pub(crate) async fn call_on_stream(connection: &Connection, payload: Bytes) -> usize {
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    let head = Bytes::from(header(0, payload.len()));
    send.write_all_chunks(&mut [head, payload]).await.unwrap();
    send.finish().unwrap();
    receive.read_to_end(MAX_BYTES).await.unwrap().len() - 8
}

/// All requests on one stream, told apart by their numbers; what is ready in one turn is written together.
pub(crate) async fn drive_frames(mut send: SendStream, receive: RecvStream, mut jobs: mpsc::Receiver<Job>) {
    let waiting = Arc::new(Mutex::new(HashMap::new()));
    let replies = Arc::clone(&waiting);
    tokio::spawn(read_frames(receive, move |number, bytes| {
        let reply: oneshot::Sender<usize> = replies.lock().unwrap().remove(&number).unwrap();
        let _ = reply.send(bytes.len());
    }));
    let (mut next, mut ready) = (0_u32, Vec::new());
    while jobs.recv_many(&mut ready, BATCH).await > 0 {
        let mut chunks = Vec::with_capacity(ready.len() * 2);
        for (payload, reply) in ready.drain(..) {
            next = next.wrapping_add(1);
            waiting.lock().unwrap().insert(next, reply);
            push_frame(&mut chunks, next, payload);
        }
        if send.write_all_chunks(&mut chunks).await.is_err() {
            return;
        }
    }
}

fn header(number: u32, bytes: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(8 + if bytes <= 1024 { bytes } else { 0 });
    head.put_u32(number);
    head.put_u32(bytes as u32);
    head
}

/// Small ones are copied together, large ones are chunks of their own.
pub(crate) fn push_frame(chunks: &mut Vec<Bytes>, number: u32, payload: Bytes) {
    let mut head = header(number, payload.len());
    if payload.len() <= 1024 {
        head.extend_from_slice(&payload);
        chunks.push(head.into());
    } else {
        chunks.extend([head.into(), payload]);
    }
}

pub(crate) async fn read_frames(mut receive: RecvStream, mut take: impl FnMut(u32, Bytes)) {
    let mut buffer = BytesMut::new();
    while let Ok(Some(chunk)) = receive.read_chunk(usize::MAX, true).await {
        buffer.extend_from_slice(&chunk.bytes);
        while buffer.len() >= 8 {
            let bytes = u32::from_be_bytes(buffer[4..8].try_into().unwrap()) as usize;
            if buffer.len() < 8 + bytes {
                break;
            }
            let number = buffer.get_u32();
            buffer.advance(4);
            take(number, buffer.split_to(bytes).freeze());
        }
    }
}
