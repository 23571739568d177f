//! `callboard top` at a terminal and without one.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::support::{Server, TEST_TIMEOUT, callboard, failure, ignores_hangups, terminal};

#[test]
fn a_running_node_is_drawn_until_a_key_or_a_signal_ends_it() {
    let admin = ["serve", "examples/digits", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let mut server = Server::start(callboard(admin));
    let url = server.wait_for("admin on ");
    let ended = drawn(&url, |_, screen| screen.write_all(b"q").unwrap());
    assert_eq!(ended, Some(0));
    let signal = |signal| {
        move |pid: u32, _: &mut File| {
            let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            kill_process(pid, signal).unwrap();
        }
    };
    assert_eq!(drawn(&url, signal(Signal::TERM)), Some(143));
    if !ignores_hangups() {
        assert_eq!(drawn(&url, signal(Signal::HUP)), Some(129));
    }
}

/// Draws until `end` has ended it; returns its exit code. The terminal is as it was then.
fn drawn(url: &str, end: impl FnOnce(u32, &mut File)) -> Option<i32> {
    let (mut screen, tty) = terminal();
    tcsetwinsize(&screen, Winsize { ws_row: 30, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let mut command = callboard(["top", url]);
    command.stdin(tty.try_clone().unwrap()).stdout(tty).stderr(Stdio::null()).env("TERM", "xterm-256color");
    let mut child = command.spawn().unwrap();
    // Closes the command's end of the terminal, so that the reader ends (with an error).
    drop(command);
    let (sender, pieces) = mpsc::channel();
    let mut reader = screen.try_clone().unwrap();
    thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = reader.read(&mut piece) {
            if sender.send(piece[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    let mut shown = Vec::new();
    let has = |shown: &[u8], text: &str| String::from_utf8_lossy(shown).contains(text);
    while !["ready", "/digits", "Stages"].iter().all(|text| has(&shown, text)) {
        let piece = pieces.recv_timeout(TEST_TIMEOUT);
        shown.extend(piece.unwrap_or_else(|_| panic!("it draws: {}", String::from_utf8_lossy(&shown))));
    }
    end(child.id(), &mut screen);
    let code = child.wait().unwrap().code();
    // It leaves the screen that it has taken, and shows the cursor.
    shown.extend(pieces.iter().flatten());
    assert!(has(&shown, "\u{1b}[?1049l") && has(&shown, "\u{1b}[?25h"), "{}", String::from_utf8_lossy(&shown));
    code
}

#[test]
fn without_a_terminal_and_without_a_node_it_says_what_to_do() {
    let (message, code) = failure(callboard(["top"]));
    assert!(message.contains("`callboard status --watch`") && code == 2, "{code}: {message}");

    let (_screen, tty) = terminal();
    let mut command = callboard(["top", "http://127.0.0.1:1"]);
    let output = command.stdout(tty).stderr(Stdio::piped()).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("127.0.0.1:1") && output.status.code() == Some(1), "{message}");
}
