//! A closure returns an error of another type as it is.
//~ .into()

use callboard_core::Stage;

fn main() {
    let _ = Stage::each("length", |text: &String| if text.is_empty() { Err("empty".to_owned()) } else { Ok(text.len()) });
}
