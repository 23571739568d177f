//! Bare quinn, on our endpoints and their threads: a stream for each request, and frames on one stream.

use bytes::{Buf, Bytes, BytesMut};
use callboard_net::Identity;
use callboard_net::testing::BareEndpoint;
use quinn::{Connection, RecvStream, SendStream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::frames::{Job, call_on_stream, drive_frames, push_frame};

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
        let client = BareEndpoint::calling(identity).unwrap();
        let connection = client.connect(server.endpoint().local_addr().unwrap()).await.unwrap();
        let (jobs, ready) = mpsc::channel(1024);
        let (send, receive) = connection.open_bi().await.unwrap();
        tokio::spawn(drive_frames(send, receive, ready));
        Self { connection, jobs, _endpoints: (server, client) }
    }

    pub(crate) async fn stream(&self, payload: Bytes) -> usize {
        call_on_stream(&self.connection, payload).await
    }

    pub(crate) async fn frame(&self, payload: Bytes) -> usize {
        let (reply, answer) = oneshot::channel();
        self.jobs.send((payload, reply)).await.unwrap();
        answer.await.unwrap()
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
