//! So many calls over QUIC, one after the other, and nothing else: something to count instructions of.
//!
//! `benches/cost-since.sh` runs it under callgrind. The number behind the calls is the bytes of each, 100 by default.

use callboard_codec::Value;
use callboard_core::{App, Caller as _, Stage};
use callboard_net::{Client, Identity, NetConfig, QuicEdge};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let calls = numbers.next().unwrap_or(Ok(1_000))?;
    let bytes = numbers.next().unwrap_or(Ok(100))?;

    let directory = std::env::temp_dir().join(format!("callboard-hops-{}", std::process::id()));
    let identity = Identity::development_in(&directory)?;
    let edge = QuicEdge::bind("127.0.0.1:0".parse()?, identity.clone(), NetConfig::default())?;
    let node = App::new().route("/echo", Stage::each("echo", |value: &Value| Ok(value.clone()))).start().await?;
    edge.open(node.client());
    let client = Client::builder().identity(identity).connect(&format!("quic://{}", edge.address())).await?;
    let value = Value::Bytes(vec![7; bytes].into());
    for _ in 0..calls {
        let output: Value = client.call("/echo", value.clone()).await?;
        assert_eq!(output, value);
    }
    std::fs::remove_dir_all(directory)?;
    Ok(())
}
