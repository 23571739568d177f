//! What a lane sends its requests on: a connection of HTTP, or of QUIC. Everything beside that is the same for both.
//!
//! Neither does anything that would flatter the target: a call over QUIC is made once, as a request over HTTP is. A connection over
//! HTTP that failed is opened again by its lane; a client over QUIC connects again by itself, for all of its lanes.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use callboard_codec::Value;
use callboard_core::{CallError, CallOptions, ErrorKind};
use callboard_http::client::{Answer, Call, ClientError, Connection, Origin, Prepared, Protocol, Trust};
use callboard_net::{Client, ConnectError, Identity, QuicUrl, Trouble};

use super::tally::Outcome;

/// What is read of a problem document; a longer one is only counted by its status.
const MAX_PROBLEM_BYTES: usize = 64 * 1024;

/// One handshake over QUIC, where a request may take longer.
const MAX_HANDSHAKE: Duration = Duration::from_secs(2);

/// Who types a command has started the node before, or is about to.
const START_UP_WAIT: Duration = Duration::from_secs(3);

/// What is asked, again and again, and of whom; where there are several requests, one after the other.
#[derive(Clone, Debug)]
pub(crate) enum Aim {
    Http { origin: Origin, protocol: Protocol, trust: Option<Trust>, requests: Arc<[Prepared]> },
    Quic { url: QuicUrl, identity: Identity, route: String, requests: Arc<[callboard_net::Prepared]> },
}

impl Aim {
    /// At a server of HTTP.
    pub(crate) fn http(
        origin: &Origin,
        protocol: Protocol,
        trust: Option<Trust>,
        calls: &[Call],
    ) -> Result<Self, ClientError> {
        let requests: Result<_, _> = calls.iter().map(|call| call.prepare(origin, protocol)).collect();
        Ok(Self::Http { origin: origin.clone(), protocol, trust, requests: requests? })
    }

    /// At a node, by the route's path or the function's name.
    pub(crate) fn quic(url: &QuicUrl, identity: Identity, route: &str, calls: Vec<callboard_net::Prepared>) -> Self {
        Self::Quic { url: url.clone(), identity, route: route.to_owned(), requests: calls.into() }
    }

    /// How many different requests there are.
    pub(super) fn requests(&self) -> usize {
        match self {
            Self::Http { requests, .. } => requests.len(),
            Self::Quic { requests, .. } => requests.len(),
        }
    }

    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// The outcome of a request that would have gone on it.
    pub(super) async fn open(&self, timeout: Duration) -> Result<Wire, Outcome> {
        match self {
            Self::Http { origin, protocol, trust, requests } => {
                match Connection::open_trusting(origin, *protocol, trust.as_ref()).await {
                    Ok(connection) => Ok(Wire::Http { connection, requests: Arc::clone(requests) }),
                    Err(error) => Err(Outcome::Broken(error.as_str())),
                }
            }
            Self::Quic { url, identity, route, requests } => {
                let absent = || Outcome::Broken("connect");
                let client = connect(url, identity, timeout, Duration::ZERO).await.map_err(|_| absent())?;
                let streams = client.streams(route).await.map_err(|_| absent())?;
                Ok(Wire::Quic { client, requests: Arc::clone(requests), timeout, streams })
            }
        }
    }

