//! Runs the binary: to its end, or as a server with a plain socket as its client.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{CertifiedKey, generate_simple_self_signed};

/// Longer than any step takes, even on a busy machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The binary, in the directory of the package and without environment variables.
pub(crate) fn callboard<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_callboard"));
    command.args(args);
    without_settings(command)
}

/// A command that starts the binary, in the directory of the package and without environment variables.
pub(crate) fn without_settings(mut command: Command) -> Command {
    command.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CALLBOARD_")) {
        command.env_remove(name);
    }
    command
}

/// Runs the command to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    callboard(args).output().expect("the binary runs")
}

/// The only stderr line and the exit code of a command that must fail.
pub(crate) fn failure(mut command: Command) -> (String, i32) {
    let output = command.output().expect("the binary runs");
    let stderr = String::from_utf8(output.stderr).expect("messages are text");
    assert_eq!(stderr.lines().count(), 1, "one line: {stderr}");
    assert!(output.stdout.is_empty(), "nothing on stdout");
    (stderr.trim_end().to_owned(), output.status.code().expect("an exit code"))
}

/// A fresh directory for one test.
pub(crate) fn directory() -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("cli-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&path).expect("a directory for the test");
    path
}

/// A certificate for this name in a directory, and its key.
pub(crate) fn certificate(name: &str) -> (PathBuf, PathBuf) {
    let directory = directory();
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed([name.to_owned()]).unwrap();
    let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
    fs::write(&certificate, cert.pem()).unwrap();
    fs::write(&key, signing_key.serialize_pem()).unwrap();
    (certificate, key)
}

/// The digits over https, and their address.
pub(crate) fn digits_over_https((certificate, key): &(PathBuf, PathBuf), args: &[&str]) -> (Server, String) {
    let mut command = callboard(["serve", "examples/digits", "--http", "127.0.0.1:0"].iter().chain(args));
    command.arg("--tls-certificate").arg(certificate).arg("--tls-key").arg(key);
    let server = Server::start_and_wait_for(command, "listening on https://");
    let url = format!("https://{}", server.address);
    (server, url)
}

/// A directory with this `callboard.toml`.
pub(crate) fn directory_with(toml: &str) -> PathBuf {
    let path = directory();
    fs::write(path.join("callboard.toml"), toml).expect("a file for the test");
    path
}

/// A running server. Killed when dropped.
pub(crate) struct Server {
    child: Child,
    stdout: Option<ChildStdout>,
    stderr: Receiver<String>,
    /// The lines of stderr so far.
    pub(crate) stderr_lines: Vec<String>,
    /// Its address: `127.0.0.1:12345`.
    pub(crate) address: String,
}

impl Server {
    /// Serves the digits on a free port.
    pub(crate) fn digits(args: &[&str]) -> Self {
        Self::start(callboard(["serve", "examples/digits", "--http", "127.0.0.1:0"].iter().chain(args)))
    }

    /// Starts a command and waits for its address.
    pub(crate) fn start(command: Command) -> Self {
        Self::start_and_wait_for(command, "listening on http://")
    }

    /// Starts a command, waits for this text, and reads the address after it.
    pub(crate) fn start_and_wait_for(mut command: Command, text: &str) -> Self {
        // Without a balancer the delay is useless; tests of the delay set the flag.
        command.env("CALLBOARD_DRAIN_DELAY", "0s");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let stderr = lines_of(child.stderr.take().expect("a pipe"));
        Self::watch(child, stderr, text)
    }

    /// Starts a command whose stderr is a terminal.
    #[cfg(unix)]
    pub(crate) fn start_at_a_terminal(mut command: Command) -> Self {
        let (screen, terminal) = terminal();
        let child = command.stdout(Stdio::piped()).stderr(terminal).spawn().expect("the binary runs");
        // Closes the command's end of the terminal, so that the reader ends (with an error).
        drop(command);
        Self::watch(child, lines_of(screen), "listening on http://")
    }

    fn watch(mut child: Child, stderr: Receiver<String>, text: &str) -> Self {
        let stdout = child.stdout.take();
        let mut server = Self { child, stdout, stderr, stderr_lines: Vec::new(), address: String::new() };
        server.address = server.wait_for(text);
        server
    }

