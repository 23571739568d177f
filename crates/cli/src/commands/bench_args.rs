//! The arguments of `callboard bench`.

use std::path::PathBuf;
use std::time::Duration;

use callboard_bench::{Assertion, Load, RATES, Schedule};
use callboard_config::parse_duration;
use callboard_http_client::Protocol;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::client::args::{duration, value_of};
use crate::client::{RequestArgs, ServerUrl};

/// The load, its targets, and the form of the report.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BenchArgs {
    pub(crate) place: ServerUrl,
    pub(crate) request: RequestArgs,
    /// The second target.
    pub(crate) versus: Option<ServerUrl>,
    /// How often two targets take turns.
    pub(crate) rounds: usize,
    pub(crate) json: bool,
    pub(crate) plot: Option<PathBuf>,
    pub(crate) assertions: Vec<Assertion>,
    /// Measure even if the first answer is an error.
    pub(crate) anyway: bool,
    connections: usize,
    streams: usize,
    threads: usize,
    schedule: Option<Schedule>,
    requests: Option<u64>,
    duration: Duration,
    warm_up: Duration,
}

impl BenchArgs {
    /// The grammar.
    pub(crate) fn command() -> Command {
        let command =
            Command::new("bench").about("Put load on a route, and report latencies, rates and errors").after_help(HELP);
        let url = Arg::new("url").value_name("URL").required(true).value_parser(place);
        let command = command.arg(url.help("The server, such as http://127.0.0.1:8000 or quic://127.0.0.1:4433"));
        RequestArgs::declare(command).args(load_args()).args(report_args())
    }

    /// Reads the matches of clap.
    pub(crate) fn from_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let assertions = matches.get_many::<Assertion>("assert").into_iter().flatten().cloned().collect();
        let (place, versus) = (value_of::<ServerUrl>(matches, "url"), matches.get_one::<ServerUrl>("vs").cloned());
        let number = |name: &str| matches.get_one::<u16>(name).map(|number| usize::from(*number));
        let is_quic = place.is_quic() && versus.as_ref().is_none_or(ServerUrl::is_quic);
        // A connection over QUIC has its own socket and thread, and many calls at a time.
        let (connections, streams) = match (number("connections"), number("streams")) {
            (None, streams) if is_quic => (1, streams.unwrap_or(DEFAULT_IN_FLIGHT)),
            (connections, streams) => (connections.unwrap_or(DEFAULT_IN_FLIGHT), streams.unwrap_or(1)),
        };
        let args = Self {
            place,
            request: RequestArgs::from_matches(matches),
            versus,
            rounds: value_of::<u16>(matches, "rounds").into(),
            json: value_of::<String>(matches, "format") == "json",
            plot: matches.get_one::<PathBuf>("plot").cloned(),
            assertions,
            anyway: matches.get_flag("anyway"),
            connections,
            streams,
            threads: number("threads").unwrap_or_else(cores),
            schedule: matches.get_one::<Schedule>("rate").copied(),
            requests: matches.get_one::<u64>("requests").copied(),
            duration: value_of(matches, "duration"),
            warm_up: value_of(matches, "warm-up"),
        };
        args.request.check(&args.places(), &[])?;
        args.consistent().map_err(|problem| clap::Error::raw(clap::error::ErrorKind::ArgumentConflict, problem))?;
        Ok(args)
    }

    fn places(&self) -> Vec<&ServerUrl> {
        std::iter::once(&self.place).chain(&self.versus).collect()
    }

    fn consistent(&self) -> Result<(), String> {
        let speaks_http = self.places().iter().any(|place| !place.is_quic());
        if self.streams > 1 && self.request.protocol == Protocol::Http1 && speaks_http {
            return Err("--streams needs --http2: HTTP/1.1 has one request at a time".to_owned());
        }
        if let Some(assertion) =
            self.assertions.iter().find(|assertion| assertion.needs_comparison() && self.versus.is_none())
        {
            return Err(format!("--assert {assertion} needs --vs: a ratio is between two targets"));
        }
        Ok(())
    }

    /// The load of one round. Two targets share the duration between their rounds, each with its own warm-up.
    pub(crate) fn load(&self) -> Load {
        let rounds = if self.versus.is_some() { self.rounds } else { 1 };
        let share = u32::try_from(rounds).unwrap_or(1);
        Load {
            connections: self.connections,
            streams: self.streams,
            threads: self.threads.min(self.connections),
            schedule: self.schedule,
            warm_up: self.warm_up / share,
            duration: self.duration / share,
            requests: self.requests.map_or(u64::MAX, |requests| requests.div_ceil(rounds as u64)),
            timeout: self.request.timeout,
        }
    }
}

