//! The output of a route has no `JsonSchema`.
//~ `Answer` cannot be the input or output of a route
//~ #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]

use callboard_core::{App, Stage};

#[derive(serde::Deserialize, serde::Serialize)]
struct Answer(usize);

fn main() {
    let answer = Stage::each("answer", |question: &String| Ok(Answer(question.len())));
    let _ = App::new().route("/answer", answer);
}
