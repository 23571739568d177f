//! The text that says how to connect. `tokio-postgres` reads it, but for libpq's words about TLS, of which it knows
//! fewer.

use std::fmt;
use std::io;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host, SslMode};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use super::ConnectStoreError;
use super::tls::{Roots, Tls};

/// How a connection is secured, in libpq's words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TlsMode {
    Disable,
    #[default]
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl TlsMode {
    const ALL: [Self; 5] = [Self::Disable, Self::Prefer, Self::Require, Self::VerifyCa, Self::VerifyFull];

    fn word(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }
}

impl fmt::Display for TlsMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sslmode={}", self.word())
    }
}

/// The value of `sslrootcert` that stands for the authorities of the system.
const SYSTEM: &str = "system";

/// Options of libpq that this store does not have. Names that are not in this list may be parts of a password, and are
/// not shown.
const NOT_HERE: [&str; 12] = [
    "gssencmode",
    "krbsrvname",
    "passfile",
    "require_auth",
    "service",
    "sslcert",
    "sslcrl",
    "sslcrldir",
    "sslkey",
    "sslpassword",
    "ssl_min_protocol_version",
    "ssl_max_protocol_version",
];

/// What a text says.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) config: Config,
    /// `None` for `sslmode=disable`, and for sockets of this machine.
    pub(super) tls: Option<Tls>,
}

impl Settings {
    /// Reads the text, and the file of `sslrootcert`.
    pub(super) fn read(text: &str) -> Result<Self, ConnectStoreError> {
        let mut words = Words::default();
        let rest = words.take_from(text);
        let mut config: Config = rest.parse().map_err(|error| rejected(unread(&error)))?;
        if config.get_hosts().is_empty() {
            // The names with which certificates are compared.
            for address in config.get_hostaddrs().to_vec() {
                config.host(address.to_string());
            }
        }
        let mode = words.mode()?;
        let roots = words.roots(mode)?;
        let is_plain = has_sockets(&config, mode)? || mode == TlsMode::Disable;
        config.ssl_mode(match mode {
            _ if is_plain => SslMode::Disable,
            TlsMode::Disable | TlsMode::Prefer => SslMode::Prefer,
            TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
        });
        let needs_binding = config.get_channel_binding() != ChannelBinding::Disable;
        let tls = if is_plain { None } else { Some(Tls::try_new(mode, roots, needs_binding).map_err(rejected)?) };
        Ok(Self { config, tls })
    }
}

/// Whether the connections go over sockets of this machine, which have no TLS. Unless TLS is turned off, a text with
/// sockets and addresses is refused: one mode cannot fit both.
fn has_sockets(config: &Config, mode: TlsMode) -> Result<bool, ConnectStoreError> {
    let hosts = config.get_hosts();
    let sockets = hosts.iter().filter(|host| !matches!(host, Host::Tcp(_))).count();
    if sockets > 0 && !config.get_hostaddrs().is_empty() {
        // The connection would go to the address, not to the socket.
        return Err(rejected("`host` names a socket of this machine: it cannot be used with `hostaddr`"));
    }
    if sockets > 0 && sockets < hosts.len() && mode != TlsMode::Disable {
        let reason = "a socket of this machine has no TLS";
        return Err(rejected(format!("{reason}: `{mode}` needs addresses in `host`, or sockets alone")));
    }
    Ok(sockets > 0)
}

fn rejected(reason: impl fmt::Display) -> ConnectStoreError {
    ConnectStoreError::Config(reason.to_string())
}

/// Why the text cannot be read, without a part of it: it may have a password.
fn unread(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    let unknown = cause.strip_prefix("unknown option `").and_then(|rest| rest.strip_suffix('`'));
    match unknown {
        Some(option) if NOT_HERE.contains(&option) => format!("`{option}` is not supported"),
        Some(_) => "it has an unknown option, or a value with spaces or signs that needs quotes (in a URL: \
                    percent-encoding)"
            .to_owned(),
        None if cause.starts_with("invalid value for option") => cause,
        None => "it is neither `host=db user=callboard …` nor a URL `postgres://…`; values with spaces need single \
                 quotes"
            .to_owned(),
    }
}

/// The words about TLS. The last of each counts, as in libpq.
#[derive(Debug, Default)]
struct Words {
    mode: Option<String>,
    roots: Option<String>,
}

