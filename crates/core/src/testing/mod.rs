//! Tests of a user's app: on virtual time, with fakes in the place of stages, and as seeded simulations.

mod app;
mod chance;
mod simulation;

pub use app::TestApp;
pub use chance::Chance;
pub use simulation::{Simulated, Simulation};
