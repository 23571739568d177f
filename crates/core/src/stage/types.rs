//! The Rust types of a stage, to check a stage that replaces it.

use std::any::{TypeId, type_name};
use std::fmt;

use callboard_codec::Data;

/// The types of a stage's input and output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageTypes {
    input: (TypeId, &'static str),
    output: (TypeId, &'static str),
}

impl StageTypes {
    pub(super) fn for_types<In: Data, Out: Data>() -> Self {
        Self { input: (TypeId::of::<In>(), type_name::<In>()), output: (TypeId::of::<Out>(), type_name::<Out>()) }
    }
}

impl PartialEq for StageTypes {
    fn eq(&self, other: &Self) -> bool {
        (self.input.0, self.output.0) == (other.input.0, other.output.0)
    }
}

impl fmt::Display for StageTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` to `{}`", self.input.1, self.output.1)
    }
}
