//! `callboard cluster`: makes a cluster, lets members in, joins one, and shows and drains its nodes.
//!
//! `init`, `issuer`, `token`, `revoke`, `members` and `remove` work on the files of an authority's directory, also while
//! a node serves it; `join` asks that node over QUIC. The only output of `token` on stdout is the token, once.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use callboard_codec::edited_text;
use callboard_config::parse_duration;
use callboard_net::{Authority, Identity, IdentityError, JoinToken, MemberInfo, QuicUrl, Role, TokenSpec, join};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::block_on;
use super::cluster_issuer::{self, IssuerArgs};
use super::cluster_state::{ClusterStatusArgs, DrainArgs, run_drain, run_status};
use crate::client::args::value_of;
use crate::error::CliError;
use crate::output;

/// More than a token has, so that a wrong file is not read to its end.
const MAX_TOKEN_BYTES: u64 = 1024;

/// The subcommand and its arguments.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ClusterArgs {
    Init { directory: PathBuf, name: String, if_missing: bool },
    Token { directory: PathBuf, spec: TokenSpec },
    Revoke { directory: PathBuf, token: TokenArg },
    Join { token: TokenArg, url: QuicUrl, directory: PathBuf, name: Option<String>, if_missing: bool },
    Members { directory: PathBuf },
    Remove { directory: PathBuf, name: String },
    Issuer(IssuerArgs),
    Status(ClusterStatusArgs),
    Drain(DrainArgs),
}

/// A token from the command line, a dash, or `@` and a file. Not parsed by clap, which prints the values that it refuses.
#[derive(Clone, PartialEq)]
pub(crate) struct TokenArg(String);

/// Hides the token.
impl fmt::Debug for TokenArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 == "-" || self.0.starts_with('@') { &self.0 } else { "a token" })
    }
}

impl ClusterArgs {
    /// The grammar.
    pub(crate) fn command() -> Command {
        Command::new("cluster")
            .about("Make a cluster of several machines, let members in, join one, see and drain its nodes")
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommands([
                Command::new("init").about("Make a cluster: create its authority in a new directory").args([
                    authority(),
                    Arg::new("name")
                        .long("name")
                        .value_name("NAME")
                        .default_value("callboard")
                        .help("Name of the cluster: up to 40 of a-z, 0-9 and -"),
                    if_missing("Do nothing if the directory holds a cluster's authority already"),
                ]),
                Command::new("token").about("Make a token to join with, and print it once").args([
                    authority(),
                    Arg::new("role")
                        .long("role")
                        .value_name("ROLE")
                        .default_value("node")
                        .value_parser(|text: &str| text.parse::<Role>())
                        .help(
                            "Role of the members that join with it: node, to serve; client, to call routes; operator, to \
                             call routes and drain nodes",
                        ),
                    Arg::new("uses")
                        .long("uses")
                        .value_name("COUNT")
                        .default_value("1")
                        .value_parser(value_parser!(u32))
                        .help("How many members may join with the token"),
                    Arg::new("expires")
                        .long("expires")
                        .value_name("DURATION")
                        .default_value("1h")
                        .value_parser(duration)
                        .help("How long the token may be used"),
                    Arg::new("life")
                        .long("life")
                        .value_name("DURATION")
                        .default_value("24h")
                        .value_parser(duration)
                        .help("How long a member's certificate is valid; a running member renews it in time"),
                ]),
                Command::new("revoke").about("Revoke a token, so that no more members can join with it").args([
                    authority(),
                    Arg::new("token")
                        .value_name("TOKEN|ID")
                        .required(true)
                        .help("The token, or its id as shown by `token` and `members`"),
                ]),
                Command::new("join").about("Join a cluster with a token, and store the identity").args([
                    Arg::new("token")
                        .value_name("TOKEN")
                        .required(true)
                        .help("The token; - reads it from stdin, @PATH from a file"),
                    Arg::new("url")
                        .value_name("URL")
                        .required(true)
                        .value_parser(|text: &str| text.parse::<QuicUrl>().map_err(|error| error.to_string()))
                        .help("The node that serves the authority's directory, or several issuers: quic://HOST:PORT,…"),
                    Arg::new("to")
                        .long("to")
                        .value_name("DIR")
                        .required(true)
                        .value_parser(value_parser!(PathBuf))
                        .help("Directory to store the identity in"),
                    Arg::new("name")
                        .long("name")
                        .value_name("NAME")
                        .help("Name of the member: up to 40 of a-z, 0-9 and - [default: chosen by the authority]"),
                    if_missing("Do nothing if the directory holds an identity that is still valid"),
                ]),
                Command::new("members").about("List the members").arg(authority()),
                Command::new("remove")
                    .about("Remove a member: nodes refuse its certificate, which is not renewed again")
                    .args([
                        authority(),
                        Arg::new("name")
                            .value_name("NAME|ID")
                            .required(true)
                            .help("Name of the member; the id of an issuer, to refuse all that it has signed"),
                    ]),
                IssuerArgs::command(),
                ClusterStatusArgs::command(),
                DrainArgs::command(),
            ])
    }

