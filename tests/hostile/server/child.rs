//! A child of a stage that does to its node what its items say; any other item comes back.
//!
//! It speaks the worker protocol by the public function for workers. What breaks the protocol goes past that function,
//! by a copy of the socket.

#![allow(clippy::exit, reason = "it ends as its items say")]

use std::fs::File;
use std::io::{self, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use callboard::codec::Value;
use callboard::prelude::Failure;
use callboard::process::serve_worker;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// The limit of the protocol on a head.
const HEAD_BYTES: usize = 4 << 20;

/// The size of one piece of sparse memory.
const SPARSE_BYTES: u64 = 30 << 40;

/// The duration of floods.
const FLOOD: Duration = Duration::from_millis(700);

pub(crate) fn main() -> ExitCode {
    let socket = io::stdin().as_fd().try_clone_to_owned().expect("standard input is the socket of a node");
    match serve_worker(|| Ok(socket), run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn run(socket: &mut OwnedFd, item: &Value) -> Result<Value, Failure> {
    match item.as_str() {
        Some("exit") => std::process::exit(7),
        Some("hang") => loop {
            thread::park();
        },
        Some("hoard") => {
            let mut kept = Vec::new();
            loop {
                kept.push(vec![1_u8; 8 << 20]);
            }
        }
        Some("leave a daemon") => {
            // It keeps standard output and standard error for longer than the attack lasts.
            Command::new("sleep").arg("20").spawn()?;
            std::process::exit(7)
        }
        Some("sparse memory") => hand_over_sparse_memory(socket)?,
        Some("heads of values") => {
            let end = Instant::now() + FLOOD;
            let frame = frame(&log_of(&[[text("x"), nils(HEAD_BYTES - 128)].concat()]));
            while Instant::now() < end {
                send(socket, &frame)?;
            }
        }
        Some("long records") => {
            let target = [text("target"), long_text(2 << 20)].concat();
            let id = [text("request_id"), long_text(1 << 20)].concat();
            let frame = frame(&log_of(&[target, id]));
            for _ in 0..20 {
                send(socket, &frame)?;
            }
        }
        Some("flood of records") => {
            let frames = frame(&log_of(&[])).repeat(100);
            let end = Instant::now() + FLOOD;
            while Instant::now() < end {
                send(socket, &frames)?;
            }
        }
        Some("flood of lines") => {
            let end = Instant::now() + FLOOD;
            let lines = "a line\n".repeat(10_000);
            while Instant::now() < end {
                io::stderr().write_all(lines.as_bytes())?;
            }
        }
        Some("details") => {
            let details: Vec<Value> = (0..1_000_000).map(|_| Value::List(Vec::new())).collect();
            return Err(Failure::new("it has details").with_details(Value::List(details)));
        }
        Some("forged line") => {
            return Err(Failure::new("one\n2030-01-01T00:00:00.000000Z ERROR forged: \u{202e}\u{9b}31m\r\u{1b}[2J"));
        }
        _ => {}
    }
    Ok(item.clone())
}

/// New memory in each of the four places, each as large as a quarter of the address space of a process.
fn hand_over_sparse_memory(socket: &OwnedFd) -> io::Result<()> {
    for place in 1..=4_u8 {
        let memory = File::from(memfd_create("sparse", MemfdFlags::ALLOW_SEALING)?);
        memory.set_len(SPARSE_BYTES)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK)?;
        let head = log_of(&[]);
        let counts = [head.len() as u32, 1 | u32::from(0x80 | place) << 24].map(u32::to_le_bytes).concat();
        let frame = [&counts[..], &1_u64.to_le_bytes(), &head].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [memory.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(socket, &[IoSlice::new(&frame)], &mut control, SendFlags::empty())?;
    }
    Ok(())
}

fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    File::from(socket.try_clone()?).write_all(bytes)
}

/// A frame without parts.
fn frame(head: &[u8]) -> Vec<u8> {
    let counts = [head.len() as u32, 0].map(u32::to_le_bytes).concat();
    [&counts[..], head].concat()
}

/// A log record with these entries.
fn log_of(entries: &[Vec<u8>]) -> Vec<u8> {
    let known = [("type", "log"), ("level", "error"), ("message", "m")];
    let known = known.map(|(key, value)| [text(key), text(value)].concat()).concat();
    [vec![0x80 | (3 + entries.len()) as u8], known, entries.concat()].concat()
}

/// A short text as MessagePack.
fn text(text: &str) -> Vec<u8> {
    [&[0xa0 | text.len() as u8], text.as_bytes()].concat()
}

/// A text of `t` as MessagePack.
fn long_text(bytes: usize) -> Vec<u8> {
    [&[0xdb], &(bytes as u32).to_be_bytes()[..], &vec![b't'; bytes]].concat()
}

/// A list of `nil` as MessagePack.
fn nils(count: usize) -> Vec<u8> {
    [&[0xdd], &(count as u32).to_be_bytes()[..], &vec![0xc0; count]].concat()
}
