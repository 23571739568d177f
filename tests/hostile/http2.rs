//! HTTP/2 by hand: frames of a client that breaks the rules.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use crate::attack::Target;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// The setting of the first window of every stream.
pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;

/// One connection.
pub(crate) struct Connection {
    stream: TcpStream,
    next: u32,
}

impl Connection {
    /// Connects and sends these settings.
    pub(crate) fn open(target: &Target, settings: &[(u16, u32)]) -> Option<Self> {
        let stream = target.connect()?;
        let _ = stream.set_write_timeout(Some(target.remaining()));
        let mut connection = Self { stream, next: 1 };
        connection.write(PREFACE);
        let settings =
            settings.iter().flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat());
        connection.write(&frame(SETTINGS, 0, 0, &settings.collect::<Vec<u8>>())).then_some(connection)
    }

    /// Writes bytes; returns whether the node accepts more.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Reads and discards on a separate thread until the connection ends.
    pub(crate) fn drain(self) -> Self {
        let mut reader = self.stream.try_clone().expect("a descriptor");
        thread::spawn(move || {
            let mut chunk = vec![0; 1 << 16];
            let _ = reader.set_read_timeout(Some(Duration::from_secs(10)));
            while reader.read(&mut chunk).is_ok_and(|count| count > 0) {}
        });
        self
    }

    /// The limit of one write.
    pub(crate) fn limit_write(&mut self, limit: Duration) -> &mut Self {
        let _ = self.stream.set_write_timeout(Some(limit));
        self
    }

    /// The number of the next stream.
    pub(crate) fn next(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    /// Begins a request on a new stream.
    pub(crate) fn request(&mut self, headers: &[u8], flags: u8) -> Option<u32> {
        let stream = self.next();
        self.write(&frame(HEADERS, flags | END_HEADERS, stream, headers)).then_some(stream)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Also ends the reading thread.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// The headers of a request with a body, each as a literal that is not stored.
pub(crate) fn post(path: &str, media_type: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let usual = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")];
    let media_type = [("content-type", media_type)];
    usual.iter().chain(&media_type).chain(headers).flat_map(|(name, value)| literal(0, name, value)).collect()
}

pub(crate) fn get(path: &str) -> Vec<u8> {
    let usual = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "localhost")];
    usual.iter().flat_map(|(name, value)| literal(0, name, value)).collect()
}

/// A header field; `form` 0x40 stores it in the table of the connection.
pub(crate) fn literal(form: u8, name: &str, value: &str) -> Vec<u8> {
    [&[form][..], &text(name), &text(value)].concat()
}

/// A text without Huffman coding, with its length.
fn text(text: &str) -> Vec<u8> {
    let mut coded = Vec::new();
    let mut rest = text.len();
    if rest < 127 {
        coded.push(rest as u8);
    } else {
        coded.push(127);
        rest -= 127;
        while rest >= 128 {
            coded.push((rest % 128) as u8 | 128);
            rest /= 128;
        }
        coded.push(rest as u8);
    }
    coded.extend_from_slice(text.as_bytes());
    coded
}
