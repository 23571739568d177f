//! A worker holds something that may not go to another thread.
//~ `Rc<u64>` cannot be sent between threads safely

use callboard_core::{Batch, Failure, Worker};
use std::rc::Rc;

struct Model(Rc<u64>);

impl Worker for Model {
    type In = u64;
    type Out = u64;

    fn call(&mut self, batch: Batch<u64>) -> Vec<Result<u64, Failure>> {
        batch.iter().map(|n| Ok(*n + *self.0)).collect()
    }
}

fn main() {}
