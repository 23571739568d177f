//! The commands, one verb per file.

pub(crate) mod actors;
mod admin_client;
pub(crate) mod bench;
pub(crate) mod bench_args;
pub(crate) mod call;
pub(crate) mod call_quic;
pub(crate) mod check;
pub(crate) mod cluster;
mod cluster_issuer;
mod cluster_state;
#[cfg(feature = "process")]
pub(crate) mod doctor;
pub(crate) mod examples;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod init;
pub(crate) mod mcp;
pub(crate) mod models;
pub(crate) mod openapi;
#[cfg(feature = "process")]
pub(crate) mod prepare;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod words;

use std::future::Future;
use std::io;

use super::error::CliError;

/// Runs a command's future on its own runtime. Tasks and threads that still run at the end do not delay it; they end
/// with the process.
fn block_on<T>(command: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(no_runtime)?;
    let outcome = runtime.block_on(command);
    runtime.shutdown_background();
    outcome
}

fn no_runtime(error: io::Error) -> CliError {
    CliError::because("could not start the runtime", &error)
}
