//! Serve functions and models: batched, supervised, over HTTP and in process.
//!
//! ```text
//!  HTTP clients          callers in process
//!       │                       │
//!   http edge                Client              (two doors, one pipeline)
//!       └───────────┬───────────┘
//!                   ▼
//!   Gateway   permits by count and bytes, deadlines, what is in flight, drain
//!                   ▼
//!   Router    route → pipeline, as a snapshot
//!                   ▼
//!   Batcher   one per stage: bounded queue, batches for whoever is free
//!                   ▼
//!   Worker    one actor per replica: your code, one outcome per item
//!                   ▼
//!   the reply goes straight to the caller
//! ```
//!
//! A stage is a closure or a [`Worker`]; stages make a [`Pipeline`]; an [`App`] serves pipelines under routes.
//!
#![cfg_attr(feature = "http", doc = "```")]
#![cfg_attr(not(feature = "http"), doc = "```ignore")]
//! use callboard::prelude::*;
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize, JsonSchema)]
//! struct Person { name: String }
//!
//! #[derive(Clone, Serialize, Deserialize, JsonSchema)]
//! struct Greeting { text: String }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let greet = Stage::each("greet", |person: &Person| {
//!     Ok(Greeting { text: format!("Hello, {}!", person.name) })
//! });
//! let server = callboard::serve(App::new().route("/greet", greet), "127.0.0.1:0").await?;
//! println!("curl -d '{{\"name\":\"Ada\"}}' -H 'content-type: application/json' http://{}/greet", server.address());
//!
//! // The same route from inside the process: nothing is encoded.
//! let greeting: Greeting = server.client().call("/greet", Person { name: "Ada".to_owned() }).await?;
//! assert_eq!(greeting.text, "Hello, Ada!");
//! server.shutdown(Duration::from_secs(5)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # Where to look
//!
//! | question | answer |
//! |---|---|
//! | How do I write a stage? | [`Stage`], [`Worker`], [`AsyncWorker`], [`Batch`] |
//! | How do I answer with many outputs? | [`StreamStage`], [`StreamWorker`], [`Client::replies`] |
//! | How do I call? | [`Client`]: `call`, `send`, `cast`, `stream`, `replies`, `blocking` |
//! | How do I call over a network? | [`connect`], or [`net::Client`] with settings of its own; both kinds of client are a [`Caller`] |
//! | How do I change what is served? | [`NodeHandle`], [`Change`] |
//! | How do I run actors of my own? | [`ActorSpec`], [`Ref`] |
//! | When is a batch released? | [`BatchPolicy`] |
//! | What can go wrong, and what does a caller see? | [`ErrorKind`], [`CallError`], [`Failure`] |
//! | What happens on a crash? | [`Contract`], [`Intensity`], [`BackoffPolicy`], [`StageState`] |
//! | What travels between stages? | [`codec`]: any serde type, or a [`Value`] |
//! | Which limits are there? | [`Limits`], [`StageSettings`], `http::HttpConfig` |
//!
//! # Features
//!
//! | feature | default | gives |
//! |---|---|---|
//! | `http` | yes | the HTTP edge: [`serve`], OpenAPI, health, metrics |
//! | `net` | yes | the QUIC edge, and the client over a network: [`connect`] |
//! | `onnx` | yes | ONNX models as stages |
//! | `cli` | yes | the `callboard` command, configuration files, the built-in stages `image` and `labels` |
//!
//! Without default features only the core and its codec are compiled.

#[cfg(feature = "cli")]
pub mod build;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cli")]
pub mod config;
#[cfg(feature = "net")]
mod connect;
pub mod prelude;
#[cfg(feature = "http")]
mod server;

pub use callboard_core::*;

#[cfg(feature = "cli")]
pub use cli::{cli, cli_with};
#[cfg(feature = "net")]
pub use connect::connect;
#[cfg(feature = "http")]
pub use server::{ServeError, Server, serve};

/// Values, tensors, payloads and their encodings.
pub mod codec {
    pub use callboard_codec::*;
}

pub use callboard_codec::Value;

/// The HTTP edge.
#[cfg(feature = "http")]
pub mod http {
    pub use callboard_http::*;
}

/// The QUIC edge, and the client that calls a node over a network.
#[cfg(feature = "net")]
pub mod net {
    pub use callboard_net::*;
}

/// ONNX models as stages.
#[cfg(feature = "onnx")]
pub mod onnx {
    pub use callboard_onnx::*;
}

/// The built-in stages of configured pipelines.
#[cfg(feature = "cli")]
pub mod stages {
    pub use callboard_stages::*;
}

/// The program of the README, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
