//! How hostile clients send a request over HTTP/1: repeatedly, from many connections, and without reading or waiting.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::attack::{HOSTILE, LEFT_WAITING, Target};
use crate::http1::{Request, connect_from, status_of};

/// The wait of a client before it retries after an error.
const PAUSE: Duration = Duration::from_millis(5);

/// The timeout of connecting.
const CONNECT: Duration = Duration::from_secs(2);

impl Target {
    pub(crate) fn connect(&self) -> Option<TcpStream> {
        let stream = connect_from(HOSTILE, self.http, CONNECT.min(self.remaining()));
        stream.map_err(|error| self.record(error.kind().to_string())).ok()
    }

    /// Sends one request on its own connection and reads the whole answer, no longer than the attack lasts.
    pub(crate) fn exchange(&self, request: &Request) {
        let Some(mut stream) = self.connect() else {
            thread::sleep(PAUSE);
            return;
        };
        // A node may refuse and close before it has read everything: its answer counts.
        self.push(&mut stream, &request.bytes());
        match self.answer(&mut stream) {
            Some(status) => self.record(status.to_string()),
            None if self.is_running() => {
                self.record("no answer");
                thread::sleep(PAUSE);
            }
            None => self.record(LEFT_WAITING),
        }
    }

    /// Reads an answer to its end; returns its status.
    fn answer(&self, stream: &mut TcpStream) -> Option<u16> {
        let mut chunk = vec![0; 1 << 16];
        let mut status = None;
        while self.is_running() {
            let _ = stream.set_read_timeout(Some(self.remaining()));
            match stream.read(&mut chunk) {
                Ok(0) => return status,
                Ok(count) => status = status.or_else(|| status_of(&String::from_utf8_lossy(&chunk[..count.min(16)]))),
                Err(_) => return status,
            }
        }
        status
    }

    /// Writes as much as the node accepts while the attack lasts; returns whether that was everything.
    pub(crate) fn push(&self, stream: &mut TcpStream, bytes: &[u8]) -> bool {
        bytes.chunks(1 << 16).all(|chunk| {
            let _ = stream.set_write_timeout(Some(self.remaining()));
            self.is_running() && stream.write_all(chunk).is_ok()
        })
    }

    /// All clients send this request again after each answer.
    pub(crate) fn repeat(&self, request: &Request, clients: usize) {
        self.run_clients(clients, |_| {
            while self.is_running() {
                self.exchange(request);
            }
        });
    }

    /// Runs `client` on `clients` threads, and waits for all of them.
    pub(crate) fn run_clients(&self, clients: usize, client: impl Fn(usize) + Sync) {
        thread::scope(|scope| {
            for index in 0..clients {
                let client = &client;
                scope.spawn(move || client(index));
            }
        });
    }

    /// Clients send the request and reset the connection before the answer: `count` times in all, on a few threads.
    pub(crate) fn reset_early(&self, request: &Request, count: usize, stay: Duration) {
        let (bytes, remaining) = (request.bytes(), AtomicUsize::new(count));
        self.run_clients(8, |_| {
            let take_one = || {
                remaining
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |remaining| remaining.checked_sub(1))
                    .is_ok()
            };
            while self.is_running() && take_one() {
                let Some(mut stream) = self.connect() else { continue };
                let sent = stream.write_all(&bytes).is_ok();
                thread::sleep(stay);
                // Without a linger the close is a reset.
                let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
                self.record(if sent { "left" } else { "closed early" });
            }
        });
    }

    /// Clients send the request and read nothing of its answer until the attack ends.
    pub(crate) fn read_nothing(&self, request: &Request, readers: usize) {
        let bytes = request.bytes();
        let streams: Vec<TcpStream> = (0..readers)
            .filter_map(|_| {
                let mut stream = self.connect()?;
                // The smallest window that the kernel allows.
                let _ = SockRef::from(&stream).set_recv_buffer_size(4096);
                stream.write_all(&bytes).ok()?;
                Some(stream)
            })
            .collect();
        thread::sleep(self.remaining());
        // Records what the node has sent so far.
        for mut stream in streams {
            let _ = stream.set_read_timeout(Some(Duration::from_millis(1)));
            let mut head = [0; 16];
            let count = stream.read(&mut head).unwrap_or_default();
            let status = status_of(&String::from_utf8_lossy(&head[..count]));
            self.record(status.map_or_else(|| "nothing yet".to_owned(), |status| status.to_string()));
        }
    }

    /// Clients send the head, and then repeat `piece` at this pace until the attack ends.
    pub(crate) fn trickle(&self, head: &[u8], piece: &[u8], pace: Duration, clients: usize) {
        let mut streams: Vec<TcpStream> = (0..clients).filter_map(|_| self.connect()).collect();
        streams.retain_mut(|stream| stream.write_all(head).is_ok());
        self.record(format!("held, {}", streams.len()));
        while self.is_running() {
            let round = Instant::now();
            streams.retain_mut(|stream| {
                let _ = stream.set_write_timeout(Some(Duration::from_millis(1)));
                stream.write_all(piece).is_ok()
            });
            thread::sleep(pace.saturating_sub(round.elapsed()).min(self.remaining()));
        }
        self.record(format!("held at the end, {}", streams.len()));
        streams.iter().for_each(|stream| _ = stream.shutdown(Shutdown::Both));
    }
}
