//! The lines of a sample: a head, and a table for each kind of thing.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Scrollbar, ScrollbarOrientation, ScrollbarState};
use serde_json::Value;

use super::cells::Side::{Left, Right};
use super::cells::{BAD, Cell, Column, GOOD, WARNING, spark, table};
use super::history::History;
use crate::table::{dash, items, or_dash, percent, shown_bytes, shown_seconds, text};

/// What the terminal shows.
#[derive(Debug, Default)]
pub(super) struct Screen {
    head: Vec<Line<'static>>,
    lines: Vec<Line<'static>>,
    lost: Option<String>,
    is_paused: bool,
    /// The first shown line.
    from: usize,
}

impl Screen {
    pub(super) fn show(&mut self, sample: &Value, history: &History) {
        self.head = head(sample);
        self.lines = tables(sample, history);
    }

    /// The node answers, also while the screen is paused.
    pub(super) fn answered(&mut self) {
        self.lost = None;
    }

    /// The node does not answer; the last sample stays.
    pub(super) fn lost(&mut self, why: &str) {
        self.lost = Some(crate::plain::line(why).into_owned());
    }

    pub(super) fn set_paused(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    pub(super) fn scroll(&mut self, lines: i32) {
        let by = usize::try_from(lines.unsigned_abs()).unwrap_or(usize::MAX);
        self.from = if lines < 0 { self.from.saturating_sub(by) } else { self.from.saturating_add(by) };
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let mut head = self.head.clone();
        head.push(match &self.lost {
            Some(why) => Line::from(format!("no answer, asking again: {why}")).fg(BAD),
            None if self.is_paused => Line::from("paused: space goes on").fg(WARNING),
            None => Line::default(),
        });
        let rows = Layout::vertical([
            Constraint::Length(u16::try_from(head.len()).unwrap_or(u16::MAX)),
            Constraint::Min(0),
            Constraint::Length(1),
        ]);
        let [top, middle, bottom] = rows.areas(frame.area());
        let last = self.lines.len().saturating_sub(middle.height.into());
        self.from = self.from.min(last);
        frame.render_widget(Paragraph::new(head), top);
        let shown: Vec<_> = self.lines.iter().skip(self.from).take(middle.height.into()).cloned().collect();
        frame.render_widget(Paragraph::new(shown), middle);
        if last > 0 {
            let mut state = ScrollbarState::new(last + 1).position(self.from);
            frame.render_stateful_widget(Scrollbar::new(ScrollbarOrientation::VerticalRight), middle, &mut state);
        }
        frame.render_widget(Line::from("q ends · space pauses · ↑ ↓ scroll").dim(), bottom);
    }
}

fn head(sample: &Value) -> Vec<Line<'static>> {
    let state = text(&sample["state"]);
    let colour = match state.as_str() {
        "ready" => GOOD,
        "draining" => WARNING,
        _ => BAD,
    };
    let up = sample["uptime_s"].as_u64().map_or_else(dash, shown_seconds);
    let oldest =
        sample["oldest_ms"].as_f64().map_or_else(String::new, |oldest| format!(", the oldest for {}", millis(oldest)));
    let calls = ["in_flight", "admitted", "refused"].map(|key| text(&sample[key]));
    vec![
        Line::from(vec![
            Span::raw("callboard "),
            Span::raw(text(&sample["version"])),
            Span::raw("  "),
            Span::styled(state, Style::new().fg(colour).add_modifier(Modifier::BOLD)),
            Span::raw(format!("  up {up}")),
        ]),
        Line::from(format!(
            "calls: {} in flight{oldest}, {} admitted and {} refused since the start",
            calls[0], calls[1], calls[2]
        )),
    ]
}

