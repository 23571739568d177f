//! The output of a stage has no `Serialize`.
//~ `Answer` cannot be an input or output
//~ #[derive(serde::Serialize, serde::Deserialize)]

use callboard_core::Stage;

#[derive(serde::Deserialize)]
struct Answer(usize);

fn main() {
    let _ = Stage::each("answer", |question: &String| Ok(Answer(question.len())));
}
