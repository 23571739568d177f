//! The configuration of a model: the part of Triton's message that clients read.

use prost::{Enumeration, Message};
use serde::Deserialize;
use serde::de::Deserializer;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelConfigResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) config: Option<ModelConfig>,
}

#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelConfig {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) platform: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) version_policy: Option<ModelVersionPolicy>,
    #[prost(int32, tag = "4")]
    pub(crate) max_batch_size: i32,
    #[prost(message, repeated, tag = "5")]
    pub(crate) input: Vec<ModelInput>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) output: Vec<ModelOutput>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) instance_group: Vec<ModelInstanceGroup>,
    #[prost(message, optional, tag = "11")]
    #[serde(default)]
    pub(crate) dynamic_batching: Option<ModelDynamicBatching>,
    #[prost(string, tag = "17")]
    pub(crate) backend: String,
    #[prost(message, optional, tag = "19")]
    pub(crate) model_transaction_policy: Option<ModelTransactionPolicy>,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelVersionPolicy {
    #[prost(message, optional, tag = "1")]
    pub(crate) latest: Option<LatestVersions>,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LatestVersions {
    #[prost(uint32, tag = "1")]
    pub(crate) num_versions: u32,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelInput {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(enumeration = "DataType", tag = "2")]
    #[serde(deserialize_with = "number::<DataType, _>")]
    pub(crate) data_type: i32,
    #[prost(int64, repeated, tag = "4")]
    pub(crate) dims: Vec<i64>,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelOutput {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(enumeration = "DataType", tag = "2")]
    #[serde(deserialize_with = "number::<DataType, _>")]
    pub(crate) data_type: i32,
    #[prost(int64, repeated, tag = "3")]
    pub(crate) dims: Vec<i64>,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelInstanceGroup {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(int32, tag = "2")]
    pub(crate) count: i32,
    #[prost(enumeration = "InstanceKind", tag = "4")]
    #[serde(deserialize_with = "number::<InstanceKind, _>")]
    pub(crate) kind: i32,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelDynamicBatching {
    #[prost(int32, repeated, tag = "1")]
    pub(crate) preferred_batch_size: Vec<i32>,
}

#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelTransactionPolicy {
    #[prost(bool, tag = "1")]
    pub(crate) decoupled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(i32)]
pub(crate) enum DataType {
    TypeInvalid = 0,
    TypeBool = 1,
    TypeUint8 = 2,
    TypeUint16 = 3,
    TypeUint32 = 4,
    TypeUint64 = 5,
    TypeInt8 = 6,
    TypeInt16 = 7,
    TypeInt32 = 8,
    TypeInt64 = 9,
    TypeFp16 = 10,
    TypeFp32 = 11,
    TypeFp64 = 12,
    TypeString = 13,
    TypeBf16 = 14,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(i32)]
#[expect(clippy::enum_variant_names, reason = "the protocol's names")]
pub(crate) enum InstanceKind {
    KindAuto = 0,
    KindGpu = 1,
    KindCpu = 2,
    KindModel = 3,
}

/// The number of a variant by its name.
fn number<'de, T: Deserialize<'de> + Into<i32>, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    T::deserialize(deserializer).map(Into::into)
}
