//! `callboard mcp`: the tools of an app, or of a running node, on stdin and stdout, for hosts that start their servers.
//!
//! Stdout has the messages of the protocol and nothing else; everything for people goes to stderr. No port is opened.
//! The end of stdin, and a signal, end the command: the calls in progress are cancelled and the app is shut down.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::edited_text;
use callboard_config::{Plan, SecretSource, Source, Sourced};
use callboard_core::App;
use callboard_http::axum::http::header::AUTHORIZATION;
use callboard_http::axum::http::{HeaderMap, HeaderName, HeaderValue};
use callboard_http::{ApiInfo, HttpConfig, HttpEdge};
use callboard_http_client::{Answer, Call, ClientError, Connection, Origin, Protocol, Trust};
use callboard_mcp::{
    AnswerBody, ExchangeError, HostMessage, LocalNode, McpProtocol, MessageExchange, PostedAnswer, serve_stdio,
};
use clap::{Arg, ArgMatches, Command};

use super::block_on;
use crate::client::args::header;
use crate::client::trust;
use crate::error::{CliError, chain};
use crate::logging::Log;
use crate::output;
use crate::service::{Service, check_tools, http_config, mcp_config, title};
use crate::signals::Signals;

/// Where the messages go, and what each of them has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct McpArgs {
    /// The running node; `None` if an app is started.
    pub(crate) node: Option<Origin>,
    ca_file: Option<PathBuf>,
    headers: Vec<(String, String)>,
    key: Option<String>,
}

/// The longest message that a running node is sent; its own limit of bodies holds besides.
const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// How long its calls may take to end, and then the app in good order, before its processes are killed: hosts send a
/// signal after two seconds.
const DRAIN: Duration = Duration::from_millis(500);

impl McpArgs {
    /// The grammar, without the target and the settings.
    pub(crate) fn command() -> Command {
        Command::new("mcp")
            .about(
                "Serve tools to a desktop host on stdin and stdout: those of an app, or with --url of a running node",
            )
            .args([
                Arg::new("url")
                    .long("url")
                    .value_name("URL")
                    .conflicts_with("target")
                    .value_parser(node)
                    .help("Pass the messages on to this running node, such as http://127.0.0.1:8000"),
                Arg::new("key")
                    .long("key")
                    .value_name("FILE | env:NAME")
                    .help("Send the API key in this file or environment variable, as a bearer token"),
                header("Add this header; may be repeated"),
                trust::arg(),
            ])
    }

    /// The parsed arguments.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Self {
        Self {
            node: matches.get_one::<Origin>("url").cloned(),
            ca_file: matches.get_one::<PathBuf>("ca-file").cloned(),
            headers: matches.get_many::<(String, String)>("header").into_iter().flatten().cloned().collect(),
            key: matches.get_one::<String>("key").cloned(),
        }
    }

    /// The headers of each message.
    fn headers(&self) -> Result<HeaderMap, CliError> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            let invalid = |error: &dyn std::error::Error| CliError::Usage(format!("--header {name}: {}", chain(error)));
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| invalid(&error))?;
            headers.append(name, HeaderValue::from_str(value).map_err(|error| invalid(&error))?);
        }
        if let Some(source) = &self.key {
            let key = match SecretSource::variable(source) {
                Some(name) => std::env::var(name)
                    .map_err(|error| CliError::because(format_args!("--key: the variable {name}"), &error)),
                None => fs::read_to_string(source)
                    .map_err(|error| CliError::because(format_args!("--key {source}"), &error)),
            }?;
            let key = HeaderValue::from_str(&format!("Bearer {}", edited_text(&key).trim()));
            let mut key = key.map_err(|_| CliError::Usage("--key: a key is one line of text".to_owned()))?;
            key.set_sensitive(true);
            headers.insert(AUTHORIZATION, key);
        }
        Ok(headers)
    }
}

/// A node's URL, also with the path of the protocol.
fn node(text: &str) -> Result<Origin, String> {
    let base = text.trim_end_matches('/');
    base.strip_suffix("/mcp").unwrap_or(base).parse::<Origin>().map_err(|error| error.to_string())
}

/// Passes messages on to a running node.
pub(crate) fn bridge(args: &McpArgs, origin: &Origin) -> Result<(), CliError> {
    let trust = trust::read(args.ca_file.as_deref(), [origin])?;
    let node = RemoteNode { trust, headers: args.headers()?, origin: origin.clone() };
    block_on(async {
        let mut signals = listen()?;
        serve(&mut signals, node, MAX_MESSAGE_BYTES).await
    })
}