// One paragraph is one line, which clap wraps at the width of the terminal.
const HELP: &str = "\
The load is a closed loop unless --rate is given. In an open loop a request's latency counts from when it was due, so \
it includes the wait for a free connection.

An assertion bounds p50 … p99.99, mean, min, max (us, ms, s), rps, ok, errors (%) or, with --vs, ratio (of rps): \
--assert 'p99<20ms'

Exit codes: 0 all assertions hold; 1 an assertion fails, or nothing could be measured; 2 the command line is wrong; 130 \
or 143 a signal (SIGINT, SIGTERM) ended it early, and the report has the figures so far.";

fn load_args() -> Vec<Arg> {
    let number = |name: &'static str, value_name: &'static str| {
        Arg::new(name).long(name).value_name(value_name).help_heading("Load")
    };
    vec![
        number("connections", "NUMBER")
            .short('c')
            .value_parser(value_parser!(u16).range(1..))
            .help("Connections at a time; each costs a file descriptor, and over QUIC a thread [default: 64, over QUIC 1]"),
        number("streams", "NUMBER")
            .value_parser(value_parser!(u16).range(1..=1024))
            .help(
                "Requests at a time on each connection, with --http2 or over QUIC [default: 1, over one QUIC connection 64]",
            ),
        number("rate", "PER_SECOND")
            .short('r')
            .value_parser(rate)
            .help("Open loop: send this many requests per second, however slow the answers"),
        number("duration", "DURATION")
            .short('d')
            .default_value("10s")
            .value_parser(duration)
            .help("How long to measure"),
        number("requests", "NUMBER")
            .short('n')
            .value_parser(value_parser!(u64).range(1..))
            .help("Stop after this many requests, if that is sooner"),
        number("warm-up", "DURATION")
            .default_value("1s")
            .value_parser(warm_up)
            .help("How long to put load on before measuring; 0s for none"),
        number("threads", "NUMBER")
            .value_parser(value_parser!(u16).range(1..=1024))
            .help("Threads that send [default: one per core]"),
        Arg::new("anyway")
            .long("anyway")
            .action(ArgAction::SetTrue)
            .help_heading("Load")
            .help("Measure even if the first answer is an error"),
    ]
}

fn report_args() -> Vec<Arg> {
    let arg = |name: &'static str| Arg::new(name).long(name).help_heading("Report");
    vec![
        arg("vs").value_name("URL").value_parser(place).help("A second target: the two take turns and are compared"),
        arg("rounds")
            .value_name("NUMBER")
            .default_value("5")
            .requires("vs")
            .value_parser(value_parser!(u16).range(1..=100))
            .help("How often the two take turns"),
        arg("assert")
            .value_name("BOUND")
            .action(ArgAction::Append)
            .value_parser(|text: &str| text.parse::<Assertion>())
            .help("Exit with code 1 unless this holds, such as 'p99<20ms'; may be repeated"),
        arg("format")
            .value_name("FORM")
            .default_value("table")
            .value_parser(["table", "json"])
            .help("Format of the report on stdout"),
        arg("plot")
            .value_name("FILE.svg | FILE.html")
            .value_parser(plot)
            .help("Draw the latencies, and how they developed over time"),
    ]
}

