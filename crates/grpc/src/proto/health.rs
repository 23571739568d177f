//! `grpc.health.v1`.

use prost::{Enumeration, Message};

/// The request of `Check` and `Watch`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub(crate) service: String,
}

/// The state of a service.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub(crate) status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub(crate) enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    /// Only `Watch` answers so.
    ServiceUnknown = 3,
}
