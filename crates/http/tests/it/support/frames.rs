//! HTTP/2 by hand: frames as bytes, headers without compression.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::TEST_TIMEOUT;

/// A connection on which the test writes each frame.
pub(crate) struct Frames {
    pub(crate) socket: TcpStream,
    pub(crate) next_stream: u32,
}

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const ACK: u8 = 1;

impl Frames {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::with_settings(address, &[]).await
    }

    pub(crate) async fn with_settings(address: SocketAddr, settings: &[u8]) -> Self {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        socket.write_all(&frame(SETTINGS, 0, 0, settings)).await.unwrap();
        Self { socket, next_stream: 1 }
    }

    /// `GET path`, and its cancellation.
    pub(crate) fn cancelled_get(&mut self, path: &str) -> [Vec<u8>; 2] {
        let stream = self.next_stream;
        self.next_stream += 2;
        let mut block = vec![0x82, 0x86, 0x04, path.len() as u8];
        block.extend(path.as_bytes());
        block.extend([0x01, 4]);
        block.extend(b"test");
        [frame(HEADERS, END_STREAM | END_HEADERS, stream, &block), frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())]
    }

    /// A request and its cancellation.
    pub(crate) fn cancelled_post(&mut self, flags: u8, path: &str) -> [Vec<u8>; 2] {
        let stream = self.next_stream;
        self.next_stream += 2;
        // POST, http, and literals without indexing: path, authority, content type.
        let mut block = vec![0x83, 0x86, 0x04, path.len() as u8];
        block.extend(path.as_bytes());
        block.extend([0x01, 4]);
        block.extend(b"test");
        block.extend([0x0f, 0x10, 16]);
        block.extend(b"application/json");
        const CANCEL: [u8; 4] = 8u32.to_be_bytes();
        [frame(HEADERS, flags | END_HEADERS, stream, &block), frame(RST_STREAM, 0, stream, &CANCEL)]
    }

    /// A request with these fields, pseudo-headers first, and without a body.
    pub(crate) fn request(&mut self, fields: &[(&str, &str)]) -> Vec<u8> {
        self.request_head(END_STREAM, fields)
    }

    /// The head of a request with these fields, as literals without indexing.
    pub(crate) fn request_head(&mut self, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
        let stream = self.next_stream;
        self.next_stream += 2;
        let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
        let block = fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat());
        frame(HEADERS, flags | END_HEADERS, stream, &block.collect::<Vec<u8>>())
    }

    /// The status of the next answer, if HPACK encodes it as one byte; `None` for another status, or if the stream or
    /// the connection is reset.
    pub(crate) async fn status(&mut self) -> Option<u16> {
        let (kind, payload) = self.next_of(&[HEADERS, RST_STREAM, GOAWAY]).await?;
        let index = payload.first().filter(|_| kind == HEADERS)?.checked_sub(0x88)?;
        [200, 204, 206, 304, 400, 404, 500].get(usize::from(index)).copied()
    }

    /// The next frame of one of these types.
    pub(crate) async fn next_of(&mut self, wanted: &[u8]) -> Option<(u8, Vec<u8>)> {
        let reading = async {
            loop {
                let (head, payload) = self.next().await?;
                if wanted.contains(&head[3]) {
                    return Some((head[3], payload));
                }
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, reading).await.expect("a frame or the end, in time")
    }

    async fn next(&mut self) -> Option<([u8; 9], Vec<u8>)> {
        let mut head = [0; 9];
        self.socket.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.socket.read_exact(&mut payload).await.ok()?;
        Some((head, payload))
    }

    /// Reads until a frame of this type; `None` when the server has closed.
    pub(crate) async fn read_until(&mut self, wanted: &[(u8, u8)]) -> Option<u8> {
        let reading = async {
            loop {
                let (head, _) = self.next().await?;
                if wanted.iter().any(|(kind, flags)| head[3] == *kind && head[4] & flags == *flags) {
                    return Some(head[3]);
                }
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, reading).await.expect("a frame or the end, in time")
    }
}

/// One frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}
