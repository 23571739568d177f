//! The command line of the `callboard` binary, and of programs with their own app:
//! `serve`, `check`, `openapi`, `examples`, `mcp`, `export`, `prepare`, `doctor`, `init`, `call`, `bench`, `status`,
//! `top`, `models`, `actors`, `cluster`, `completions`, `man`.
//!
//! A run has three steps: `args` parses the command line, [`callboard_config`] resolves it into a plan without side
//! effects, and one of the `commands` runs. An error is one line on stderr and an exit code:
//!
//! | code | meaning |
//! |---|---|
//! | 0 | all went well; a broken pipe on stdout counts as well |
//! | 1 | a failure: a model does not load, a port is in use, an example or assertion fails, no answer, a second signal |
//! | 2 | the command line, environment or file is wrong; nothing was started |
//! | 3, 4, 5 | `call` was answered with a status of 3xx, 4xx, 5xx |
//! | 130, 143 | `bench` was ended early by SIGINT, SIGTERM; it has printed what it measured |
//!
//! `call`, `bench`, `status`, `top`, `models` and `actors` are clients: they know a URL, no plan and no settings.
//! `cluster` works on the directories of identities.

mod admin;
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod arenas;
mod args;
mod client;
mod commands;
mod complaint;
mod error;
mod example;
mod identity;
mod log_lines;
mod log_style;
mod log_text;
mod logging;
mod output;
mod plain;
mod program;
mod reload;
mod run;
#[cfg(feature = "process")]
mod secrets;
mod service;
mod signals;
mod snippet;
mod table;
mod target;

use std::process::ExitCode;

use callboard_core::App;
use callboard_http::ApiInfo;

use self::run::OwnApp;

/// Gives a program with its own app the commands of the `callboard` binary.
///
/// Settings come from flags, `CALLBOARD_*` variables, and a settings file if one is named. A limit that is not set is
/// the app's own. Call it from `main`, outside any runtime; it starts its own.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use callboard_core::{App, Stage};
///
/// fn main() -> ExitCode {
///     let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase()));
///     callboard_cli::cli(App::new().route("/shout", shout))
/// }
/// ```
#[must_use = "the exit code is for `main` to return"]
pub fn cli(app: App) -> ExitCode {
    run::run(Some(OwnApp { app, info: None }), std::env::args_os(), std::env::vars_os())
}

/// Like [`cli`], with the program's own title and version for the OpenAPI document and the index page. The settings
/// `api.title` and `api.version` override them.
///
/// ```no_run
/// use callboard_core::{App, Stage};
/// use callboard_http::ApiInfo;
///
/// let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase()));
/// let mut info = ApiInfo::default();
/// info.title = "Shouting".to_owned();
/// info.version = env!("CARGO_PKG_VERSION").to_owned();
/// let code = callboard_cli::cli_with(App::new().route("/shout", shout), info);
/// ```
#[must_use = "the exit code is for `main` to return"]
pub fn cli_with(app: App, info: ApiInfo) -> ExitCode {
    run::run(Some(OwnApp { app, info: Some(info) }), std::env::args_os(), std::env::vars_os())
}

/// The `callboard` binary: serves the directory, file or model that it is pointed at.
#[must_use = "the exit code is for `main` to return"]
pub fn main() -> ExitCode {
    run::run(None, std::env::args_os(), std::env::vars_os())
}
