//! The target of a load, and a connection to it, over HTTP or QUIC.
//!
//! Neither protocol retries, because a retry would hide a failure of the target. A lane opens a failed HTTP connection
//! again; a QUIC client connects again by itself, for all of its lanes.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use callboard_codec::Value;
use callboard_core::{CallError, CallOptions};
use callboard_http_client::{Answer, Call, ClientError, Connection, Origin, Prepared, Protocol, Trust};
use callboard_net::{CallFailure, Client, ConnectError, Identity, QuicUrl};

use crate::stats::Outcome;

/// The most bytes that are read of a problem document; a longer one counts by its status only.
const MAX_PROBLEM_BYTES: usize = 64 * 1024;

/// The limit of one QUIC handshake; a request may take longer.
const MAX_HANDSHAKE: Duration = Duration::from_secs(2);

/// How long the first call waits for a starting node.
const START_UP_WAIT: Duration = Duration::from_secs(3);

/// The target, and the requests that are sent to it in turns.
#[derive(Clone, Debug)]
pub enum Target {
    /// Over HTTP.
    Http {
        /// The server.
        origin: Origin,
        /// The version of HTTP.
        protocol: Protocol,
        /// The trusted authorities, over https.
        trust: Option<Trust>,
        /// The requests.
        requests: Arc<[Prepared]>,
    },
    /// Over QUIC.
    Quic {
        /// The node.
        url: QuicUrl,
        /// The identity of the caller.
        identity: Identity,
        /// The path of the route, or the name of the function.
        route: String,
        /// The calls.
        requests: Arc<[callboard_net::Prepared]>,
    },
}

impl Target {
    /// A target over HTTP.
    ///
    /// # Errors
    ///
    /// A call that HTTP cannot express.
    pub fn http(
        origin: &Origin,
        protocol: Protocol,
        trust: Option<Trust>,
        calls: &[Call],
    ) -> Result<Self, ClientError> {
        let requests: Result<_, _> = calls.iter().map(|call| call.prepare(origin, protocol)).collect();
        Ok(Self::Http { origin: origin.clone(), protocol, trust, requests: requests? })
    }

    /// A node over QUIC, with the route's path or the function's name.
    #[must_use]
    pub fn quic(url: &QuicUrl, identity: Identity, route: &str, calls: Vec<callboard_net::Prepared>) -> Self {
        Self::Quic { url: url.clone(), identity, route: route.to_owned(), requests: calls.into() }
    }

    /// The number of different requests.
    pub(crate) fn requests(&self) -> usize {
        match self {
            Self::Http { requests, .. } => requests.len(),
            Self::Quic { requests, .. } => requests.len(),
        }
    }

    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// The outcome of the request that needs the connection.
    pub(crate) async fn open(&self, timeout: Duration) -> Result<TargetConnection, Outcome> {
        match self {
            Self::Http { origin, protocol, trust, requests } => {
                match Connection::open_trusting(origin, *protocol, trust.as_ref()).await {
                    Ok(connection) => Ok(TargetConnection::Http { connection, requests: Arc::clone(requests) }),
                    Err(error) => Err(Outcome::Broken(error.as_str())),
                }
            }
            Self::Quic { url, identity, route, requests } => {
                let absent = || Outcome::Broken("connect");
                let client = connect(url, identity, timeout, Duration::ZERO).await.map_err(|_| absent())?;
                let streams = client.is_streaming(route).await.map_err(|_| absent())?;
                Ok(TargetConnection::Quic { client, requests: Arc::clone(requests), timeout, streams })
            }
        }
    }

