//! The message `metrics`: what user code of a child has counted, for the metrics of its node.

use callboard_codec::limited;
use callboard_core::{ReportedSample, ReportedValue};
use serde::{Deserialize, Serialize};

/// The most samples of a message.
const MAX_SAMPLES: usize = 4_096;

/// The most labels of a sample that are read, and the most buckets of a histogram. The node takes fewer.
const MAX_LABELS: usize = 64;
const MAX_BUCKETS: usize = 256;

/// What user code of the child has counted since the last such message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct MetricsMessage {
    #[serde(deserialize_with = "limited::<_, _, MAX_SAMPLES>")]
    pub(crate) samples: Vec<SampleMessage>,
}

/// A sample of a counter, gauge or histogram: it has one of the three values.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SampleMessage {
    name: String,
    #[serde(default)]
    help: String,
    #[serde(default, deserialize_with = "limited::<_, _, MAX_LABELS>")]
    labels: Vec<(String, String)>,
    /// What is added to a counter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    add: Option<f64>,
    /// The value of a gauge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    set: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    observed: Option<ObservedMessage>,
}

/// What is added to a histogram.
#[derive(Debug, Serialize, Deserialize)]
struct ObservedMessage {
    #[serde(deserialize_with = "limited::<_, _, MAX_BUCKETS>")]
    bounds: Vec<f64>,
    #[serde(deserialize_with = "limited::<_, _, MAX_BUCKETS>")]
    counts: Vec<u64>,
    sum: f64,
}

impl SampleMessage {
    /// `None` if it has no value, or several.
    pub(crate) fn sample(self) -> Option<ReportedSample> {
        let Self { name, help, labels, add, set, observed } = self;
        let value = match (add, set, observed) {
            (Some(added), None, None) => ReportedValue::Counter(added),
            (None, Some(value), None) => ReportedValue::Gauge(value),
            (None, None, Some(ObservedMessage { bounds, counts, sum })) => {
                ReportedValue::Histogram { bounds, counts, sum }
            }
            _ => return None,
        };
        Some(ReportedSample { name, help, labels, value })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn read(samples: &Json) -> Result<Vec<Option<ReportedSample>>, String> {
        let head = rmp_serde::to_vec_named(&json!({ "type": "metrics", "samples": samples })).unwrap();
        let message: MetricsMessage = rmp_serde::from_slice(&head).map_err(|error| error.to_string())?;
        Ok(message.samples.into_iter().map(SampleMessage::sample).collect())
    }

    #[test]
    fn a_sample_has_one_of_three_values() {
        let samples = json!([
            { "name": "a", "labels": [["model", "x"]], "add": 3, "later": [] },
            { "name": "b", "help": "B", "set": -0.5 },
            { "name": "c", "observed": { "bounds": [1], "counts": [0, 2], "sum": 5 } },
            { "name": "d" },
            { "name": "e", "add": 1, "set": 1 },
        ]);
        let sample = |name: &str, help: &str, labels: &[(&str, &str)], value| {
            let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            Some(ReportedSample { name: name.to_owned(), help: help.to_owned(), labels, value })
        };
        let observed = ReportedValue::Histogram { bounds: vec![1.0], counts: vec![0, 2], sum: 5.0 };
        let expected = [
            sample("a", "", &[("model", "x")], ReportedValue::Counter(3.0)),
            sample("b", "B", &[], ReportedValue::Gauge(-0.5)),
            sample("c", "", &[], observed),
            None,
            None,
        ];
        assert_eq!(read(&samples).unwrap(), expected);
    }

    #[test]
    fn the_lists_of_a_message_are_bounded_where_they_are_read() {
        let labels = |count| json!([{ "name": "a", "add": 1, "labels": vec![["", ""]; count] }]);
        assert!(read(&labels(MAX_LABELS)).is_ok());
        for samples in [
            json!(vec![json!({ "name": "a", "add": 1 }); MAX_SAMPLES + 1]),
            labels(MAX_LABELS + 1),
            json!([{ "name": "a", "observed": { "bounds": [], "counts": vec![0; MAX_BUCKETS + 1], "sum": 0 } }]),
        ] {
            assert!(read(&samples).unwrap_err().contains("a list of at most"));
        }
    }
}
