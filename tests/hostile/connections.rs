//! Connections that hold much with little data: heads without bodies, closed windows, endless frames.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use crate::attack::{Attack, Target};
use crate::http1::Request;
use crate::http2::{
    CONTINUATION, Connection, DATA, END_STREAM, HEADERS, INITIAL_WINDOW_SIZE, PING, PRIORITY, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame, get, literal, post,
};
use crate::npy::NPY;
use crate::payloads::gzip;
use crate::payloads::npy::{array, empty_axes};

/// The largest payload of a frame, unless a node allows more.
const MAX_FRAME: usize = 16_384;

/// Writes the same bytes repeatedly on all connections, reading or not; replaces closed connections.
fn flood(target: &Target, connections: usize, bytes: &[u8], is_read: bool) {
    target.run_clients(connections, |_| {
        while target.is_running() {
            let Some(mut connection) = Connection::open(target, &[]) else { return };
            if is_read {
                connection = connection.drain();
            }
            while target.is_running() && connection.write(bytes) {
                // The pause keeps the flood from loading all cores of this machine.
                thread::sleep(Duration::from_millis(1));
            }
            target.record(if target.is_running() { "cut" } else { "held to the end" });
        }
    });
}

#[test]
fn heads_that_announce_bodies() {
    let headers = post("/honest", "application/json", &[("content-length", "1000")]);
    Attack::new("h2: 65 connections × 256 heads without bodies")
        .lasting(Duration::from_secs(3))
        .must_not_block_callers()
        .run(|target| {
            let held: Vec<Connection> = (0..65)
                .filter_map(|_| {
                    let mut connection = Connection::open(target, &[])?.drain();
                    (0..256).for_each(|_| _ = connection.request(&headers, 0));
                    Some(connection)
                })
                .collect();
            target.record(format!("held, {}", held.len()));
            thread::sleep(target.remaining());
        });
}

#[test]
fn bodies_that_stop_after_their_first_bytes() {
    let headers = post("/honest", "application/json", &[("content-length", "1000000")]);
    Attack::new("h2: 65 connections × 256 bodies of 1 MB that stop at 200 bytes")
        .lasting(Duration::from_secs(3))
        .must_not_block_callers()
        .run(|target| {
            let held: Vec<Connection> = (0..65)
                .filter_map(|_| {
                    let mut connection = Connection::open(target, &[])?.drain();
                    for _ in 0..256 {
                        let stream = connection.request(&headers, 0)?;
                        connection.write(&frame(DATA, 0, stream, &[b' '; 200]));
                    }
                    Some(connection)
                })
                .collect();
            target.record(format!("held, {}", held.len()));
            thread::sleep(target.remaining());
        });
}

/// Admitted bytes are charged to calls. Other bytes wait in the windows of connections.
#[test]
fn windows_full_of_waiting_bodies() {
    let headers = post("/keep", "application/json", &[("content-length", "1000000")]);
    let piece = frame(DATA, 0, 1, &vec![b' '; MAX_FRAME]).repeat(55);
    Attack::new("h2: 600 connections with 900 kB of a body each").lasting(Duration::from_secs(3)).run(|target| {
        let open = || {
            let mut connection = Connection::open(target, &[])?.drain();
            connection.request(&headers, 0)?;
            Some(connection)
        };
        let held = Mutex::new(Vec::new());
        target.run_clients(8, |_| {
            let mut connections: Vec<Connection> = (0..75).filter_map(|_| open()).collect();
            // Meanwhile, the node may enlarge its windows.
            thread::sleep(Duration::from_millis(50));
            connections.retain_mut(|connection| connection.limit_write(Duration::from_millis(20)).write(&piece));
            held.lock().unwrap().append(&mut connections);
        });
        let held = held.into_inner().unwrap();
        target.record(format!("filled, {}", held.len()));
        thread::sleep(target.remaining());
    });
}

#[test]
fn answers_without_a_window() {
    let body = gzip(&array("|u1", false, &empty_axes(), &[]));
    let fields = [("content-encoding", "gzip"), ("accept", "application/json")];
    let headers = post("/keep", NPY, &fields);
    Attack::new("h2: 100 × 64 MB of JSON for windows of 0").run(|target| {
        let held: Vec<Connection> = (0..4)
            .filter_map(|_| {
                let mut connection = Connection::open(target, &[(INITIAL_WINDOW_SIZE, 0)])?.drain();
                for _ in 0..25 {
                    let stream = connection.request(&headers, 0)?;
                    connection.write(&frame(DATA, END_STREAM, stream, &body));
                }
                Some(connection)
            })
            .collect();
        target.record(format!("held, {}", held.len()));
        thread::sleep(target.remaining());
    });
}