    /// Sends the first request once. Returns the description of an error answer, or `None` for a success.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub async fn probe(&self, timeout: Duration) -> Result<Option<String>, Box<dyn Error + Send + Sync>> {
        match self {
            Self::Http { origin, protocol, trust, requests } => {
                let mut connection = Connection::open_trusting(origin, *protocol, trust.as_ref()).await?;
                let answer = connection.send(&requests[0]).await?;
                let (status, reason) = (answer.status(), answer.reason());
                let body = answer.bytes(MAX_PROBLEM_BYTES).await;
                if (200..300).contains(&status) {
                    return Ok(None);
                }
                let message = body.ok().and_then(|body| member(&body, "message")).unwrap_or_default();
                Ok(Some(format!("{status} {reason}: {message}").trim_end_matches([' ', ':']).to_owned()))
            }
            Self::Quic { url, identity, route, requests } => {
                let client = connect(url, identity, timeout, timeout.min(START_UP_WAIT)).await?;
                let streams = client.is_streaming(route).await?;
                match ask(&client, &requests[0], timeout, streams).await {
                    Ok(_) => Ok(None),
                    Err(error) => match CallFailure::classify(&error) {
                        CallFailure::NeverStarted | CallFailure::ConnectionLost => Err(error.into()),
                        _ => Ok(Some(error.to_string())),
                    },
                }
            }
        }
    }
}

async fn connect(
    url: &QuicUrl,
    identity: &Identity,
    timeout: Duration,
    wait: Duration,
) -> Result<Client, ConnectError> {
    let builder = Client::builder().identity(identity.clone()).attempts(1).start_up_wait(wait);
    builder.connect_timeout(timeout.min(MAX_HANDSHAKE)).connect(&url.to_string()).await
}

/// Makes one call over QUIC, reads all its outputs and returns their bytes. An error in a stream is the outcome.
async fn ask(
    client: &Client,
    call: &callboard_net::Prepared,
    timeout: Duration,
    streams: bool,
) -> Result<u64, CallError> {
    let options = CallOptions::new().with_timeout(timeout);
    if !streams {
        return client.exchange::<Value>(call.clone(), options).await.map(|returned| returned.received_bytes);
    }
    let mut outputs = client.exchange_streaming::<Value>(call.clone(), options);
    let mut bytes = 0;
    while let Some(output) = outputs.next().await {
        bytes += output?.received_bytes;
    }
    Ok(bytes)
}

/// A connection, and the requests that are sent on it.
#[derive(Debug)]
pub(crate) enum TargetConnection {
    Http { connection: Connection, requests: Arc<[Prepared]> },
    Quic { client: Client, requests: Arc<[callboard_net::Prepared]>, timeout: Duration, streams: bool },
}

impl TargetConnection {
    /// Another handle on the connection, if the protocol allows several requests at a time.
    pub(crate) fn share(&self) -> Option<Self> {
        match self {
            Self::Http { connection, requests } => {
                Some(Self::Http { connection: connection.share()?, requests: Arc::clone(requests) })
            }
            Self::Quic { client, requests, timeout, streams } => {
                let (client, requests) = (client.clone(), Arc::clone(requests));
                Some(Self::Quic { client, requests, timeout: *timeout, streams: *streams })
            }
        }
    }

    /// Whether the connection must be opened again.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::Http { connection, .. } => connection.is_closed(),
            Self::Quic { .. } => false,
        }
    }

    /// Sends one of the requests and reads its answer to the end.
    pub(crate) async fn exchange(&mut self, request: usize) -> Outcome {
        match self {
            Self::Http { connection, requests } => {
                let read = async { read(connection.send(&requests[request]).await?).await };
                read.await.unwrap_or_else(|error| Outcome::Broken(error.as_str()))
            }
            Self::Quic { client, requests, timeout, streams } => {
                let end = Instant::now() + *timeout;
                match ask(client, &requests[request], *timeout, *streams).await {
                    Ok(bytes) => Outcome::Answered { status: None, kind: None, bytes },
                    Err(error) => outcome_from_error(&error, Instant::now() >= end),
                }
            }
        }
    }
}

/// Reads the rest of an answer, and the kind of an error.
async fn read(answer: Answer) -> Result<Outcome, ClientError> {
    let status = answer.status();
    if (200..300).contains(&status) {
        return Ok(Outcome::Answered { status: Some(status), kind: None, bytes: answer.discard().await? });
    }
    let body = answer.bytes(MAX_PROBLEM_BYTES).await?;
    let kind = member(&body, "kind").map(|kind| kind.chars().take(MAX_KIND_CHARS).collect());
    let kind = kind.unwrap_or_else(|| format!("http_{status}"));
    Ok(Outcome::Answered { status: Some(status), kind: Some(kind), bytes: body.len() as u64 })
}