    /// Makes the first request alone. What is wrong with the answer, in words; nothing where it is a success.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub(crate) async fn ask_once(&self, timeout: Duration) -> Result<Option<String>, Box<dyn Error + Send + Sync>> {
        match self {
            Self::Http { origin, protocol, trust, requests } => {
                let mut connection = Connection::open_trusting(origin, *protocol, trust.as_ref()).await?;
                let answer = connection.send(&requests[0]).await?;
                let (status, reason) = (answer.status(), answer.reason());
                let body = answer.bytes(MAX_PROBLEM_BYTES).await;
                if (200..300).contains(&status) {
                    return Ok(None);
                }
                let said = body.ok().and_then(|body| member(&body, "message")).unwrap_or_default();
                Ok(Some(format!("{status} {reason}: {said}").trim_end_matches([' ', ':']).to_owned()))
            }
            Self::Quic { url, identity, route, requests } => {
                let client = connect(url, identity, timeout, timeout.min(START_UP_WAIT)).await?;
                let streams = client.streams(route).await?;
                match ask(&client, &requests[0], timeout, streams).await {
                    Ok(_) => Ok(None),
                    Err(error) => match Trouble::of(&error) {
                        Trouble::NeverStarted | Trouble::ConnectionLost => Err(error.into()),
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

/// Makes one call over QUIC, and reads all that it gives: how many bytes that were. An error in the middle of a stream is its outcome.
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

/// A connection, and what is sent on it.
#[derive(Debug)]
pub(super) enum Wire {
    Http {
        connection: Connection,
        requests: Arc<[Prepared]>,
    },
    /// What streams is read to its end.
    Quic {
        client: Client,
        requests: Arc<[callboard_net::Prepared]>,
        timeout: Duration,
        streams: bool,
    },
}

impl Wire {
    /// Another handle on it, where there may be several requests at a time.
    pub(super) fn share(&self) -> Option<Self> {
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

    /// Whether it has to be opened again.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Http { connection, .. } => connection.is_closed(),
            Self::Quic { .. } => false,
        }
    }

    /// Sends one of the requests, and reads its answer to the end.
    pub(super) async fn exchange(&mut self, request: usize) -> Outcome {
        match self {
            Self::Http { connection, requests } => {
                let read = async { read(connection.send(&requests[request]).await?).await };
                read.await.unwrap_or_else(|error| Outcome::Broken(error.as_str()))
            }
            Self::Quic { client, requests, timeout, streams } => {
                let end = Instant::now() + *timeout;
                match ask(client, &requests[request], *timeout, *streams).await {
                    Ok(bytes) => Outcome::Answered { status: None, kind: None, bytes },
                    Err(error) => of_error(&error, Instant::now() >= end),
                }
            }
        }
    }
}

/// The rest of an answer. Of one that is no success its kind is kept.
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

/// Of a server's word for an error. Ours are shorter, and a server may have any.
const MAX_KIND_CHARS: usize = 64;

fn member(problem: &[u8], name: &str) -> Option<String> {
    let problem: serde_json::Value = serde_json::from_slice(problem).ok()?;
    problem[name].as_str().map(str::to_owned)
}

/// A node's refusals have the kinds that problem documents have; what the transport did has the words of HTTP's client.
fn of_error(error: &CallError, is_late: bool) -> Outcome {
    match (error.kind(), Trouble::of(error)) {
        (ErrorKind::DeadlineExceeded, _) if is_late => Outcome::TimedOut,
        (_, Trouble::ConnectionLost) => Outcome::Broken("closed"),
        (kind, _) => Outcome::Answered { status: None, kind: Some(kind.as_str().to_owned()), bytes: 0 },
    }
}

#[cfg(test)]
mod tests {
    use callboard_core::edge::ErrorParts;
    use callboard_core::{App, Failure, StreamStage};
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
        let aim = Aim::quic(&format!("quic://{}", edge.address()).parse().unwrap(), identity, "/count", calls);
        // The first of them fails in the middle.
        assert_eq!(aim.ask_once(timeout).await.unwrap().unwrap(), "failed: 13 (stage `count`)");
        let mut wire = aim.open(timeout).await.unwrap();
        let mut bytes = Vec::new();
        for request in [1, 2] {
            let Outcome::Answered { status: None, kind: None, bytes: received } = wire.exchange(request).await else {
                panic!("a success");
            };
            bytes.push(received);
        }
        // 6 outputs and 10 of the same length.
        assert!(bytes[0] > 0 && bytes[0] * 10 == bytes[1] * 6, "{bytes:?}");
        let failed = Outcome::Answered { status: None, kind: Some("failed".to_owned()), bytes: 0 };
        assert_eq!(wire.exchange(0).await, failed);
    }

    #[test]
    fn errors_over_quic_have_the_words_of_http() {
        let refusal = CallError::new(ErrorKind::Overloaded, "full");
        let kind = Some("overloaded".to_owned());
        assert_eq!(of_error(&refusal, true), Outcome::Answered { status: None, kind, bytes: 0 });
        // A route's own, shorter deadline is an answer; ours is none.
        let late = CallError::new(ErrorKind::DeadlineExceeded, "late");
        let kind = Some("deadline_exceeded".to_owned());
        assert_eq!(of_error(&late, false), Outcome::Answered { status: None, kind, bytes: 0 });
        assert_eq!(of_error(&late, true), Outcome::TimedOut);
        let mut lost = ErrorParts::new(ErrorKind::Unavailable, "lost");
        lost.started = true;
        lost.error_type = Some("connection_lost".to_owned());
        assert_eq!(of_error(&lost.into(), false), Outcome::Broken("closed"));
    }
}