/// Windows that open and close, so that the node checks all waiting data each time.
#[test]
fn windows_that_change_with_every_frame() {
    let change =
        |size: u32| frame(SETTINGS, 0, 0, &[&INITIAL_WINDOW_SIZE.to_be_bytes()[..], &size.to_be_bytes()].concat());
    let changes = [change(0), change(1)].concat().repeat(200);
    Attack::new("h2: 100 waiting answers, windows that change 100,000 times").run(|target| {
        target.run_clients(2, |_| {
            let Some(connection) = Connection::open(target, &[(INITIAL_WINDOW_SIZE, 0)]) else { return };
            let mut connection = connection.drain();
            (0..100).for_each(|_| _ = connection.request(&get("/metrics"), END_STREAM));
            while target.is_running() && connection.write(&changes) {
                thread::sleep(Duration::from_millis(2));
            }
            target.record(if target.is_running() { "cut" } else { "held to the end" });
        });
    });
}

#[test]
fn endless_settings() {
    let settings = frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]).repeat(500);
    Attack::new("h2: settings, acknowledgements unread").run(|target| flood(target, 4, &settings, false));
}

#[test]
fn endless_pings() {
    let pings = frame(PING, 0, 0, &[7; 8]).repeat(500);
    Attack::new("h2: pings, answers unread").run(|target| flood(target, 4, &pings, false));
}

#[test]
fn endless_priorities() {
    let frames: Vec<u8> = (0..500).flat_map(|index| frame(PRIORITY, 0, 2 * index + 1, &[0, 0, 0, 0, 7])).collect();
    Attack::new("h2: priorities of streams that are not there").run(|target| flood(target, 4, &frames, true));
}

#[test]
fn windows_raised_by_one() {
    let updates = frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]).repeat(500);
    Attack::new("h2: windows raised byte by byte").run(|target| flood(target, 4, &updates, true));
}

#[test]
fn endless_continuations_of_headers() {
    let start = frame(HEADERS, 0, 1, &get("/"));
    let continuation = frame(CONTINUATION, 0, 1, &literal(0, "x", &"a".repeat(8000))).repeat(10);
    Attack::new("h2: continuations without end").run(|target| {
        target.run_clients(8, |_| {
            while target.is_running() {
                let Some(connection) = Connection::open(target, &[]) else { return };
                let mut connection = connection.drain();
                connection.write(&start);
                while target.is_running() && connection.write(&continuation) {}
                target.record(if target.is_running() { "cut" } else { "held to the end" });
            }
        });
    });
}

/// A header in the dynamic table, and heads that refer to it thousands of times.
#[test]
fn headers_that_expand() {
    let first_head = [get("/"), literal(0x40, "x", &"a".repeat(4000))].concat();
    let next_head = [get("/"), vec![0xbe; 16_000]].concat();
    assert!(next_head.len() < MAX_FRAME);
    Attack::new("h2: heads of 64 MB, packed by the table").run(|target| {
        target.run_clients(4, |_| {
            while target.is_running() {
                let Some(connection) = Connection::open(target, &[]) else { return };
                let mut connection = connection.drain();
                connection.request(&first_head, END_STREAM);
                while target.is_running() && connection.request(&next_head, END_STREAM).is_some() {
                    thread::sleep(Duration::from_millis(1));
                }
                target.record(if target.is_running() { "cut" } else { "held to the end" });
            }
        });
    });
}

#[test]
fn cancelled_requests() {
    let headers = post("/honest", "application/json", &[]);
    Attack::new("h2: requests reset with the next frame").run(|target| {
        target.run_clients(4, |_| {
            while target.is_running() {
                let Some(connection) = Connection::open(target, &[]) else { return };
                let mut connection = connection.drain();
                for _ in 0..2000 {
                    let Some(stream) = connection.request(&headers, 0) else { break };
                    if !target.is_running() || !connection.write(&frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])) {
                        break;
                    }
                }
                target.record("connection used up");
            }
        });
    });
}

