//! Sources of models for a node that serves: a directory of models ([`ModelDirectory`]), and the routes of a
//! configuration file ([`ConfiguredRoutes`]). Both load, unload and roll out as operators order it, by
//! [`ModelRepository`](callboard_http::ModelRepository): over HTTP, on the admin listener and by the Open Inference
//! Protocol.
//!
#![cfg_attr(feature = "onnx", doc = "```")]
#![cfg_attr(not(feature = "onnx"), doc = "```ignore")]
//! use std::path::{Path, PathBuf};
//! use std::sync::Arc;
//!
//! use callboard_config::{Environment, Flags, Plan, Target};
//! use callboard_core::App;
//! use callboard_models::{ModelDirectory, look};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let root = Path::new("../../examples/digits");
//! let models: Vec<_> = look(root)?.into_values().collect();
//! let target = Target::Models { path: PathBuf::from(root), models: models.clone(), file: None };
//! let plan = Plan::resolve(target, &Flags::new(), &Environment::default())?;
//!
//! let node = App::new().start().await?;
//! let directory = ModelDirectory::new(root, &plan, node.handle(), |note| println!("{note}"));
//! Arc::new(directory).open(models).await?;
//! assert!(node.client().route("/digits").is_some());
//! # Ok(())
//! # }
//! ```

mod configured;
mod directory;
mod turns;

pub use configured::{ConfiguredRoutes, ReadAgain};
pub use directory::{ModelDirectory, look, watch};
