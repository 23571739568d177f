//! A child that calls routes of its node, frame by frame: an item says what it calls, and its output is what came back.
//!
//! An item is a map: `route`, `input`, `count` of calls, and optionally `after` (they are made one after the other),
//! `whole` (they belong to the whole batch), `give_up` (each is cancelled after a call of this route), `then` (a route
//! that is called afterwards), `forget` (no result is waited for), `timeout_ms`, `same_id` and `batch` (mistakes).
//!
//! With `credit` it takes a stream, and its output is a list of the outputs and of what came at the end: `gives` is the
//! credit for each of them, with `gives_bytes`, and after `reads` of them it calls `then` many times instead of reading on.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use bytes::Bytes;
use callboard_codec::{DecodeLimits, Format, Map, Value};

/// More than the inner calls that one call may have.
const MAX_OPEN: usize = 300;

/// Calls in whose time a stream that does not pause would go on.
const MANY: usize = 300;

pub(crate) fn serve(socket: UnixStream) -> io::Result<()> {
    let mut child = Child { socket, last_id: 0 };
    child.receive()?;
    child.send(map([("type", "ready".into()), ("protocol", 1.into()), ("calls", true.into())]), None)?;
    loop {
        let (head, parts) = child.receive()?;
        match text(&head, "type").as_str() {
            "batch" => child.run(&head, &parts)?,
            "stop" => return Ok(()),
            // What belongs to calls and batches that are over.
            _ => {}
        }
    }
}

struct Child {
    socket: UnixStream,
    last_id: i64,
}

impl Child {
    fn run(&mut self, head: &Value, parts: &[Value]) -> io::Result<()> {
        let batch = number(head, "id");
        let mut outputs = Vec::new();
        for (item, asked) in parts.iter().enumerate() {
            if has(asked, "credit") {
                outputs.push(Value::List(self.stream(batch, item, asked)?));
                continue;
            }
            let count = number(asked, "count");
            let mut results = Vec::new();
            let mut open = 0;
            for _ in 0..count {
                open += self.call(batch, item, asked)?;
                // A child must read while it writes; this one cannot, and has few open.
                if open == MAX_OPEN || (open > 0 && has(asked, "after")) {
                    results.push(self.result()?);
                    open -= 1;
                }
            }
            if has(asked, "then") {
                let then = map([("route", field(asked, "then")), ("input", field(asked, "input"))]);
                open += self.call(batch, item, &then)?;
            }
            for _ in 0..if has(asked, "forget") { 0 } else { open } {
                results.push(self.result()?);
            }
            outputs.push(Value::List(results));
        }
        let items = Value::List(vec![Value::Null; outputs.len()]);
        self.send(map([("type", "outcomes".into()), ("id", batch.into()), ("items", items)]), outputs)
    }

    fn stream(&mut self, batch: i64, item: usize, asked: &Value) -> io::Result<Vec<Value>> {
        self.call(batch, item, asked)?;
        let (id, mut found) = (self.last_id, Vec::new());
        while !has(asked, "reads") || found.len() < usize::try_from(number(asked, "reads")).expect("a count") {
            let (head, parts) = self.receive()?;
            let part = parts.into_iter().next();
            match text(&head, "type").as_str() {
                "call_output" => found.extend(part),
                "result" => {
                    let error = if has(&head, "error") { field(&head, "error") } else { "end".into() };
                    found.push(part.unwrap_or(error));
                    return Ok(found);
                }
                _ => continue,
            }
            if has(asked, "gives") {
                let gives = ("outputs", number(asked, "gives").into());
                let bytes = if has(asked, "gives_bytes") { number(asked, "gives_bytes") } else { 0 };
                let head = map([("type", "call_credit".into()), ("id", id.into()), gives, ("bytes", bytes.into())]);
                self.send(head, None)?;
            }
        }
        for _ in 0..MANY {
            self.call(batch, item, &map([("route", field(asked, "then"))]))?;
            self.result()?;
        }
        Ok(found)
    }

