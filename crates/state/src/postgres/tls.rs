//! TLS with a server, by rustls: which certificates are trusted, and what a failed handshake says.

use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use ring::digest::{self, digest};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::client;
use tokio_rustls::rustls::SignatureScheme;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::{WebPkiSupportedAlgorithms, ring as provider};
use tokio_rustls::rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::settings::TlsMode;

/// The name of the protocol in a handshake that the server has not been asked for (`sslnegotiation=direct`).
const ALPN: &[u8] = b"postgresql";

/// The authorities of which one must have issued the certificate of the server.
#[derive(Debug)]
pub(super) enum Roots {
    /// No certificate is verified.
    Any,
    System,
    Of(Vec<CertificateDer<'static>>),
}

/// How handshakes are made.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    mode: TlsMode,
    /// Whether a password is only proven with a binding to the connection: the certificate is not verified, and the
    /// text does not turn channel binding off.
    needs_binding: bool,
}

impl Tls {
    /// It may read the authorities of the system. `needs_binding`: channel binding is not turned off.
    pub(super) fn try_new(mode: TlsMode, roots: Roots, needs_binding: bool) -> Result<Self, String> {
        let trusted = match roots {
            Roots::Any => None,
            Roots::Of(certificates) => Some(store_of(certificates).ok_or("`sslrootcert` has no usable certificate")?),
            Roots::System => {
                let found = rustls_native_certs::load_native_certs();
                let none = "`sslmode=verify-full`: the system has no authorities (on Linux they are in the package \
                            ca-certificates); `sslrootcert` names a file";
                Some(store_of(found.certs).ok_or(none)?)
            }
        };
        let algorithms = provider::default_provider().signature_verification_algorithms;
        let needs_binding = needs_binding && trusted.is_none();
        let verifier = Verifier { trusted, has_name: mode == TlsMode::VerifyFull, algorithms };
        let builder = ClientConfig::builder_with_provider(Arc::new(provider::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = builder.with_no_client_auth();
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self { config: Arc::new(config), mode, needs_binding })
    }

    pub(super) fn mode(&self) -> TlsMode {
        self.mode
    }
}

/// `None` without a usable certificate: bundles of systems have some that are not.
fn store_of(certificates: Vec<CertificateDer<'static>>) -> Option<RootCertStore> {
    let mut store = RootCertStore::empty();
    let (usable, _) = store.add_parsable_certificates(certificates);
    (usable > 0).then_some(store)
}

/// Verifies what the mode says. That the server has the key of its certificate is always verified: channel binding
/// needs it.
#[derive(Debug)]
struct Verifier {
    /// `None`: every certificate passes.
    trusted: Option<RootCertStore>,
    /// Whether the certificate must be for the host.
    has_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(trusted) = &self.trusted {
            let certificate = ParsedCertificate::try_from(certificate)?;
            let algorithms = self.algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, trusted, intermediates, now, algorithms)?;
            if self.has_name {
                verify_server_name(&certificate, name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Why a handshake failed.
#[derive(Debug)]
pub(super) struct HandshakeError {
    host: String,
    mode: TlsMode,
    source: io::Error,
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, mode, source } = self;
        let cause = source.get_ref().and_then(|cause| cause.downcast_ref());
        match cause {
            // A bad signature is one of another authority of the same name.
            Some(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            )) => write!(
                f,
                "the certificate of {host} is of no authority that is trusted (`{mode}`): `sslrootcert` names the file \
                 of its authority"
            ),
            Some(rustls::Error::InvalidCertificate(
                error @ (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }),
            )) => {
                write!(f, "`{mode}` needs a certificate for the name in `host`, as a subject alternative name: {error}")
            }
            Some(rustls::Error::InvalidCertificate(error)) => {
                write!(f, "the certificate of {host} is not accepted (`{mode}`): {error}")
            }
            _ => write!(f, "no TLS with {host} (`{mode}`): {source}"),
        }
    }
}

impl Error for HandshakeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// One handshake.
#[derive(Debug)]
pub(super) struct Handshake {
    tls: Tls,
    host: String,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Stream = Secured<S>;
    type TlsConnect = Handshake;
    type Error = HandshakeError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, HandshakeError> {
        Ok(Handshake { tls: self.clone(), host: host.to_owned() })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Handshake {
    type Stream = Secured<S>;
    type Error = HandshakeError;
    type Future = Pin<Box<dyn Future<Output = Result<Secured<S>, HandshakeError>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let Self { tls: Tls { config, mode, needs_binding }, host } = self;
            let name = ServerName::try_from(host.clone());
            let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error));
            let connecting = async { tokio_rustls::TlsConnector::from(config).connect(name?, stream).await };
            match connecting.await {
                Ok(stream) => Ok(Secured::new(stream, needs_binding)),
                Err(source) => Err(HandshakeError { host, mode, source }),
            }
        })
    }
}

/// Why a password is not proven.
const UNBOUND: &str = "the password is not proven to this server: its certificate is not verified, and has a signature \
                       (such as Ed25519) that cannot bind the proof to the connection. Set `sslmode` to verify-full or \
                       verify-ca, or, in a network that you trust, set `channel_binding=disable`";

/// A connection with TLS.
pub(super) struct Secured<S> {
    stream: client::TlsStream<S>,
    /// The hash of the certificate, if it can bind a proof of a password to this connection.
    binding: Option<Vec<u8>>,
    needs_binding: bool,
    /// A password is to be proven without the binding that it needs: nothing more is written.
    is_refused: AtomicBool,
}

impl<S> Secured<S> {
    fn new(stream: client::TlsStream<S>, needs_binding: bool) -> Self {
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let binding = certificate.and_then(|certificate| hash_of(certificate));
        Self { stream, binding, needs_binding, is_refused: AtomicBool::new(false) }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Secured<S> {
    /// It is asked for before the first message of SCRAM, and only then. Without a binding that message would say that
    /// this side knows none, and a relay with a certificate of its choice could pass the proof on to the true server.
    fn channel_binding(&self) -> ChannelBinding {
        if self.binding.is_none() && self.needs_binding {
            self.is_refused.store(true, Ordering::Relaxed);
        }
        self.binding.clone().map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

/// The hash of a certificate that names the connection in a proof of a password: by the hash of its signature, and
/// SHA-256 for a weaker one (`tls-server-end-point`, RFC 5929, section 4.1).
fn hash_of(certificate: &[u8]) -> Option<Vec<u8>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let algorithm = match parsed.signature_algorithm.algorithm.to_id_string().as_str() {
        // RSA with MD5 and SHA-1, RSA and ECDSA with SHA-256.
        "1.2.840.113549.1.1.4" | "1.2.840.113549.1.1.5" | "1.2.840.113549.1.1.11" | "1.2.840.10045.4.3.2" => {
            &digest::SHA256
        }
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => &digest::SHA384,
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => &digest::SHA512,
        // Ed25519 has no hash of its own, and that of RSA-PSS is in its parameters: there is no binding then.
        _ => return None,
    };
    Some(digest(algorithm, certificate).as_ref().to_vec())
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Secured<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, out)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Secured<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_refused.load(Ordering::Relaxed) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::PermissionDenied, UNBOUND)));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
