//! An edge of your own beside HTTP: a line protocol over a Unix socket. It opens with the server, and ends with it.
//!
//! A line is `ROUTE TEXT`; its answer is `ok TEXT`, or the kind of the error and its message. Run with
//! `cargo run --example unix_edge`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

#[cfg(unix)]
mod lines {
    use std::io;
    use std::path::PathBuf;
    use std::time::Duration;

    use callboard::call::Instant;
    use callboard::edge::{Edge, EdgeDescription, EdgeError, EdgeFuture};
    use callboard::{LocalClient, NodeHandle};
    use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::{UnixListener, UnixStream};
    use tokio::sync::watch;
    use tokio::task::JoinSet;

    /// The most that a connection may send.
    const MAX_BYTES: u64 = 1 << 20;

    /// Between two failed accepts.
    const PAUSE: Duration = Duration::from_millis(100);

    #[derive(Debug)]
    pub(super) struct Lines {
        path: PathBuf,
        listener: Option<UnixListener>,
        ending: watch::Sender<bool>,
        serving: JoinSet<()>,
    }

    impl Lines {
        pub(super) fn bind(path: PathBuf) -> io::Result<Self> {
            let listener = Some(UnixListener::bind(&path)?);
            Ok(Self { path, listener, ending: watch::Sender::new(false), serving: JoinSet::new() })
        }
    }

    impl Edge for Lines {
        fn describe(&self) -> EdgeDescription {
            EdgeDescription::new("lines").at(self.path.display())
        }

        fn open(&mut self, node: &NodeHandle) -> Result<(), EdgeError> {
            let listener = self.listener.take().ok_or("it serves a node already")?;
            self.serving.spawn(accept(listener, node.client(), self.ending.subscribe()));
            Ok(())
        }

        /// Ends each connection after the line that it works on.
        fn finish(&mut self, _: Instant) -> EdgeFuture<'_> {
            self.ending.send_replace(true);
            Box::pin(async { while self.serving.join_next().await.is_some() {} })
        }

        fn abort(&mut self) {
            self.serving.abort_all();
        }
    }

    async fn accept(listener: UnixListener, client: LocalClient, mut ending: watch::Receiver<bool>) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = ended(&mut ending) => break,
                accepted = listener.accept() => match accepted {
                    Ok((socket, _)) => { connections.spawn(answer(socket, client.clone(), ending.clone())); }
                    // Such as too many open files: another connection must end first.
                    Err(_) => tokio::time::sleep(PAUSE).await,
                },
                Some(_) = connections.join_next() => {}
            }
        }
        while connections.join_next().await.is_some() {}
    }

    /// Completes when the server ends.
    async fn ended(ending: &mut watch::Receiver<bool>) {
        let _ = ending.wait_for(|ending| *ending).await;
    }

    async fn answer(socket: UnixStream, client: LocalClient, mut ending: watch::Receiver<bool>) -> io::Result<()> {
        let (from, mut to) = socket.into_split();
        let mut lines = BufReader::new(from.take(MAX_BYTES)).lines();
        loop {
            let line = tokio::select! {
                () = ended(&mut ending) => return Ok(()),
                line = lines.next_line() => line?,
            };
            let Some(line) = line else { return Ok(()) };
            let (route, text) = line.split_once(' ').unwrap_or((&line, ""));
            let answer = match client.call::<String, String>(route, text.to_owned()).await {
                Ok(answer) => format!("ok {answer}\n"),
                Err(error) => format!("{}: {error}\n", error.kind()),
            };
            to.write_all(answer.as_bytes()).await?;
        }
    }
}

#[cfg(unix)]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    use callboard::prelude::*;
    use callboard::{Drained, Server};
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::UnixStream;

    let path = std::env::temp_dir().join(format!("callboard-lines-{}", std::process::id()));
    let shout = Stage::each("shout", |text: &String| Ok(text.to_uppercase()));
    let server = Server::builder()
        .edge(lines::Lines::bind(path.clone())?)
        .start(App::new().route("/shout", shout), "127.0.0.1:0")
        .await?;
    for edge in server.edges() {
        println!("{} on {}", edge.name, edge.address.unwrap_or_default());
    }

    let (from, mut to) = UnixStream::connect(&path).await?.into_split();
    let mut answers = BufReader::new(from).lines();
    to.write_all(b"/shout hello\n/whisper hello\n").await?;
    assert_eq!(answers.next_line().await?.as_deref(), Some("ok HELLO"));
    let refused = answers.next_line().await?.unwrap_or_default();
    println!("{refused}");
    assert!(refused.starts_with("not_found: "), "{refused}");

    // The connection is idle, so its end takes no time of the grace period.
    assert_eq!(server.shutdown(Duration::from_secs(5)).await, Drained::Completely);
    assert_eq!(answers.next_line().await?, None);
    assert!(UnixStream::connect(&path).await.is_err(), "nothing listens any more");
    std::fs::remove_file(&path)?;
    Ok(())
}

#[cfg(not(unix))]
fn main() {
    println!("there are no Unix sockets here");
}
