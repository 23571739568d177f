//! Certificates that no authority would issue, for tests of how peers treat them.

use rcgen::{IsCa, Issuer, KeyPair};
use rustls::pki_types::CertificateDer;

use super::Authority;
use crate::certificate::{IssuerCertificate, Member};
use crate::error::{IdentityError, unusable};

impl Authority {
    /// A certificate for any time, also beyond that of the issuer, with what a member presents before the root.
    pub(crate) fn issue_unchecked(
        &self,
        member: &Member,
    ) -> Result<(Vec<CertificateDer<'static>>, KeyPair), IdentityError> {
        let (certificate, key) = self.issue(member, false)?;
        let issuer = self.chain()?.issuer.map(|(_, certificate)| certificate);
        Ok(([certificate].into_iter().chain(issuer).collect(), key))
    }

    /// A certificate of an issuer that this authority has signed, which may not be an authority itself.
    pub(crate) fn issue_below(
        &self,
        member: &Member,
        is_authority: bool,
    ) -> Result<(Vec<CertificateDer<'static>>, KeyPair), IdentityError> {
        let (chain, [key, below_key]) = (self.chain()?, [KeyPair::generate(), KeyPair::generate()]);
        let (key, below_key) = (key.map_err(unusable)?, below_key.map_err(unusable)?);
        let (name, id) = ("below".to_owned(), "0123456789abcdef".to_owned());
        let mut below = IssuerCertificate { name, id, validity: member.validity }.params().map_err(unusable)?;
        if !is_authority {
            below.is_ca = IsCa::ExplicitNoCa;
        }
        let below_certificate = below.signed_by(&below_key, &self.signer(&chain)?).map_err(unusable)?;
        let params = member.params(false).map_err(unusable)?;
        let certificate = params.signed_by(&key, &Issuer::new(below, &below_key)).map_err(unusable)?;
        let issuer = chain.issuer.map(|(_, certificate)| certificate);
        Ok(([certificate.into(), below_certificate.into()].into_iter().chain(issuer).collect(), key))
    }
}