fn tables(sample: &Value, history: &History) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let mut add = |key: &str, title: &str, columns: &[Column<'_>]| {
        let rows = items(&sample[key]);
        if rows.is_empty() {
            return;
        }
        let more = sample["more"][key].as_u64().map_or_else(String::new, |more| format!(" (and {more} more)"));
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        lines.push(Line::from(format!("{title}{more}")).bold());
        lines.extend(table(rows, columns));
        lines.extend(rows.iter().flat_map(remark));
    };
    add(
        "routes",
        "Routes",
        &[
            ("route", Left, &|row| {
                Cell::from(text(&row["name"]) + if row["closed"] == true { " (closing)" } else { "" })
            }),
            ("calls/s", Right, &|row| number(&row["calls_per_s"]).into()),
            ("last minute", Left, &|row| spark(history.routes.get(&text(&row["name"])))),
            ("failed/s", Right, &|row| match row["failed_per_s"].as_f64() {
                Some(rate) if rate > 0.0 => Cell::styled(number(&row["failed_per_s"]), BAD),
                _ => number(&row["failed_per_s"]).into(),
            }),
            ("p50", Right, &|row| time(&row["p50_ms"])),
            ("p99", Right, &|row| time(&row["p99_ms"])),
            ("pipeline", Left, &|row| text(&row["pipeline"]).into()),
            ("rollout", Left, &|row| match row["rollout"]["state"].as_str() {
                Some(_) => {
                    let share = row["rollout"]["share"].as_f64().unwrap_or_default() * 100.0;
                    format!("{}, {share:.1} %", text(&row["rollout"]["state"])).into()
                }
                None => dash().into(),
            }),
        ],
    );
    add(
        "stages",
        "Stages",
        &[
            ("stage", Left, &|row| text(&row["name"]).into()),
            ("state", Left, &|row| Cell::state(&text(&row["state"]))),
            ("busy", Right, &busy),
            ("queue", Right, &queue),
            ("last minute", Left, &|row| match row["queue_limit"].as_u64() {
                Some(_) => spark(history.stages.get(&text(&row["name"]))),
                None => dash().into(),
            }),
            ("waits p99", Right, &|row| time(&row["waits_p99_ms"])),
            ("mean batch", Right, &|row| match row["mean_batch"].as_f64() {
                Some(mean) => format!("{mean:.1} of {}", text(&row["max_batch"])).into(),
                None => dash().into(),
            }),
            ("batch takes", Right, &|row| match row["batches"].as_u64() {
                Some(1..) => time(&row["batch_ms"]),
                _ => dash().into(),
            }),
            ("cpu", Right, &|row| share(&row["cpu"]).into()),
            ("memory", Right, &|row| bytes(&row["memory_bytes"]).into()),
            ("restarts", Right, &|row| text(&row["restarts"]).into()),
        ],
    );
    add(
        "members",
        "Cluster",
        &[
            ("node", Left, &|row| {
                Cell::from(text(&row["name"]) + if row["is_this_node"] == true { " (this node)" } else { "" })
            }),
            ("address", Left, &|row| text(&row["address"]).into()),
            ("state", Left, &|row| Cell::state(&text(&row["state"]))),
            ("phase", Left, &|row| match row["phase"].as_str() {
                Some(_) => Cell::state(&text(&row["phase"])),
                None => dash().into(),
            }),
            ("for", Right, &|row| match (sample["at_ms"].as_u64(), row["since"].as_u64()) {
                (Some(now), Some(since @ 1..)) => shown_seconds((now / 1000).saturating_sub(since)).into(),
                _ => dash().into(),
            }),
            ("version", Left, &|row| text(&row["version"]).into()),
            ("routes", Right, &|row| text(&row["routes"]).into()),
            ("stages", Right, &|row| text(&row["stages"]).into()),
            ("busy", Right, &|row| text(&row["busy"]).into()),
            ("queue", Right, &queue),
            ("replicas", Left, &|row| {
                or_dash(items(&row["replicas"]).iter().map(text).collect::<Vec<_>>().join(", ")).into()
            }),
        ],
    );
    add(
        "peers",
        "Links",
        &[
            ("peer", Left, &|row| match row["node"].as_str() {
                Some("") | None => text(&row["address"]).into(),
                Some(_) => text(&row["node"]).into(),
            }),
            ("address", Left, &|row| text(&row["address"]).into()),
            ("link", Left, &|row| match row["connected_s"].as_u64() {
                Some(_) if row["silent"] == true => Cell::state("silent"),
                Some(connected) => Cell::styled(format!("up {}", shown_seconds(connected)), GOOD),
                None => Cell::state("down"),
            }),
            ("stages", Left, &|row| {
                let stages: Vec<_> = items(&row["stages"]).iter().map(text).collect();
                or_dash(stages.join(", ")).into()
            }),
        ],
    );
    add(
        "devices",
        "Devices",
        &[
            ("device", Left, &|row| format!("{}: {}", text(&row["index"]), text(&row["name"])).into()),
            ("state", Left, &|row| Cell::state(if row["lost"] == true { "down" } else { "up" })),
            ("in use", Right, &|row| share(&row["utilisation"]).into()),
            ("memory", Right, &|row| {
                format!("{} of {}", bytes(&row["memory_used"]), bytes(&row["memory_total"])).into()
            }),
            ("temperature", Right, &|row| {
                row["temperature"].as_f64().map_or_else(dash, |degrees| format!("{degrees:.0} °C")).into()
            }),
        ],
    );
    add(
        "actors",
        "Actors",
        &[
            ("actor", Left, &|row| text(&row["name"]).into()),
            ("state", Left, &|row| Cell::state(&text(&row["state"]))),
            ("keys", Right, &|row| or_dash(text(&row["active_keys"])).into()),
            ("waiting", Right, &|row| format!("{}/{}", text(&row["waiting"]), text(&row["mailbox"])).into()),
            ("restarts", Right, &|row| text(&row["restarts"]).into()),
        ],
    );
    lines
}