impl Words {
    /// The text without them.
    fn take_from(&mut self, text: &str) -> String {
        let is_url = ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme));
        if is_url { self.take_from_url(text) } else { self.take_from_pairs(text) }
    }

    fn take(&mut self, key: &str, value: String) -> bool {
        match key {
            "sslmode" => self.mode = Some(value),
            "sslrootcert" => self.roots = Some(value),
            _ => return false,
        }
        true
    }

    fn take_from_url(&mut self, url: &str) -> String {
        // A password may have a `?`.
        let host = url.find('@').map_or(0, |at| at + 1);
        let Some(query) = url[host..].find('?').map(|at| host + at + 1) else { return url.to_owned() };
        let kept = url[query..].split('&').filter(|parameter| {
            let Some((key, value)) = parameter.split_once('=') else { return true };
            !self.take(key, percent_decode_str(value).decode_utf8_lossy().into_owned())
        });
        let kept: Vec<&str> = kept.collect();
        format!("{}{}", &url[..query], kept.join("&"))
    }

    fn take_from_pairs(&mut self, text: &str) -> String {
        let (mut rest, mut kept) = (text, String::new());
        while let Some((key, value, after)) = pair(rest) {
            if !self.take(key, value) {
                kept.push_str(&rest[..rest.len() - after.len()]);
            }
            rest = after;
        }
        // What is no pair is for the other reader to complain of.
        kept + rest
    }

    fn mode(&self) -> Result<TlsMode, ConnectStoreError> {
        match self.mode.as_deref() {
            None if self.roots.as_deref() == Some(SYSTEM) => Ok(TlsMode::VerifyFull),
            None => Ok(TlsMode::default()),
            Some(word) => TlsMode::ALL.into_iter().find(|mode| mode.word() == word).ok_or_else(|| {
                rejected("`sslmode` is disable, prefer, require, verify-ca or verify-full (`allow` is not supported)")
            }),
        }
    }

    fn roots(&self, mode: TlsMode) -> Result<Roots, ConnectStoreError> {
        match (self.roots.as_deref(), mode) {
            (_, TlsMode::Disable) | (None, TlsMode::Prefer | TlsMode::Require) => Ok(Roots::Any),
            (Some(_), TlsMode::Prefer) => Err(rejected(
                "`sslrootcert` needs `sslmode`: verify-full, verify-ca or require. By default (prefer) no certificate \
                 is verified",
            )),
            (None | Some(SYSTEM), TlsMode::VerifyFull) => Ok(Roots::System),
            (None, TlsMode::VerifyCa) => Err(rejected(
                "`sslmode=verify-ca` needs `sslrootcert`, the file of an authority of your own; with the authorities \
                 of the system use verify-full",
            )),
            (Some(SYSTEM), TlsMode::Require | TlsMode::VerifyCa) => Err(rejected(format!(
                "`sslrootcert=system` needs `sslmode=verify-full`: with `{mode}` each holder of a public certificate \
                 would pass",
            ))),
            (Some(file), TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull) => {
                let certificates = authorities(file);
                let certificates = certificates.map_err(|error| rejected(format!("`sslrootcert`, {file}: {error}")))?;
                Ok(Roots::Of(certificates))
            }
        }
    }
}

fn authorities(file: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = std::fs::read(file).map_err(|error: io::Error| error.to_string())?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let certificates = certificates.map_err(|error| format!("it is no PEM file: {error}"))?;
    if certificates.is_empty() { Err("it has no certificate in PEM".to_owned()) } else { Ok(certificates) }
}

/// The first `key = value` of a text, and what follows it.
fn pair(text: &str) -> Option<(&str, String, &str)> {
    let text = text.trim_start();
    let end = text.find(|sign: char| sign.is_whitespace() || sign == '=').filter(|end| *end > 0)?;
    let (key, rest) = text.split_at(end);
    let (value, rest) = value(rest.trim_start().strip_prefix('=')?.trim_start())?;
    Some((key, value, rest))
}

