//! What the protocol means on every transport: models, their arrays, one request and its calls, and what clients read
//! about models. A transport reads a request into an [`InputReader`], runs it by a [`ModelRun`], and writes its arrays.

pub use crate::array::{Array, push_element};
pub use crate::datatype::Datatype;
pub use crate::error::{Refusal, shown};
pub use crate::head::MAX_TENSORS;
pub use crate::metadata::{config, model as metadata, server, unready};
pub use crate::model::Model;
pub use crate::parameters::Parameters;
pub use crate::request::{InferRequest, InputReader, InputSlot, RequestedOutput};
pub use crate::run::{ModelRun, Ran, items_of};
pub use crate::statistics::statistics;
