//! Built-in stages for pipelines that are configured, not programmed.
//!
//! ```text
//!  seven.png ──► image ──► f32 [1, 8, 8] ──► (a model) ──► f32 [10] ──► labels ──► {"label": "7", "score": 0.99, ...}
//! ```
//!
//! * [`image`]: PNG, JPEG, GIF, BMP or WebP to a tensor: colours, size, scale and layout as the model wants them.
//! * [`labels`]: scores to names, the best ones first.
//!
//! Both take and give [`Value`](callboard_codec::Value)s, and both work on single samples without a batch axis:
//! batching is the model stage's. Their configurations are the keys of a `[[stage]]` in `callboard.toml`; an unknown
//! key is an error.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use callboard_codec::{Tensor, Value};
//! use callboard_core::App;
//! use callboard_stages::labels::{self, LabelsConfig};
//!
//! let config: LabelsConfig = serde_json::from_str(r#"{"names": ["cat", "dog", "fox"], "top_k": 1}"#)?;
//! let stage = labels::stage("labels", &config)?;
//! let app = App::new().route_described("/name", stage, labels::input_type(&config), labels::output_type(&config));
//! let node = app.start().await?;
//!
//! let scores = Tensor::from_array(ndarray::array![0.25_f32, 0.5, 0.25]);
//! let answer: Value = node.client().call("/name", Value::from(scores)).await?;
//! assert_eq!(answer.get("label").and_then(Value::as_str), Some("dog"));
//! # Ok(())
//! # }
//! ```

mod error;
pub mod image;
pub mod labels;
mod mismatch;

pub use error::StageConfigError;
