//! The memory of a large body: one buffer, and the array is a view of it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use callboard_codec::{DType, Format, Tensor, Value};
use callboard_core::{App, Stage};
use callboard_http::{HttpConfig, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

use crate::heap;

const ELEMENTS: usize = 8 << 20;
const BYTES: usize = ELEMENTS * size_of::<f32>();

/// Bytes allocated when the stage sees its tensor.
type Measurement = Arc<Mutex<Option<(usize, usize)>>>;

/// A server with `/sum`, which records the allocated bytes while it holds its tensor.
async fn server(measurement: &Measurement, base: &Arc<AtomicUsize>) -> SocketAddr {
    let (measurement, base) = (Arc::clone(measurement), Arc::clone(base));
    let stage = Stage::each("sum", move |tensor: &Tensor| {
        let sum: f32 = tensor.as_slice::<f32>()?.iter().sum();
        let live = heap::live() - base.load(Ordering::SeqCst);
        *measurement.lock().unwrap() = Some((live, tensor.data().as_ptr().addr() % 16));
        Ok(sum)
    });
    let node = App::new().route("/sum", stage.on_threads()).start().await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = node.client();
    tokio::spawn(async move {
        let _node = node;
        serve(listener, client, HttpConfig::default(), std::future::pending()).await
    });
    address
}

/// One tensor at a time, so that all other allocations belong to the server: its body, and the pieces in which it
/// arrives. A second copy of 32 MiB would exceed the bound.
#[test]
fn a_large_array_is_read_into_one_aligned_buffer() {
    let _turn = heap::turn();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(read_large_arrays());
}

async fn read_large_arrays() {
    let tensor = Value::from(Tensor::try_new(DType::F32, &[ELEMENTS], vec![0; BYTES].into()).unwrap());
    let (measurement, base) = (Measurement::default(), Arc::default());
    let address = server(&measurement, &base).await;
    for format in [Format::Npy, Format::Envelope] {
        let body = tensor.encode(format).unwrap();
        let length = body.len();
        for framing in [format!("content-length: {length}"), "transfer-encoding: chunked".to_owned()] {
            let is_chunked = framing.starts_with('t');
            let head = format!(
                "POST /sum HTTP/1.1\r\nhost: test\r\ncontent-type: {}\r\nx-request-timeout-ms: 600000\r\n\
                 {framing}\r\n\r\n",
                format.media_type()
            );
            let mut socket = TcpStream::connect(address).await.unwrap();
            base.store(heap::live(), Ordering::SeqCst);
            socket.write_all(head.as_bytes()).await.unwrap();
            for piece in body.chunks(1 << 20) {
                let (prefix, suffix) =
                    if is_chunked { (format!("{:x}\r\n", piece.len()), "\r\n") } else { Default::default() };
                socket.write_all(prefix.as_bytes()).await.unwrap();
                socket.write_all(piece).await.unwrap();
                socket.write_all(suffix.as_bytes()).await.unwrap();
            }
            if is_chunked {
                socket.write_all(b"0\r\n\r\n").await.unwrap();
            }
            let mut answer = [0; 12];
            let answered = tokio::time::timeout(Duration::from_secs(60), socket.read_exact(&mut answer)).await;
            answered.expect("an answer in time").unwrap();
            assert_eq!(&answer, b"HTTP/1.1 200");
            let (live, misaligned) = measurement.lock().unwrap().take().unwrap();
            println!("{format}, {framing}: {live} bytes allocated while the stage holds {BYTES}");
            assert_eq!(misaligned, 0);
            assert!(live < BYTES + BYTES / 4, "{format}: {live} bytes while the stage holds {BYTES}");
        }
    }
}
