//! `callboard top`: a running node in the terminal, drawn again each second.
//!
//! ```text
//!  a thread follows /v1/live of the admin listener ─► samples and failures ─► the screen
//! ```
//!
//! It shows what the page at `/` of that listener shows: [`page`] makes the lines of a sample.

mod cells;
mod history;
mod page;

use std::io::{IsTerminal as _, stdout};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{io, thread};

use clap::{ArgMatches, Command};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::Value;

use self::history::History;
use self::page::Screen;
use super::admin_client::AdminClient;
use crate::error::CliError;
use crate::signals::Signals;

/// The longest event. Threat: a server whose event never ends.
const MAX_EVENT_BYTES: usize = 16 << 20;

/// How often the keyboard and the stream are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The pause before a lost node is asked again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The admin listener to follow.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TopArgs {
    client: AdminClient,
}

impl TopArgs {
    /// The grammar.
    pub(crate) fn command() -> Command {
        Command::new("top")
            .about("Draw a running node in the terminal, each second")
            .after_help("Keys: q ends, space pauses, arrows and page keys scroll.")
            .args(AdminClient::args("10s"))
    }

    /// Reads the matches of clap.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Self {
        Self { client: AdminClient::from_matches(matches) }
    }
}

/// What has arrived from the node.
enum Update {
    Sample(Value),
    /// The stream has ended, and is asked for again.
    Lost(String),
}

/// Draws until a key ends it.
pub(crate) fn run(args: &TopArgs) -> Result<(), CliError> {
    if !stdout().is_terminal() {
        let message = "`top` draws on a terminal; `callboard status --watch` prints to files and programs";
        return Err(CliError::Usage(message.to_owned()));
    }
    // The first answer comes before the screen is taken, so that a wrong address or key is an ordinary error.
    let (sender, updates) = channel();
    let client = args.client.clone();
    let follower = thread::spawn(move || follow(&client, &sender));
    let Ok(first) = updates.recv() else {
        return follower.join().unwrap_or_else(|_| Err(CliError::Failed("the stream could not be read".to_owned())));
    };
    let failed = |error| CliError::because("could not draw", &error);
    // From now on a signal ends the drawing, not the process: the terminal is given back in any case.
    let signal = signal_in_time().map_err(failed)?;
    let outcome = ratatui::try_init().and_then(|mut terminal| draw(&mut terminal, first, &updates, &signal));
    ratatui::restore();
    outcome.map_err(failed)?;
    match signal.get() {
        Some(signal) => Err(CliError::Interrupted { signal, message: "the drawing has ended" }),
        None => Ok(()),
    }
}

/// Gets the name of the first signal.
fn signal_in_time() -> io::Result<Arc<OnceLock<&'static str>>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _runtime = runtime.enter();
        Signals::listen()?
    };
    let first = Arc::new(OnceLock::new());
    let found = Arc::clone(&first);
    thread::spawn(move || found.set(runtime.block_on(signals.next())));
    Ok(first)
}

/// Sends each update of the node. Only the first failure ends it: a node that was there may come back.
#[expect(clippy::disallowed_methods, reason = "a thread of its own, outside any runtime")]
fn follow(client: &AdminClient, updates: &Sender<Update>) -> Result<(), CliError> {
    let mut was_there = false;
    loop {
        let (mut events, mut is_looking) = (Events::default(), true);
        let outcome = client.follow("/v1/live", |piece| {
            events.push(piece);
            while let Some(sample) = events.next() {
                was_there = true;
                is_looking &= updates.send(Update::Sample(sample)).is_ok();
            }
            is_looking && events.rest.len() <= MAX_EVENT_BYTES
        });
        match outcome {
            Err(error) if !was_there => return Err(error),
            _ if !is_looking => return Ok(()),
            Err(error) if updates.send(Update::Lost(error.to_string())).is_err() => return Ok(()),
            Ok(()) if !was_there => return Err(CliError::Failed("the node's events are too long".to_owned())),
            _ => thread::sleep(RETRY_PAUSE),
        }
    }
}

/// The samples in a stream of events.
#[derive(Debug, Default)]
struct Events {
    rest: Vec<u8>,
}

