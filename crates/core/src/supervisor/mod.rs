//! Supervision: start, restart, and when to give up.
//!
//! ```text
//! node
//! ├── gateway            admission, ledger, drain
//! ├── router             the table of routes
//! └── deployment (one per stage)
//!     ├── batcher        the queue
//!     └── worker …       one per replica: user code lives here and may die here
//! ```
//!
//! Important state is near the root, risky work is in the leaves. A crash ends one replica. A replica that began a
//! batch is started again at once: the batch answers for the crash. A replica that dies before its first batch twice in
//! a row is in a crash *loop*: it waits longer, and after [`RestartIntensity`](crate::RestartIntensity) is exceeded it
//! waits up to a minute. If no other replica is up, its stage is `Failed` meanwhile, which its routes and the readiness
//! report. The other stages continue.

mod deployment;
mod early_deaths;
mod loaded;
mod message;
mod places;
mod recovery;
mod scale;
mod scaler;

pub(crate) use deployment::{DeploymentActor, DeploymentArgs};
pub(crate) use early_deaths::{EarlyDeath, EarlyDeaths};
pub(crate) use loaded::LoadedLimits;
pub(crate) use message::{DeploymentMessage, ScaleError};
pub(crate) use places::Places;
