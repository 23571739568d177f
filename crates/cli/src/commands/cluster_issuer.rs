//! `callboard cluster issuer`: makes an issuer below the root of a cluster, whose key can then stay offline.
//!
//! Three steps: `request` where the issuer runs, `sign` where the root's key is, `install` where the issuer runs. Only
//! requests and certificates move between the machines, on stdin and stdout; the same steps renew a certificate.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use callboard_codec::edited_text;
use callboard_net::{Authority, IssuerCertificate};
use clap::{Arg, ArgMatches, Command};

use super::cluster::{authority, duration, failed, open};
use crate::client::args::value_of;
use crate::error::CliError;
use crate::output;

/// More than requests and certificates have, so that a wrong file is not read to its end.
const MAX_BYTES: u64 = 16 << 10;

/// The subcommand and its arguments.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum IssuerArgs {
    Request { directory: PathBuf },
    Sign { directory: PathBuf, request: String, name: String, life: Duration },
    Install { directory: PathBuf, certificate: String },
}

impl IssuerArgs {
    /// The grammar.
    pub(crate) fn command() -> Command {
        let of_issuer = || authority().help("The directory of the issuer");
        let from =
            |name: &'static str, help: &'static str| Arg::new(name).value_name("FILE").default_value("-").help(help);
        Command::new("issuer")
            .about("Make an issuer, which lets members in and renews them without the root's key")
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommands([
                Command::new("request")
                    .about("Print the request for an issuer's certificate; make its key if there is none")
                    .arg(of_issuer()),
                Command::new("sign").about("Sign a request with the root's key, and print the certificate").args([
                    authority().help("The directory that `cluster init` has made"),
                    from("request", "File with the request; - reads it from stdin"),
                    Arg::new("name")
                        .long("name")
                        .value_name("NAME")
                        .required(true)
                        .help("Name of the issuer's node: up to 40 of a-z, 0-9 and -"),
                    Arg::new("life")
                        .long("life")
                        .value_name("DURATION")
                        .default_value("30d")
                        .value_parser(duration)
                        .help("How long the certificate is valid; nothing that it signs is valid for longer"),
                ]),
                Command::new("install")
                    .about("Store the signed certificate in the issuer's directory")
                    .args([of_issuer(), from("certificate", "File with the certificate; - reads it from stdin")]),
            ])
    }

    /// The parsed arguments.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Self {
        let (command, matches) = matches.subcommand().expect("clap requires a subcommand");
        let directory = value_of(matches, "dir");
        match command {
            "request" => Self::Request { directory },
            "sign" => Self::Sign {
                directory,
                request: value_of(matches, "request"),
                name: value_of(matches, "name"),
                life: value_of(matches, "life"),
            },
            _ => Self::Install { directory, certificate: value_of(matches, "certificate") },
        }
    }
}

/// Does it.
pub(crate) fn run(args: &IssuerArgs) -> Result<(), CliError> {
    let now = SystemTime::now();
    match args {
        IssuerArgs::Request { directory } => {
            let request =
                Authority::request_issuer(directory).map_err(|error| failed("no request was made", &error))?;
            output::result(request.trim_end())?;
            output::note("  next, where the root's key is: callboard cluster issuer sign ROOT_DIR --name NAME");
            Ok(())
        }
        IssuerArgs::Sign { directory, request, name, life } => {
            let request = read(request, "the request")?;
            let signed = open(directory)?.certify_issuer(&request, name, *life, now);
            let (issuer, chain) = signed.map_err(|error| failed("not signed", &error))?;
            output::result(chain.trim_end())?;
            output::note(format_args!("{}", Shown(&issuer, now)));
            output::note("  next, where the issuer runs: callboard cluster issuer install DIR");
            Ok(())
        }
        IssuerArgs::Install { directory, certificate } => {
            let chain = read(certificate, "the certificate")?;
            let installed = Authority::install_issuer(directory, &chain, now);
            let (issuer, authority) = installed.map_err(|error| failed("not installed", &error))?;
            output::note(format_args!("{} of {}", Shown(&issuer, now), authority.cluster()));
            output::note(format_args!("  next: callboard serve … --cluster {} --quic ADDR", directory.display()));
            Ok(())
        }
    }
}

/// An issuer in one line.
struct Shown<'a>(&'a IssuerCertificate, SystemTime);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(IssuerCertificate { name, id, validity, .. }, now) = self;
        let days = validity.left(*now).as_secs_f64() / 86_400.0;
        write!(f, "{name} ({id}) issues certificates for {days:.1} days")
    }
}

fn read(file: &str, what: &str) -> Result<String, CliError> {
    let text = match file {
        "-" => io::read_to_string(io::stdin().take(MAX_BYTES)),
        path => File::open(Path::new(path)).and_then(|file| io::read_to_string(file.take(MAX_BYTES))),
    };
    let text = text.map_err(|error| CliError::because(format_args!("cannot read {what}"), &error))?;
    Ok(edited_text(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_read_with_their_defaults() {
        let parsed = |args: &[&str]| {
            IssuerArgs::command().try_get_matches_from(args).map(|matches| IssuerArgs::from_matches(&matches))
        };
        let (directory, month) = (PathBuf::from("lab"), Duration::from_secs(30 * 86_400));
        let request = IssuerArgs::Request { directory: directory.clone() };
        assert_eq!(parsed(&["issuer", "request", "lab"]).unwrap(), request);
        let (read, name) = ("-".to_owned(), "left".to_owned());
        let sign = IssuerArgs::Sign { directory: directory.clone(), request: read.clone(), name, life: month };
        assert_eq!(parsed(&["issuer", "sign", "lab", "--name", "left"]).unwrap(), sign);
        let install = IssuerArgs::Install { directory, certificate: read };
        assert_eq!(parsed(&["issuer", "install", "lab"]).unwrap(), install);
        assert!(parsed(&["issuer", "sign", "lab"]).is_err(), "a name is needed");
    }
}
