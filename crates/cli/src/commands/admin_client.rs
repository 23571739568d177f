//! How a command asks the admin listener of a node.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use callboard_http_client::{Answer, Call, Connection, Origin, Protocol};
use clap::{Arg, ArgMatches};
use serde_json::Value;

use super::block_on;
use crate::client::args::{header, timeout, value_of};
use crate::client::trust;
use crate::error::{CliError, chain};

/// A node with thousands of stages answers with less.
const MAX_BYTES: usize = 64 << 20;

/// The admin listener to ask.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AdminClient {
    origin: Origin,
    headers: Vec<(String, String)>,
    timeout: Duration,
    ca_file: Option<PathBuf>,
}

impl AdminClient {
    /// The arguments, with this timeout by default.
    pub(crate) fn args(default_timeout: &'static str) -> [Arg; 4] {
        [
            Arg::new("url")
                .value_name("URL")
                .default_value("http://127.0.0.1:8001")
                .value_parser(origin)
                .help("The node's admin listener, over HTTP"),
            header("Add this header, such as an API key; may be repeated"),
            timeout(default_timeout, "How long to wait for the answer"),
            trust::arg(),
        ]
    }

    /// Reads the matches of clap.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Self {
        Self::to(value_of(matches, "url"), matches)
    }

    /// The same, for this listener.
    pub(super) fn to(origin: Origin, matches: &ArgMatches) -> Self {
        Self {
            origin,
            headers: matches.get_many::<(String, String)>("header").into_iter().flatten().cloned().collect(),
            timeout: value_of(matches, "timeout"),
            ca_file: matches.get_one::<PathBuf>("ca-file").cloned(),
        }
    }

    /// Asks once. An answer that is no success is an error with its message.
    pub(crate) fn ask(&self, method: &str, route: String) -> Result<Value, CliError> {
        self.send(Call { method: method.to_owned(), route, headers: self.headers.clone(), body: Bytes::new() })
    }

    /// The same as a POST with this body.
    pub(crate) fn post(&self, route: String, body: &Value) -> Result<Value, CliError> {
        let mut headers = self.headers.clone();
        headers.push(("content-type".to_owned(), "application/json".to_owned()));
        self.send(Call { method: "POST".to_owned(), route, headers, body: body.to_string().into() })
    }

    /// The text of a page.
    pub(crate) fn page(&self, route: String) -> Result<String, CliError> {
        let call = Call { method: "GET".to_owned(), route, headers: self.headers.clone(), body: Bytes::new() };
        Ok(String::from_utf8_lossy(&self.body(call)?).into_owned())
    }

    fn send(&self, call: Call) -> Result<Value, CliError> {
        let url = self.origin.url_of(&call.route);
        serde_json::from_slice(&self.body(call)?)
            .map_err(|_| CliError::Failed(format!("{url}: the answer is not that of an admin listener")))
    }

    /// Gives the pieces of a page that does not end to `take`, until that returns `false`. A page that ends, or pauses
    /// for longer than the timeout, is an error.
    pub(crate) fn follow(&self, route: &str, mut take: impl FnMut(&[u8]) -> bool) -> Result<(), CliError> {
        let call = Call {
            method: "GET".to_owned(),
            route: route.to_owned(),
            headers: self.headers.clone(),
            body: Bytes::new(),
        };
        let url = self.origin.url_of(route);
        block_on(async {
            let (_connection, mut answer) = self.in_time(&url, self.open(&url, call)).await?;
            loop {
                let next = async { answer.chunk().await.map_err(|error| CliError::because(&url, &error)) };
                match self.in_time(&url, next).await? {
                    Some(piece) if take(&piece) => {}
                    Some(_) => return Ok(()),
                    None => return Err(CliError::Failed(format!("{url}: the stream has ended"))),
                }
            }
        })
    }

    fn body(&self, call: Call) -> Result<Bytes, CliError> {
        let url = self.origin.url_of(&call.route);
        block_on(self.in_time(&url, async {
            let (_connection, answer) = self.open(&url, call).await?;
            answer.bytes(MAX_BYTES).await.map_err(|error| CliError::because(&url, &error))
        }))
    }

    /// Sends the call. An answer that is no success is an error with its message.
    async fn open(&self, url: &str, call: Call) -> Result<(Connection, Answer), CliError> {
        let failed = |error| CliError::because(url, &error);
        let trust = trust::read(self.ca_file.as_deref(), [&self.origin])?;
        let request = call.prepare(&self.origin, Protocol::Http1).map_err(|error| CliError::Usage(chain(&error)))?;
        let opened = Connection::open_trusting(&self.origin, Protocol::Http1, trust.as_ref()).await;
        let mut connection = opened.map_err(failed)?;
        let answer = connection.send(&request).await.map_err(failed)?;
        let status = answer.status();
        if (200..300).contains(&status) {
            return Ok((connection, answer));
        }
        Err(refused(url, &call.method, status, &answer.bytes(MAX_BYTES).await.map_err(failed)?))
    }

    async fn in_time<T>(&self, url: &str, work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
        let outcome = tokio::time::timeout(self.timeout, work).await;
        outcome.map_err(|_| CliError::Failed(format!("{url}: no whole answer within {:?}", self.timeout)))?
    }
}

/// The admin listener speaks HTTP only.
pub(super) fn origin(text: &str) -> Result<Origin, String> {
    if text.starts_with("quic://") {
        Err(format!("{text} serves calls; the admin listener serves the status, such as http://127.0.0.1:8001"))
    } else {
        text.parse::<Origin>().map_err(|error| error.to_string())
    }
}

fn refused(url: &str, method: &str, status: u16, body: &[u8]) -> CliError {
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = problem["message"].as_str().map_or_else(String::new, |message| format!(": {message}"));
    // The pages are always there; what is changed may not be.
    let hint = if status == 404 && method == "GET" { "; the admin listener serves this page" } else { "" };
    CliError::Failed(format!("{url} answered {status}{message}{hint}"))
}
