//! `callboard call`: sends one request. The reply goes to stdout, errors go to stderr.
//!
//! The reply is printed as it arrives, so that a stream can be watched: bytes to a program, escaped text to a terminal.
//! A binary reply is not printed to a terminal. An error is printed like its problem document: the invalid fields and
//! the request id first, the message last and on one line.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;

use callboard_codec::MediaType;
use callboard_http_client::{Answer, Connection, Origin};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::{block_on, call_quic};
use crate::client::args::{OVER_HTTP, value_of};
use crate::client::{RequestArgs, ServerUrl, trust};
use crate::error::{CliError, chain};
use crate::{output, plain};

/// The most bytes that are read of an error answer.
const MAX_PROBLEM_BYTES: usize = 1 << 20;

/// The request, and the handling of its reply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallArgs {
    place: ServerUrl,
    pub(super) request: RequestArgs,
    accept: Option<String>,
    include: bool,
    output: Option<PathBuf>,
}

impl CallArgs {
    /// The grammar.
    pub(crate) fn command() -> Command {
        let command = Command::new("call").about("Send one request to a route, and print the reply").after_help(
            "Over QUIC the reply is printed as JSON, a line for each output.\n\
                 Exit codes: 0 success; 1 no answer, or only a part of it; 2 the command line is wrong;\n\
                 3, 4, 5 the answer has a status of 3xx, 4xx, 5xx; over QUIC 4 the call was wrong,\n\
                 5 the function or the node failed.",
        );
        let url = Arg::new("url").value_name("URL").required(true).value_parser(|text: &str| text.parse::<ServerUrl>());
        let url = url.help("The server, such as http://127.0.0.1:8000, or quic://127.0.0.1:4433 (several with commas)");
        RequestArgs::declare(command.arg(url)).args([
            Arg::new("output")
                .short('o')
                .long("output")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Write the reply to this file instead of stdout"),
            Arg::new("accept")
                .long("accept")
                .value_name("TYPE")
                .help("Media type of the reply")
                .help_heading(OVER_HTTP),
            Arg::new("include")
                .short('i')
                .long("include")
                .action(ArgAction::SetTrue)
                .help("Also print the status and headers of the answer, to stderr")
                .help_heading(OVER_HTTP),
        ])
    }

    /// The parsed arguments.
    ///
    /// # Errors
    ///
    /// The errors of [`RequestArgs::check`].
    pub(crate) fn from_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let args = Self {
            place: value_of(matches, "url"),
            request: RequestArgs::from_matches(matches),
            accept: matches.get_one::<String>("accept").cloned(),
            include: matches.get_flag("include"),
            output: matches.get_one::<PathBuf>("output").cloned(),
        };
        let of_http = [(args.accept.is_some(), "--accept"), (args.include, "--include")];
        args.request.check(&[&args.place], &of_http)?;
        Ok(args)
    }

    /// The output for the reply.
    pub(super) fn open_output(&self) -> Result<Box<dyn Write>, CliError> {
        Ok(match &self.output {
            None => output::stdout(),
            Some(path) => {
                Box::new(File::create(path).map_err(|error| {
                    CliError::because(format_args!("could not write to {}", path.display()), &error)
                })?)
            }
        })
    }
}

/// Several bodies were named for one request.
pub(super) fn too_many(count: usize) -> CliError {
    CliError::Usage(format!("one request has one body; --file came {count} times"))
}

/// Sends the request and prints the reply.
pub(crate) fn run(args: &CallArgs) -> Result<(), CliError> {
    match &args.place {
        ServerUrl::Http(origin) => over_http(args, origin),
        ServerUrl::Quic(url) => call_quic::run(args, url),
    }
}

fn over_http(args: &CallArgs, origin: &Origin) -> Result<(), CliError> {
    let (calls, _) = args.request.calls()?;
    let [mut call] = <[_; 1]>::try_from(calls).map_err(|calls| too_many(calls.len()))?;
    call.headers.extend(args.accept.iter().map(|accept| ("accept".to_owned(), accept.clone())));
    let request = call.prepare(origin, args.request.protocol);
    let request = request.map_err(|error| CliError::Usage(chain(&error)))?;
    let trust = trust::read(args.request.ca_file.as_deref(), [origin])?;
    let url = origin.url_of(&call.route);
    let failed = |error| CliError::because(&url, &error);
    block_on(async {
        let exchange = async {
            let opened = Connection::open_trusting(origin, args.request.protocol, trust.as_ref()).await;
            let mut connection = opened.map_err(failed)?;
            let answer = connection.send(&request).await.map_err(failed)?;
            if args.include {
                output::note(head(&answer));
            }
            match answer.status() {
                200..=299 => print(answer, args, &url).await,
                _ => Err(refusal(answer).await),
            }
        };
        let outcome = tokio::time::timeout(args.request.timeout, exchange).await;
        outcome.map_err(|_| CliError::Failed(format!("{url}: no whole answer within {:?}", args.request.timeout)))?
    })
}

fn head(answer: &Answer) -> String {
    let headers: Vec<String> =
        answer.headers().map(|(name, value)| format!("\n{name}: {}", plain::line(value))).collect();
    format!("{} {}{}", answer.status(), answer.reason(), headers.concat())
}

