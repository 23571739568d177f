//! A closure returns its value and no `Result`.
//~ Ok(text.len())

use callboard_core::Stage;

fn main() {
    let _ = Stage::each("length", |text: &String| text.len());
}
