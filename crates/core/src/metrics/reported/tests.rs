//! What the families of other processes add up, and which samples they refuse.

use super::*;
use crate::metrics::families::MAX_ENDED;

fn sample(name: &str, labels: &[(&str, &str)], value: ReportedValue) -> ReportedSample {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    ReportedSample { name: name.to_owned(), help: format!("Help of {name}"), labels, value }
}

fn reason(reporter: &SampleReporter, sample: ReportedSample) -> String {
    reporter.families.0.lock().add(reporter, sample).unwrap_err()
}

#[test]
fn counters_and_histograms_outlive_their_process_and_gauges_do_not() {
    let families = Arc::<ReportedFamilies>::default();
    let stage = StageName::from("s");
    let first = families.reporter(&stage, 0);
    let observed =
        |counts: &[u64], sum| ReportedValue::Histogram { bounds: vec![0.5, 2.0], counts: counts.to_vec(), sum };
    let model = [("model", "a\"\\\n")];
    first.report(sample("tokens", &model, ReportedValue::Counter(3.0)));
    first.report(sample("size", &[], ReportedValue::Gauge(7.5)));
    first.report(sample("seconds", &[], observed(&[1, 0, 2], 9.0)));
    let second = families.reporter(&stage, 0);
    second.report(sample("size", &[], ReportedValue::Gauge(f64::NEG_INFINITY)));
    drop(first);
    second.report(sample("tokens_total", &model, ReportedValue::Counter(0.25)));
    second.report(sample("seconds", &[], observed(&[0, 1, 0], 1.0)));
    assert_eq!(
        families.encode(),
        "# HELP seconds Help of seconds\n# TYPE seconds histogram\n\
         seconds_bucket{le=\"0.5\",stage=\"s\"} 1\nseconds_bucket{le=\"2.0\",stage=\"s\"} 2\n\
         seconds_bucket{le=\"+Inf\",stage=\"s\"} 4\nseconds_sum{stage=\"s\"} 10.0\nseconds_count{stage=\"s\"} 4\n\
         # HELP size Help of size\n# TYPE size gauge\nsize{stage=\"s\",replica=\"0\"} -Inf\n\
         # HELP tokens Help of tokens\n# TYPE tokens counter\n\
         tokens_total{model=\"a\\\"\\\\\\n\",stage=\"s\"} 3.25\n",
        "the gauge of the new process stays when the old one ends"
    );
    drop(second);
    assert!(!families.encode().contains("size{"), "{}", families.encode());
    // A line of the counter, and five of the histogram.
    assert_eq!(families.0.lock().stages[&stage].page.series, 6);
}

#[test]
fn what_does_not_fit_is_refused_with_the_limit() {
    let families = Arc::<ReportedFamilies>::default();
    let reporter = families.reporter(&"s".into(), 0);
    let counter = |name: &str, labels: &[(&str, &str)]| sample(name, labels, ReportedValue::Counter(1.0));
    reporter.report(counter("taken", &[]));
    let long = "x".repeat(201);
    let labels: Vec<_> = (0..11).map(|n| format!("l{n}")).collect();
    let labels: Vec<_> = labels.iter().map(|name| (&**name, "")).collect();
    let observed = |bounds: Vec<f64>, counts, sum| sample("h", &[], ReportedValue::Histogram { bounds, counts, sum });
    let histogram = |bounds, counts| observed(bounds, counts, 0.0);
    for (sample, expected) in [
        (counter("a-b", &[]), "at most 200 ASCII letters"),
        (counter("", &[]), "at most 200 ASCII letters"),
        (counter(&long, &[]), "at most 200 ASCII letters"),
        (counter("callboard_x", &[]), "names that begin with callboard_ are the node's"),
        (counter("x", &[("stage", "t")]), "the label stage is the node's"),
        (counter("x", &[("a:b", "t")]), "at most 200 ASCII letters"),
        (counter("x", &[("a", "1"), ("a", "2")]), "a label twice"),
        (counter("x", &[("a", &long)]), "a value of the label a has more than 200 bytes"),
        (counter("x", &labels), "at most 10 labels"),
        (sample("x", &[], ReportedValue::Counter(-1.0)), "a counter only grows"),
        (sample("x", &[], ReportedValue::Counter(f64::NAN)), "a counter only grows"),
        (sample("taken", &[], ReportedValue::Counter(f64::INFINITY)), "by finite numbers"),
        (observed(vec![], vec![1], f64::NAN), "the sum of a histogram is finite"),
        (observed(vec![], vec![1], f64::NEG_INFINITY), "the sum of a histogram is finite"),
        (sample("taken", &[], ReportedValue::Gauge(1.0)), "it is a counter already"),
        (sample("taken_total", &[], ReportedValue::Gauge(1.0)), "another metric has the name taken_total"),
        (histogram(vec![1.0; 2], vec![0; 3]), "at most 50 finite bounds in ascending order"),
        (histogram(vec![1.0], vec![0; 3]), "a bucket more than bounds"),
    ] {
        let found = reason(&reporter, sample);
        assert!(found.contains(expected), "{found}");
    }
    assert_eq!(families.encode(), "# HELP taken Help of taken\n# TYPE taken counter\ntaken_total{stage=\"s\"} 1.0\n");
}

#[test]
fn sums_stay_finite() {
    let families = Arc::<ReportedFamilies>::default();
    let reporter = families.reporter(&"s".into(), 0);
    for sum in [f64::MAX, f64::MAX, -1.0] {
        let observed = ReportedValue::Histogram { bounds: vec![], counts: vec![1], sum };
        reporter.report(sample("seconds", &[], observed));
        reporter.report(sample("tokens", &[], ReportedValue::Counter(sum.abs())));
    }
    let text = families.encode();
    assert!(text.contains("seconds_sum{stage=\"s\"} 1.79") && text.contains("_total{stage=\"s\"} 1.79"), "{text}");
}

