//! A worker without `impl Worker`.
//~ `Model` is not a `Worker`
//~ `impl Worker` for it

use callboard_core::Stage;

struct Model;

fn main() {
    let _ = Stage::worker("model", |_| Ok(Model));
}
