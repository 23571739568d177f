//! `callboard call quic://…`: one call to a node over QUIC; its outputs go to stdout as JSON, a line each.
//!
//! What went wrong is told as by HTTP, and so is whose fault it was: exit code 4 for the caller's, 5 for the function's or the node's, 1
//! where there is no answer.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use callboard_codec::{Format, Value};
use callboard_core::{CallError, CallOptions, Instant};
use callboard_net::{Client, Prepared, QuicUrl, Trouble};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::super::client::args::{duration, one};
use super::super::client::{FormPart, arguments, value};
use super::super::error::CliError;
use super::super::identity::identity;
use super::super::output;
use super::super::signals::Signals;
use super::block_on;

/// What to call, and with what.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QuicCallArgs {
    url: QuicUrl,
    route: String,
    input: Input,
    timeout: Duration,
    cluster: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq)]
enum Input {
    Json(String),
    File(PathBuf),
    /// A map of texts and files.
    Fields(Vec<FormPart>),
    /// A function's positional and keyword arguments, each JSON.
    Arguments(Vec<String>),
}

impl QuicCallArgs {
    /// Whether these words call by QUIC: the first address says so, and not what an option sends, in the same word or in the next one.
    pub(crate) fn are_meant(words: &[OsString]) -> bool {
        let texts: Vec<&str> = words.iter().map(|word| word.to_str().unwrap_or_default()).collect();
        let is_option = |word: &str| word.starts_with('-');
        let takes_the_next = |before: &str| is_option(before) && before != "--" && !before.contains('=');
        let is_address = |pair: &&[&str]| pair[1].contains("://") && !is_option(pair[1]) && !takes_the_next(pair[0]);
        let mut addresses = texts.windows(2).skip(1).filter(is_address);
        texts.get(1) == Some(&"call") && addresses.next().is_some_and(|pair| pair[1].starts_with("quic://"))
    }

    /// The grammar.
    pub(crate) fn command() -> Command {
        Command::new("call")
            .about("Make one call to a node over QUIC, and print its outputs")
            .after_help(
                "Exit codes: 0 success; 1 no answer; 2 the command line is wrong; 4 the call was wrong;\n\
                 5 the function or the node failed.",
            )
            .args([
                Arg::new("url")
                    .value_name("URL")
                    .required(true)
                    .value_parser(|text: &str| text.parse::<QuicUrl>().map_err(|error| error.to_string()))
                    .help("The server: quic://HOST:PORT, or several, separated by commas"),
                Arg::new("route").value_name("ROUTE").required(true).help("Path of the route, or name of the function"),
                Arg::new("json").long("json").value_name("TEXT").help("Send this JSON"),
                Arg::new("file")
                    .long("file")
                    .value_name("PATH")
                    .value_parser(value_parser!(PathBuf))
                    .help("Send the value in this file, in the format of its extension"),
                Arg::new("form")
                    .short('F')
                    .long("form")
                    .value_name("NAME=VALUE | NAME=@PATH")
                    .action(ArgAction::Append)
                    .value_parser(|text: &str| text.parse::<FormPart>())
                    .help("Send a map with this text or file as a field; may be repeated"),
                arguments::arg(),
                Arg::new("timeout")
                    .long("timeout")
                    .value_name("DURATION")
                    .default_value("30s")
                    .value_parser(duration)
                    .help("How long the call may take"),
                Arg::new("cluster").long("cluster").value_name("DIR").value_parser(value_parser!(PathBuf)).help(
                    "Identity to call with: the directory of a member [default: this user's development identity]",
                ),
            ])
            .group(clap::ArgGroup::new("input").args(["json", "file", "form", "arg"]))
    }

    /// From what clap found.
    pub(crate) fn of(matches: &ArgMatches) -> Self {
        let many = |name: &str| matches.get_many::<String>(name).map(|texts| texts.cloned().collect::<Vec<_>>());
        let input = if let Some(json) = matches.get_one::<String>("json") {
            Input::Json(json.clone())
        } else if let Some(path) = matches.get_one::<PathBuf>("file") {
            Input::File(path.clone())
        } else if let Some(fields) = matches.get_many::<FormPart>("form") {
            Input::Fields(fields.cloned().collect())
        } else {
            Input::Arguments(many("arg").unwrap_or_default())
        };
        let cluster = matches.get_one::<PathBuf>("cluster").cloned();
        Self {
            url: one(matches, "url"),
            route: one(matches, "route"),
            input,
            timeout: one(matches, "timeout"),
            cluster,
        }
    }
}