/// A value, which may be in quotes, and what follows it.
fn value(text: &str) -> Option<(String, &str)> {
    let quoted = text.strip_prefix('\'');
    let (text, mut value) = (quoted.unwrap_or(text), String::new());
    let mut signs = text.char_indices();
    while let Some((at, sign)) = signs.next() {
        match sign {
            '\\' => value.extend(signs.next().map(|(_, sign)| sign)),
            '\'' if quoted.is_some() => return Some((value, &text[at + 1..])),
            sign if quoted.is_none() && sign.is_whitespace() => return Some((value, &text[at..])),
            sign => value.push(sign),
        }
    }
    (quoted.is_none() && !value.is_empty()).then_some((value, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words_of(text: &str) -> (String, Option<String>, Option<String>) {
        let mut words = Words::default();
        let rest = words.take_from(text);
        (rest, words.mode, words.roots)
    }

    #[test]
    fn the_words_about_tls_are_taken_from_both_forms_of_a_text() {
        let some = |word: &str| Some(word.to_owned());
        for (text, rest, mode, roots) in [
            ("host=db user=me", "host=db user=me", None, None),
            ("host=db sslmode=require user=me", "host=db user=me", some("require"), None),
            ("sslmode = 'verify-full' sslrootcert='a b\\'c' host=db", " host=db", some("verify-full"), some("a b'c")),
            ("password='x sslmode=disable' sslmode=require", "password='x sslmode=disable'", some("require"), None),
            ("sslmode=prefer sslmode=disable host=db", " host=db", some("disable"), None),
            ("host=db sslmode", "host=db sslmode", None, None),
            ("postgres://me:a?b@db/carts", "postgres://me:a?b@db/carts", None, None),
            ("postgres://db/carts?sslmode=require", "postgres://db/carts?", some("require"), None),
            (
                "postgresql://me:a?sslmode=b@db?user=x&sslmode=verify-ca&sslrootcert=%2Fa%20b&port=1",
                "postgresql://me:a?sslmode=b@db?user=x&port=1",
                some("verify-ca"),
                some("/a b"),
            ),
        ] {
            assert_eq!(words_of(text), (rest.to_owned(), mode, roots), "{text}");
        }
    }

    #[test]
    fn a_text_has_a_mode_and_authorities_that_fit_or_an_error_with_the_setting() {
        let read = |text: &str| Settings::read(text).map_err(|error| error.to_string());
        for (text, mode) in [
            ("host=db", Some(TlsMode::Prefer)),
            ("host=db sslmode=disable sslrootcert=/none", None),
            ("host=/run/postgresql sslmode=require", None),
            ("host=/run,db sslmode=disable", None),
            ("host=db hostaddr=127.0.0.1 sslmode=require", Some(TlsMode::Require)),
            ("postgres://db?sslmode=require", Some(TlsMode::Require)),
            ("hostaddr=127.0.0.1 sslmode=prefer", Some(TlsMode::Prefer)),
        ] {
            assert_eq!(read(text).unwrap().tls.map(|tls| tls.mode()), mode, "{text}");
        }
        let named = read("hostaddr=127.0.0.1,::1").unwrap().config.get_hosts().to_vec();
        assert_eq!(named, [Host::Tcp("127.0.0.1".to_owned()), Host::Tcp("::1".to_owned())]);
        for (text, expected) in [
            ("host=db sslmode=allow", "`allow` is not supported"),
            ("postgres://db?sslmode=verify_full", "verify-ca or verify-full"),
            ("host=db sslrootcert=/none", "`sslrootcert` needs `sslmode`"),
            ("host=db sslmode=verify-ca", "`sslmode=verify-ca` needs `sslrootcert`"),
            ("host=db sslmode=require sslrootcert=system", "`sslrootcert=system` needs `sslmode=verify-full`"),
            ("host=db sslmode=verify-full sslrootcert=/none", "`sslrootcert`, /none: "),
            ("host=db sslmode=verify-full sslrootcert=/dev/null", "it has no certificate in PEM"),
            ("host=/run,db sslmode=require", "`sslmode=require` needs addresses in `host`"),
            ("host=/run,db", "`sslmode=prefer` needs addresses in `host`"),
            ("host=/run hostaddr=10.0.0.1 sslmode=verify-full", "it cannot be used with `hostaddr`"),
            ("host=db,/run hostaddr=10.0.0.1,10.0.0.2", "it cannot be used with `hostaddr`"),
            ("postgres://%2Frun/carts?hostaddr=10.0.0.1&sslmode=disable", "it cannot be used with `hostaddr`"),
            ("host=db sslcert=a", "`sslcert` is not supported"),
            ("host=db port=x", "invalid value for option `port`"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn no_error_shows_a_part_of_a_password() {
        for text in [
            "host=db password=hunter2 hunter3=4",
            "host=db password=my hunter2",
            "host=db password='hunter2",
            "postgres://me:my@hunter2:hunter3@db",
            "postgres://me:my@x?hunter2=3@db",
            "postgres://me:hunter2@db?sslmode=hunter3",
        ] {
            let error = Settings::read(text).unwrap_err().to_string();
            assert!(!error.contains("hunter"), "{text}: {error}");
        }
        assert!(!format!("{:?}", Settings::read("host=db password=hunter2").unwrap()).contains("hunter"));
    }
}
