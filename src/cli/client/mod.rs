//! What the commands share that talk to a server instead of being one: which request is meant.

pub(crate) mod args;
mod form;
pub(crate) mod payload;
mod tensor;

pub(crate) use args::RequestArgs;
