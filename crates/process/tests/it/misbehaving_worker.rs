//! A worker that the tests of this crate run: it does what its items and its first argument say. It is also a fork
//! server, which starts such workers instead of forking them.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::exit, reason = "it misbehaves")]

mod calling_worker;

use std::collections::HashMap;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, abort, exit};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use callboard_codec::{Format, Value};
use callboard_core::Failure;
use callboard_process::serve_worker;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, send, sendmsg,
};
use serde_json::{Value as Json, json};

const SLOW_START: Duration = Duration::from_secs(2);

/// A copy of the socket, made before the worker takes it from standard input.
static SOCKET: OnceLock<OwnedFd> = OnceLock::new();

fn socket() -> OwnedFd {
    SOCKET.get().and_then(|socket| socket.try_clone().ok()).expect("a socket")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    SOCKET.get_or_init(|| std::io::stdin().as_fd().try_clone_to_owned().expect("standard input"));
    let mode = std::env::args().nth(1).unwrap_or_default();
    match mode.as_str() {
        "silent" => sleep(),
        "garbage" => print_garbage()?,
        "fork server" | "refuses" | "fails to fork" | "forks nothing" => return serve_forks(&mode),
        "calls" => return Ok(calling_worker::serve(socket().into())?),
        "version 2" => {
            send_frame(&json!({ "type": "ready", "protocol": 2 }))?;
            sleep()
        }
        "not ahead" => return Ok(calling_worker::serve_plainly(socket().into(), true)?),
        "ignores stop" => return Ok(calling_worker::serve_plainly(socket().into(), false)?),
        "exits" => {
            println!("no licence was found");
            exit(3);
        }
        _ => {}
    }
    if let Some(pids) = std::env::var_os("PIDS_OF_SLOW_STARTS") {
        thread::park_timeout(SLOW_START);
        writeln!(File::options().append(true).create(true).open(pids)?, "{}", std::process::id())?;
    }
    let load = move || if mode == "fails" { Err(Failure::new("no weights")) } else { Ok(0_u64) };
    Ok(serve_worker(load, run)?)
}

/// Starts a process for each fork.
fn serve_forks(mode: &str) -> Result<(), Box<dyn std::error::Error>> {
    let socket = socket();
    let mut children: HashMap<u64, Child> = HashMap::new();
    loop {
        let (message, mut descriptors) = receive(&socket)?;
        let answer = match message["type"].as_str() {
            None => return Ok(()),
            Some("start") if mode == "refuses" => json!({ "type": "refused", "message": "it has threads" }),
            Some("start") if mode == "fails to fork" => {
                json!({ "type": "failed", "message": "no such module", "trace": "a line" })
            }
            Some("start") => json!({ "type": "ready", "protocol": 1, "worker": "a test" }),
            Some("fork") if mode == "forks nothing" => json!({ "type": "forked", "pid": 1 }),
            Some("fork") => {
                let (output, input) = (descriptors.remove(1), descriptors.remove(0));
                let mut command = Command::new(std::env::current_exe()?);
                command.process_group(0).stdin(input).stderr(output.try_clone()?).stdout(output);
                let child = command.spawn()?;
                let pid = u64::from(child.id());
                children.insert(pid, child);
                json!({ "type": "forked", "pid": pid })
            }
            _ => {
                let child = message["pid"].as_u64().and_then(|pid| children.remove(&pid));
                json!({ "type": "ended", "status": child.ok_or("no child")?.wait()?.into_raw() })
            }
        };
        send(&socket, &rmp_serde::to_vec(&answer)?, SendFlags::empty())?;
    }
}

fn receive(socket: &OwnedFd) -> Result<(Json, Vec<OwnedFd>), Box<dyn std::error::Error>> {
    let (mut content, mut space) = (vec![0; 1 << 16], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))]);
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut content)];
    let bytes = recvmsg(socket, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors = rights.flatten().collect();
    Ok((if bytes == 0 { Json::Null } else { rmp_serde::from_slice(&content[..bytes])? }, descriptors))
}

