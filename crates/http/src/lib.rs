//! callboard-http.

mod accept;
mod config;
mod server;

pub use config::{ConfigError, HttpConfig};
pub use server::{ServeError, serve_router};