/// The default number of requests in flight.
const DEFAULT_IN_FLIGHT: usize = 64;

fn place(text: &str) -> Result<ServerUrl, String> {
    text.parse()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn rate(text: &str) -> Result<Schedule, String> {
    let rate = text.parse().ok().and_then(Schedule::with_rate);
    rate.ok_or_else(|| {
        format!("expected requests per second from {} to {}, found `{text}`", RATES.start(), RATES.end())
    })
}

fn warm_up(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Some(Duration::ZERO) => Ok(Duration::ZERO),
        _ => duration(text),
    }
}

fn plot(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_known = path.extension().is_some_and(|extension| extension == "svg" || extension == "html");
    if is_known { Ok(path) } else { Err(format!("expected a file that ends in .svg or .html, found `{text}`")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<BenchArgs, String> {
        let matches = BenchArgs::command().try_get_matches_from(line.split_whitespace());
        matches.and_then(|matches| BenchArgs::from_matches(&matches)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_of_the_arguments_is_valid() {
        BenchArgs::command().debug_assert();
    }

    /// A line that ends long before the edge, and is not the last of its paragraph, was broken by hand.
    #[test]
    fn the_help_breaks_lines_only_at_the_terminal_width() {
        let help = BenchArgs::command().term_width(70).render_long_help().to_string();
        let words = help.lines().skip_while(|line| !line.starts_with("The load is")).collect::<Vec<_>>();
        for pair in words.windows(2) {
            assert!(pair[0].is_empty() || pair[1].is_empty() || pair[0].len() > 50, "{pair:?}");
        }
        assert!(words.len() > 6, "{help}");
    }

    #[test]
    fn two_targets_share_the_time_between_their_rounds() {
        let args =
            parse("bench http://a /x --vs http://b --rounds 4 -d 8s --warm-up 2s -n 10 -c 3 --threads 8").unwrap();
        let load = args.load();
        assert_eq!((load.duration, load.warm_up), (Duration::from_secs(2), Duration::from_millis(500)));
        assert_eq!((load.requests, load.connections, load.threads), (3, 3, 3));
        assert_eq!(parse("bench a /x -d 8s").unwrap().load().duration, Duration::from_secs(8));
    }

    #[test]
    fn the_default_concurrency_over_quic_equals_that_over_http() {
        let load = |line: &str| parse(line).map(|args| (args.load().connections, args.load().streams)).unwrap();
        assert_eq!(load("bench a /x"), (64, 1));
        assert_eq!(load("bench quic://a:1 /x"), (1, 64));
        assert_eq!(load("bench quic://a:1 /x --streams 3"), (1, 3));
        assert_eq!(load("bench quic://a:1 /x -c 3"), (3, 1));
        assert_eq!(load("bench quic://a:1 /x --vs http://b"), (64, 1));
    }

    #[test]
    fn contradicting_arguments_are_refused_with_a_reason() {
        for (line, part) in [
            ("bench a /x --streams 2", "--streams needs --http2"),
            ("bench quic://a:1 /x --vs http://b --streams 2", "--streams needs --http2"),
            ("bench quic://a:1 /x --http2", "--http2: there is no HTTP between here and quic://a:1"),
            ("bench quic://a /x", "expected a port"),
            ("bench a /x --cluster d", "--cluster: an identity is shown over QUIC only"),
            ("bench a /x --assert ratio>1", "needs --vs"),
            ("bench a /x --rounds 3", "--vs"),
            ("bench a /x --rate 0", "requests per second from"),
            ("bench a /x --plot picture.png", "ends in .svg or .html"),
            ("bench a x", "a route begins with `/`"),
            ("bench a /x --json {", "not valid JSON"),
            ("bench a /x --json {} --file y", "cannot be used with"),
            ("bench a /x -d 0s", "from 1ms to 1h"),
            ("bench ftp://a /x", "http, https and quic are spoken here"),
            ("bench quic://a:1/x /x", "the route is a separate argument"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
