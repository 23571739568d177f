//! A plain closure stands for an asynchronous one.
//~ `async move { … }`
//~ `Stage::each`

use callboard_core::Stage;
use std::sync::Arc;

fn main() {
    let _ = Stage::each_async("length", |text: Arc<String>| Ok(text.len()));
}
