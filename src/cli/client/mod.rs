//! What the commands share that talk to a server instead of being one: which request is meant.

pub(crate) mod args;
pub(crate) mod arguments;
mod form;
pub(crate) mod payload;
mod place;
mod tensor;
pub(crate) mod trust;
pub(crate) mod value;

pub(crate) use args::RequestArgs;
pub(crate) use place::Place;
