//! `callboard status`: the status of a running node, from its admin listener, as tables.

use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use callboard_http_client::{Call, Connection, Origin, Protocol};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use super::super::client::args::{header, timeout, value_of};
use super::super::client::trust;
use super::super::error::{CliError, chain};
use super::super::{output, plain};
use super::block_on;

/// A node with thousands of stages answers with less.
const MAX_BYTES: usize = 64 << 20;

/// The admin listener to ask.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StatusArgs {
    origin: Origin,
    headers: Vec<(String, String)>,
    timeout: Duration,
    is_json: bool,
    ca_file: Option<PathBuf>,
}

impl StatusArgs {
    /// The grammar.
    pub(crate) fn command() -> Command {
        Command::new("status").about("Show the stages, replicas and queues of a running node").args([
            Arg::new("url")
                .value_name("URL")
                .default_value("http://127.0.0.1:8001")
                .value_parser(admin)
                .help("The node's admin listener, over HTTP"),
            Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print the full status as JSON"),
            header("Add this header, such as an API key; may be repeated"),
            timeout("10s", "How long to wait for the answer"),
            trust::arg(),
        ])
    }

    /// Reads the matches of clap.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Self {
        Self {
            origin: value_of(matches, "url"),
            headers: matches.get_many::<(String, String)>("header").into_iter().flatten().cloned().collect(),
            timeout: value_of(matches, "timeout"),
            is_json: matches.get_flag("json"),
            ca_file: matches.get_one::<PathBuf>("ca-file").cloned(),
        }
    }
}

/// The admin listener speaks HTTP only.
fn admin(text: &str) -> Result<Origin, String> {
    if text.starts_with("quic://") {
        Err(format!("{text} serves calls; the admin listener serves the status, such as http://127.0.0.1:8001"))
    } else {
        text.parse::<Origin>().map_err(|error| error.to_string())
    }
}

/// Asks once, prints the answer.
pub(crate) fn run(args: &StatusArgs) -> Result<(), CliError> {
    let (method, route) = ("GET".to_owned(), "/v1/status".to_owned());
    let trust = trust::read(args.ca_file.as_deref(), [&args.origin])?;
    let url = args.origin.url_of(&route);
    let call = Call { method, route, headers: args.headers.clone(), body: Bytes::new() };
    let request = call.prepare(&args.origin, Protocol::Http1).map_err(|error| CliError::Usage(chain(&error)))?;
    let failed = |error| CliError::because(&url, &error);
    let body = block_on(async {
        let exchange = async {
            let opened = Connection::open_trusting(&args.origin, Protocol::Http1, trust.as_ref()).await;
            let mut connection = opened.map_err(failed)?;
            let answer = connection.send(&request).await.map_err(failed)?;
            let status = answer.status();
            let body = answer.bytes(MAX_BYTES).await.map_err(failed)?;
            if status == 200 { Ok(body) } else { Err(refused(&url, status, &body)) }
        };
        let outcome = tokio::time::timeout(args.timeout, exchange).await;
        outcome.map_err(|_| CliError::Failed(format!("{url}: no whole answer within {:?}", args.timeout)))?
    })?;
    let status: Value = serde_json::from_slice(&body)
        .map_err(|_| CliError::Failed(format!("{url}: the answer is not the status of a node")))?;
    if args.is_json { output::result(&status) } else { output::result(StatusText(&status)) }
}

fn refused(url: &str, status: u16, body: &[u8]) -> CliError {
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = problem["message"].as_str().map_or_else(String::new, |message| format!(": {message}"));
    let hint = if status == 404 { "; the admin listener serves the status" } else { "" };
    CliError::Failed(format!("{url} answered {status}{message}{hint}"))
}

/// The status of a node, for people.
struct StatusText<'a>(&'a Value);

