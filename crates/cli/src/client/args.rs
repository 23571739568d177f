//! The arguments that describe a request, shared by all commands that send one.

use std::path::PathBuf;
use std::time::Duration;

use callboard_codec::Format;
use callboard_config::parse_duration;
use callboard_core::split_route_name;
use callboard_http_client::{Call, Protocol};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::arguments;
use super::form::FormPart;
use super::payload::{BodySource, Payload};
use super::server_url::ServerUrl;
use super::tensor::TensorSpec;
use super::trust;
use crate::error::CliError;

/// One request, as it was typed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RequestArgs {
    pub(crate) route: String,
    pub(crate) source: BodySource,
    pub(crate) protocol: Protocol,
    pub(crate) timeout: Duration,
    /// The trusted CA certificates, over https.
    pub(crate) ca_file: Option<PathBuf>,
    /// The directory of the identity to call with over QUIC, if not this user's.
    pub(crate) cluster: Option<PathBuf>,
    method: Option<String>,
    headers: Vec<(String, String)>,
}

impl RequestArgs {
    /// Adds the arguments to a command, after its URL.
    pub(crate) fn declare(command: Command) -> Command {
        command
            .args([
                Arg::new("route")
                    .value_name("ROUTE")
                    .required(true)
                    .help("Path of the route, such as /digits; with --arg the function's name"),
                Arg::new("json").long("json").value_name("TEXT").value_parser(json).help("Send this JSON"),
                Arg::new("file")
                    .long("file")
                    .value_name("PATH")
                    .action(ArgAction::Append)
                    .value_parser(value_parser!(PathBuf))
                    .help("Send this file (`-`: stdin), with the media type of its extension"),
                Arg::new("form")
                    .short('F')
                    .long("form")
                    .value_name("NAME=VALUE | NAME=@PATH")
                    .action(ArgAction::Append)
                    .value_parser(|text: &str| text.parse::<FormPart>())
                    .help("Send a form with this field or file; may be repeated"),
                arguments::arg(),
                Arg::new("random-tensor")
                    .long("random-tensor")
                    .value_name("DTYPE:SHAPE")
                    .value_parser(|text: &str| text.parse::<TensorSpec>())
                    .help("Send a generated tensor, such as f32:1x3x224x224"),
                Arg::new("as")
                    .long("as")
                    .value_name("FORMAT")
                    .requires("random-tensor")
                    .default_value("npy")
                    .value_parser(format)
                    .help("Format of the generated tensor: json, msgpack, envelope, npy"),
                Arg::new("seed")
                    .long("seed")
                    .value_name("NUMBER")
                    .requires("random-tensor")
                    .default_value("0")
                    .value_parser(value_parser!(u64))
                    .help("Seed of the generated tensor"),
                timeout("30s", "How long one request may take"),
            ])
            .args(
                [
                    Arg::new("content-type")
                        .long("content-type")
                        .value_name("TYPE")
                        .help("Media type to send instead of the obvious one"),
                    header("Add this header; may be repeated"),
                    Arg::new("method")
                        .long("method")
                        .value_name("METHOD")
                        .help("HTTP method [default: POST if there is something to send, else GET]"),
                    Arg::new("http2")
                        .long("http2")
                        .action(ArgAction::SetTrue)
                        .help("Use HTTP/2: over https by ALPN, else with prior knowledge"),
                    trust::arg(),
                ]
                .map(|word| word.help_heading(OVER_HTTP)),
            )
            .arg(
                Arg::new("cluster")
                    .long("cluster")
                    .value_name("DIR")
                    .value_parser(value_parser!(PathBuf))
                    .help(
                        "Identity to call with: the directory of a member [default: this user's development identity]",
                    )
                    .help_heading(OVER_QUIC),
            )
            .group(clap::ArgGroup::new("source").args(["json", "file", "form", "arg", "random-tensor"]))
    }

