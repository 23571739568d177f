//! `callboard bench`: measures one target, or two in turns, and reports.
//!
//! One request goes first and has to succeed: a load of refusals is a measurement of something that nobody meant. The first
//! interrupt ends the load and leaves the report of what was measured; the second ends at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use callboard_http::client::{Protocol, Trust};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::super::bench::{Aim, BenchArgs, Load, LoadShown, Named, Progress, Report, Round, Tally, ours_first, round};
use super::super::client::{Place, trust};
use super::super::error::{CliError, chain};
use super::super::identity::identity;
use super::super::output;
use super::super::signals::Signals;
use super::block_on;

/// How often the progress is drawn.
const TICK: Duration = Duration::from_millis(100);

/// Measures, prints, and fails where an assertion does.
pub(crate) fn run(args: &BenchArgs) -> Result<(), CliError> {
    let load = args.load();
    let places = std::iter::once(&args.place).chain(&args.versus);
    let trust = trust::read(args.request.ca_file.as_deref(), places.filter_map(Place::origin))?;
    let (target, words) = Target::new(args, &args.place, trust.as_ref())?;
    let mut targets = vec![target];
    if let Some(versus) = &args.versus {
        targets.push(Target::new(args, versus, trust.as_ref())?.0);
    }
    let (report, interrupted) = block_on(async {
        for target in &targets {
            target.try_once(&load, args.anyway).await?;
        }
        measure(args, &load, targets, words).await
    })?;
    // The figures first: a picture that cannot be written should not cost them.
    output::result(if args.json { report.json() } else { report.table().trim_end().to_owned() })?;
    if let Some(path) = &args.plot {
        let is_page = path.extension().is_some_and(|extension| extension == "html");
        output::file(path, if is_page { report.html() } else { report.svg() }.trim_end())?;
    }
    match interrupted {
        // Bounds that hold so far need not hold to the end.
        Some(signal) => Err(CliError::Interrupted { signal, message: "ended early, with the figures so far" }),
        None => verdict(&report),
    }
}

fn verdict(report: &Report) -> Result<(), CliError> {
    if report.is_empty() {
        return Err(CliError::Failed("nothing was measured".to_owned()));
    }
    match report.failed_assertions() {
        0 => Ok(()),
        1 => Err(CliError::Failed("1 assertion fails".to_owned())),
        failed => Err(CliError::Failed(format!("{failed} assertions fail"))),
    }
}

/// One target, ready to be asked.
struct Target {
    aim: Aim,
    named: Named,
}

impl Target {
    /// With what is sent there, in words.
    fn new(args: &BenchArgs, place: &Place, trust: Option<&Trust>) -> Result<(Self, String), CliError> {
        let request = &args.request;
        match place {
            Place::Http(origin) => {
                let (calls, words) = request.calls()?;
                let aim = Aim::http(origin, request.protocol, trust.cloned(), &calls);
                let aim = aim.map_err(|error| CliError::Usage(chain(&error)))?;
                let protocol = match request.protocol {
                    Protocol::Http1 => "HTTP/1.1",
                    Protocol::Http2 => "HTTP/2",
                };
                let url = origin.url_of(&calls[0].route);
                Ok((Self { aim, named: Named { method: calls[0].method.clone(), url, protocol } }, words))
            }
            Place::Quic(url) => {
                let calls = request.source.prepared(&request.route)?;
                let words = match calls.len() {
                    1 => "one value sent".to_owned(),
                    several => format!("{several} values sent in turns"),
                };
                let aim = Aim::quic(url, identity(args.request.cluster.as_deref())?, &request.route, calls);
                let url = format!("{url}/{}", request.route.trim_start_matches('/'));
                Ok((Self { aim, named: Named { method: "CALL".to_owned(), url, protocol: "QUIC" } }, words))
            }
        }
    }

    /// One request, whose failure would make all figures those of something else.
    async fn try_once(&self, load: &Load, anyway: bool) -> Result<(), CliError> {
        let url = &self.named.url;
        let answer = tokio::time::timeout(load.timeout, self.aim.ask_once(load.timeout)).await;
        let answer = answer.map_err(|_| CliError::Failed(format!("{url}: no answer within {:?}", load.timeout)))?;
        match answer.map_err(|error| CliError::because(url, &*error))? {
            Some(wrong) if !anyway => {
                Err(CliError::Failed(format!("{url} answered {wrong}; --anyway measures that, too")))
            }
            _ => Ok(()),
        }
    }
}