#[test]
fn data_without_bytes() {
    let headers = post("/honest", "application/json", &[]);
    Attack::new("h2: empty data frames without end").run(|target| {
        target.run_clients(4, |_| {
            while target.is_running() {
                let Some(connection) = Connection::open(target, &[]) else { return };
                let mut connection = connection.drain();
                let Some(stream) = connection.request(&headers, 0) else { continue };
                let empty = frame(DATA, 0, stream, &[]).repeat(500);
                while target.is_running() && connection.write(&empty) {
                    thread::sleep(Duration::from_millis(1));
                }
                target.record(if target.is_running() { "cut" } else { "held to the end" });
            }
        });
    });
}

#[test]
fn heads_byte_by_byte() {
    Attack::new("h1: 800 heads, a byte each 500 ms").must_not_block_callers().run(|target| {
        target.trickle(b"POST /honest HTTP/1.1\r\nhost: localhost\r\nx: ", b"a", Duration::from_millis(500), 800);
    });
}

#[test]
fn bodies_byte_by_byte() {
    let head = Request::post("/honest", "application/json", "").head_announcing(60 << 20);
    Attack::new("h1: 800 bodies of 60 MiB, a byte each 500 ms")
        .lasting(Duration::from_secs(3))
        .must_not_block_callers()
        .run(|target| {
            target.trickle(head.as_bytes(), b" ", Duration::from_millis(500), 800);
        });
}

#[test]
fn long_endless_heads() {
    let head = format!("POST /honest HTTP/1.1\r\nhost: localhost\r\nx: {}", "a".repeat(60_000));
    Attack::new("h1: 800 heads of 60 kB that do not end").must_not_block_callers().run(|target| {
        target.trickle(head.as_bytes(), b"a", Duration::from_millis(500), 800);
    });
}

/// Each chunk has one byte of data and a kilobyte of useless extension.
#[test]
fn chunks_with_long_extensions() {
    let head = "POST /keep HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("1;{}\r\n \r\n", "x=y;".repeat(250)).repeat(16);
    Attack::new("h1: chunks of one byte with extensions of 1 kB").run(|target| {
        target.run_clients(8, |_| {
            while target.is_running() {
                let Some(mut stream) = target.connect() else { return };
                let _ = stream.set_write_timeout(Some(target.remaining()));
                let _ = stream.write_all(head.as_bytes());
                while target.is_running() && stream.write_all(chunk.as_bytes()).is_ok() {}
                target.record(if target.is_running() { "cut" } else { "held to the end" });
            }
        });
    });
}

#[test]
fn requests_in_a_row_without_reading() {
    let requests = "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(1000);
    Attack::new("h1: 100 connections with requests in a row, unread").run(|target| {
        let mut held: Vec<TcpStream> = (0..100).filter_map(|_| target.connect()).collect();
        for stream in &mut held {
            let _ = stream.set_write_timeout(Some(Duration::from_millis(5)));
            let _ = stream.write_all(requests.as_bytes());
        }
        target.record(format!("held, {}", held.len()));
        thread::sleep(target.remaining());
    });
}

#[test]
fn connections_without_a_request() {
    Attack::new("h1: connections opened and closed").run(|target| {
        target.run_clients(8, |_| {
            while target.is_running() {
                target.connect();
                thread::sleep(Duration::from_millis(1));
            }
        });
    });
}

/// Every client sends again right after any answer, even after a refusal.
#[test]
fn callers_that_retry_at_once() {
    let request = Request::post("/honest", "application/json", "[0.5,0.5]");
    Attack::new("h1: 64 callers that come again at once").run(|target| target.repeat(&request, 64));
}

/// The node is full, and every refused caller retries.
#[test]
fn callers_that_retry_a_full_node() {
    let slow = array("|u1", false, &[4 << 20], &vec![0; 4 << 20]);
    let request = Request::post("/keep", NPY, slow).gzip().accept("application/json");
    Attack::new("h1: 48 callers of 4 MiB arrays as JSON, again at once").run(|target| target.repeat(&request, 48));
}

#[test]
fn keep_alive_without_requests() {
    Attack::new("h1: 900 connections that are kept open").must_not_block_callers().run(|target| {
        let mut held: Vec<TcpStream> = (0..900).filter_map(|_| target.connect()).collect();
        for stream in &mut held {
            let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
            let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n");
            let _ = stream.read(&mut [0; 512]);
        }
        target.record(format!("held, {}", held.len()));
        thread::sleep(target.remaining());
    });
}