fn run(calls: &mut u64, item: &Value) -> Result<Value, Failure> {
    *calls += 1;
    match item.as_str() {
        Some("pid") => Ok(Value::from(u64::from(std::process::id()))),
        Some("calls") => Ok(Value::from(*calls)),
        Some("abort") => abort(),
        Some("exit") => exit(7),
        Some("exit with words") => {
            eprintln!("callboard.worker: SystemExit: the licence has expired");
            exit(7)
        }
        Some("exit with a socket") => {
            // The socket of this process, for a process that lives on.
            Command::new("sleep").arg("1000").stdin(socket()).spawn()?;
            exit(7)
        }
        Some("leave a stream") => {
            send_frame(&json!({ "type": "outcomes", "id": 0, "items": [null], "last": true }))?;
            exit(0)
        }
        Some("leave") => {
            say_goodbye();
            exit(0)
        }
        Some(item) if item.starts_with("leave and write ") => {
            say_goodbye();
            // Work after an answer, longer than the end of a process takes.
            thread::park_timeout(Duration::from_millis(1200));
            std::fs::write(item.rsplit(' ').next().unwrap_or_default(), "written")?;
            exit(0)
        }
        Some("leave and stay") => {
            say_goodbye();
            sleep()
        }
        Some("hang") => sleep(),
        Some("hang and log") => {
            // So few bytes are written whole. The node never finds the socket empty.
            let records = frame(&json!({ "type": "log", "level": "debug", "message": "it works" }))?.repeat(50);
            thread::scope(|scope| {
                let write = || while File::from(socket()).write_all(&records).is_ok() {};
                (0..4).for_each(|_| drop(scope.spawn(write)));
            });
            sleep()
        }
        Some("print") => {
            println!("a line on standard output");
            eprintln!("a line on standard error");
            Ok(Value::Null)
        }
        Some("grandchild") => {
            let child = Command::new("sleep").arg("1000").spawn()?;
            Ok(Value::from(u64::from(child.id())))
        }
        Some("variables") => {
            let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
            Ok(Value::List(names.filter(|name| name.starts_with("_CALLBOARD_")).map(Value::from).collect()))
        }
        Some("memories") => {
            let maps = std::fs::read_to_string("/proc/self/maps")?;
            Ok(Value::from(maps.lines().filter(|map| map.contains("memfd:callboard")).count() as u64))
        }
        Some("descriptors") => Ok(Value::from(std::fs::read_dir("/proc/self/fd")?.count() as u64)),
        Some("stray descriptor") => {
            send_with_a_descriptor(b"\x13\0\0\0\0\0\0\0\x82\xa4type\xa3log\xa7message\xa0".as_slice())?;
            Ok(Value::Null)
        }
        Some("unsealed memory") => {
            // A frame of one byte, in new memory 1.
            send_with_a_descriptor(b"\x01\0\0\0\x01\0\0\x81\x01\0\0\0\0\0\0\0\xc0".as_slice())?;
            Ok(Value::Null)
        }
        Some("garbage") => {
            File::from(socket()).write_all(&[255; 64])?;
            Ok(Value::Null)
        }
        Some("two outcomes") => {
            send_frame(
                &json!({ "type": "outcomes", "id": *calls - 1, "items": [{ "message": "a" }, { "message": "b" }] }),
            )?;
            Ok(Value::Null)
        }
        Some("unknown message") => {
            send_frame(&json!({ "type": "greeting" }))?;
            Ok(Value::Null)
        }
        Some("close the socket") => {
            rustix::net::shutdown(socket(), rustix::net::Shutdown::Both)?;
            sleep()
        }
        Some("fill standard error") => {
            for _ in 0..1000 {
                eprintln!("{}", "x".repeat(2000));
            }
            Ok(Value::Null)
        }
        Some("log") => {
            for (message, id) in [("of my own", "mine-7"), ("of another call", "another-9")] {
                send_frame(&json!({ "type": "log", "level": "info", "message": message, "request_id": id }))?;
            }
            Ok(Value::Null)
        }
        Some("leave a process behind") => {
            Command::new("sleep").arg("100").process_group(0).spawn()?;
            exit(7)
        }
        Some("leak") => {
            let mut kept = Vec::new();
            loop {
                kept.push(vec![1_u8; 8 << 20]);
            }
        }
        // MiB, and milliseconds: several looks of the node, or as long as it takes.
        Some(text) if text.starts_with("hold ") => {
            let mut numbers = text.split(' ').filter_map(|word| word.parse::<usize>().ok());
            let held = vec![1_u8; numbers.next().unwrap_or_default() << 20];
            let millis = numbers.next().unwrap_or_default();
            let end = std::time::Instant::now() + Duration::from_millis(millis as u64);
            while std::time::Instant::now() < end {
                nap();
            }
            Ok(Value::from(held.last().copied().unwrap_or_default() == 1))
        }
        Some("punch a hole") => punch_a_hole(),
        Some(text) if text.starts_with("until ") => {
            let path = std::path::Path::new(&text[6..]);
            std::fs::write(path.with_extension("pid"), std::process::id().to_string())?;
            while !path.exists() {
                nap();
            }
            Ok(Value::Null)
        }
        Some(text) if text.starts_with("touch ") => {
            std::fs::write(&text[6..], "")?;
            Ok(Value::Null)
        }
        Some("invalid") => Err(Failure::invalid_input("`invalid` is not a text that it takes")),
        Some("fail") => Err(Failure::new("it did not work")),
        _ => Ok(item.clone()),
    }
}

