//! A chat whose client leaves after its first token: the time until the worker's stream is dropped, which is how a
//! worker in Rust knows.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use callboard_core::{App, Failure, RouteSpec, StreamStage, Task};
use futures_util::stream;
use serde_json::json;

use super::served::{Ask, serve};

/// Asked of the slowest of a hundred.
const MOST: Duration = Duration::from_millis(10);

/// Says when it is dropped.
struct Told(mpsc::Sender<Instant>);

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send(Instant::now());
    }
}

/// Prints how long it took in these many chats.
pub(crate) fn measure(chats: usize) {
    let (sender, told) = mpsc::channel();
    let held = StreamStage::each("held", move |_: &Ask| {
        stream::unfold((Told(sender.clone()), false), async |(told, has_begun)| {
            if has_begun {
                std::future::pending::<()>().await;
            }
            Some((Ok::<_, Failure>("token ".to_owned()), (told, true)))
        })
    });
    let app = App::new().mount(RouteSpec::streaming("/held", held).task(Task::Chat));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let address = runtime.block_on(serve(app));
    let body = json!({ "model": "held", "stream": true, "messages": [{ "role": "user", "content": "hi" }] });
    let body = body.to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut times: Vec<Duration> = (0..chats)
        .map(|_| {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(request.as_bytes()).unwrap();
            let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
            while !read.windows(6).any(|text| text == b"token ") {
                let length = client.read(&mut buffer).unwrap();
                assert!(length > 0, "{}", String::from_utf8_lossy(&read));
                read.extend_from_slice(&buffer[..length]);
            }
            let left_at = Instant::now();
            drop(client);
            told.recv().unwrap().saturating_duration_since(left_at)
        })
        .collect();
    times.sort();
    let [p50, p99] = [0.5, 0.99].map(|share| times[(times.len() as f64 * share) as usize]);
    let kept = if p99 <= MOST { "kept" } else { "MISSED" };
    println!("\na cancelled chat: its worker knows after, of {chats} chats");
    println!("  p50 {p50:.1?}, p99 {p99:.1?}   asked at most {MOST:?}: {kept}");
}
