//! When a helper is ready, and how that is found out.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

/// A helper that accepts a connection and does not answer is asked again after this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The longest status line that is read.
const STATUS_LINE_BYTES: usize = 64;

/// When a helper is ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Readiness {
    /// Once it is started.
    #[default]
    Started,
    /// When it accepts connections at this `host:port`.
    Tcp(String),
    /// When a `GET` is answered with a status of 2xx.
    Http(HttpUrl),
    /// When this file exists. One from an earlier run counts as well: let the command remove it first.
    File(PathBuf),
    /// When it has printed a line with this text, on standard output or standard error.
    Line(String),
}

/// A URL such as `http://127.0.0.1:9000/health`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpUrl {
    authority: String,
    path: String,
}

impl HttpUrl {
    /// Reads a URL. `None` for one with another scheme, without a host, or with a character that no URL has.
    #[must_use]
    pub fn parse(url: &str) -> Option<Self> {
        let rest = url.strip_prefix("http://").filter(|rest| rest.bytes().all(|byte| byte.is_ascii_graphic()))?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let is_host = !authority.is_empty() && !authority.starts_with(':') && !authority.contains(['@', '?', '#']);
        let path = if path.is_empty() { "/" } else { path };
        is_host.then(|| Self { authority: authority.to_owned(), path: path.to_owned() })
    }

