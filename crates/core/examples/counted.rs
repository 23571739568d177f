//! Sequential calls in process and nothing else: for counting instructions.
//!
//! `benches/metrics-cost.sh` runs it under callgrind.

use callboard_core::{App, Stage};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let calls: u64 = std::env::args().nth(1).map_or(Ok(1_000), |text| text.parse())?;
    let node = App::new().route("/add", Stage::each("add", |n: &u64| Ok(n + 1))).start().await?;
    let client = node.client();
    for n in 0..calls {
        assert_eq!(client.call::<u64, u64>("/add", n).await?, n + 1);
    }
    Ok(())
}