    /// The parsed arguments.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Self {
        let (command, matches) = matches.subcommand().expect("clap requires a subcommand");
        let directory = || value_of(matches, "dir");
        let name = || matches.get_one::<String>("name").cloned();
        let if_missing = || matches.get_flag("if-missing");
        match command {
            "init" => Self::Init { directory: directory(), name: value_of(matches, "name"), if_missing: if_missing() },
            "token" => {
                let spec = TokenSpec {
                    role: value_of(matches, "role"),
                    uses: value_of(matches, "uses"),
                    expires_in: value_of(matches, "expires"),
                    certificate_life: value_of(matches, "life"),
                };
                Self::Token { directory: directory(), spec }
            }
            "revoke" => Self::Revoke { directory: directory(), token: TokenArg(value_of(matches, "token")) },
            "join" => Self::Join {
                token: TokenArg(value_of(matches, "token")),
                url: value_of(matches, "url"),
                directory: value_of(matches, "to"),
                name: name(),
                if_missing: if_missing(),
            },
            "members" => Self::Members { directory: directory() },
            "issuer" => Self::Issuer(IssuerArgs::from_matches(matches)),
            "status" => Self::Status(ClusterStatusArgs::from_matches(matches)),
            "drain" => Self::Drain(DrainArgs::from_matches(matches)),
            _ => Self::Remove { directory: directory(), name: value_of(matches, "name") },
        }
    }
}

pub(super) fn authority() -> Arg {
    Arg::new("dir")
        .value_name("DIR")
        .required(true)
        .value_parser(value_parser!(PathBuf))
        .help("The directory of the cluster's authority")
}

/// For commands that run at each start, such as those of an init container.
fn if_missing(help: &'static str) -> Arg {
    Arg::new("if-missing").long("if-missing").action(ArgAction::SetTrue).help(help)
}

/// Only the id of the token is needed.
fn token_id(TokenArg(text): &TokenArg) -> Result<String, CliError> {
    if text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(text.to_ascii_lowercase());
    }
    let token: Result<JoinToken, _> = text.parse();
    let expected = "expected a token, cbt1-…, or its id of 16 hexadecimal digits";
    token.map(|token| token.id()).map_err(|_| CliError::Usage(expected.to_owned()))
}

/// Parses only; the authority enforces its limits.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let days = || parse_duration(&format!("{}h", text.strip_suffix('d')?))?.checked_mul(24);
    let parsed = parse_duration(text).or_else(days);
    parsed.ok_or_else(|| format!("expected a duration such as `30m`, `24h` or `30d`, found `{text}`"))
}

