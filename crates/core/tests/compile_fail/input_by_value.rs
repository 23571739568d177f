//! A closure takes its input by value.
//~ consider adjusting the signature so it borrows its argument
//~ &String

use callboard_core::Stage;

fn main() {
    let _ = Stage::each("length", |text: String| Ok(text.len()));
}
