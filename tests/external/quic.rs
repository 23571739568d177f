//! A client of frames in another language, over an independent QUIC library: `docs/wire.md` is sufficient.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use callboard::codec::Value;
use callboard::net::{Authority, Identity, NetConfig, QuicEdge, Role, TokenSpec};
use callboard::{App, FunctionCall, Stage, StreamStage};

use crate::python::Python;
use crate::support::{TEST_TIMEOUT, directory};

/// The counts of started and of cancelled held calls.
#[derive(Default)]
struct CallCounts {
    started: AtomicU64,
    cancelled: AtomicU64,
}

struct HeldCall(Arc<CallCounts>);

impl Drop for HeldCall {
    fn drop(&mut self) {
        self.0.cancelled.fetch_add(1, Ordering::SeqCst);
    }
}

fn app() -> App {
    let counts = Arc::new(CallCounts::default());
    let held = Stage::each_async("held", {
        let counts = Arc::clone(&counts);
        move |n: Arc<i64>| {
            counts.started.fetch_add(1, Ordering::SeqCst);
            let held = HeldCall(Arc::clone(&counts));
            async move {
                let _held = held;
                std::future::pending::<()>().await;
                Ok(*n)
            }
        }
    });
    let seen = Stage::each("seen", move |_: &Value| {
        Ok([&counts.started, &counts.cancelled].map(|count| count.load(Ordering::SeqCst)).to_vec())
    });
    let scale = Stage::each("scale", |call: &FunctionCall| {
        Ok(call.arg::<f64>(0, "x")? * call.optional_arg(1, "factor")?.unwrap_or(2.0))
    });
    let count = StreamStage::each("count", |n: &i64| futures_util::stream::iter((0..*n).map(Ok)));
    App::new()
        .route("/double", Stage::each("double", |n: &i64| Ok(2 * n)))
        .route("/echo", Stage::each("echo", |value: &Value| Ok(value.clone())))
        .route("/scale", scale)
        .route("/held", held)
        .route("/seen", seen)
        .route_streaming("/count", count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_in_another_language_can_use_frames() {
    let Some(python) = Python::with("quic") else { return };
    let directory = directory();
    let authority = Authority::init(&directory.join("authority"), "lab").unwrap();
    let identity = Identity::open(&directory.join("authority")).unwrap();
    let mut config = NetConfig::default();
    config.tuning.idle_timeout = TEST_TIMEOUT;
    let edge = QuicEdge::bind("127.0.0.1:0".parse().unwrap(), identity, config).unwrap();
    let node = app().start().await.unwrap();
    edge.open(node.client());

    let spec = TokenSpec { role: Role::Client, ..TokenSpec::default() };
    let url = format!("quic://{}", edge.address()).parse().unwrap();
    let member = directory.join("stranger");
    callboard::net::join(&authority.token(&spec).unwrap(), &url, &member, Some("stranger")).await.unwrap();

    let address = edge.address().to_string();
    let output = tokio::task::spawn_blocking(move || python.run("quic.py", &[&address, member.to_str().unwrap()]));
    let output = output.await.unwrap();
    let parts = ["hello", "call", "segments", "function", "pack", "cancel", "reset", "stream", "garbage"];
    assert_eq!(output.lines().collect::<Vec<_>>(), parts);
}