/// Does it.
pub(crate) fn run(args: &ClusterArgs) -> Result<(), CliError> {
    match args {
        ClusterArgs::Init { directory, name, if_missing } => {
            match if_missing.then(|| Authority::open(directory)) {
                None | Some(Err(IdentityError::NoAuthority { .. })) => {}
                Some(Ok(authority)) => {
                    output::note(format_args!("kept the cluster {} in {}", authority.cluster(), directory.display()));
                    return Ok(());
                }
                Some(Err(error)) => return Err(failed("the cluster", &error)),
            }
            let authority = Authority::init(directory, name).map_err(|error| failed("no cluster was made", &error))?;
            let (cluster, directory) = (authority.cluster(), directory.display());
            output::note(format_args!(
                "made the cluster {cluster} in {directory}: its key can pose as any member of the cluster"
            ));
            output::note(format_args!("  next: callboard serve … --cluster {directory} --quic ADDR"));
            Ok(())
        }
        ClusterArgs::Token { directory, spec } => {
            let token = open(directory)?.token(spec).map_err(|error| failed("no token was made", &error))?;
            output::result(&token)?;
            let (role, uses) = (spec.role, spec.uses);
            let holders = if uses == 1 { format!("one {role}") } else { format!("{uses} {role}s") };
            let (id, time) = (token.id(), spec.expires_in);
            output::note(format_args!("{id}: lets {holders} join within {time:?}; it is not shown again"));
            Ok(())
        }
        ClusterArgs::Revoke { directory, token } => {
            let id = token_id(token)?;
            let revoked = open(directory)?.revoke(&id).map_err(|error| failed("not revoked", &error))?;
            if !revoked {
                return Err(CliError::Failed(format!("there is no token {id}, or it is over")));
            }
            output::note(format_args!("{id} admits no more members; members that joined with it stay"));
            Ok(())
        }
        ClusterArgs::Join { token, url, directory, name, if_missing } => {
            match if_missing.then(|| Identity::open(directory)) {
                None | Some(Err(IdentityError::NoIdentity { .. } | IdentityError::Expired { .. })) => {}
                Some(Ok(identity)) => {
                    let (name, cluster) = (identity.name(), identity.cluster());
                    output::note(format_args!("kept the identity of {name} in {cluster}, {}", directory.display()));
                    return Ok(());
                }
                Some(Err(error)) => return Err(failed("the identity", &error)),
            }
            let token = read_token(token)?;
            let joined = block_on(async { Ok(join(&token, url, directory, name.as_deref()).await) })?;
            let identity = joined.map_err(|error| failed("not joined", &error))?;
            let (name, role, cluster) =
                (identity.name(), identity.role().with_article(), identity.cluster().to_owned());
            let seconds = identity.time_left().as_secs();
            output::note(format_args!(
                "joined {cluster} as {name}, {role}; the certificate in {} holds for {seconds} s and is renewed while in use",
                directory.display()
            ));
            Ok(())
        }
        ClusterArgs::Members { directory } => {
            let list = open(directory)?.members().map_err(|error| failed("the members", &error))?;
            for damaged in &list.damaged {
                output::note(format_args!("passed over: {damaged}"));
            }
            let now = SystemTime::now();
            list.members.iter().try_for_each(|member| {
                let ago = now.duration_since(member.joined).unwrap_or_default().as_secs();
                let MemberInfo { name, role, token, id, .. } = member;
                let since = match token.as_str() {
                    "" => format!("first seen {ago} s ago"),
                    token => format!("joined {ago} s ago with {token}"),
                };
                output::result(format_args!("{name:<40} {:<8} {since}; id {id}", role.as_str()))
            })
        }
        ClusterArgs::Issuer(args) => cluster_issuer::run(args),
        ClusterArgs::Status(args) => run_status(args),
        ClusterArgs::Drain(args) => run_drain(args),
        ClusterArgs::Remove { directory, name } => {
            let authority = open(directory)?;
            let list = authority.members().map_err(|error| failed("not removed", &error))?;
            let is_known = list.members.iter().any(|member| member.name == *name || member.id == *name);
            let removed = authority.remove(name).map_err(|error| failed("not removed", &error))?;
            if !removed {
                return Err(CliError::Failed(format!("there is no member `{name}`")));
            }
            // A damaged record is removed by its name.
            if !is_known && list.damaged.is_empty() {
                output::note(format_args!("no member of this id is known here; the id is excluded"));
                return Ok(());
            }
            output::note(format_args!("{name} is given no further certificate; nodes refuse the one it has"));
            Ok(())
        }
    }
}

pub(super) fn open(directory: &std::path::Path) -> Result<Authority, CliError> {
    Authority::open(directory).map_err(|error| failed("the cluster", &error))
}

pub(super) fn failed(what: &str, error: &dyn std::error::Error) -> CliError {
    CliError::because(what, error)
}

/// Reads from stdin for a dash, or from a file: other users of the machine can see a command's arguments, but not these.
fn read_token(TokenArg(text): &TokenArg) -> Result<JoinToken, CliError> {
    let failed = |error: &io::Error| CliError::because("cannot read the token", error);
    let text = if text == "-" {
        io::read_to_string(io::stdin().take(MAX_TOKEN_BYTES)).map_err(|error| failed(&error))?
    } else if let Some(path) = text.strip_prefix('@') {
        let file = File::open(path).map_err(|error| CliError::because(format_args!("cannot read {path}"), &error))?;
        io::read_to_string(file.take(MAX_TOKEN_BYTES)).map_err(|error| failed(&error))?
    } else {
        text.clone()
    };
    edited_text(&text).parse().map_err(|error| CliError::Usage(format!("{error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_arguments_is_valid() {
        ClusterArgs::command().debug_assert();
    }

    #[test]
    fn a_token_is_hidden_in_debug_output() {
        let args = ["cluster", "join", "cbt1-secret", "quic://127.0.0.1:1", "--to", "lab"];
        let join = ClusterArgs::from_matches(&ClusterArgs::command().try_get_matches_from(args).unwrap());
        let text = format!("{join:?}");
        assert!(text.contains("a token") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn a_missing_setting_has_its_default() {
        let matches = ClusterArgs::command().try_get_matches_from(["cluster", "token", "lab"]).unwrap();
        let expected = ClusterArgs::Token { directory: PathBuf::from("lab"), spec: TokenSpec::default() };
        assert_eq!(ClusterArgs::from_matches(&matches), expected);
    }
}