/// Prints the reply as it arrives.
async fn print(mut answer: Answer, args: &CallArgs, url: &str) -> Result<(), CliError> {
    let media_type = answer.header("content-type").unwrap_or_default().to_owned();
    let to_stdout = args.output.is_none();
    if to_stdout && io::stdout().is_terminal() && !is_text(&media_type) {
        return Err(CliError::Failed(format!("the reply is {media_type}, which is not text; --output FILE saves it")));
    }
    let mut place = args.open_output()?;
    let mut last = None;
    while let Some(chunk) = answer.chunk().await.map_err(|error| CliError::because(url, &error))? {
        last = chunk.last().copied().or(last);
        if output::piece(&mut place, &chunk)?.is_closed() {
            return Ok(());
        }
    }
    // The prompt of the terminal begins on its own line.
    if to_stdout && is_text(&media_type) && last.is_some_and(|last| last != b'\n') {
        output::piece(&mut place, b"\n")?;
    }
    Ok(())
}

fn is_text(media_type: &str) -> bool {
    let essence = MediaType::without_parameters(media_type);
    essence.starts_with("text/") || essence.ends_with("json") || essence.ends_with("xml")
}

/// The error of an answer that is no success.
async fn refusal(answer: Answer) -> CliError {
    let (status, reason) = (answer.status(), answer.reason());
    let retry_after = answer.header("retry-after").map(str::to_owned);
    let location = answer.header("location").map(str::to_owned);
    let body = answer.bytes(MAX_PROBLEM_BYTES).await.unwrap_or_default();
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = |member: &str| problem[member].as_str().map(str::to_owned);
    for field in problem["details"]["fields"].as_array().into_iter().flatten() {
        let part = |member: &str| field[member].as_str().unwrap_or_default().to_owned();
        output::note(format_args!("  {}: {}", plain::line(&part("path")), plain::line(&part("message"))));
    }
    let lines = [
        ("stage", text("stage")),
        ("error type", text("error_type")),
        ("remote trace", text("remote_trace")),
        ("request id", text("request_id")),
        ("retry after", retry_after.map(|seconds| format!("{seconds} s"))),
        ("location", location),
    ];
    for (label, value) in lines {
        if let Some(value) = value {
            output::note(format_args!("  {label}: {}", plain::indented(&value)));
        }
    }
    // Errors under `/v2` are `{"error": …}`, and a proxy may answer with any text.
    let message = text("message").or_else(|| text("error")).unwrap_or_else(|| first_line(&body));
    let kind = text("kind").map(|kind| format!("{kind}: ")).unwrap_or_default();
    let message = format!("{status} {reason}: {kind}{message}");
    CliError::Answered { status, message: message.trim_end_matches([' ', ':']).to_owned() }
}

/// The first line of a page, shortened.
fn first_line(body: &[u8]) -> String {
    String::from_utf8_lossy(body).lines().next().unwrap_or_default().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_of_the_arguments_is_valid() {
        CallArgs::command().debug_assert();
    }

    fn parse(line: &str) -> Result<CallArgs, String> {
        let matches = CallArgs::command().try_get_matches_from(line.split(' '));
        matches.and_then(|matches| CallArgs::from_matches(&matches)).map_err(|error| error.to_string())
    }

    #[test]
    fn one_help_lists_the_options_of_http_and_of_quic() {
        let help = CallArgs::command().render_long_help().to_string();
        let (of_all, rest) = help.split_once("Over HTTP:").unwrap();
        let (of_http, of_quic) = rest.split_once("Over QUIC:").unwrap();
        for (part, option) in
            [(of_all, "--timeout"), (of_all, "--output"), (of_http, "--include"), (of_quic, "--cluster")]
        {
            assert!(part.contains(option), "{option}: {help}");
        }
    }

    #[test]
    fn options_without_effect_are_refused_with_a_reason() {
        for (line, part) in [
            ("call quic://h:1 /f --http2", "--http2: there is no HTTP between here and quic://h:1"),
            ("call quic://h:1 /f --include", "--include: there is no HTTP"),
            ("call quic://h:1 /f --accept text/plain", "--accept: there is no HTTP"),
            ("call http://h:1 /f --cluster d", "--cluster: an identity is shown over QUIC only"),
            ("call http://h:1 f", "a route begins with `/`"),
            ("call quic://h:1 f --json 1", "a route begins with `/`"),
            ("call ftp://h:1 /f", "http, https and quic are spoken here"),
            ("call quic://h /f", "expected a port"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
        let named = |place: &str| {
            let matches = CallArgs::command().try_get_matches_from(["call", place, "GET /items", "--json", "1"]);
            matches.and_then(|matches| CallArgs::from_matches(&matches)).map_err(|error| error.to_string())
        };
        assert!(named("quic://h:1").is_ok(), "over QUIC a route is called by its name");
        let refused = named("http://h:1").unwrap_err();
        assert!(refused.contains("as in `/items`; its method comes with --method"), "{refused}");
        let functions = ["call quic://h:1 f", "call quic://h:1 f --arg 1", "call http://h:1 f --arg u=quic://a"];
        assert!(functions.into_iter().all(|line| parse(line).is_ok()), "a function is called by its name");
    }

    #[test]
    fn only_text_is_shown_at_terminals() {
        let texts = ["application/json", "text/event-stream; charset=utf-8", "application/problem+json"].map(is_text);
        let binaries = ["application/msgpack", "image/png", ""].map(is_text);
        assert_eq!((texts, binaries), ([true; 3], [false; 3]));
    }
}