impl fmt::Display for StatusText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (health, node) = (&self.0["health"], &self.0["node"]);
        let state = match (health["ready"].as_bool(), health["draining"].as_bool()) {
            (_, Some(true)) => "draining",
            (Some(true), _) => "ready",
            _ => "not ready",
        };
        let up = Duration::from_secs(self.0["uptime_seconds"].as_u64().unwrap_or_default());
        let version = text(&self.0["version"]);
        writeln!(f, "callboard {version}, {state}, up {}", shown_span(up))?;
        let calls = ["in_flight", "admitted", "refused"].map(|key| text(&node[key]));
        writeln!(f, "calls: {} in flight, {} admitted and {} refused since the start\n", calls[0], calls[1], calls[2])?;

        let mut routes = Table::new(["route", "revision", "pipeline"]);
        for route in items(&node["routes"]) {
            let closed = if route["closed"] == true { " (closed)" } else { "" };
            routes.row([text(&route["name"]) + closed, text(&route["revision"]), text(&route["pipeline"])]);
        }
        writeln!(f, "{routes}")?;
        let mut stages = Table::new([
            "stage",
            "state",
            "replicas",
            "busy",
            "queue",
            "batches",
            "mean size",
            "batch takes",
            "restarts",
        ]);
        for stage in items(&node["stages"]) {
            let replicas = items(&stage["replicas"]);
            let busy = replicas.iter().filter(|replica| replica["busy"] == true).count();
            stages.row([
                text(&stage["name"]),
                text(&stage["state"]),
                replicas.len().to_string(),
                busy.to_string(),
                format!("{}/{}", text(&stage["queued"]), text(&stage["queue_limit"])),
                text(&stage["batches"]),
                format!("{:.1}", stage["mean_batch_size"].as_f64().unwrap_or_default()),
                shown_span(span(&stage["batch_estimate"])),
                text(&stage["restarts"]),
            ]);
        }
        for stage in items(&health["remote_stages"]) {
            let state = if stage["ready"] == true { "remote" } else { "unreachable" };
            let mut row = std::array::from_fn(|_| "-".to_owned());
            (row[0], row[1]) = (text(&stage["name"]), state.to_owned());
            stages.row(row);
        }
        write!(f, "{stages}")?;
        if !items(&node["peers"]).is_empty() {
            let mut peers = Table::new(["peer", "node", "connected for", "stages"]);
            for peer in items(&node["peers"]) {
                let connected_for = &peer["connected_for"];
                let connected_for =
                    if connected_for.is_null() { "disconnected".to_owned() } else { shown_span(span(connected_for)) };
                let stages: Vec<String> = items(&peer["stages"]).iter().map(text).collect();
                peers.row([
                    text(&peer["address"]),
                    or_dash(text(&peer["node"])),
                    connected_for,
                    or_dash(stages.join(", ")),
                ]);
            }
            write!(f, "\n{peers}")?;
        }
        if !items(&node["actors"]).is_empty() {
            let mut actors = Table::new(["actor", "state", "for", "waiting", "restarts"]);
            for actor in items(&node["actors"]) {
                let waiting = format!("{}/{}", text(&actor["waiting"]), text(&actor["mailbox"]));
                let age = shown_span(span(&actor["age"]));
                actors.row([text(&actor["name"]), text(&actor["state"]), age, waiting, text(&actor["restarts"])]);
            }
            write!(f, "\n{actors}")?;
        }
        let down = items(&health["down_actors"]);
        for stage in items(&node["stages"]).iter().chain(items(&health["remote_stages"])).chain(down) {
            if let Some(reason) = stage["reason"].as_str() {
                write!(f, "\n{}: {}", text(&stage["name"]), plain::line(reason))?;
            }
        }
        Ok(())
    }
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => plain::line(text).into_owned(),
        Value::Null => "-".to_owned(),
        other => plain::line(&other.to_string()).into_owned(),
    }
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// Parses a `Duration` as serde writes it.
fn span(value: &Value) -> Duration {
    let part = |key: &str| value[key].as_u64().unwrap_or_default();
    Duration::new(part("secs"), u32::try_from(part("nanos")).unwrap_or_default())
}

fn shown_span(span: Duration) -> String {
    match span.as_secs() {
        0 => format!("{:.1} ms", span.as_secs_f64() * 1000.0),
        seconds @ 1..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// A table whose columns fit their contents.
struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    fn new(heads: [&str; N]) -> Self {
        Self { rows: vec![heads.map(str::to_owned)] }
    }

    fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        let widths: [usize; N] = std::array::from_fn(width);
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                write!(line, "{cell:width$}  ")?;
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_is_shown_as_tables() {
        let status = json!({
            "version": "1.2.3",
            "uptime_seconds": 3725,
            "health": { "ready": false, "draining": false },
            "node": {
                "in_flight": 3, "admitted": 10, "refused": 1,
                "routes": [{ "name": "/digits", "revision": 1, "pipeline": "decode → digits", "closed": false }],
                "stages": [{
                    "name": "digits", "state": "failed", "reason": "no such file", "queued": 2, "queue_limit": 64,
                    "batches": 4, "mean_batch_size": 2.25, "batch_estimate": { "secs": 0, "nanos": 1_500_000 },
                    "restarts": 7, "replicas": [{ "busy": true }, { "busy": false }],
                }],
                "peers": [
                    { "address": "10.0.0.2:4433", "node": "second", "connected_for": { "secs": 61, "nanos": 0 },
                      "stages": ["decode", "digits"] },
                    { "address": "10.0.0.3:4433", "node": "", "connected_for": null, "stages": [] },
                ],
            },
        });
        let expected = "\
callboard 1.2.3, not ready, up 1 h 2 min
calls: 3 in flight, 10 admitted and 1 refused since the start

route    revision  pipeline
/digits  1         decode → digits

stage   state   replicas  busy  queue  batches  mean size  batch takes  restarts
digits  failed  2         1     2/64   4        2.2        1.5 ms       7

peer           node    connected for  stages
10.0.0.2:4433  second  1 min          decode, digits
10.0.0.3:4433  -       disconnected   -

digits: no such file";
        assert_eq!(StatusText(&status).to_string(), expected);
    }

    #[test]
    fn a_missing_value_is_shown_as_a_dash() {
        assert!(StatusText(&json!({})).to_string().starts_with("callboard -, not ready"));
    }
}