/// The report, and the signal that ended it early.
async fn measure(
    args: &BenchArgs,
    load: &Load,
    targets: Vec<Target>,
    words: String,
) -> Result<(Report, Option<&'static str>), CliError> {
    let mut signals = Signals::listen().map_err(|error| CliError::because("could not listen for signals", &error))?;
    let (stop, stopped) = watch::channel(false);
    let rounds = if targets.len() == 2 { args.rounds } else { 1 };
    let watch = Watch::new(load, rounds * targets.len());
    let shown = LoadShown::new(load, words);
    let (aims, named): (Vec<Aim>, Vec<Named>) = targets.into_iter().map(|target| (target.aim, target.named)).unzip();

    let measuring = all_rounds(aims, load.clone(), rounds, Arc::clone(&watch.progress), stopped);
    tokio::pin!(measuring);
    let mut interrupted = None;
    let tallies = loop {
        tokio::select! {
            biased;
            measured = &mut measuring => break measured?,
            signal = signals.next() => {
                if interrupted.is_some() {
                    return Err(CliError::Interrupted { signal, message: "the second one, ended at once" });
                }
                interrupted = Some(signal);
                stop.send_replace(true);
            }
            () = tokio::time::sleep(TICK) => watch.draw(),
        }
    };
    watch.clear();
    let mut report = match <[Named; 2]>::try_from(named) {
        Ok(two) => Report::of_two(shown, two, pairs(tallies), &args.assertions),
        Err(mut one) => {
            let tally = tallies.into_iter().next().unwrap_or_else(|| Tally::new(Duration::ZERO));
            Report::of_one(shown, one.remove(0), tally, &args.assertions)
        }
    };
    report.interrupted = interrupted.is_some();
    Ok((report, interrupted))
}

/// One tally per target and round: of two targets the first one's before the second one's.
async fn all_rounds(
    aims: Vec<Aim>,
    load: Load,
    rounds: usize,
    progress: Arc<Progress>,
    stop: watch::Receiver<bool>,
) -> Result<Vec<Tally>, CliError> {
    let rounds = spawn_blocking(move || {
        let mut tallies = Vec::new();
        for index in 0..rounds {
            let mut order: Vec<usize> = (0..aims.len()).collect();
            if !ours_first(index) {
                order.reverse();
            }
            let mut measured: Vec<Option<Tally>> = aims.iter().map(|_| None).collect();
            for target in order {
                if *stop.borrow() {
                    // A pair of which one half is missing says nothing.
                    return Ok(tallies);
                }
                measured[target] = Some(round(&aims[target], &load, &progress, &stop)?);
            }
            tallies.extend(measured.into_iter().flatten());
        }
        Ok::<_, std::io::Error>(tallies)
    });
    let tallies = rounds.await.map_err(|panic| CliError::because("the load ended", &panic))?;
    tallies.map_err(|error| CliError::because("could not put load on it", &error))
}

fn pairs(tallies: Vec<Tally>) -> Vec<Round> {
    let mut tallies = tallies.into_iter();
    std::iter::from_fn(|| Some(Round { ours: tallies.next()?, theirs: tallies.next()? })).collect()
}

/// The bar on the terminal; nothing where stderr is none.
struct Watch {
    bar: ProgressBar,
    progress: Arc<Progress>,
    begun: Instant,
}

impl Watch {
    fn new(load: &Load, rounds: usize) -> Self {
        let length = (load.warm_up + load.duration) * u32::try_from(rounds).unwrap_or(1);
        let bar = ProgressBar::new(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
        let style = ProgressStyle::with_template("{bar:40} {elapsed_precise}  {msg}").expect("a template that parses");
        bar.set_style(style);
        Self { bar, progress: Arc::default(), begun: Instant::now() }
    }

    fn draw(&self) {
        let elapsed = self.begun.elapsed();
        let ok = self.progress.ok.load(Ordering::Relaxed);
        let failed = self.progress.failed.load(Ordering::Relaxed);
        self.bar.set_position(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
        let rate = ok as f64 / elapsed.as_secs_f64().max(0.001);
        self.bar.set_message(format!("{ok} answers, {rate:.0}/s, {failed} failed"));
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