/// The longest kind of an error that is stored; a target may send any text.
const MAX_KIND_CHARS: usize = 64;

fn member(problem: &[u8], name: &str) -> Option<String> {
    let problem: serde_json::Value = serde_json::from_slice(problem).ok()?;
    problem[name].as_str().map(str::to_owned)
}

/// Refusals of a node have the kinds of problem documents. Failures of the transport have the words of the HTTP client.
fn outcome_from_error(error: &CallError, is_late: bool) -> Outcome {
    match CallFailure::classify(error) {
        CallFailure::Deadline if is_late => Outcome::TimedOut,
        CallFailure::ConnectionLost => Outcome::Broken("closed"),
        _ => Outcome::Answered { status: None, kind: Some(error.kind().as_str().to_owned()), bytes: 0 },
    }
}

#[cfg(test)]
mod tests {
    use callboard_core::edge::ErrorParts;
    use callboard_core::{App, ErrorKind, Failure, StreamStage};
    use callboard_net::{NetConfig, QuicEdge};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_streaming_route_is_read_to_its_end_over_quic() {
        let directory = std::env::temp_dir().join(format!("callboard-bench-{}", std::process::id()));
        let identity = Identity::development_in(&directory.join("development")).unwrap();
        std::fs::remove_dir_all(directory).unwrap();
        let edge = QuicEdge::bind("127.0.0.1:0".parse().unwrap(), identity.clone(), NetConfig::default()).unwrap();
        let count = StreamStage::each("count", |n: &u64| {
            let n = *n;
            futures_util::stream::iter((0..=n).map(move |k| if k == 13 { Err(Failure::new("13")) } else { Ok(k) }))
        });
        let node = App::new().route_streaming("/count", count).start().await.unwrap();
        edge.open(node.client());
        let timeout = Duration::from_secs(60);
        let calls = [40_u64, 5, 9].map(|n| callboard_net::Prepared::new("/count", n).unwrap()).to_vec();
        let target = Target::quic(&format!("quic://{}", edge.address()).parse().unwrap(), identity, "/count", calls);
        // The first call fails in the middle of its stream.
        assert_eq!(target.probe(timeout).await.unwrap().unwrap(), "failed: 13 (stage `count`)");
        let mut connection = target.open(timeout).await.unwrap();
        let mut bytes = Vec::new();
        for request in [1, 2] {
            let Outcome::Answered { status: None, kind: None, bytes: received } = connection.exchange(request).await
            else {
                panic!("a success");
            };
            bytes.push(received);
        }
        // 6 outputs and 10 of the same length.
        assert!(bytes[0] > 0 && bytes[0] * 10 == bytes[1] * 6, "{bytes:?}");
        let failed = Outcome::Answered { status: None, kind: Some("failed".to_owned()), bytes: 0 };
        assert_eq!(connection.exchange(0).await, failed);
    }

    #[test]
    fn errors_over_quic_have_the_same_words_as_over_http() {
        let refusal = CallError::new(ErrorKind::Overloaded, "full");
        let kind = Some("overloaded".to_owned());
        assert_eq!(outcome_from_error(&refusal, true), Outcome::Answered { status: None, kind, bytes: 0 });
        // A deadline of the route is an answer; the timeout of the load is not.
        let late = CallError::new(ErrorKind::DeadlineExceeded, "late");
        let kind = Some("deadline_exceeded".to_owned());
        assert_eq!(outcome_from_error(&late, false), Outcome::Answered { status: None, kind, bytes: 0 });
        assert_eq!(outcome_from_error(&late, true), Outcome::TimedOut);
        let lost = ErrorParts::connection_lost("lost");
        assert_eq!(outcome_from_error(&lost.into(), false), Outcome::Broken("closed"));
    }
}