#[expect(clippy::disallowed_methods, reason = "it waits for a file")]
fn nap() {
    thread::sleep(Duration::from_millis(2));
}

fn send_frame(head: &Json) -> std::io::Result<()> {
    File::from(socket()).write_all(&frame(head)?)
}

/// A frame without parts.
fn frame(head: &Json) -> std::io::Result<Vec<u8>> {
    let head = rmp_serde::to_vec_named(head).map_err(std::io::Error::other)?;
    let counts = [head.len() as u32, 0].map(u32::to_le_bytes).concat();
    Ok([counts, head].concat())
}

/// Answers with a frame in memory whose pages it takes back before and after.
fn punch_a_hole() -> ! {
    use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
    let memory = File::from(memfd_create("hole", MemfdFlags::ALLOW_SEALING).expect("memory"));
    memory.set_len(1 << 20).expect("memory");
    fcntl_add_seals(&memory, SealFlags::SHRINK).expect("seals");
    let head = json!({ "type": "outcomes", "id": 0, "items": [null] });
    let head = rmp_serde::to_vec_named(&head).expect("a head");
    let counts = [head.len() as u32, 1 | 0x81 << 24].map(u32::to_le_bytes).concat();
    let frame = [&counts[..], &(512_u64 << 10).to_le_bytes(), &head].concat();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [memory.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(socket(), &[IoSlice::new(&frame)], &mut control, SendFlags::empty()).expect("a node");
    for _ in 0..1000 {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&memory, hole, 0, 1 << 20).expect("a hole");
    }
    exit(7)
}

#[expect(clippy::disallowed_methods, reason = "it hangs")]
fn sleep() -> ! {
    loop {
        thread::sleep(Duration::from_secs(1000));
    }
}

/// Answers the first batch of one item, and says that this process ends by itself.
fn say_goodbye() {
    let entries = [
        ("type", Value::from("outcomes")),
        ("id", Value::from(0)),
        ("items", Value::List(vec![Value::Null])),
        ("last", Value::Bool(true)),
    ];
    let head = Value::Map(entries.into_iter().collect()).encode(Format::Msgpack).expect("a head");
    let part = Value::from("goodbye").encode(Format::Envelope).expect("a part");
    let counts = [head.len() as u32, 1].map(u32::to_le_bytes).concat();
    let frame = [&counts[..], &(part.len() as u64).to_le_bytes(), &head, &part].concat();
    File::from(socket()).write_all(&frame).expect("a node that reads");
}

/// Sends a frame with a descriptor that is not memory.
fn send_with_a_descriptor(frame: &[u8]) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let (mut control, nothing) = (SendAncillaryBuffer::new(&mut space), File::open("/dev/zero")?);
    let descriptors = [nothing.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(socket(), &[IoSlice::new(frame)], &mut control, SendFlags::empty())?;
    Ok(())
}

fn print_garbage() -> std::io::Result<()> {
    File::from(socket()).write_all(&[255; 64])?;
    sleep()
}
