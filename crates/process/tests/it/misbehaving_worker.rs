//! A worker that the tests of this crate run: it does what its items and its first argument say.

#![allow(clippy::print_stdout, clippy::print_stderr, clippy::exit, reason = "it misbehaves")]

mod calling_worker;

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, abort, exit};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use callboard_codec::{Format, Value};
use callboard_core::Failure;
use callboard_process::serve_worker;

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
        Some("leave") => {
            say_goodbye();
            exit(0)
        }
        Some("leave and stay") => {
            say_goodbye();
            sleep()
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
    std::fs::File::from(socket()).write_all(&frame).expect("a node that reads");
}

fn print_garbage() -> std::io::Result<()> {
    std::fs::File::from(socket()).write_all(&[255; 64])?;
    sleep()
}
