//! The input of a stage has no `Deserialize`.
//~ `Question` cannot be an input or output
//~ #[derive(serde::Serialize, serde::Deserialize)]

use callboard_core::Stage;

#[derive(serde::Serialize)]
struct Question(String);

fn main() {
    let _ = Stage::each("answer", |question: &Question| Ok(question.0.len()));
}
