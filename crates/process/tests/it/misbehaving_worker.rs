//! A worker that the tests of this crate run: it does what its items and its first argument say.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::exit, reason = "it misbehaves")]

mod calling_worker;

use std::fs::File;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, abort, exit};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use callboard_codec::Value;
use callboard_core::Failure;
use callboard_process::serve_worker;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

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
        "calls" => return Ok(calling_worker::serve(socket().into())?),
        "exits" => {
            println!("no licence was found");
            exit(3);
        }
        _ => {}
    }
    let load = move || if mode == "fails" { Err(Failure::new("no weights")) } else { Ok(0_u64) };
    Ok(serve_worker(load, run)?)
}

fn run(calls: &mut u64, item: &Value) -> Result<Value, Failure> {
    *calls += 1;
    match item.as_str() {
        Some("pid") => Ok(Value::from(u64::from(std::process::id()))),
        Some("calls") => Ok(Value::from(*calls)),
        Some("abort") => abort(),
        Some("exit") => exit(7),
        Some("exit with a socket") => {
            // The socket of this process, for a process that lives on.
            Command::new("sleep").arg("1000").stdin(socket()).spawn()?;
            exit(7)
        }
        Some("hang") => sleep(),
        Some("print") => {
            println!("a line on standard output");
            eprintln!("a line on standard error");
            Ok(Value::Null)
        }
        Some("grandchild") => {
            let child = Command::new("sleep").arg("1000").spawn()?;
            Ok(Value::from(u64::from(child.id())))
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
        Some("invalid") => Err(Failure::invalid_input("`invalid` is not a text that it takes")),
        Some("fail") => Err(Failure::new("it did not work")),
        _ => Ok(item.clone()),
    }
}

#[expect(clippy::disallowed_methods, reason = "it hangs")]
fn sleep() -> ! {
    loop {
        thread::sleep(Duration::from_secs(1000));
    }
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
