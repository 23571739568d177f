//! HTTP/1.1 by hand over a `TcpStream`.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::TEST_TIMEOUT;

/// A connection on which the test writes each byte.
pub(crate) struct Raw {
    pub(crate) socket: TcpStream,
    unread: Vec<u8>,
}

/// One response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Raw {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).await.unwrap())
    }

    /// Wraps an existing connection.
    pub(crate) fn new(socket: TcpStream) -> Self {
        Self { socket, unread: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.socket.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Sends `GET path` and reads the answer.
    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n")).await;
        self.answer().await
    }

    /// As [`get`](Self::get); `None` if the server closes instead.
    pub(crate) async fn try_get(&mut self, path: &str) -> Option<Answer> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        self.socket.write_all(request.as_bytes()).await.ok()?;
        let answer = String::from_utf8(self.closed().await).unwrap();
        let status = answer.split(' ').nth(1)?.parse().unwrap();
        Some(Answer { status, head: answer, body: Vec::new() })
    }

    /// Sends `POST path` with these header lines and this body, and reads the answer.
    pub(crate) async fn post(&mut self, path: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Answer {
        self.request("POST", path, headers, body).await
    }

    /// As [`post`](Self::post), with this method.
    pub(crate) async fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> Answer {
        let body = body.as_ref();
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        self.send([head.as_bytes(), body].concat()).await;
        self.answer().await
    }

    /// Reads one response with a Content-Length or in chunks (with neither it has no body).
    pub(crate) async fn answer(&mut self) -> Answer {
        timeout(TEST_TIMEOUT, self.read_answer()).await.expect("an answer in time")
    }

    async fn read_answer(&mut self) -> Answer {
        let head_end = loop {
            if let Some(position) = self.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                break position + 4;
            }
            assert!(self.read_more().await > 0, "closed before an answer: {:?}", String::from_utf8_lossy(&self.unread));
        };
        let head = String::from_utf8(self.unread.drain(..head_end).collect()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer { status, head, body: Vec::new() };
        if answer.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.read_chunk().await {
                answer.body.extend(chunk);
            }
            return answer;
        }
        let length = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
        while self.unread.len() < length {
            assert!(self.read_more().await > 0, "closed within an answer");
        }
        answer.body = self.unread.drain(..length).collect();
        answer
    }

    /// The next chunk, or `None` after the last.
    async fn read_chunk(&mut self) -> Option<Vec<u8>> {
        let line_end = loop {
            if let Some(position) = self.unread.windows(2).position(|two| two == b"\r\n") {
                break position;
            }
            assert!(self.read_more().await > 0, "closed within a stream");
        };
        let length: String = String::from_utf8(self.unread.drain(..line_end + 2).collect()).unwrap();
        let length = usize::from_str_radix(length.trim(), 16).unwrap();
        while self.unread.len() < length + 2 {
            assert!(self.read_more().await > 0, "closed within a chunk");
        }
        let chunk: Vec<u8> = self.unread.drain(..length).collect();
        self.unread.drain(..2);
        (length > 0).then_some(chunk)
    }

    /// Reads the next chunk of an answer, or `None` after the last.
    pub(crate) async fn next_chunk(&mut self) -> Option<Vec<u8>> {
        timeout(TEST_TIMEOUT, self.read_chunk()).await.expect("a chunk in time")
    }

    /// Reads until this text, and drops all bytes up to its end.
    pub(crate) async fn read_past(&mut self, text: &str) {
        let reading = async {
            loop {
                if let Some(position) = self.unread.windows(text.len()).position(|window| window == text.as_bytes()) {
                    self.unread.drain(..position + text.len());
                    return;
                }
                // Searched bytes are not searched again.
                self.unread.drain(..(self.unread.len() + 1).saturating_sub(text.len()));
                assert!(self.read_more().await > 0, "closed before {text:?}");
            }
        };
        timeout(TEST_TIMEOUT, reading).await.unwrap_or_else(|_| panic!("never received {text:?}"));
    }

    async fn read_more(&mut self) -> usize {
        self.socket.read_buf(&mut self.unread).await.unwrap()
    }

    /// Waits until the server closes the connection; returns the bytes sent until then.
    pub(crate) async fn closed(&mut self) -> Vec<u8> {
        let reading = async {
            // A reset closes the connection too.
            while let Ok(1..) = self.socket.read_buf(&mut self.unread).await {}
        };
        timeout(TEST_TIMEOUT, reading).await.expect("closed in time");
        std::mem::take(&mut self.unread)
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The tested members of a problem document, after a check of the members that all have.
    pub(crate) fn problem(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status);
        assert_eq!(problem["detail"], problem["message"]);
        assert_eq!(problem["request_id"], self.header("x-request-id").unwrap());
        problem
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}
