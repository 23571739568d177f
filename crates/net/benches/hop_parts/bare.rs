//! Bare quinn, on our endpoints and their threads: a stream for each request, and frames on one stream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use callboard_net::Identity;
use callboard_net::testing::BareEndpoint;
use quinn::{Connection, RecvStream, SendStream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

/// Nothing in this benchmark is larger.
const MAX_BYTES: usize = 2 << 20;
/// As many as one of our packs.
const BATCH: usize = 32;

type Job = (Bytes, oneshot::Sender<usize>);

pub(crate) struct Bare {
    connection: Connection,
    jobs: mpsc::Sender<Job>,
    _endpoints: (BareEndpoint, BareEndpoint),
}

impl Bare {
    pub(crate) async fn start(there: &Handle, identity: &Identity) -> Self {
        let server = BareEndpoint::serving("127.0.0.1:0".parse().unwrap(), identity).unwrap();
        let (endpoint, handlers) = (server.endpoint().clone(), there.clone());
        server.thread().spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                let handlers = handlers.clone();
                tokio::spawn(async move {
                    let connection = incoming.await.unwrap();
                    while let Ok((send, receive)) = connection.accept_bi().await {
                        handlers.spawn(serve_stream(send, receive));
                    }
                });
            }
        });
        let client = BareEndpoint::reaching(identity).unwrap();
        let connection = client.connect(server.endpoint().local_addr().unwrap()).await.unwrap();
        let (jobs, ready) = mpsc::channel(1024);
        let (send, receive) = connection.open_bi().await.unwrap();
        tokio::spawn(drive_frames(send, receive, ready));
        Self { connection, jobs, _endpoints: (server, client) }
    }

    pub(crate) async fn stream(&self, payload: Bytes) -> usize {
        let (mut send, mut receive) = self.connection.open_bi().await.unwrap();
        let head = Bytes::from(header(0, payload.len()));
        send.write_all_chunks(&mut [head, payload]).await.unwrap();
        send.finish().unwrap();
        receive.read_to_end(MAX_BYTES).await.unwrap().len() - 8
    }

    pub(crate) async fn frame(&self, payload: Bytes) -> usize {
        let (reply, answer) = oneshot::channel();
        self.jobs.send((payload, reply)).await.unwrap();
        answer.await.unwrap()
    }
}

fn header(number: u32, bytes: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(8 + if bytes <= 1024 { bytes } else { 0 });
    head.put_u32(number);
    head.put_u32(bytes as u32);
    head
}

/// Small ones are copied together, large ones are chunks of their own.
fn push_frame(chunks: &mut Vec<Bytes>, number: u32, payload: Bytes) {
    let mut head = header(number, payload.len());
    if payload.len() <= 1024 {
        head.extend_from_slice(&payload);
        chunks.push(head.into());
    } else {
        chunks.extend([head.into(), payload]);
    }
}

async fn read_frames(mut receive: RecvStream, mut take: impl FnMut(u32, Bytes)) {
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

async fn drive_frames(mut send: SendStream, receive: RecvStream, mut jobs: mpsc::Receiver<Job>) {
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

/// Echoes frames as they come, whether or not there is another one on the stream.
async fn serve_stream(mut send: SendStream, mut receive: RecvStream) {
    let mut buffer = BytesMut::new();
    while let Ok(Some(chunk)) = receive.read_chunk(usize::MAX, true).await {
        buffer.extend_from_slice(&chunk.bytes);
        let mut chunks = Vec::new();
        while buffer.len() >= 8 {
            let bytes = u32::from_be_bytes(buffer[4..8].try_into().unwrap()) as usize;
            if buffer.len() < 8 + bytes {
                // What is large is gathered in one place.
                buffer.reserve(8 + bytes - buffer.len());
                break;
            }
            let number = buffer.get_u32();
            buffer.advance(4);
            push_frame(&mut chunks, number, buffer.split_to(bytes).freeze());
        }
        if send.write_all_chunks(&mut chunks).await.is_err() {
            return;
        }
    }
    let _ = send.finish();
}
