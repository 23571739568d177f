//! A worker that the tests of this crate run: it has several batches open, and does what their items say.

#![allow(clippy::unwrap_used, reason = "it ends with its node")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::abort;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::{DecodeLimits, Format, Value};
use serde_json::{Value as Json, json};

/// A batch that is not over: of a stream, the outputs that are left and those that may be sent.
enum Open {
    Waiting,
    Streaming { left: u64, credit: u64 },
}

struct Worker {
    socket: File,
    open: BTreeMap<u64, Open>,
    cancelled: u64,
    /// The batch of each call.
    calls: Vec<u64>,
}

fn main() -> io::Result<()> {
    let socket = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut worker = Worker::new(socket);
    loop {
        let (head, part) = worker.read()?;
        let id = head["id"].as_u64().unwrap_or_default();
        match head["type"].as_str().unwrap_or_default() {
            "start" => worker.send(json!({ "type": "ready", "protocol": 1, "max_batches": 64 }), None)?,
            "batch" => worker.run(id, part.unwrap())?,
            "cancel" => {
                worker.cancelled += 1;
                worker.end(id)?;
            }
            "result" => {
                let batch = worker.calls[usize::try_from(id).unwrap()];
                let answer = part.unwrap_or_else(|| Value::from(head["error"]["kind"].as_str().unwrap()));
                worker.answer(batch, answer)?;
            }
            "credit" => worker.stream(id, head["outputs"].as_u64().unwrap())?,
            "ping" => worker.send(json!({ "type": "pong" }), None)?,
            _ => return Ok(()),
        }
    }
}

impl Worker {
    fn new(socket: File) -> Self {
        Self { socket, open: BTreeMap::new(), cancelled: 0, calls: Vec::new() }
    }

    fn log_and_count(&mut self) -> io::Result<()> {
        loop {
            self.send(json!({ "type": "log", "level": "debug", "message": "it works" }), None)?;
            self.send(json!({ "type": "metrics", "samples": [{ "name": "work", "add": 1 }] }), None)?;
            thread::park_timeout(Duration::from_millis(20));
        }
    }

    fn run(&mut self, id: u64, item: Value) -> io::Result<()> {
        match item.as_str() {
            Some("wait") => _ = self.open.insert(id, Open::Waiting),
            Some("go") => {
                for waiting in self.open.keys().copied().collect::<Vec<_>>() {
                    self.answer(waiting, Value::from("gone"))?;
                }
                self.answer(id, item)?;
            }
            Some("open") => self.answer(id, Value::from(self.open.len() as u64))?,
            Some("cancelled") => self.answer(id, Value::from(self.cancelled))?,
            Some("pid") => self.answer(id, Value::from(u64::from(std::process::id())))?,
            Some("abort") => abort(),
            Some(item) if item.starts_with("deadly ") || item.starts_with("beside ") => self.run_beside(id, item)?,
            Some("block") => block(),
            Some("block beside a thread") => {
                let mut other = Self::new(self.socket.try_clone()?);
                thread::spawn(move || other.log_and_count());
                block()
            }
            Some(route) if route.starts_with('/') => {
                let head = json!({ "type": "call", "id": self.calls.len(), "batch": id, "item": 0, "route": route });
                self.calls.push(id);
                self.open.insert(id, Open::Waiting);
                self.send(head, Some(Value::from("from a child")))?;
            }
            Some("flood") => (0..1000).try_for_each(|_| self.output(id))?,
            Some("large") => {
                self.open.insert(id, Open::Waiting);
                for _ in 0..16 {
                    let output = Value::Bytes(vec![7; 1 << 20].into());
                    self.send(json!({ "type": "output", "id": id, "item": 0 }), Some(output))?;
                }
                self.end(id)?;
            }
            Some("stream") => {
                self.open.insert(id, Open::Streaming { left: 100, credit: 0 });
                // As `start` says.
                self.stream(id, 16)?;
            }
            _ => self.answer(id, item)?,
        }
        Ok(())
    }

    /// Keeps these items until it has four, one of them deadly, and ends with them; it has left a file then. When the
    /// file is there, it ends at a deadly item, and answers the others.
    fn run_beside(&mut self, id: u64, item: &str) -> io::Result<()> {
        let (what, file) = item.split_once(' ').unwrap();
        let was_here = Path::new(file).exists();
        if was_here && what == "beside" {
            return self.answer(id, Value::from(item));
        }
        self.open.insert(id, Open::Waiting);
        if !was_here && self.open.len() < 4 {
            return Ok(());
        }
        File::create(file)?;
        abort()
    }

    fn stream(&mut self, id: u64, outputs: u64) -> io::Result<()> {
        let Some(Open::Streaming { left, credit }) = self.open.get_mut(&id) else { return Ok(()) };
        *credit += outputs;
        let count = (*left).min(*credit);
        (*left, *credit) = (*left - count, *credit - count);
        let is_over = *left == 0;
        (0..count).try_for_each(|_| self.output(id))?;
        if is_over { self.end(id) } else { Ok(()) }
    }

    fn output(&mut self, id: u64) -> io::Result<()> {
        self.send(json!({ "type": "output", "id": id, "item": 0 }), Some(Value::from(id)))
    }

    /// The outcome of a stream, or of a call without a waiting caller.
    fn end(&mut self, id: u64) -> io::Result<()> {
        if self.open.remove(&id).is_none() {
            return Ok(());
        }
        self.send(json!({ "type": "outcomes", "id": id, "items": [null] }), None)
    }

    fn answer(&mut self, id: u64, output: Value) -> io::Result<()> {
        self.open.remove(&id);
        self.send(json!({ "type": "outcomes", "id": id, "items": [null] }), Some(output))
    }

    fn send(&mut self, head: Json, part: Option<Value>) -> io::Result<()> {
        let head = rmp_serde::to_vec_named(&head).map_err(io::Error::other)?;
        let part = part.map(|part| part.to_envelope().unwrap().parts().concat());
        let mut frame = Vec::new();
        frame.extend_from_slice(&(head.len() as u32).to_le_bytes());
        frame.extend_from_slice(&u32::from(part.is_some()).to_le_bytes());
        part.iter().for_each(|part| frame.extend_from_slice(&(part.len() as u64).to_le_bytes()));
        frame.extend_from_slice(&head);
        part.iter().for_each(|part| frame.extend_from_slice(part));
        self.socket.write_all(&frame)
    }

    fn read(&mut self) -> io::Result<(Json, Option<Value>)> {
        let start = self.exact(8)?;
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte));
        let lengths = self.exact(8 * number(&start[4..]))?;
        let head = self.exact(number(&start[..4]))?;
        let parts = lengths.chunks(8).map(|length| self.exact(number(length))).collect::<io::Result<Vec<_>>>()?;
        let part = parts.into_iter().next();
        let limits = DecodeLimits::default();
        let part = part.map(|part| Value::decode(Format::Envelope, &Bytes::from(part), &limits).unwrap());
        Ok((rmp_serde::from_slice(&head).map_err(io::Error::other)?, part))
    }

    fn exact(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; bytes];
        self.socket.read_exact(&mut buffer)?;
        Ok(buffer)
    }
}

#[expect(clippy::disallowed_methods, reason = "it hangs")]
fn block() -> ! {
    loop {
        thread::sleep(Duration::from_secs(1000));
    }
}