    /// The parsed arguments.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Self {
        Self {
            route: value_of(matches, "route"),
            source: source(matches),
            protocol: if matches.get_flag("http2") { Protocol::Http2 } else { Protocol::Http1 },
            timeout: value_of(matches, "timeout"),
            ca_file: matches.get_one::<PathBuf>("ca-file").cloned(),
            cluster: matches.get_one::<PathBuf>("cluster").cloned(),
            method: matches.get_one::<String>("method").cloned(),
            headers: headers(matches),
        }
    }

    /// Checks that all arguments apply to these servers: headers to HTTP only, identities to QUIC only, and names of
    /// functions without other input. `also` has further HTTP arguments, and whether they are present.
    ///
    /// # Errors
    ///
    /// The first argument that applies to none of the servers, or an invalid route.
    pub(crate) fn check(&self, places: &[&ServerUrl], also: &[(bool, &'static str)]) -> Result<(), clap::Error> {
        let is_quic = places.iter().all(|place| place.is_quic());
        let is_function =
            matches!(self.source, BodySource::Arguments(_)) || is_quic && self.source == BodySource::Nothing;
        let problem = |kind, problem| Err(clap::Error::raw(kind, problem));
        // Over QUIC a method may stand before the path, as in the name of a route; over HTTP it is `--method`.
        let has_path = self.route.starts_with('/') || is_quic && split_route_name(&self.route).0.is_some();
        if !has_path && !is_function {
            let path = split_route_name(&self.route).1;
            let words = match path.strip_prefix('/') {
                Some(_) => format!("a route begins with `/`, as in `{path}`; its method comes with --method"),
                None => format!("a route begins with `/`, as in `/{path}`; a function's name comes with --arg"),
            };
            return problem(ErrorKind::ValueValidation, words);
        }
        if self.cluster.is_some() && !places.iter().any(|place| place.is_quic()) {
            return problem(ErrorKind::ArgumentConflict, "--cluster: an identity is shown over QUIC only".to_owned());
        }
        let of_http = self.words_of_http();
        let word = of_http.iter().chain(also).find_map(|(is_there, word)| is_there.then_some(word));
        match (word, places) {
            (Some(word), [place, ..]) if is_quic => {
                let words = format!("{word}: there is no HTTP between here and {place}");
                problem(ErrorKind::ArgumentConflict, words)
            }
            _ => Ok(()),
        }
    }

    /// The arguments for HTTP only, and whether they are present.
    fn words_of_http(&self) -> [(bool, &'static str); 4] {
        [
            (self.protocol == Protocol::Http2, "--http2"),
            (self.method.is_some(), "--method"),
            (!self.headers.is_empty(), "--header and --content-type"),
            (self.ca_file.is_some(), "--ca-file"),
        ]
    }

    /// The call with this body.
    pub(crate) fn call(&self, payload: &Payload) -> Call {
        let method = match (&self.method, &payload.media_type) {
            (Some(method), _) => method.clone(),
            (None, Some(_)) => "POST".to_owned(),
            (None, None) => "GET".to_owned(),
        };
        let mut headers = self.headers.clone();
        let is_said = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        if let Some(media_type) = payload.media_type.clone().filter(|_| !is_said) {
            headers.push(("content-type".to_owned(), media_type));
        }
        let route = match &self.source {
            BodySource::Arguments(_) => arguments::route(&self.route),
            _ => self.route.clone(),
        };
        Call { method, route, headers, body: payload.body.clone() }
    }

    /// All calls, and a description of what they send.
    pub(crate) fn calls(&self) -> Result<(Vec<Call>, String), CliError> {
        let payloads = self.source.payloads()?;
        let words = match payloads.as_slice() {
            [Payload { media_type: None, .. }] => "nothing sent".to_owned(),
            [payload] => format!("{} bytes of {} sent", payload.body.len(), kind(payload)),
            several => format!("{} bodies sent in turns", several.len()),
        };
        Ok((payloads.iter().map(|payload| self.call(payload)).collect(), words))
    }
}

/// The media type without its parameters.
fn kind(payload: &Payload) -> &str {
    payload.media_type.as_deref().and_then(|media_type| media_type.split(';').next()).unwrap_or_default()
}

fn source(matches: &ArgMatches) -> BodySource {
    let many = |name: &str| matches.get_many::<PathBuf>(name).map(|values| values.cloned().collect::<Vec<_>>());
    if let Some(json) = matches.get_one::<String>("json") {
        BodySource::Json(json.clone())
    } else if let Some(paths) = many("file") {
        BodySource::Files(paths)
    } else if let Some(parts) = matches.get_many::<FormPart>("form") {
        BodySource::Form(parts.cloned().collect())
    } else if let Some(texts) = matches.get_many::<String>("arg") {
        BodySource::Arguments(texts.cloned().collect())
    } else if let Some(spec) = matches.get_one::<TensorSpec>("random-tensor") {
        BodySource::Tensor(spec.clone(), value_of(matches, "as"), value_of(matches, "seed"))
    } else {
        BodySource::Nothing
    }
}

/// The values of `--header` and `--content-type`.
fn headers(matches: &ArgMatches) -> Vec<(String, String)> {
    let typed = matches.get_many::<(String, String)>("header").into_iter().flatten().cloned();
    let content_type = matches.get_one::<String>("content-type");
    typed.chain(content_type.map(|value| ("content-type".to_owned(), value.clone()))).collect()
}

/// The value of an argument that has a default or is required.
pub(crate) fn value_of<T: Clone + Send + Sync + 'static>(matches: &ArgMatches, name: &str) -> T {
    matches.get_one::<T>(name).unwrap_or_else(|| panic!("clap has no value for {name}")).clone()
}

/// A duration above zero, as settings have it.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text).filter(|duration| (MIN..=MAX).contains(duration));
    duration.ok_or_else(|| format!("expected a duration from 1ms to 1h, such as `250ms` or `30s`, found `{text}`"))
}

const MIN: Duration = Duration::from_millis(1);
const MAX: Duration = Duration::from_secs(3600);

/// The headings of the arguments for HTTP only and QUIC only.
pub(crate) const OVER_HTTP: &str = "Over HTTP";
const OVER_QUIC: &str = "Over QUIC";

/// `--timeout DURATION`, of every command that waits for an answer.
pub(crate) fn timeout(default: &'static str, help: &'static str) -> Arg {
    let timeout = Arg::new("timeout").long("timeout").value_name("DURATION");
    timeout.default_value(default).value_parser(duration).help(help)
}

/// `--header 'NAME: VALUE'`, of every command that speaks HTTP.
pub(crate) fn header(help: &'static str) -> Arg {
    let header = Arg::new("header").short('H').long("header").value_name("NAME: VALUE");
    header.action(ArgAction::Append).value_parser(name_and_value).help(help)
}

/// The text is sent as it is typed. Invalid JSON is an error here.
fn json(text: &str) -> Result<String, String> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|error| format!("not valid JSON: {error}"))?;
    Ok(text.to_owned())
}

fn format(text: &str) -> Result<Format, String> {
    let known = [Format::Json, Format::Msgpack, Format::Envelope, Format::Npy];
    let found = known.into_iter().find(|format| format.name() == text);
    found
        .ok_or_else(|| format!("`{text}` is not a format of one tensor; known: {}", known.map(Format::name).join(", ")))
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or_else(|| format!("expected `name: value`, found `{text}`"))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}
