//! A directory of models while the node serves: what is in it, and the routes that follow from it.
//!
//! [`look`](look()) reads names, sizes and times; [`callboard_config::models`] says which models and versions these are
//! and which are served; [`ModelDirectory`] loads them, each after a `check` and in its turn (`turns.rs`), and changes
//! the node's routes: at the start (`start`), when files change (`watch`), and when operators ask for it (`orders`).

mod check;
mod look;
mod orders;
mod served;
mod start;
mod state;
mod tell;
mod upload;
mod watch;

pub use self::look::look;
pub use self::served::ModelDirectory;
pub use self::watch::watch;
