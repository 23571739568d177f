//! The messages of the services, as prost has them.

pub(crate) mod config;
pub(crate) mod health;
pub(crate) mod inference;
pub(crate) mod reflection;
pub(crate) mod statistics;
