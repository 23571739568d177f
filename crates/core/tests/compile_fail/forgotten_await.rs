//! A call without `await`.
//~ .await

use callboard_core::{CallError, LocalClient};

async fn length(client: &LocalClient) -> Result<usize, CallError> {
    let length: usize = client.call("/length", "four".to_owned())?;
    Ok(length)
}

fn main() {
    let _ = length;
}
