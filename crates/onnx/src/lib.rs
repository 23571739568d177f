//! ONNX models as stages.
//!
//! ```text
//!  digits.onnx ──► Signature   names, true dtypes, shapes: read from the protobuf
//!             └──► Engine      computes: ONNX Runtime where it is installed, else rten
//!
//!  items ──► read ──► stack along axis 0 ──► run ──► split ──► one outcome per item
//!             │
//!             └─ wrong input: InvalidInput for that item, the others still run
//! ```
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use callboard_codec::{Tensor, Value};
//! use callboard_core::App;
//! use callboard_onnx::Model;
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits.onnx");
//! let model = Model::load(path)?;
//! let stage = callboard_onnx::stage("digits", &model);
//! let node = App::new().route_described("/logits", stage, model.input_type(), model.output_type()).start().await?;
//!
//! let image = Tensor::from_array(ndarray::Array3::<f32>::zeros((1, 8, 8)));
//! let logits: Value = node.client().call("/logits", Value::from(image)).await?;
//! assert_eq!(logits.as_tensor().unwrap().shape(), [10]);
//! # Ok(())
//! # }
//! ```
//!
//! # One item is one sample
//!
//! If every input and output begins with a free axis, that axis is the batch ([`BatchAxis`]): an item comes without it
//! and the stage stacks the waiting items. An item may have these forms:
//!
//! * for a model with one input, the input itself: a tensor of the declared dtype, nested lists of numbers, or a map
//!   `{dtype, shape, data}`;
//! * for any model, a map of input names to such values.
//!
//! The result is the tensor of a model with one output, or a map of output names to tensors. A leading axis of length 1
//! in an item is removed; results never have it.
//!
//! Lists that end at an empty axis cannot say how long the axes behind it are: these are as long as the model declares,
//! or empty. So `[[], []]` is an item of shape `[2, 0, 4]` for `[2, past, 4]`.
//!
//! Numbers in lists are read as the declared dtype and refused when they are out of its range. A tensor of another
//! dtype is refused, never converted: the sender would not notice the lost digits. NaN and infinity are accepted.
//!
//! # Running it again is safe
//!
//! A run leaves nothing behind, so these stages are idempotent: after a crash in the middle of a batch its items may be
//! run once more.

mod batching;
mod bounded;
mod cast;
mod choice;
mod config;
mod engine;
mod error;
mod foreign;
mod item;
mod load;
mod model;
mod proto;
mod run;
mod signature;
mod stage;
mod wire;

pub use config::{EngineChoice, OnnxConfig, Optimization, PadAxis, PadConfig, Provider};
pub use engine::{Engine, EngineError, LibraryError};
pub use error::{LoadError, TrialError};
pub use model::Model;
pub use signature::{Axis, BatchAxis, Kind, PadError, Signature, SignatureError, TensorSpec};
pub use stage::stage;