/// Why something is as it is, below its table: longer than a terminal is wide.
fn remark(row: &Value) -> Vec<Line<'static>> {
    const WIDTH: usize = 76;
    let (said, colour) = match (row["reason"].as_str(), row["note"].as_str()) {
        (Some(_), _) => (&row["reason"], BAD),
        (None, Some(_)) => (&row["note"], WARNING),
        (None, None) => return Vec::new(),
    };
    let said: Vec<char> = format!("{}: {}", text(&row["name"]), text(said)).chars().collect();
    said.chunks(WIDTH).map(|piece| Line::from(piece.iter().collect::<String>()).fg(colour)).collect()
}

fn busy(row: &Value) -> Cell {
    let (Some(replicas), Some(busy)) = (row["replicas"].as_u64(), row["busy"].as_u64()) else { return dash().into() };
    match (row["replicas_of"].as_str(), row["target"].as_u64()) {
        (Some(_), _) => format!("of {}", text(&row["replicas_of"])).into(),
        (None, Some(target)) if target > replicas => Cell::styled(format!("{busy}/{replicas} of {target}"), WARNING),
        _ => format!("{busy}/{replicas}").into(),
    }
}

fn queue(row: &Value) -> Cell {
    match row["queue_limit"].as_u64() {
        Some(limit) => format!("{}/{limit}", text(&row["queued"])).into(),
        None => dash().into(),
    }
}

fn number(value: &Value) -> String {
    value.as_f64().map_or_else(dash, |value| format!("{value:.1}"))
}

fn share(value: &Value) -> String {
    value.as_f64().map_or_else(dash, percent)
}

fn bytes(value: &Value) -> String {
    value.as_u64().map_or_else(dash, shown_bytes)
}

fn time(value: &Value) -> Cell {
    value.as_f64().map_or_else(dash, millis).into()
}

