//! Allocations of one call, by place: in process, over HTTP, and of a bare axum handler that does the same.
//!
//! Run with `cargo bench -p callboard-http --bench allocations`. Counts do not depend on what else the machine does. A
//! place is the nearest function of our crates on the stack, with that of hyper or tokio between it and the allocation;
//! functions that were inlined count as their callers, so a build with `--profile dev` names smaller places. A look at
//! the stack takes longer than quick code may, so the calls that are looked up go through the queue and the replica's
//! actor, and list what that allocates as well.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and panics on an error")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::collections::HashMap;
use std::future::pending;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;
use callboard_core::{App, Node, Stage};
use callboard_http::{HttpConfig, serve, serve_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

/// Calls before counting, until the code is known to be quick and connections have their buffers.
const WARM_UP: u64 = 200;

/// Calls that are counted, and calls whose allocations are looked up.
const COUNTED: u64 = 1000;
const LOOKED_UP: u64 = 100;

/// The echoed value.
const BODY: &str =
    r#"{"id":184467,"name":"a sample of the usual size","values":[0.25,1.5,-3.0,42.125,0.001,7.75,1024.0,0.5]}"#;

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
struct Echo {
    id: u64,
    name: String,
    values: Vec<f64>,
}

struct Counting;

/// Whether allocations are counted, and whether their places are noted.
static COUNTS: AtomicBool = AtomicBool::new(false);
static NOTES: AtomicBool = AtomicBool::new(false);
static NUMBER: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static PLACES: Mutex<Option<HashMap<String, (u64, u64)>>> = Mutex::new(None);

thread_local! {
    /// The load, and what a look at the stack allocates, are not counted.
    static IS_LEFT_OUT: Cell<bool> = const { Cell::new(false) };
}

#[expect(unsafe_code, reason = "an allocator that counts and calls the system's; `realloc` counts as both")]
// SAFETY: each call forwards to the system allocator with the caller's arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: usize) {
    if !COUNTS.load(Relaxed) || IS_LEFT_OUT.get() {
        return;
    }
    NUMBER.fetch_add(1, Relaxed);
    BYTES.fetch_add(bytes as u64, Relaxed);
    if NOTES.load(Relaxed) {
        IS_LEFT_OUT.set(true);
        let place = place(&Backtrace::force_capture().to_string());
        let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        let of_place = places.get_or_insert_default().entry(place).or_default();
        *of_place = (of_place.0 + 1, of_place.1 + bytes as u64);
        drop(places);
        IS_LEFT_OUT.set(false);
    }
}

/// The nearest function of ours, and before it the nearest of hyper or tokio, which say what the allocation is for.
fn place(stack: &str) -> String {
    let mut library = None;
    for frame in stack.lines().filter_map(|line| Some(line.trim().split_once(": ")?.1)) {
        let name = frame.split("::h0").next().unwrap_or(frame);
        if name.contains("callboard_") {
            return library.map_or_else(|| name.to_owned(), |library| format!("{library} in {name}"));
        }
        let is_of_library = ["hyper", "tokio::", "http::", "axum"].iter().any(|prefix| name.contains(prefix));
        library = library.or_else(|| is_of_library.then_some(name));
    }
    library.unwrap_or("elsewhere").to_owned()
}

fn main() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (name, max) in [("in process", 1), ("in process, batches of up to 32", 32)] {
        runtime().block_on(async {
            let node = start(max).await;
            let client = node.client();
            let echo: Echo = serde_json::from_str(BODY).unwrap();
            let calls = async |count: u64| {
                for _ in 0..count {
                    // The input is the caller's.
                    IS_LEFT_OUT.set(true);
                    let input = echo.clone();
                    IS_LEFT_OUT.set(false);
                    client.call::<Echo, Echo>("/echo", input).await.unwrap();
                }
            };
            measured(name, calls).await;
        });
    }
    runtime().block_on(async {
        let headers = [
            ("server-timing", "queue;dur=0.003, batch;dur=0.001, compute;dur=0.000"),
            ("x-request-id", "9f3ac27e01b4d658-0000002a"),
        ];
        let echo = move |body: Bytes| async move {
            let echo: Echo = serde_json::from_slice(&body).unwrap();
            (headers, [(CONTENT_TYPE, "application/json")], serde_json::to_vec(&echo).unwrap())
        };
        let bare = Router::new().route("/echo", post(echo));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve_router(listener, bare, HttpConfig::default(), pending()));
        measured_over_http("bare axum over HTTP", address).await;
    });
    for (name, max) in [("over HTTP", 1), ("over HTTP, batches of up to 32", 32)] {
        runtime().block_on(async {
            let node = start(max).await;
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(serve(listener, node.client(), HttpConfig::default(), pending()));
            measured_over_http(name, address).await;
        });
    }
}

async fn start(max: usize) -> Node {
    let echo = Stage::each("echo", |echo: &Echo| Ok(echo.clone())).max_batch_size(max);
    App::new().route("/echo", echo).start().await.unwrap()
}

async fn measured_over_http(name: &str, address: SocketAddr) {
    let (orders, ordered) = std::sync::mpsc::channel::<(u64, tokio::sync::oneshot::Sender<()>)>();
    std::thread::spawn(move || {
        IS_LEFT_OUT.set(true);
        let head = "POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
        let request = format!("{head}content-length: {}\r\n\r\n{BODY}", BODY.len());
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut answer = vec![0; 8192];
        while let Ok((requests, done)) = ordered.recv() {
            for _ in 0..requests {
                stream.write_all(request.as_bytes()).unwrap();
                let mut length = 0;
                while !answer[..length].ends_with(BODY.as_bytes()) {
                    length += stream.read(&mut answer[length..]).unwrap();
                }
            }
            done.send(()).unwrap();
        }
    });
    measured(name, async |count: u64| {
        IS_LEFT_OUT.set(true);
        let (done, is_done) = tokio::sync::oneshot::channel();
        orders.send((count, done)).unwrap();
        IS_LEFT_OUT.set(false);
        is_done.await.unwrap();
    })
    .await;
}

/// Counts what `calls` allocates for each call, and prints it.
async fn measured(name: &str, calls: impl AsyncFn(u64)) {
    calls(WARM_UP).await;
    let (number, bytes) = (NUMBER.load(Relaxed), BYTES.load(Relaxed));
    COUNTS.store(true, Relaxed);
    calls(COUNTED).await;
    COUNTS.store(false, Relaxed);
    let each = |total: u64, before: u64| (total - before) as f64 / COUNTED as f64;
    println!(
        "\n{name}: {:.1} allocations and {:.0} bytes for each call",
        each(NUMBER.load(Relaxed), number),
        each(BYTES.load(Relaxed), bytes)
    );
    COUNTS.store(true, Relaxed);
    NOTES.store(true, Relaxed);
    calls(LOOKED_UP).await;
    COUNTS.store(false, Relaxed);
    NOTES.store(false, Relaxed);
    let places = PLACES.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    let mut places: Vec<_> = places.into_iter().filter(|(_, (number, _))| *number * 5 >= LOOKED_UP).collect();
    places.sort_by_key(|(_, (number, bytes))| std::cmp::Reverse((*number, *bytes)));
    for (place, (number, bytes)) in places {
        let each = |total: u64| total as f64 / LOOKED_UP as f64;
        println!("  {:>5.1} {:>7.0} B  {place}", each(number), each(bytes));
    }
}