    /// Makes one call; the count of results that it waits for.
    fn call(&mut self, batch: i64, item: usize, asked: &Value) -> io::Result<usize> {
        self.last_id += i64::from(!has(asked, "same_id"));
        let batch = if has(asked, "batch") { number(asked, "batch") } else { batch };
        let mut head = vec![("type", "call".into()), ("id", self.last_id.into()), ("batch", batch.into())];
        head.push(("route", text(asked, "route").into()));
        for key in ["credit", "credit_bytes", "timeout_ms"].into_iter().filter(|key| has(asked, key)) {
            head.push((key, field(asked, key)));
        }
        if !has(asked, "whole") {
            head.push(("item", i64::try_from(item).expect("a small number").into()));
        }
        self.send(map(head), vec![field(asked, "input")])?;
        if has(asked, "give_up") {
            let given_up = self.last_id;
            self.call(batch, item, &map([("route", field(asked, "give_up"))]))?;
            self.result()?;
            self.send(map([("type", "cancel_call".into()), ("id", given_up.into())]), None)?;
            return Ok(0);
        }
        Ok(1)
    }

    /// The next result: its value, or the map of its error.
    fn result(&mut self) -> io::Result<Value> {
        loop {
            let (head, parts) = self.receive()?;
            if text(&head, "type") == "result" {
                return Ok(parts.into_iter().next().unwrap_or_else(|| field(&head, "error")));
            }
        }
    }

    fn send(&mut self, head: Value, parts: impl IntoIterator<Item = Value>) -> io::Result<()> {
        let encode = |value: &Value, format| value.encode(format).map_err(io::Error::other);
        let head = encode(&head, Format::Msgpack)?;
        let parts =
            parts.into_iter().map(|part| encode(&part, Format::Envelope)).collect::<io::Result<Vec<Bytes>>>()?;
        let length = |bytes: usize| u32::try_from(bytes).expect("a small number").to_le_bytes();
        let mut frame = [length(head.len()), length(parts.len())].concat();
        parts.iter().for_each(|part| frame.extend((part.len() as u64).to_le_bytes()));
        frame.extend(&head);
        parts.iter().for_each(|part| frame.extend(part));
        self.socket.write_all(&frame)
    }

    fn receive(&mut self) -> io::Result<(Value, Vec<Value>)> {
        let start = self.read(8)?;
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte));
        let (head, count) = (number(&start[..4]), number(&start[4..]));
        let lengths: Vec<usize> = self.read(8 * count)?.chunks(8).map(number).collect();
        let decode = |bytes, format| Value::decode(format, &bytes, &DecodeLimits::default()).map_err(io::Error::other);
        let head = decode(self.read(head)?, Format::Msgpack)?;
        let parts = lengths.into_iter().map(|bytes| decode(self.read(bytes)?, Format::Envelope));
        Ok((head, parts.collect::<io::Result<_>>()?))
    }

    fn read(&mut self, bytes: usize) -> io::Result<Bytes> {
        let mut read = vec![0; bytes];
        self.socket.read_exact(&mut read)?;
        Ok(read.into())
    }
}

fn map<'k>(entries: impl IntoIterator<Item = (&'k str, Value)>) -> Value {
    Value::Map(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Map>())
}

fn field(of: &Value, key: &str) -> Value {
    of.as_map().and_then(|map| map.get(key)).cloned().unwrap_or(Value::Null)
}

fn has(of: &Value, key: &str) -> bool {
    field(of, key) != Value::Null
}

fn text(of: &Value, key: &str) -> String {
    field(of, key).as_str().unwrap_or_default().to_owned()
}

fn number(of: &Value, key: &str) -> i64 {
    field(of, key).as_i64().unwrap_or_default()
}

/// A worker of one batch at a time that takes none ahead, and ends on `stop` if it is told to.
pub(crate) fn serve_plainly(socket: UnixStream, stops: bool) -> io::Result<()> {
    let mut child = Child { socket, last_id: 0 };
    child.receive()?;
    child.send(map([("type", "ready".into()), ("protocol", 1.into())]), None)?;
    loop {
        let (head, parts) = child.receive()?;
        match text(&head, "type").as_str() {
            "batch" => {
                for path in parts.iter().filter_map(|part| part.as_str()?.strip_prefix("until ")) {
                    std::fs::write(format!("{path}.pid"), "")?;
                    while !std::fs::exists(path)? {
                        std::thread::yield_now();
                    }
                }
                let items = Value::List(vec![Value::Null; parts.len()]);
                child.send(
                    map([("type", "outcomes".into()), ("id", number(&head, "id").into()), ("items", items)]),
                    parts,
                )?;
            }
            "stop" if stops => return Ok(()),
            _ => {}
        }
    }
}