impl Events {
    fn push(&mut self, piece: &[u8]) {
        self.rest.extend_from_slice(piece);
    }

    /// The next whole one. Other events are skipped.
    fn next(&mut self) -> Option<Value> {
        loop {
            let end = self.rest.windows(2).position(|bytes| bytes == b"\n\n")?;
            let event: Vec<u8> = self.rest.drain(..end + 2).collect();
            let sample = event.strip_prefix(b"data: ").and_then(|data| serde_json::from_slice(data).ok());
            if sample.is_some() {
                return sample;
            }
        }
    }
}

fn draw(
    terminal: &mut ratatui::DefaultTerminal,
    first: Update,
    updates: &Receiver<Update>,
    signal: &OnceLock<&'static str>,
) -> io::Result<()> {
    let (mut history, mut screen, mut is_paused) = (History::default(), Screen::default(), false);
    let mut next = Some(first);
    while signal.get().is_none() {
        let mut has_changed = next.is_some();
        // At first a minute comes at once.
        for update in next.take().into_iter().chain(updates.try_iter()) {
            has_changed = true;
            match update {
                Update::Sample(sample) => {
                    history.note(&sample);
                    screen.answered();
                    if !is_paused {
                        screen.show(&sample, &history);
                    }
                }
                Update::Lost(why) => screen.lost(&why),
            }
        }
        if has_changed {
            terminal.draw(|frame| screen.draw(frame))?;
        }
        if event::poll(LOOK_EVERY)? {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match command(key) {
                    Some(KeyCommand::End) => return Ok(()),
                    Some(KeyCommand::Pause) => {
                        is_paused = !is_paused;
                        screen.set_paused(is_paused);
                    }
                    Some(KeyCommand::Scroll(lines)) => screen.scroll(lines),
                    None => {}
                },
                _ => {}
            }
            terminal.draw(|frame| screen.draw(frame))?;
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyCommand {
    End,
    Pause,
    /// By so many lines.
    Scroll(i32),
}

fn command(key: KeyEvent) -> Option<KeyCommand> {
    const PAGE: i32 = 20;
    match key.code {
        // The terminal sends no signals now.
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(KeyCommand::End),
        KeyCode::Char('q') | KeyCode::Esc => Some(KeyCommand::End),
        KeyCode::Char(' ') => Some(KeyCommand::Pause),
        KeyCode::Up | KeyCode::Char('k') => Some(KeyCommand::Scroll(-1)),
        KeyCode::Down | KeyCode::Char('j') => Some(KeyCommand::Scroll(1)),
        KeyCode::PageUp => Some(KeyCommand::Scroll(-PAGE)),
        KeyCode::PageDown => Some(KeyCommand::Scroll(PAGE)),
        KeyCode::Home => Some(KeyCommand::Scroll(i32::MIN)),
        KeyCode::End => Some(KeyCommand::Scroll(i32::MAX)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_whatever_the_pieces_are() {
        let text =
            b": a comment\n\ndata: {\"n\":1}\n\nevent: other\n\ndata: not JSON\n\ndata: {\"n\":2}\n\ndata: {\"n\":3}";
        for size in 1..=text.len() {
            let (mut events, mut found) = (Events::default(), Vec::new());
            for piece in text.chunks(size) {
                events.push(piece);
                found.extend(std::iter::from_fn(|| events.next()).map(|sample| sample["n"].as_u64().unwrap()));
            }
            assert_eq!((found, events.rest.as_slice()), (vec![1, 2], &b"data: {\"n\":3}"[..]), "{size}");
        }
    }

    #[test]
    fn keys_end_pause_and_scroll() {
        let press = |code| command(KeyEvent::new(code, KeyModifiers::NONE));
        assert_eq!(command(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Some(KeyCommand::End));
        assert_eq!([KeyCode::Char('q'), KeyCode::Esc].map(press), [Some(KeyCommand::End); 2]);
        assert_eq!(press(KeyCode::Char(' ')), Some(KeyCommand::Pause));
        assert_eq!([KeyCode::Down, KeyCode::Up].map(press), [1, -1].map(|by| Some(KeyCommand::Scroll(by))));
        assert_eq!([KeyCode::Char('c'), KeyCode::F(1)].map(press), [None; 2]);
    }
}
