//! An asynchronous closure stands for a plain one.
//~ `Stage::each_async`

use callboard_core::Stage;

fn main() {
    let _ = Stage::each("length", async |text: &String| Ok(text.len()));
}
