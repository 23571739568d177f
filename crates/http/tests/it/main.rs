//! The edge on real loopback sockets, with honest and hostile clients.

#![allow(clippy::unwrap_used, reason = "clippy allows it in test functions by itself, but not in what they share")]

mod accept;
mod access;
mod admin;
mod asgi;
mod auth;
mod calls;
mod chosen;
mod client;
mod compression;
mod ending;
mod floods;
mod formats;
mod forms;
mod functions;
mod hostile;
mod hosts;
mod http2;
mod lingering;
mod live;
mod methods;
mod mounted;
mod observed;
mod oip;
mod oip_errors;
#[cfg(feature = "otlp")]
mod otlp;
mod outcomes;
mod pages;
mod predict;
mod protocols;
mod refusals;
mod spans;
mod statuses;
mod streams;
mod support;
mod timelines;
mod tls;
mod upgrades;