#[test]
fn a_gauge_outlives_a_younger_process_with_the_same_stage_and_replica() {
    let families = Arc::<ReportedFamilies>::default();
    let size = |value| sample("size", &[], ReportedValue::Gauge(value));
    let (current, canary) = (families.reporter(&"s".into(), 0), families.reporter(&"s".into(), 0));
    canary.report(size(2.0));
    current.report(size(1.0));
    let shown = || families.encode().lines().last().unwrap_or_default().to_owned();
    assert_eq!(shown(), "size{stage=\"s\",replica=\"0\"} 2.0", "the youngest process is shown");
    drop(canary);
    assert_eq!(shown(), "size{stage=\"s\",replica=\"0\"} 1.0");
    drop(current);
    assert_eq!(families.encode(), "");
}

#[test]
fn the_families_series_and_bytes_of_a_stage_are_bounded_and_leave_other_stages_theirs() {
    let families = Arc::<ReportedFamilies>::default();
    let reporter = families.reporter(&"s".into(), 0);
    let user = |n: usize| sample("users", &[("user", &n.to_string())], ReportedValue::Gauge(1.0));
    (0..MAX_SERIES).for_each(|n| reporter.report(user(n)));
    assert_eq!(reason(&reporter, user(MAX_SERIES)), "its stage has at most 10000 series");
    reporter.families.0.lock().add(&reporter, user(0)).unwrap();
    let more = |n: usize| sample(&format!("m{n}"), &[], ReportedValue::Gauge(1.0));
    assert_eq!(reason(&reporter, more(0)), "its stage has at most 10000 series");
    assert_eq!(families.0.lock().families.len(), 1, "what is refused leaves nothing");
    let other = families.reporter(&"t".into(), 0);
    (0..MAX_FAMILIES).for_each(|n| other.report(more(n)));
    assert_eq!(reason(&other, user(0)), "its stage has at most 200 metrics");
    drop(reporter);
    drop(other);
    let state = families.0.lock();
    assert!(state.stages.is_empty() && state.names.is_empty(), "the room of gauges is free again");
}

#[test]
fn a_histogram_has_as_many_series_and_labels_as_lines() {
    let families = Arc::<ReportedFamilies>::default();
    let observed = |labels: &[(&str, &str)]| {
        let bounds: Vec<f64> = (0..50).map(f64::from).collect();
        sample("h", labels, ReportedValue::Histogram { counts: vec![0; 51], bounds, sum: 0.0 })
    };
    let long = "x".repeat(200);
    for (label, limit) in [("", "10000 series"), (&*long, "1048576 bytes of names and labels")] {
        let reporter = families.reporter(&limit.into(), 0);
        let full = (0..200).find_map(|n| {
            reporter.families.0.lock().add(&reporter, observed(&[("n", &n.to_string()), ("l", label)])).err()
        });
        assert_eq!(full.unwrap(), format!("its stage has at most {limit}"));
    }
    assert!(families.encode().len() < 2 * (MAX_BYTES + 64 * MAX_SERIES));
}

#[test]
fn the_sums_of_the_stages_that_ended_last_are_kept() {
    let families = Arc::<ReportedFamilies>::default();
    let count = |stage: &str| {
        let name = format!("tokens_{stage}");
        families.reporter(&stage.into(), 0).report(sample(&name, &[], ReportedValue::Counter(1.0)));
    };
    let living = families.reporter(&"living".into(), 0);
    living.report(sample("tokens", &[], ReportedValue::Counter(1.0)));
    for n in 0..=MAX_ENDED {
        count(&format!("s{n}"));
        count("steady");
    }
    let text = families.encode();
    assert!(text.contains(&format!("tokens_steady_total{{stage=\"steady\"}} {}.0", MAX_ENDED + 1)), "{text}");
    assert!(text.contains("tokens_total{stage=\"living\"} 1.0") && text.contains("tokens_s2_total"), "{text}");
    assert!(!text.contains("tokens_s1_total"), "{text}");
    assert_eq!(families.0.lock().stages.len(), MAX_ENDED + 1);
    assert!(!families.0.lock().names.contains("tokens_s1"), "its name is free");
}

#[test]
fn all_stages_of_a_node_have_a_limit_together_at_which_those_that_ended_give_way() {
    let families = Arc::<ReportedFamilies>::default();
    let user = |n: usize| sample("users", &[("user", &n.to_string())], ReportedValue::Counter(1.0));
    let fill = |stage: String| {
        let reporter = families.reporter(&stage.as_str().into(), 0);
        (0..MAX_SERIES).for_each(|n| reporter.report(user(n)));
        reporter
    };
    let mut running: Vec<_> = (0..SHARES_OF_NODE).map(|n| fill(format!("s{n}"))).collect();
    let late = families.reporter(&"late".into(), 0);
    assert_eq!(reason(&late, user(0)), "all stages of the node have at most 100000 series");
    families.0.lock().add(&running[0], user(0)).unwrap();
    assert_eq!(families.0.lock().stages["late"].page.series, 0, "what is refused takes no room");

    drop(running.pop());
    drop(running.pop());
    let shown = |stage: &str| families.encode().contains(&format!("stage=\"{stage}\""));
    assert!(shown("s8") && shown("s9"), "their sums stay while there is room");
    late.report(user(0));
    assert!(shown("late") && !shown("s9") && shown("s8"), "the stage that ended first gives way");
}
