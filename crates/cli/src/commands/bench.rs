//! `callboard bench`: measures one target, or two in turns, and reports.
//!
//! A single request goes first and must succeed, because a load of refusals measures the wrong thing. The first
//! interrupt ends the load, and the report has the figures so far. The second one ends the program at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use callboard_bench::{
    Load, LoadSummary, Progress, Report, RoundPair, Stats, Target, TargetLabel, round, starts_with_first,
};
use callboard_http_client::{Protocol, Trust};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::bench_args::BenchArgs;
use super::block_on;
use crate::client::{ServerUrl, trust};
use crate::error::{CliError, chain};
use crate::identity::identity;
use crate::signals::Signals;
use crate::{output, plain};

/// The time between two updates of the progress bar.
const TICK: Duration = Duration::from_millis(100);

/// Measures, prints the report, and fails if an assertion fails.
pub(crate) fn run(args: &BenchArgs) -> Result<(), CliError> {
    let load = args.load();
    let places = std::iter::once(&args.place).chain(&args.versus);
    let trust = trust::read(args.request.ca_file.as_deref(), places.filter_map(ServerUrl::origin))?;
    let (target, words) = LabelledTarget::new(args, &args.place, trust.as_ref())?;
    let mut targets = vec![target];
    if let Some(versus) = &args.versus {
        targets.push(LabelledTarget::new(args, versus, trust.as_ref())?.0);
    }
    let (report, interrupted) = block_on(async {
        for target in &targets {
            target.try_once(&load, args.anyway).await?;
        }
        measure(args, &load, targets, words).await
    })?;
    // The figures first: they must not be lost if the plot cannot be written.
    output::result(if args.json { report.json() } else { report.table(plain::line).trim_end().to_owned() })?;
    if let Some(path) = &args.plot {
        let is_page = path.extension().is_some_and(|extension| extension == "html");
        output::file(path, if is_page { report.html(plain::line) } else { report.svg() }.trim_end())?;
    }
    match interrupted {
        // An incomplete run does not check assertions.
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

/// A target, and its name in the report.
struct LabelledTarget {
    target: Target,
    label: TargetLabel,
}

impl LabelledTarget {
    /// The target, and a description of its requests.
    fn new(args: &BenchArgs, place: &ServerUrl, trust: Option<&Trust>) -> Result<(Self, String), CliError> {
        let request = &args.request;
        match place {
            ServerUrl::Http(origin) => {
                let (calls, words) = request.calls()?;
                let target = Target::http(origin, request.protocol, trust.cloned(), &calls);
                let target = target.map_err(|error| CliError::Usage(chain(&error)))?;
                let protocol = match request.protocol {
                    Protocol::Http1 => "HTTP/1.1",
                    Protocol::Http2 => "HTTP/2",
                };
                let url = origin.url_of(&calls[0].route);
                let label = TargetLabel { method: calls[0].method.clone(), url, protocol };
                Ok((Self { target, label }, words))
            }
            ServerUrl::Quic(url) => {
                let calls = request.source.prepared(&request.route)?;
                let words = match calls.len() {
                    1 => "one value sent".to_owned(),
                    several => format!("{several} values sent in turns"),
                };
                let target = Target::quic(url, identity(args.request.cluster.as_deref())?, &request.route, calls);
                let url = format!("{url}/{}", request.route.trim_start_matches('/'));
                let label = TargetLabel { method: "CALL".to_owned(), url, protocol: "QUIC" };
                Ok((Self { target, label }, words))
            }
        }
    }

    /// Sends one request, which must succeed unless `anyway`.
    async fn try_once(&self, load: &Load, anyway: bool) -> Result<(), CliError> {
        let url = &self.label.url;
        let answer = tokio::time::timeout(load.timeout, self.target.probe(load.timeout)).await;
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
    targets: Vec<LabelledTarget>,
    words: String,
) -> Result<(Report, Option<&'static str>), CliError> {
    let mut signals = Signals::listen().map_err(|error| CliError::because("could not listen for signals", &error))?;
    let (stop, stopped) = watch::channel(false);
    let rounds = if targets.len() == 2 { args.rounds } else { 1 };
    let watch = ProgressDisplay::new(load, rounds * targets.len());
    let summary = LoadSummary::new(load, words);
    let (targets, labels): (Vec<Target>, Vec<TargetLabel>) =
        targets.into_iter().map(|target| (target.target, target.label)).unzip();

    let measuring = all_rounds(targets, load.clone(), rounds, Arc::clone(&watch.progress), stopped);
    tokio::pin!(measuring);
    let mut interrupted = None;
    let all_stats = loop {
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
    let mut report = match <[TargetLabel; 2]>::try_from(labels) {
        Ok(two) => Report::with_comparison(summary, two, pairs(all_stats), &args.assertions),
        Err(mut labels) => {
            let one_round = all_stats.into_iter().next().unwrap_or_else(|| Stats::new(Duration::ZERO));
            Report::new(summary, labels.remove(0), one_round, &args.assertions)
        }
    };
    report.interrupted = interrupted.is_some();
    Ok((report, interrupted))
}

/// Runs all rounds. The result has one value per target and round; the first target's is before the second one's.
async fn all_rounds(
    targets: Vec<Target>,
    load: Load,
    rounds: usize,
    progress: Arc<Progress>,
    stop: watch::Receiver<bool>,
) -> Result<Vec<Stats>, CliError> {
    let rounds = spawn_blocking(move || {
        let mut all_stats = Vec::new();
        for index in 0..rounds {
            let mut order: Vec<usize> = (0..targets.len()).collect();
            if !starts_with_first(index) {
                order.reverse();
            }
            let mut measured: Vec<Option<Stats>> = targets.iter().map(|_| None).collect();
            for target in order {
                if *stop.borrow() {
                    // A pair with one missing half cannot be compared.
                    return Ok(all_stats);
                }
                measured[target] = Some(round(&targets[target], &load, &progress, &stop)?);
            }
            all_stats.extend(measured.into_iter().flatten());
        }
        Ok::<_, std::io::Error>(all_stats)
    });
    let all_stats = rounds.await.map_err(|panic| CliError::because("the load ended", &panic))?;
    all_stats.map_err(|error| CliError::because("could not put load on it", &error))
}

fn pairs(all_stats: Vec<Stats>) -> Vec<RoundPair> {
    let mut all_stats = all_stats.into_iter();
    std::iter::from_fn(|| Some(RoundPair { ours: all_stats.next()?, theirs: all_stats.next()? })).collect()
}

/// The progress bar, drawn only if stderr is a terminal.
struct ProgressDisplay {
    bar: ProgressBar,
    progress: Arc<Progress>,
    start: Instant,
}

impl ProgressDisplay {
    fn new(load: &Load, rounds: usize) -> Self {
        let length = (load.warm_up + load.duration) * u32::try_from(rounds).unwrap_or(1);
        let bar = ProgressBar::new(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
        let style = ProgressStyle::with_template("{bar:40} {elapsed_precise}  {msg}").expect("a template that parses");
        bar.set_style(style);
        Self { bar, progress: Arc::default(), start: Instant::now() }
    }

    fn draw(&self) {
        let elapsed = self.start.elapsed();
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