fn millis(value: f64) -> String {
    if value < 1000.0 { format!("{value:.1} ms") } else { format!("{:.1} s", value / 1000.0) }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn sample() -> Value {
        json!({
            "state": "ready", "version": "1.2.3", "uptime_s": 3725, "in_flight": 3, "oldest_ms": 1500.0,
            "at_ms": 1_000_000, "admitted": 10, "refused": 1, "more": { "routes": 7 },
            "routes": [{
                "name": "/digits", "pipeline": "decode → digits", "calls_per_s": 20.0, "failed_per_s": 0.5,
                "p50_ms": 1.25, "p99_ms": 2500.0,
            }],
            "stages": [{
                "name": "digits", "state": "degraded", "reason": "one replica is gone", "replicas": 1, "target": 2,
                "busy": 1, "queued": 4, "queue_limit": 64, "waits_p99_ms": 3.0, "batches": 9, "mean_batch": 2.5,
                "max_batch": 32, "batch_ms": 1.5, "restarts": 2, "cpu": 0.75, "memory_bytes": 157_286_400,
            }, { "name": "far", "state": "remote" }],
            "peers": [
                { "node": "second", "address": "10.0.0.2:4433", "stages": ["far"], "connected_s": 61, "silent": false },
                { "node": "third", "address": "10.0.0.3:4433", "stages": [], "connected_s": 61, "silent": true },
            ],
            "members": [
                {
                    "name": "first", "address": "10.0.0.1:4433", "state": "up", "is_this_node": true, "phase": "ready",
                    "since": 400, "version": "1.2.3", "routes": 1, "stages": 2, "replicas": ["digits 1/2", "sharp 1/1"],
                    "busy": 1, "queued": 4, "queue_limit": 128,
                },
                {
                    "name": "second", "address": "10.0.0.2:4433", "state": "suspected", "phase": "draining",
                    "since": 990, "version": "1.2.3", "routes": 0, "stages": 1,
                },
            ],
            "devices": [], "actors": [],
        })
    }

    fn shown(screen: &mut Screen, (width, height): (u16, u16)) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let cells = buffer.content().chunks(width.into());
        cells.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()).collect()
    }

    #[test]
    fn a_sample_is_a_head_and_tables_of_what_is_known() {
        let (mut history, mut screen) = (History::default(), Screen::default());
        let mut before = sample();
        before["routes"][0]["calls_per_s"] = 10.0.into();
        for sample in [&before, &before, &sample()] {
            history.note(sample);
        }
        screen.show(&sample(), &history);
        let lines = shown(&mut screen, (160, 27));
        let expected = [
            "callboard 1.2.3  ready  up 1 h 2 min",
            "calls: 3 in flight, the oldest for 1.5 s, 10 admitted and 1 refused since the start",
            "",
            "Routes (and 7 more)",
            "route    calls/s  last minute                     failed/s     p50    p99  pipeline",
            "/digits     20.0                              ▄█       0.5  1.2 ms  2.5 s  decode → digits",
            "",
            "Stages",
            "stage   state         busy  queue  last minute                     waits p99  mean batch  batch takes   cpu     \
             memory  restarts",
            "digits  degraded  1/1 of 2   4/64                              ██     3.0 ms   2.5 of 32       1.5 ms  75 %  \
             150.0 MiB         2",
            "far     remote           -      -  -                                       -           -            -  \
             \x20  -          -         -",
            "digits: one replica is gone",
            "",
            "Cluster",
            "node               address        state      phase        for  version  routes  stages  busy  queue  \
             replicas",
            "first (this node)  10.0.0.1:4433  up         ready     10 min  1.2.3         1       2     1  4/128  \
             digits 1/2, sharp 1/1",
            "second             10.0.0.2:4433  suspected  draining    10 s  1.2.3         0       1     -      -  -",
            "",
            "Links",
            "peer    address        link      stages",
            "second  10.0.0.2:4433  up 1 min  far",
            "third   10.0.0.3:4433  silent    -",
        ];
        assert_eq!(lines[..expected.len()], expected, "{lines:#?}");
    }

    #[test]
    fn what_does_not_fit_is_reached_by_scrolling() {
        let mut screen = Screen::default();
        screen.show(&sample(), &History::default());
        let first = shown(&mut screen, (60, 8));
        assert!(first[3].starts_with("Routes"), "{first:#?}");
        screen.scroll(i32::MAX);
        let last = shown(&mut screen, (60, 8));
        assert!(last[6].starts_with("third"), "{last:#?}");
        screen.scroll(i32::MIN);
        assert_eq!(shown(&mut screen, (60, 8)), first);
        // The smallest terminal is no error.
        for size in [(1, 1), (2, 3), (5, 4)] {
            shown(&mut screen, size);
        }
    }

    #[test]
    fn a_lost_node_keeps_its_last_sample_and_says_so() {
        let mut screen = Screen::default();
        screen.show(&sample(), &History::default());
        screen.lost("no whole answer\u{1b}[2J");
        let lines = shown(&mut screen, (100, 12));
        assert_eq!(lines[2], "no answer, asking again: no whole answer\\u001b[2J");
        assert!(lines[3].starts_with("Routes"), "{lines:#?}");
        screen.set_paused(true);
        screen.answered();
        assert_eq!(shown(&mut screen, (100, 12))[2], "paused: space goes on");
    }

    #[test]
    fn an_answer_of_another_kind_is_shown_with_dashes() {
        let texts =
            json!({ "state": 7, "routes": [null, { "name": "\u{1b}]0;x\u{7}" }], "stages": "none", "more": [] });
        for sample in [json!({}), json!(null), texts] {
            let (mut history, mut screen) = (History::default(), Screen::default());
            history.note(&sample);
            screen.show(&sample, &history);
            let lines = shown(&mut screen, (80, 12)).join("\n");
            assert!(!lines.contains('\u{1b}') && lines.starts_with("callboard -"), "{lines}");
        }
    }
}
