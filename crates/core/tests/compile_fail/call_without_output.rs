//! The output type of a call is unknown.
//~ if this is what a call gives, say its type: `let output: Type = 

use callboard_core::{CallError, LocalClient};

async fn length(client: &LocalClient) -> Result<(), CallError> {
    let length = client.call("/length", "four".to_owned()).await?;
    println!("{length}");
    Ok(())
}

fn main() {
    let _ = length;
}
