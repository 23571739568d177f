//! The place of a certificate in a build without the feature `tls`: none can be loaded.

use super::TlsError;
use crate::config::TlsConfig;

/// A certificate that cannot be.
#[derive(Clone, Debug)]
pub(crate) enum Tls {}

impl Tls {
    pub(crate) fn load(_: TlsConfig) -> Result<Self, TlsError> {
        Err(TlsError::NotBuilt)
    }

    pub(crate) fn watch_files(self) -> std::future::Ready<()> {
        match self {}
    }
}