/// Makes the call; prints what comes.
pub(crate) fn run(args: &QuicCallArgs) -> Result<(), CliError> {
    let prepared = args.input.prepared(&args.route)?;
    block_on(async {
        let (url, wait) = (args.url.to_string(), args.timeout.min(START_UP_WAIT));
        let mut builder = Client::builder().start_up_wait(wait);
        let identity = args.cluster.as_deref().map(|directory| identity(Some(directory))).transpose()?;
        if let Some(identity) = &identity {
            builder = builder.identity(identity.clone());
        }
        let mut signals =
            Signals::listen().map_err(|error| CliError::because("could not listen for signals", &error))?;
        let taken_back = |signal: &str| CliError::Failed(format!("{signal}: the call was taken back"));
        let client = tokio::select! {
            biased;
            client = builder.connect(&url) => client.map_err(|error| CliError::because(&args.url, &error))?,
            signal = signals.next() => return Err(taken_back(signal)),
        };
        let outcome = tokio::select! {
            biased;
            outcome = call(&client, args, prepared) => outcome,
            signal = signals.next() => Err(taken_back(signal)),
        };
        // The node is told, instead of working on until it takes the silence for an end.
        client.close().await;
        if let Some(identity) = &identity {
            // One in the last third of its life is being renewed: whoever comes next is glad of it.
            identity.settle(SETTLED_WITHIN).await;
        }
        outcome
    })
}

/// A route with one outcome is one that streams a single output.
async fn call(client: &Client, args: &QuicCallArgs, prepared: Prepared) -> Result<(), CliError> {
    let options = CallOptions::new().with_timeout(Instant::now(), args.timeout);
    let mut outputs = client.exchange_streaming::<Value>(prepared, options);
    while let Some(returned) = outputs.next().await {
        if print(&returned.map_err(refusal)?.output)?.is_gone() {
            break;
        }
    }
    Ok(())
}

/// How long a command may take for that.
const SETTLED_WITHIN: Duration = Duration::from_secs(2);

/// Who types a command has started the node before, or is about to.
const START_UP_WAIT: Duration = Duration::from_secs(3);

impl Input {
    fn prepared(&self, route: &str) -> Result<Prepared, CliError> {
        let prepared = match self {
            Self::Json(text) => Prepared::new(route, value::json(text)?),
            Self::File(path) => Prepared::new(route, value::file(path)?),
            Self::Fields(fields) => Prepared::new(route, value::form(fields)?),
            Self::Arguments(texts) => Prepared::function(route, arguments::call(texts)?),
        };
        prepared.map_err(|error| CliError::Usage(error.to_string()))
    }
}

fn print(output: &Value) -> Result<output::Reader, CliError> {
    let encoded = output.encode(Format::Json).map_err(|error| CliError::because("the reply has no JSON", &error))?;
    let line = [&encoded[..], b"\n"].concat();
    output::piece(&mut std::io::stdout(), &line)
}

/// Whose fault it was, as statuses have it, behind what is known of it.
fn refusal(error: CallError) -> CliError {
    for (path, message) in fields(&error) {
        output::note(format_args!("  {path}: {message}"));
    }
    let lines = [
        ("stage", error.stage().map(str::to_owned)),
        ("error type", error.error_type().map(str::to_owned)),
        ("remote trace", error.remote_trace().map(str::to_owned)),
        ("retry after", error.retry_after().map(|after| format!("{after:?}"))),
    ];
    for (label, value) in lines {
        if let Some(value) = value {
            output::note(format_args!("  {label}: {value}"));
        }
    }
    match Trouble::of(&error) {
        Trouble::NoSuchRoute | Trouble::Request => CliError::Answered { status: 400, message: error.to_string() },
        Trouble::NeverStarted | Trouble::ConnectionLost => CliError::Failed(error.to_string()),
        _ => CliError::Answered { status: 500, message: error.to_string() },
    }
}

/// The places of the input that do not fit, and why.
fn fields(error: &CallError) -> Vec<(String, String)> {
    let text = |field: &Value, name: &str| match field {
        Value::Map(field) => field.get(name).and_then(Value::as_str).unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    match error.details() {
        Some(Value::Map(details)) => match details.get("fields") {
            Some(Value::List(fields)) => {
                fields.iter().map(|field| (text(field, "path"), text(field, "message"))).collect()
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_holds_together() {
        QuicCallArgs::command().debug_assert();
    }

    #[test]
    fn the_first_address_decides_and_what_an_option_sends_is_none() {
        let are_meant = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            QuicCallArgs::are_meant(&words)
        };
        for line in [
            "callboard call quic://h:1 /f",
            "callboard call --arg=u=http://a quic://h:1 /f",
            "callboard call --arg u=http://a quic://h:1 /f",
            "callboard call -Fu=http://a quic://h:1 /f",
            "callboard call -F u=http://a -- quic://h:1 /f",
        ] {
            assert!(are_meant(line), "{line}");
        }
        for line in [
            "callboard call http://h:1 /f",
            "callboard call http://h:1 /f --json quic://a",
            "callboard call --arg=u=quic://a http://h:1 /f",
            "callboard bench quic://h:1 /f",
        ] {
            assert!(!are_meant(line), "{line}");
        }
    }
}