    /// Waits for a line with this text; returns the rest of the line.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        loop {
            let line = self.stderr.recv_timeout(TEST_TIMEOUT);
            let line = line.unwrap_or_else(|_| panic!("never printed {text:?}: {:#?}", self.stderr_lines));
            self.stderr_lines.push(line.clone());
            if let Some((_, rest)) = line.split_once(text) {
                return rest.to_owned();
            }
        }
    }

    /// Waits for a line with this text, unless there was one: for what comes before or after the address.
    pub(crate) fn wait_until_printed(&mut self, text: &str) {
        if !self.stderr_lines.iter().any(|line| line.contains(text)) {
            self.wait_for(text);
        }
    }

    /// Whether a line with this text appears in time.
    pub(crate) fn prints_within(&mut self, text: &str, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while let Ok(line) = self.stderr.recv_timeout(end.saturating_duration_since(Instant::now())) {
            self.stderr_lines.push(line);
            if self.stderr_lines.last().is_some_and(|line| line.contains(text)) {
                return true;
            }
        }
        false
    }

    /// The number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by its name, `TERM` or `INT`.
    pub(crate) fn signal(&self, name: &str) {
        self.signals(&[name]);
    }

    /// Sends these signals at once.
    pub(crate) fn signals(&self, names: &[&str]) {
        // `kill` of the shell, because the program is not installed everywhere.
        let id = self.child.id();
        let script = names.iter().map(|name| format!("kill -{name} {id}")).collect::<Vec<_>>().join("; ");
        let status = Command::new("sh").args(["-c", &script]).status().expect("a shell");
        assert!(status.success(), "{script}");
    }

    /// Waits for its end; returns the exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        // Its stderr ends with it, so the timeout of the receiver bounds the wait.
        loop {
            match self.stderr.recv_timeout(TEST_TIMEOUT) {
                Ok(line) => self.stderr_lines.push(line),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("still runs: {:#?}", self.stderr_lines),
            }
        }
        self.child.wait().expect("a child to wait for").code()
    }

    /// Waits for its end without reading its output; returns the exit code.
    pub(crate) fn wait_without_reading(&mut self) -> Option<i32> {
        // It writes nothing to stdout, which closes at its end.
        let stdout = lines_of(self.stdout.take().expect("not waited for before"));
        match stdout.recv_timeout(TEST_TIMEOUT) {
            Err(mpsc::RecvTimeoutError::Disconnected) => self.child.wait().expect("a child to wait for").code(),
            other => panic!("still runs: {other:?}"),
        }
    }

    /// One request on its own connection.
    pub(crate) fn request(&self, head: &str, body: &[u8]) -> Answer {
        let mut stream = self.connect();
        write!(stream, "{head}\r\nhost: test\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len())
            .and_then(|()| stream.write_all(body))
            .expect("the server reads");
        Answer::read(stream)
    }

    /// A connection.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("the server listens");
        stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout can be set");
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// Reads until the server closes.
    pub(crate) fn read(stream: TcpStream) -> Self {
        Self::try_read(stream).expect("an answer and its end")
    }

    /// The same, if there is an answer.
    pub(crate) fn try_read(mut stream: TcpStream) -> io::Result<Self> {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) =
            text.split_once("\r\n\r\n").ok_or_else(|| io::Error::other(format!("no answer: {text:?}")))?;
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        Ok(Self { status, head: head.to_owned(), body: body.to_owned() })
    }
}

/// Whether these tests were started to ignore a hangup, as by `nohup`: then a server that they start ignores it too.
pub(crate) fn ignores_hangups() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

/// A pseudo-terminal: the reading end, and the end for a command. It shows a line end as two characters.
#[cfg(unix)]
pub(crate) fn terminal() -> (fs::File, fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("a new terminal");
    let name = ptsname(&master, Vec::new()).expect("its name").into_string().expect("a path");
    let terminal = fs::OpenOptions::new().read(true).write(true).open(name).expect("its other end");
    (fs::File::from(master), terminal)
}

/// Reads lines on a separate thread, so that a test can wait with a limit.
fn lines_of(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::sync_channel(1024);
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
