//! For the tests of one's own app: starts it on virtual time, with fakes in the place of stages, and plays seeded
//! simulations of it.

mod app;
mod chance;
mod simulation;

pub use app::TestApp;
pub use chance::Chance;
pub use simulation::{Simulated, Simulation};
