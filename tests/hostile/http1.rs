//! HTTP/1 by hand: raw requests, and the parts of answers that attacks and probes need.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// A request as bytes.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn get(path: &str) -> Self {
        Self { head: format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n"), body: Vec::new() }
    }

    /// A call with a body of this media type.
    pub(crate) fn post(path: &str, media_type: &str, body: impl Into<Vec<u8>>) -> Self {
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {media_type}\r\n");
        Self { head, body: body.into() }
    }

    /// The same of the method `PUT`.
    pub(crate) fn put(path: &str, media_type: &str, body: impl Into<Vec<u8>>) -> Self {
        let post = Self::post(path, media_type, body);
        Self { head: post.head.replacen("POST", "PUT", 1), ..post }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.head.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    /// Compresses the body as `content-encoding: gzip`.
    pub(crate) fn gzip(mut self) -> Self {
        self.body = crate::payloads::gzip(&self.body);
        self.header("content-encoding", "gzip")
    }

    pub(crate) fn accept(self, media_type: &str) -> Self {
        self.header("accept", media_type)
    }

    /// Line and headers, on a connection with only this request.
    pub(crate) fn head(&self) -> String {
        format!("{}content-length: {}\r\nconnection: close\r\n\r\n", self.head, self.body.len())
    }

    /// The head with a false length of the body.
    pub(crate) fn head_announcing(&self, bytes: u64) -> String {
        format!("{}content-length: {bytes}\r\n\r\n", self.head)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        [self.head().as_bytes(), &self.body].concat()
    }
}

/// Connects from its own address, so that limits per address separate attackers from honest callers.
pub(crate) fn connect_from(from: Ipv4Addr, to: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(IpAddr::V4(from), 0).into())?;
    socket.connect_timeout(&to.into(), limit)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(limit))?;
    Ok(stream)
}

/// Sends a request on its own connection and reads the whole answer: its status, and its body if it is text.
pub(crate) fn exchange(
    to: SocketAddr,
    from: Ipv4Addr,
    request: &Request,
    limit: Duration,
) -> io::Result<(u16, String)> {
    let end = Instant::now() + limit;
    let mut stream = connect_from(from, to, limit)?;
    stream.write_all(&request.bytes())?;
    let mut answer = Vec::new();
    let mut chunk = vec![0; 1 << 16];
    loop {
        let remaining = end.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no whole answer within {limit:?}")));
        }
        stream.set_read_timeout(Some(remaining))?;
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&chunk[..count]),
            // The kernel's error for a timed-out read; the next round checks the time.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = status_of(head).ok_or_else(|| io::Error::other(format!("no answer: {head:.60}")))?;
    Ok((status, body.to_owned()))
}

/// The body of a 200 answer.
pub(crate) fn get(to: SocketAddr, from: Ipv4Addr, request: &Request, limit: Duration) -> io::Result<String> {
    match exchange(to, from, request, limit)? {
        (200, body) => Ok(body),
        (status, _) => Err(io::Error::other(format!("answered {status}"))),
    }
}

/// The status of an answer with this head.
pub(crate) fn status_of(head: &str) -> Option<u16> {
    head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}
