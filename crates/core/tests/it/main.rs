//! Tests of core through its public interface: an app, its node, and an in-process client.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue panics")]

mod actor_life;
mod actors;
mod admission;
mod asynchronous;
mod blocking;
mod calls;
mod cancellation;
mod casts;
mod changes;
mod chaos;
mod composition;
mod containment;
mod context;
mod deadlines;
mod drain;
mod encodings;
mod errors;
mod functions;
mod hung;
mod inner_calls;
mod isolation;
mod load;
mod overload;
mod preprocess;
mod remote_stages;
mod replicas;
mod replies;
mod scaling;
mod sessions;
mod simulated;
mod simulation;
mod sizes;
mod started;
mod statistics;
mod streams;
mod supervision;
mod support;
mod test_app;
mod test_peer;
mod texts;
mod timeline;
mod typed;
mod watchdog;
