//! Tests of a user's app: on virtual time, with fakes in the place of stages and nodes, on several nodes in one
//! process, and as seeded simulations.

mod app;
mod chance;
mod cluster;
mod counter_history;
mod env;
mod peer;
mod simulation;
mod state_store;
pub(crate) mod without_stages;

pub use app::TestApp;
pub use chance::Chance;
pub use cluster::{ClusterSimulation, TestCluster, TestNodes};
pub use counter_history::{CounterAnswer, CounterOperation, CounterOutcome, CounterViolation, check_counter};
pub use env::env_number;
pub use peer::TestPeer;
pub use simulation::{Simulation, SimulationRun};
pub use state_store::{MemoryStore, check_state_store};
