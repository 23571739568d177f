//! The identity of a command over QUIC.

use std::path::Path;

use callboard_net::Identity;

use crate::error::CliError;

/// The identity in this directory; without one, that of this user on this machine.
pub(crate) fn identity(cluster: Option<&Path>) -> Result<Identity, CliError> {
    let identity = cluster.map_or_else(Identity::development, Identity::open);
    identity.map_err(|error| CliError::because("no identity", &error))
}
