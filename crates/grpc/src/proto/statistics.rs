//! The statistics of models.

use std::collections::HashMap;

use prost::Message;
use serde::Deserialize;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelStatisticsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) model_stats: Vec<ModelStatistics>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelStatistics {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(uint64, tag = "3")]
    pub(crate) last_inference: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) inference_count: u64,
    #[prost(uint64, tag = "5")]
    pub(crate) execution_count: u64,
    #[prost(message, optional, tag = "6")]
    pub(crate) inference_stats: Option<InferStatistics>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) batch_stats: Vec<InferBatchStatistics>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) memory_usage: Vec<MemoryUsage>,
    #[prost(map = "string, message", tag = "9")]
    pub(crate) response_stats: HashMap<String, InferResponseStatistics>,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InferStatistics {
    #[prost(message, optional, tag = "1")]
    pub(crate) success: Option<StatisticDuration>,
    #[prost(message, optional, tag = "2")]
    pub(crate) fail: Option<StatisticDuration>,
    #[prost(message, optional, tag = "3")]
    pub(crate) queue: Option<StatisticDuration>,
    #[prost(message, optional, tag = "4")]
    pub(crate) compute_input: Option<StatisticDuration>,
    #[prost(message, optional, tag = "5")]
    pub(crate) compute_infer: Option<StatisticDuration>,
    #[prost(message, optional, tag = "6")]
    pub(crate) compute_output: Option<StatisticDuration>,
    #[prost(message, optional, tag = "7")]
    pub(crate) cache_hit: Option<StatisticDuration>,
    #[prost(message, optional, tag = "8")]
    pub(crate) cache_miss: Option<StatisticDuration>,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StatisticDuration {
    #[prost(uint64, tag = "1")]
    pub(crate) count: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) ns: u64,
}

/// Not measured: there is none.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InferBatchStatistics {}

/// Not measured: there is none.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MemoryUsage {}

/// Not measured: there is none.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InferResponseStatistics {}