    fn address(&self) -> String {
        let port = self.authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if port { self.authority.clone() } else { format!("{}:80", self.authority) }
    }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

impl Readiness {
    /// Probes once. `has_line` says whether a printed line has this text.
    ///
    /// # Errors
    ///
    /// Why it is not ready.
    pub(crate) async fn probe(&self, has_line: impl Fn() -> bool) -> Result<(), String> {
        match self {
            Self::Started => Ok(()),
            Self::Tcp(address) => {
                let failed = |why: &dyn fmt::Display| format!("{address} accepts no connection: {why}");
                match timeout(ANSWER_WITHIN, TcpStream::connect(address)).await {
                    Ok(Ok(_connected)) => Ok(()),
                    Ok(Err(error)) => Err(failed(&error)),
                    Err(late) => Err(failed(&late)),
                }
            }
            Self::Http(url) => match timeout(ANSWER_WITHIN, status(url)).await {
                Ok(Ok(200..=299)) => Ok(()),
                Ok(Ok(status)) => Err(format!("{url} answers {status}")),
                Ok(Err(error)) => Err(format!("{url} does not answer: {error}")),
                Err(_late) => Err(format!("{url} does not answer")),
            },
            Self::File(path) if path.exists() => Ok(()),
            Self::File(path) => Err(format!("there is no {}", path.display())),
            Self::Line(_) if has_line() => Ok(()),
            Self::Line(text) => Err(format!("it has printed no line with `{text}`")),
        }
    }
}

/// The status of a `GET`.
async fn status(url: &HttpUrl) -> io::Result<u16> {
    let stream = TcpStream::connect(url.address()).await?;
    let HttpUrl { authority, path } = url;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\naccept: */*\r\n\r\n");
    let mut rest = request.as_bytes();
    while !rest.is_empty() {
        stream.writable().await?;
        match stream.try_write(rest) {
            Ok(written) => rest = &rest[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let (mut answer, mut length) = ([0; STATUS_LINE_BYTES], 0);
    while length < answer.len() && !answer[..length].contains(&b'\n') {
        stream.readable().await?;
        match stream.try_read(&mut answer[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let line = String::from_utf8_lossy(&answer[..length]);
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)).and_then(|code| code.parse().ok());
    status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this is not HTTP/1.1"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Shutdown, TcpListener};
    use std::thread;

    use super::*;

    #[test]
    fn urls_are_read_and_others_refused() {
        let parsed = |url: &str| HttpUrl::parse(url).map(|url| (url.address(), url.path));
        let both = |address: &str, path: &str| Some((address.to_owned(), path.to_owned()));
        assert_eq!(parsed("http://127.0.0.1:9000/health?x=1"), both("127.0.0.1:9000", "/health?x=1"));
        assert_eq!(parsed("http://localhost"), both("localhost:80", "/"));
        assert_eq!(parsed("http://[::1]:7/"), both("[::1]:7", "/"));
        assert_eq!(parsed("http://[::1]/"), both("[::1]:80", "/"));
        for url in [
            "https://a/",
            "a:80",
            "http://",
            "http:///x",
            "http://:80/",
            "http://a b/",
            "http://u@h/",
            "http://a/\r\nx: y",
        ] {
            assert_eq!(parsed(url), None, "{url}");
        }
    }

    /// Probes a server that answers with these bytes: what comes of it, and the request. Only an answer without a whole
    /// line ends with its connection.
    async fn probed(answer: &'static str) -> (Result<(), String>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 1024];
            let bytes = stream.read(&mut request).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            if !answer.contains('\n') && answer.len() < STATUS_LINE_BYTES {
                stream.shutdown(Shutdown::Write).unwrap();
            }
            (stream, String::from_utf8_lossy(&request[..bytes]).into_owned())
        });
        let url = HttpUrl::parse(&format!("http://{authority}/health?x=1")).unwrap();
        let probed = Readiness::Http(url).probe(|| panic!("it is asked for no line")).await;
        let (_stream, request) = server.join().unwrap();
        (probed.map_err(|error| error.replace(&authority, "AUTHORITY")), request.replace(&authority, "AUTHORITY"))
    }

    #[tokio::test]
    async fn a_server_is_ready_when_it_answers_with_a_status_of_2xx() {
        let long = "HTTP/1.1 200 a phrase of very many words, all on the first line of the answer";
        for answer in ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.0 299 \r\n", "HTTP/1.1 204", long] {
            let (probed, request) = probed(answer).await;
            assert_eq!(probed, Ok(()), "{answer}");
            assert!(request.starts_with("GET /health?x=1 HTTP/1.1\r\nhost: AUTHORITY\r\n"), "{request}");
            assert!(request.ends_with("\r\n\r\n"), "{request}");
        }
        for (answer, expected) in [
            ("HTTP/1.1 199 \r\n", "http://AUTHORITY/health?x=1 answers 199"),
            ("HTTP/1.1 300 \r\n", "http://AUTHORITY/health?x=1 answers 300"),
            ("HTTP/2 200 \r\n", "http://AUTHORITY/health?x=1 does not answer: this is not HTTP/1.1"),
            ("HTTP/1.1 20", "http://AUTHORITY/health?x=1 does not answer: this is not HTTP/1.1"),
            ("", "http://AUTHORITY/health?x=1 does not answer: this is not HTTP/1.1"),
        ] {
            assert_eq!(probed(answer).await.0, Err(expected.to_owned()), "{answer}");
        }
    }

    #[tokio::test]
    async fn ports_files_and_lines_are_ready_when_they_are_there() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = Readiness::Tcp(listener.local_addr().unwrap().to_string());
        assert_eq!(port.probe(|| false).await, Ok(()));
        drop(listener);
        assert!(port.probe(|| true).await.unwrap_err().contains("accepts no connection"));
        let (here, missing) = (std::env::current_exe().unwrap(), PathBuf::from("/no/such/file"));
        assert_eq!(Readiness::File(here).probe(|| false).await, Ok(()));
        assert_eq!(Readiness::File(missing).probe(|| true).await, Err("there is no /no/such/file".to_owned()));
        let line = Readiness::Line("ready".to_owned());
        assert_eq!(line.probe(|| true).await, Ok(()));
        assert_eq!(line.probe(|| false).await, Err("it has printed no line with `ready`".to_owned()));
        assert_eq!(Readiness::Started.probe(|| false).await, Ok(()));
    }
}