/// Starts the app and serves its tools.
pub(crate) fn run(plan: Plan, app: Option<App>, info: ApiInfo, args: &McpArgs, log: &Log) -> Result<(), CliError> {
    let settings = &plan.settings;
    for (flag, is_set) in [("quic", is_given(&settings.quic)), ("join", is_given(&settings.join))] {
        if is_set {
            let message = format!("--{flag}: this command opens no port; serve the app, and pass --url of that node");
            return Err(CliError::Usage(message));
        }
    }
    if args.ca_file.is_some() {
        return Err(CliError::Usage("--ca-file: certificates are shown over https only, with --url".to_owned()));
    }
    let headers = args.headers()?;
    // The only caller is the program that has started this one: it needs no key, and has no network in between.
    #[cfg(feature = "process")]
    callboard_config::assemble::check_store(&plan)?;
    let config = http_config(&plan)?;
    let config = HttpConfig { api_keys: None, rate_limit: None, tls: None, doors_off: Vec::new(), ..config };
    let mcp = mcp_config(&plan, &info);
    let title = title(&plan.target);
    let longest = plan.routes.iter().map(|route| route.max_body_bytes.value).fold(config.max_body_bytes, u64::max);
    block_on(async {
        let mut signals = listen()?;
        let Service { app, plan, .. } = Service::new(plan, app)?;
        let node = tokio::select! {
            node = Service::start(app) => node?,
            signal = signals.next() => return Err(CliError::Failed(format!("{signal} before the start was complete"))),
        };
        let client = node.client();
        check_tools(&plan, &client)?;
        let protocol = McpProtocol::new(mcp);
        let tools = match &protocol.tool_names(&client)[..] {
            [] => "has no tools: `mcp = true` makes one of a route, and --mcp of all".to_owned(),
            names => format!("serves tools on stdin and stdout: {}", names.join(", ")),
        };
        log.stderr.note(format_args!("callboard: {title} {tools}"));
        let edge = HttpEdge::try_new(client, config, info, vec![Arc::new(protocol)]);
        let edge = edge.map_err(|error| CliError::because("not started", &error))?;
        let longest = usize::try_from(longest).unwrap_or(usize::MAX).saturating_add(ENVELOPE_BYTES);
        let served = serve(&mut signals, LocalNode::new(edge, headers), longest).await;
        let ending = async {
            let _ = node.drain(DRAIN).await;
            node.stop(DRAIN).await;
        };
        // A second signal ends the processes at once.
        tokio::select! {
            () = ending => {}
            _ = signals.next() => {}
        }
        served
    })
}

/// What a message has besides the arguments of its tool.
const ENVELOPE_BYTES: usize = 64 << 10;

fn is_given<T>(setting: &Sourced<T>) -> bool {
    !matches!(setting.source, Source::Default)
}

fn listen() -> Result<Signals, CliError> {
    Signals::listen().map_err(|error| CliError::because("could not listen for signals", &error))
}

/// Serves until stdin ends, stdout has no reader, or a signal comes: a host ends its servers by any of them.
async fn serve(signals: &mut Signals, node: impl MessageExchange, longest: usize) -> Result<(), CliError> {
    let served = serve_stdio(tokio::io::stdin(), output::messages(), node, longest);
    tokio::select! {
        served = served => served.map_err(|error| CliError::because("could not read stdin", &error)),
        _ = signals.next() => Ok(()),
    }
}

/// A running node. Each message has a connection of its own, so that closing it ends that message only.
struct RemoteNode {
    origin: Origin,
    trust: Option<Trust>,
    headers: HeaderMap,
}

impl MessageExchange for RemoteNode {
    async fn post(&self, message: HostMessage) -> Result<PostedAnswer, ExchangeError> {
        let not_sent = |error: ClientError| ExchangeError::NotSent(chain(&error));
        let headers = self
            .headers
            .iter()
            .chain(&message.all_headers())
            .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect();
        let call = Call { method: "POST".to_owned(), route: "/mcp".to_owned(), headers, body: message.body };
        let request = call.prepare(&self.origin, Protocol::Http1).map_err(not_sent)?;
        let opened = Connection::open_trusting(&self.origin, Protocol::Http1, self.trust.as_ref()).await;
        let mut connection = opened.map_err(not_sent)?;
        let answer = connection.send(&request).await.map_err(|error| ExchangeError::Lost(chain(&error)))?;
        let media_type = answer.header("content-type").unwrap_or_default().to_owned();
        Ok(PostedAnswer::new(answer.status(), &media_type, pieces(answer, connection)))
    }
}

/// The body, which ends its connection when it is dropped.
fn pieces(answer: Answer, connection: Connection) -> AnswerBody {
    let pieces = futures_util::stream::unfold(Some((answer, connection)), |open| async {
        let (mut answer, connection) = open?;
        match answer.chunk().await {
            Ok(Some(piece)) => Some((Ok(piece), Some((answer, connection)))),
            Ok(None) => None,
            Err(error) => Some((Err(chain(&error)), None)),
        }
    });
    Box::pin(pieces)
}

#[cfg(test)]
mod tests {
    use clap::value_parser;

    use super::*;

    fn parse(line: &str) -> Result<McpArgs, String> {
        let target = Arg::new("target").value_parser(value_parser!(PathBuf));
        let matches = McpArgs::command().arg(target).try_get_matches_from(line.split(' '));
        matches.map(|matches| McpArgs::from_matches(&matches)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_node_is_named_with_or_without_the_path_of_the_protocol() {
        for url in ["http://h:1", "http://h:1/", "http://h:1/mcp", "http://h:1/mcp/", "h:1"] {
            let args = parse(&format!("mcp --url {url}")).unwrap();
            assert_eq!(args.node.map(|node| node.to_string()).as_deref(), Some("http://h:1"), "{url}");
        }
        assert!(parse("mcp --url http://h:1 app.py").unwrap_err().contains("cannot be used with"));
        assert_eq!(parse("mcp app.py").unwrap().node, None);
    }

    #[test]
    fn a_key_is_a_bearer_token() {
        let path = std::env::temp_dir().join(format!("callboard-key-{}", std::process::id()));
        fs::write(&path, "secret\n").unwrap();
        let args = parse(&format!("mcp -H x-a:1 --key {}", path.display())).unwrap();
        let headers = args.headers().unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(
            (&headers["authorization"], &headers["x-a"]),
            (&HeaderValue::from_static("Bearer secret"), &HeaderValue::from_static("1"))
        );
        for wrong in ["mcp --key env:NO_SUCH_VARIABLE_AT_ALL", "mcp --key /no/such/file"] {
            assert!(parse(wrong).unwrap().headers().is_err(), "{wrong}");
        }
    }
}
